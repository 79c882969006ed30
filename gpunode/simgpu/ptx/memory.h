// A worker's cache of address translations.
#pragma once

#include <array>
#include <cstdint>

#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu::ptx {

/// Caches runs of the address space; used by one thread. Dropped as a whole when the address
/// space's generation moves, which costs one load for each access (of a whole warp).
class Tlb {
 public:
  explicit Tlb(AddressSpace& memory) : memory_(memory), generation_(memory.generation()) {}

  /// To be called before the accesses of one Op.
  [[gnu::always_inline]] void refresh() {
    const std::uint64_t now = generation_.load(std::memory_order_acquire);
    if (now != seen_) [[unlikely]]
      flush(now);
  }

  /// The run that holds va, or null: not mapped, or a write to a read-only run.
  [[gnu::always_inline]] const Translation* find(std::uint64_t va, bool write) {
    const Translation& run = runs_[(va >> 21) % kRuns];
    if (va >= run.va_begin && va < run.va_end && (run.writable || !write)) [[likely]]
      return &run;
    return miss(va, write);
  }

 private:
  static constexpr std::size_t kRuns = 32;

  void flush(std::uint64_t now);
  const Translation* miss(std::uint64_t va, bool write);

  AddressSpace& memory_;
  const std::atomic<std::uint64_t>& generation_;
  std::uint64_t seen_ = 0;
  std::array<Translation, kRuns> runs_{};
};

}  // namespace olpager::simgpu::ptx
