#include "coherence/transport/core/own_descriptors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace olpager::transport {
namespace {

constexpr size_t kMost = 65536;

// By number. Atomics: a fork may come at any moment. An inode is never 0.
struct Entry {
  std::atomic<uint64_t> device{0}, inode{0};
};
Entry g_entries[kMost];
std::atomic<size_t> g_end{0};  // all below it were noted at most

}  // namespace

void noteOwnDescriptor(int fd) {
  struct stat is {};
  if (fd < 0 || static_cast<size_t>(fd) >= kMost || fstat(fd, &is) != 0) return;
  Entry& entry = g_entries[fd];
  entry.inode.store(0);
  entry.device.store(is.st_dev);
  entry.inode.store(is.st_ino);
  const size_t end = static_cast<size_t>(fd) + 1;
  size_t before = g_end.load();
  while (before < end && !g_end.compare_exchange_weak(before, end)) {
  }
}

void forgetOwnDescriptor(int fd) {
  if (fd >= 0 && static_cast<size_t>(fd) < kMost) g_entries[fd].inode.store(0);
}

void closeInForkedChild() {
  const size_t end = g_end.load();
  for (size_t fd = 0; fd < end; ++fd) {
    const uint64_t inode = g_entries[fd].inode.exchange(0);
    struct stat is {};
    if (inode == 0 || fstat(static_cast<int>(fd), &is) != 0) continue;
    if (is.st_ino == inode && is.st_dev == g_entries[fd].device.load())
      (void)close(static_cast<int>(fd));
  }
}

}  // namespace olpager::transport
