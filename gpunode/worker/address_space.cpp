#include "gpunode/worker/address_space.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/log.h"

namespace olpager::gpunode {
namespace {

constexpr uint64_t kProgramsBegin = 0x6000'0000'0000;
constexpr uint64_t kDriversBegin = 0x5800'0000'0000;
constexpr uint64_t kLeastReservation = 1 << 20;  // less is nobody's to name
constexpr uint64_t kReservationUnit = 64 << 20;  // drivers align theirs, to 32 MiB so far
constexpr int kReservationFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// The end of the next reservation; 0: there is no area. Relaxed: it orders nothing but itself.
std::atomic<uint64_t> reserved_from{0};

void* systemMmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

// Null: the area is used up, and the kernel chooses.
void* nextReservation(size_t bytes) {
  const uint64_t whole = (bytes + kReservationUnit - 1) / kReservationUnit * kReservationUnit;
  uint64_t end = reserved_from.load(std::memory_order_relaxed);
  do {
    if (whole < bytes || end < kDriversBegin || end - kDriversBegin < whole) return nullptr;
  } while (!reserved_from.compare_exchange_weak(end, end - whole, std::memory_order_relaxed));
  return reinterpret_cast<void*>(end - whole);
}

bool isReservation(const void* at, size_t bytes, int protection, int flags) {
  return at == nullptr && bytes >= kLeastReservation && protection == PROT_NONE &&
         (flags | MAP_NORESERVE) == kReservationFlags;
}

// The address that a reservation gets is this process's already, and nobody else's.
[[maybe_unused]] void* placedMmap(void* at, size_t bytes, int protection, int flags, int fd,
                                  off_t offset) {
  if (reserved_from.load(std::memory_order_relaxed) != 0 &&
      isReservation(at, bytes, protection, flags)) {
    if (void* const place = nextReservation(bytes); place != nullptr)
      return systemMmap(place, bytes, protection, flags | MAP_FIXED, fd, offset);
  }
  return systemMmap(at, bytes, protection, flags, fd, offset);
}

}  // namespace

void keepFree(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return;
  const unsigned long long begin = base, end = base + bytes;
  void* const kept = systemMmap(reinterpret_cast<void*>(base), bytes, PROT_NONE,
                                kReservationFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (kept == MAP_FAILED)
    base::logWarn(
        "0x%llx to 0x%llx belong to the program's other sessions, and something is mapped there "
        "(%s)",
        begin, end, std::strerror(errno));
}

void divideAddresses() {
#ifndef OL_PLACES_RESERVATIONS
  return;  // sanitizers' runtimes have places and an mmap() of their own
#endif
  constexpr uint64_t kDriverBytes = kProgramsBegin - kDriversBegin;
  constexpr uint64_t kLargest = 1ull << 43, kSmallest = 4096;
  void* const drivers = systemMmap(reinterpret_cast<void*>(kDriversBegin), kDriverBytes, PROT_NONE,
                                   kReservationFlags | MAP_FIXED_NOREPLACE, -1, 0);
  for (uint64_t bytes = kLargest; bytes >= kSmallest;) {
    void* const kept = systemMmap(nullptr, bytes, PROT_NONE, kReservationFlags, -1, 0);
    if (kept != MAP_FAILED && reinterpret_cast<uint64_t>(kept) >= kProgramsBegin) continue;
    if (kept != MAP_FAILED) munmap(kept, bytes);
    bytes /= 2;
  }
  if (drivers == reinterpret_cast<void*>(kDriversBegin))
    reserved_from.store(kProgramsBegin, std::memory_order_relaxed);
}

}  // namespace olpager::gpunode

#ifdef OL_PLACES_RESERVATIONS
// By these names: headers may have others for them.
extern "C" __attribute__((visibility("default"))) void* ownMmap(void* at, size_t bytes,
                                                                int protection, int flags, int fd,
                                                                off_t offset) noexcept
    __asm__("mmap");
extern "C" __attribute__((visibility("default"), alias("mmap"))) void* ownMmap64(
    void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept
    __asm__("mmap64");

void* ownMmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  return olpager::gpunode::placedMmap(at, bytes, protection, flags, fd, offset);
}
#endif
