// Mutexes with a rank, and a check that threads take them in order. A component lists its locks in
// one place, each as a LockRank (pager/locks.h, interpose/local/locks.h): the list is the order.
//
// A thread that holds a lock takes only locks of higher ranks. Builds with a sanitizer and debug
// builds (OLPAGER_CHECK_LOCKS) record what each thread holds. A lock that is taken against the
// order ends the process with the names of both, even if no other thread is there to make a
// deadlock of it. In other builds a rank takes no time and no room.
//
// try_lock() waits for nobody and may be called in any order; what it gets counts as held.
#pragma once

#include <mutex>
#include <type_traits>

namespace olpager::base {

/// A lock's place in the order. Two locks of one rank are never held together.
struct LockRank {
  unsigned rank;     // 0: in no order, not checked
  const char* name;  // lives as long as the process
};
inline constexpr LockRank kUnranked{0, ""};

/// The ranks that the calling thread holds. For RankedMutex.
namespace held_locks {
/// Ends the process where the thread holds something of this rank or a higher one.
void check(const LockRank& rank) noexcept;
void add(const LockRank& rank) noexcept;
void remove(const LockRank& rank) noexcept;
}  // namespace held_locks

/// std::mutex in all else. Build with RankedMutex: other choices of `kChecks` are for its test.
template <bool kChecks>
class BasicRankedMutex {
 public:
  explicit constexpr BasicRankedMutex(const LockRank& rank) noexcept : rank_(rank) {}

  void lock() {
    if constexpr (kChecks) held_locks::check(rank_);
    mutex_.lock();
    if constexpr (kChecks) held_locks::add(rank_);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    if constexpr (kChecks) held_locks::add(rank_);
    return true;
  }
  void unlock() {
    if constexpr (kChecks) held_locks::remove(rank_);
    mutex_.unlock();
  }

 private:
  struct Nothing {
    constexpr Nothing(const LockRank&) noexcept {}
  };
  std::mutex mutex_;
  [[no_unique_address]] std::conditional_t<kChecks, LockRank, Nothing> rank_;
};

#ifdef OLPAGER_CHECK_LOCKS
using RankedMutex = BasicRankedMutex<true>;
#else
using RankedMutex = BasicRankedMutex<false>;
static_assert(sizeof(RankedMutex) == sizeof(std::mutex));
#endif

}  // namespace olpager::base
