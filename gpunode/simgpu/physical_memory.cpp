// VRAM frames and the physical memory behind handles and allocations.
//
// A chunk's bytes have a permanent alias in the process: frames lie in the device's VRAM mapping;
// host chunks lie in one sparse memfd that is mapped whole, so that a chunk costs no descriptor and
// no mapping; shared chunks (exportable or imported) have a memfd of their own, with a page behind
// the bytes that says what they are.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/fd.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/memory.h"

namespace olpager::simgpu {

namespace {

constexpr unsigned char kScribble = 0xA5;
constexpr uint64_t kHostArenaBytes = 1ull << 40;
constexpr uint64_t kHostArenaLeast = 1ull << 30;
constexpr uint64_t kSharedMagic = 0x6c6f6d697363756dull;

/// PROT_READ | PROT_WRITE, 2 MiB-aligned; null when there is no address space.
std::byte* mapAligned(uint64_t bytes, int flags, int fd) {
  void* reserved = mmap(nullptr, bytes + kPageBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(reserved);
  const uint64_t aligned = (start + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
           flags | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    munmap(reserved, bytes + kPageBytes);
    return nullptr;
  }
  if (aligned != start) munmap(reserved, aligned - start);
  const uint64_t tail = start + kPageBytes - aligned;
  if (tail != 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  // A forked child has no use for the GPU's memory, and the parent no use for copy-on-write faults
  // in it.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_DONTFORK);
  return reinterpret_cast<std::byte*>(aligned);
}

/// Host chunks: ranges of one memfd.
class HostArena {
 public:
  static HostArena& get() {
    static HostArena* const arena = new HostArena;
    return *arena;
  }
  /// -1 when the machine's memory would not hold it.
  int64_t take(uint64_t bytes) {
    std::scoped_lock lock(mutex_);
    if (base_ == nullptr && !open()) return -1;
    if (used_ + bytes > limit_) return -1;
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const uint64_t offset = it->first, rest = it->second - bytes;
      free_.erase(it);
      if (rest != 0) free_[offset + bytes] = rest;
      used_ += bytes;
      return static_cast<int64_t>(offset);
    }
    return -1;
  }
  void give(uint64_t offset, uint64_t bytes) {
    (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
    std::scoped_lock lock(mutex_);
    used_ -= bytes;
    auto next = free_.emplace(offset, bytes).first;
    auto after = std::next(next);
    if (after != free_.end() && next->first + next->second == after->first) {
      next->second += after->second;
      free_.erase(after);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == next->first) {
        before->second += next->second;
        free_.erase(next);
      }
    }
  }
  std::byte* at(uint64_t offset) const { return base_ + offset; }
  int fd() const { return fd_; }

 private:
  bool open() {
    if (fd_ < 0) fd_ = memfd_create("olsim-host", MFD_CLOEXEC);
    if (fd_ < 0) return false;
    // Sparse, so as large as the process has room for addresses (sanitizers leave less).
    uint64_t bytes = kHostArenaBytes;
    for (; base_ == nullptr && bytes >= kHostArenaLeast; bytes /= 2)
      if (base::resizeFile(fd_, bytes)) base_ = mapAligned(bytes, MAP_SHARED, fd_);
    if (base_ == nullptr) return false;
    limit_ = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
             static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    free_[0] = 2 * bytes;
    return true;
  }
  std::mutex mutex_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  uint64_t limit_ = 0;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> free_;
};

/// Behind the bytes of a shared chunk.
struct SharedTrailer {
  uint64_t magic;
  uint64_t bytes;
  uint32_t location_type;
  int32_t location_id;
};

size_t pagesOf(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

}  // namespace

Vram::Vram(uint64_t bytes, bool scribble, PageTable* readers)
    : total_(bytes / kPageBytes),
      scribble_(scribble),
      readers_(readers),
      used_(total_),
      free_(total_) {
  base_ = mapAligned(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (base_ == nullptr) throw std::bad_alloc();
}

Vram::~Vram() { munmap(base_, totalBytes()); }

bool Vram::take(size_t count, std::vector<uint32_t>* frames) {
  std::unique_lock lock(mutex_);
  if (count > free_) return false;
  free_ -= count;
  frames->reserve(count);
  for (size_t left = count; left != 0; next_ = (next_ + 1) % total_) {
    if (used_[next_]) continue;
    used_[next_] = true;
    frames->push_back(static_cast<uint32_t>(next_));
    --left;
  }
  lock.unlock();
  if (scribble_)
    for (uint32_t number : *frames) std::memset(frame(number), kScribble, kPageBytes);
  return true;
}

void Vram::give(const std::vector<uint32_t>& frames) {
  if (frames.empty()) return;
  readers_->waitForReaders();
  for (uint32_t number : frames) {
    if (scribble_) {
      std::memset(frame(number), kScribble, kPageBytes);
    } else {
      madvise(frame(number), kPageBytes, MADV_DONTNEED);
    }
  }
  std::scoped_lock lock(mutex_);
  for (uint32_t number : frames) used_[number] = false;
  free_ += frames.size();
}

bool Vram::charge(size_t count) {
  // Exported chunks live elsewhere, so frames are set aside for them: any will do.
  std::scoped_lock lock(mutex_);
  if (count > free_) return false;
  free_ -= count;
  charged_ += count;
  return true;
}

void Vram::discharge(size_t count) {
  std::scoped_lock lock(mutex_);
  free_ += count;
  charged_ -= count;
}

uint64_t Vram::freeBytes() const {
  std::scoped_lock lock(mutex_);
  return free_ * kPageBytes;
}

std::shared_ptr<Physical> Physical::inVram(Device& device, uint64_t bytes) {
  std::shared_ptr<Physical> made(new Physical);
  if (!device.vram.take(pagesOf(bytes), &made->frames_)) return nullptr;
  made->device_ = &device;
  made->bytes_ = pagesOf(bytes) * kPageBytes;
  return made;
}

std::shared_ptr<Physical> Physical::inHost(uint64_t bytes) {
  const int64_t offset = HostArena::get().take(pagesOf(bytes) * kPageBytes);
  if (offset < 0) return nullptr;
  std::shared_ptr<Physical> made(new Physical);
  made->bytes_ = pagesOf(bytes) * kPageBytes;
  made->fd_offset_ = static_cast<uint64_t>(offset);
  made->fd_ = HostArena::get().fd();
  made->base_ = HostArena::get().at(made->fd_offset_);
  if (Driver::get().settings.scribble) std::memset(made->base_, kScribble, made->bytes_);
  return made;
}

std::shared_ptr<Physical> Physical::shared(Device* device, uint64_t bytes,
                                           const CUmemAllocationProp& properties) {
  std::shared_ptr<Physical> made(new Physical);
  const uint64_t rounded = pagesOf(bytes) * kPageBytes;
  if (device != nullptr) {
    if (!device->vram.charge(pagesOf(bytes))) return nullptr;
    made->device_ = device;
  }
  made->bytes_ = rounded;
  made->own_fd_ = true;
  made->fd_ = memfd_create("olsim-shared", MFD_CLOEXEC);
  if (made->fd_ < 0 || !base::resizeFile(made->fd_, rounded + kSmallPageBytes)) return nullptr;
  made->base_ = mapAligned(rounded + kPageBytes, MAP_SHARED, made->fd_);
  if (made->base_ == nullptr) return nullptr;
  const SharedTrailer trailer{kSharedMagic, rounded,
                              static_cast<uint32_t>(properties.location.type),
                              properties.location.id};
  std::memcpy(made->base_ + rounded, &trailer, sizeof trailer);
  made->properties = properties;
  return made;
}

std::shared_ptr<Physical> Physical::import(int fd, CUresult* error) {
  struct stat info {};
  *error = CUDA_ERROR_INVALID_VALUE;
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < kPageBytes + kSmallPageBytes)
    return nullptr;
  const uint64_t bytes = static_cast<uint64_t>(info.st_size) - kSmallPageBytes;
  SharedTrailer trailer{};
  if (bytes % kPageBytes != 0 ||
      pread(fd, &trailer, sizeof trailer, static_cast<off_t>(bytes)) != sizeof trailer ||
      trailer.magic != kSharedMagic || trailer.bytes != bytes)
    return nullptr;
  std::shared_ptr<Physical> made(new Physical);
  made->bytes_ = bytes;
  made->own_fd_ = true;
  made->fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  *error = CUDA_ERROR_OPERATING_SYSTEM;
  if (made->fd_ < 0) return nullptr;
  made->base_ = mapAligned(bytes + kPageBytes, MAP_SHARED, made->fd_);
  *error = CUDA_ERROR_OUT_OF_MEMORY;
  if (made->base_ == nullptr) return nullptr;
  // The exporter's device holds the charge; an importer only names it.
  made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  made->properties.location.type = static_cast<CUmemLocationType>(trailer.location_type);
  made->properties.location.id = trailer.location_id;
  *error = CUDA_SUCCESS;
  return made;
}

Physical::~Physical() {
  if (!frames_.empty()) {
    device_->vram.give(frames_);
    return;
  }
  // Kernels that still use an old translation of it are waited for before the bytes go.
  for (const auto& device : Driver::get().devices) device->pages.waitForReaders();
  if (own_fd_) {
    if (base_ != nullptr) munmap(base_, bytes_ + kPageBytes);
    if (fd_ >= 0) close(fd_);
    if (device_ != nullptr) device_->vram.discharge(pagesOf(bytes_));
  } else if (base_ != nullptr) {
    if (Driver::get().settings.scribble) std::memset(base_, kScribble, bytes_);
    HostArena::get().give(fd_offset_, bytes_);
  }
}

std::byte* Physical::frameAt(size_t i) const { return device_->vram.frame(frames_[i]); }

bool Physical::mapForCpu(void* address, int protection) const {
  return fd_ >= 0 && mmap(address, bytes_, protection, MAP_SHARED | MAP_FIXED, fd_,
                          static_cast<off_t>(fd_offset_)) != MAP_FAILED;
}

}  // namespace olpager::simgpu
