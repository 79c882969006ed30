#include "disk/own_file.h"

#include <errno.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace olpager::disk {
namespace {
constexpr size_t kMapped = 4096;
}

Result<OwnFile> OwnFile::make(base::UniqueFd fd) {
  OwnFile file;
  file.identity_ = FileIdentity::of(fd.get());
  void* const mapped = mmap(nullptr, kMapped, PROT_NONE, MAP_PRIVATE, fd.get(), 0);
  if (mapped == MAP_FAILED) return Error{std::strerror(errno)};
  (void)madvise(mapped, kMapped, MADV_DONTFORK);
  file.mapped_ = mapped;
  file.fd_ = std::move(fd);
  return file;
}

OwnFile::OwnFile(OwnFile&& other) noexcept { *this = std::move(other); }

OwnFile& OwnFile::operator=(OwnFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(identity_, other.identity_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

OwnFile::~OwnFile() {
  if (fd_ && !identity_.isStill(fd_.get())) (void)fd_.release();
  if (mapped_ != nullptr) munmap(mapped_, kMapped);
}

}  // namespace olpager::disk
