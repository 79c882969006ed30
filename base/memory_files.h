// Files that take RAM, since their file system has no disk. Thread-safety: any thread.
#pragma once

#include <linux/magic.h>
#include <sys/vfs.h>

namespace olpager::base {

/// True for a file or folder of tmpfs or ramfs; false also where the system does not say.
inline bool isInMemory(int fd) {
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return false;
  const auto type = static_cast<unsigned long>(system.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

}  // namespace olpager::base
