#include "base/ranked_mutex.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace olpager::base::held_locks {

namespace {

struct Held {
  std::array<LockRank, 16> locks;
  size_t count;
};
__attribute__((tls_model("initial-exec"))) thread_local Held held{};

[[noreturn]] void end(const char* what, const LockRank& taken, const LockRank& other) noexcept {
  dprintf(2, "olpager: %s: %s (rank %u), while the thread holds %s (rank %u)\n", what, taken.name,
          taken.rank, other.name, other.rank);
  std::abort();
}

}  // namespace

void check(const LockRank& rank) noexcept {
  if (rank.rank == 0) return;
  for (size_t i = 0; i < held.count; ++i)
    if (held.locks[i].rank >= rank.rank) end("a lock is taken out of order", rank, held.locks[i]);
}

void add(const LockRank& rank) noexcept {
  if (rank.rank == 0) return;
  if (held.count == held.locks.size()) end("too many locks", rank, held.locks.back());
  held.locks[held.count++] = rank;
}

void remove(const LockRank& rank) noexcept {
  for (size_t i = held.count; i-- > 0;) {
    if (held.locks[i].rank != rank.rank) continue;
    for (--held.count; i < held.count; ++i) held.locks[i] = held.locks[i + 1];
    return;
  }
}

}  // namespace olpager::base::held_locks
