#include "pager/residency/first_touch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/cgroup.h"
#include "base/machine_memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc 2.35
#endif

namespace olpager::pager {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr uint64_t kReserve = uint64_t{1} << 30;  // stays available to others

uint64_t rateOf(uint64_t bytes, uint64_t ns) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 /
                               static_cast<double>(std::max<uint64_t>(ns, 1)));
}
}  // namespace

std::optional<TouchedMemory> TouchedMemory::of(size_t bytes) {
  // Whole huge pages: one more is mapped, and its ends are unmapped.
  const size_t mapped = bytes + kHugePage;
  void* const memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return std::nullopt;
  auto* const begin = static_cast<std::byte*>(memory);
  const size_t before = -reinterpret_cast<uintptr_t>(memory) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, mapped - before - bytes);
  TouchedMemory touched(begin + before, bytes);
  madvise(touched.memory_, bytes, MADV_DONTFORK);
  madvise(touched.memory_, bytes, MADV_DONTDUMP);
  madvise(touched.memory_, bytes, MADV_HUGEPAGE);
  // Piece by piece: who maps memory meanwhile, or starts a thread, waits for one.
  size_t populated = 0;
  while (populated < bytes &&
         madvise(static_cast<std::byte*>(touched.memory_) + populated,
                 std::min(kHugePage, bytes - populated), MADV_POPULATE_WRITE) == 0)
    populated += kHugePage;
  if (populated >= bytes) return touched;
  if (errno != EINVAL) return std::nullopt;  // an older kernel
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page)
    static_cast<volatile std::byte*>(touched.memory_)[at] = std::byte{0};
  return touched;
}

uint64_t TouchedMemory::room() {
  const uint64_t room =
      std::min(base::availableMemory(), base::cgroupMemory(base::ownCgroup()).room());
  return room - std::min(room, kReserve);
}

TouchedMemory::TouchedMemory(TouchedMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

TouchedMemory& TouchedMemory::operator=(TouchedMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void TouchedMemory::giveBack() noexcept {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  memory_ = nullptr;
  bytes_ = 0;
}

FirstTouch::Task FirstTouch::next(uint64_t missing) const {
  if (!slow_) return Task::kMake;
  // Who touches beside a thread that makes would be handed what was touched for that.
  if (credit_ == 0 && wave_making_ == 0) {
    if (touchedAhead() + kPortion <= std::min(kAhead, missing)) return Task::kTouch;
    if (touching_ > 0) return Task::kWait;
  }
  return making_ == 0 ? Task::kMake : Task::kWait;
}

void FirstTouch::beginTouch(uint64_t now_ns) {
  ready_.reserve(kAhead / kPortion);
  touching_ += kPortion;
  if (wave_began_ns_ == 0) wave_began_ns_ = now_ns;
}

void FirstTouch::endTouch(std::optional<TouchedMemory> portion, uint64_t ns) {
  touching_ -= kPortion;
  if (!portion) {
    slow_ = false;  // no more of it, until the driver has been slow for another kJudged bytes
    made_ = taken_ = 0;
    return;
  }
  wave_was_slow_ |= rateOf(portion->bytes(), ns) < kTouchedRate;
  ready_.push_back(std::move(*portion));
}

FirstTouch::Making FirstTouch::beginMaking(uint64_t bytes) {
  ++making_;
  Making making;
  if (credit_ < bytes) {
    credit_ += ready_.size() * kPortion;
    making.back = std::exchange(ready_, {});
  }
  making.touched = credit_ > 0;
  if (making.touched) ++wave_making_;
  credit_ -= std::min(credit_, bytes);
  return making;
}

void FirstTouch::endMaking(const Making& making, uint64_t bytes, uint64_t began_ns,
                           uint64_t ended_ns) {
  --making_;
  // It may have waited for another thread's chunk first.
  const uint64_t alone_ns = std::max(began_ns, ended_ns_);
  ended_ns_ = std::max(ended_ns_, ended_ns);
  if (making.touched) {
    wave_made_ += bytes;
    if (--wave_making_ == 0 && credit_ == 0) endWave(ended_ns);
    return;
  }
  if (bytes == 0) return;
  made_ += bytes;
  taken_ += ended_ns - std::min(ended_ns, alone_ns);
  if (made_ < kJudged) return;
  rate_ = rateOf(std::exchange(made_, 0), std::exchange(taken_, 0));
  slow_ = rate_ < kSlowRate && !useless_;
}

void FirstTouch::endWave(uint64_t ended_ns) {
  const uint64_t bytes = std::exchange(wave_made_, 0), began_ns = std::exchange(wave_began_ns_, 0);
  if (began_ns == 0) return;  // given up meanwhile
  const uint64_t rate = rateOf(bytes, ended_ns - std::min(ended_ns, began_ns));
  if (!std::exchange(wave_was_slow_, false)) {
    slow_ = false;
  } else if (slow_ && rate < rate_ + rate_ / 4) {
    useless_ = true;
    slow_ = false;
  }
}

std::vector<TouchedMemory> FirstTouch::takeAll() {
  credit_ = wave_began_ns_ = wave_made_ = 0;
  wave_was_slow_ = false;
  return std::exchange(ready_, {});
}

}  // namespace olpager::pager
