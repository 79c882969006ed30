#include "base/own_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace olpager::base {
namespace {

std::atomic<bool> refused{false};

// True if the system has made the copy, as far as it goes.
template <typename Copy>
bool asked(const Copy& copy, uint64_t bytes, bool* whole) {
  if (refused.load(std::memory_order_relaxed)) return false;
  const ssize_t copied = copy();
  *whole = copied == static_cast<ssize_t>(bytes);
  if (copied >= 0 || (errno != EPERM && errno != ENOSYS)) return true;
  refused.store(true, std::memory_order_relaxed);
  return false;
}

}  // namespace

bool readUnlessGone(void* to, uint64_t from, uint64_t bytes) {
  const iovec own{to, bytes}, other{reinterpret_cast<void*>(from), bytes};
  bool whole = true;
  if (!asked([&] { return process_vm_readv(getpid(), &own, 1, &other, 1, 0); }, bytes, &whole))
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return whole;
}

bool writeUnlessGone(uint64_t to, const void* from, uint64_t bytes) {
  const iovec own{const_cast<void*>(from), bytes}, other{reinterpret_cast<void*>(to), bytes};
  bool whole = true;
  if (!asked([&] { return process_vm_writev(getpid(), &own, 1, &other, 1, 0); }, bytes, &whole))
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return whole;
}

}  // namespace olpager::base
