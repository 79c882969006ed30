#include "gpunode/simgpu/ptx/memory.h"

namespace olpager::simgpu::ptx {

void Tlb::flush(std::uint64_t now) {
  runs_ = {};
  seen_ = now;
}

const Translation* Tlb::miss(std::uint64_t va, bool write) {
  // The generation was read before the tables: a change in between is seen at the next refresh().
  Translation fresh;
  if (!memory_.translate(va, write, fresh)) return nullptr;
  if (va < fresh.va_begin || va >= fresh.va_end || (write && !fresh.writable)) return nullptr;
  Translation& slot = runs_[(va >> 21) % kRuns];
  slot = fresh;
  return &slot;
}

}  // namespace olpager::simgpu::ptx
