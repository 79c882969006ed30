#include "coherence/cpu/frames.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace olpager::cpu {
namespace {

/// A signal breaks the allocation of a piece off, which gives the piece back.
constexpr uint64_t kPiece = uint64_t{32} << 20;

bool allocate(int file, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t piece = std::min(kPiece, bytes - at);
    if (fallocate(file, 0, static_cast<off_t>(offset + at), static_cast<off_t>(piece)) == 0) {
      at += piece;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

Error failed(const char* what, uint64_t bytes) {
  return {"managed memory of " + std::to_string(bytes >> 20) + " MiB can't be had: " + what + " (" +
          std::strerror(errno) + "); free host memory, or allocate less"};
}

}  // namespace

Result<std::unique_ptr<Frames>> Frames::make(uint64_t address, uint32_t pages, bool huge,
                                             Memory memory) {
  std::unique_ptr<Frames> frames(new Frames(address, pages));
  if (huge && memory == Memory::kAll && frames->map(true, memory).ok()) return frames;
  frames->unmap();
  if (Status status = frames->map(false, memory); !status.ok()) return status.error();
  return frames;
}

Status Frames::map(bool huge, Memory memory) {
  base_page_ = huge ? space::kPageBytes : static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  file_.reset(memfd_create("olpager-managed", MFD_CLOEXEC | MFD_ALLOW_SEALING |
                                                  (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u)));
  if (!file_) return failed("no file in memory", bytes());
  if (!base::resizeFile(file_.get(), bytes()))
    return failed("its file can't be that long", bytes());
  // Huge pages are reserved by the mapping.
  void* const alias = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (alias == MAP_FAILED) return failed("its frames can't be mapped", bytes());
  alias_ = static_cast<std::byte*>(alias);
  if (memory == Memory::kAll && !allocate(file_.get(), 0, bytes()))
    return failed("there is no memory for its frames", bytes());
  if (mmap(at(address_), bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(), 0) ==
      MAP_FAILED)
    return failed("its view can't be mapped", bytes());
  viewed_ = true;
  // The program can't punch holes (MADV_REMOVE): the GPU's pins would be of memory that nobody
  // sees. If frames have memory in turns nothing is pinned, and a hole is what empty() makes.
  const int no_holes = memory == Memory::kAll ? F_SEAL_FUTURE_WRITE : 0;
  if (fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | no_holes) != 0)
    return failed("its file can't be sealed", bytes());
  // A child has neither: what it writes would be seen here. A core dump would wait for the view's
  // faults to be served.
  for (void* const mapping : {at(address_), alias}) {
    madvise(mapping, bytes(), MADV_DONTFORK);
    madvise(mapping, bytes(), MADV_DONTDUMP);
    // Else the kernel takes each small page that is dropped for one that is used often, and moves
    // it in its lists: that is most of the time that a drop takes.
    madvise(mapping, bytes(), MADV_RANDOM);
  }
  // Before Linux 5.18 a view of huge pages can't be dropped.
  if (!drop(0, pages_)) return failed("its view can't be dropped", bytes());
  return {};
}

void Frames::unmap() {
  if (viewed_) {
    void* const reserve = mmap(at(address_), bytes(), PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    // Too many mappings, of the program's: a touch is a SIGSEGV all the same.
    if (reserve == MAP_FAILED) mprotect(at(address_), bytes(), PROT_NONE);
  }
  if (alias_ != nullptr) munmap(alias_, bytes());
  viewed_ = false;
  alias_ = nullptr;
  file_.reset();
}

Frames::~Frames() { unmap(); }

bool Frames::drop(uint32_t page, uint32_t count) {
  void* const from = at(view(page));
  const uint64_t bytes = count * space::kPageBytes;
  if (madvise(from, bytes, MADV_DONTNEED) == 0) return true;
  // The program locks all of its memory.
  if (madvise(from, bytes, MADV_DONTNEED_LOCKED) == 0) return true;
  return munlock(from, bytes) == 0 && madvise(from, bytes, MADV_DONTNEED) == 0;
}

bool Frames::fill(uint32_t page, uint32_t count) {
  return allocate(file_.get(), page * space::kPageBytes, count * space::kPageBytes);
}

void Frames::empty(uint32_t page, uint32_t count) {
  // Memory that can't be given back stays: the next bytes replace it.
  (void)fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(page * space::kPageBytes),
                  static_cast<off_t>(count * space::kPageBytes));
}

void Frames::close(uint32_t page, uint32_t count) {
  mprotect(at(view(page)), count * space::kPageBytes, PROT_NONE);
}

bool Frames::lose(uint32_t page, uint32_t count) {
  const uint64_t bytes = count * space::kPageBytes;
  if (!nothing_) nothing_.reset(memfd_create("olpager-lost", MFD_CLOEXEC));
  if (nothing_ && mmap(at(view(page)), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       nothing_.get(), 0) != MAP_FAILED) {
    madvise(at(view(page)), bytes, MADV_DONTFORK);
    madvise(at(view(page)), bytes, MADV_DONTDUMP);
    return true;
  }
  close(page, count);
  return false;
}

}  // namespace olpager::cpu
