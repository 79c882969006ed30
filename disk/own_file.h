// A file that a descriptor number stands for. The program may close any descriptor of its process
// (closefrom(), close_range()), and then its next file gets the number: so each use of a descriptor
// asks first whether the number still stands for the file that was opened.
#pragma once

#include <sys/stat.h>

#include <cstdint>

#include "base/fd.h"
#include "base/result.h"

namespace olpager::disk {

/// Names an open file as long as it exists. Thread-safety: a plain value.
struct FileIdentity {
  uint64_t device = 0, inode = 0;  // inode 0: none

  /// `fd`'s; none where it is not open.
  static FileIdentity of(int fd) {
    struct stat is {};
    if (fstat(fd, &is) != 0) return {};
    return {is.st_dev, is.st_ino};
  }
  /// True while `fd` stands for this file. About a third of a microsecond.
  bool isStill(int fd) const {
    const FileIdentity now = of(fd);
    return inode != 0 && now.inode == inode && now.device == device;
  }
};

/// A descriptor that is closed with its owner, unless its number stands for another file by then.
/// The file exists as long as this object, whoever closes the descriptor, so no other file looks
/// like it. Thread-safety: none needed, it never changes.
class OwnFile {
 public:
  OwnFile() = default;
  /// Takes `fd`. The Error is errno's text: the file can't be mapped.
  static Result<OwnFile> make(base::UniqueFd fd);
  OwnFile(OwnFile&& other) noexcept;
  OwnFile& operator=(OwnFile&& other) noexcept;
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile();

  int get() const { return fd_.get(); }
  const FileIdentity& identity() const { return identity_; }

 private:
  base::UniqueFd fd_;
  FileIdentity identity_;
  void* mapped_ = nullptr;  // a page without rights: it keeps the file, and so its inode
};

}  // namespace olpager::disk
