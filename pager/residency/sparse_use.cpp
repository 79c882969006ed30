#include "pager/residency/sparse_use.h"

#include <vector>

#include "base/log.h"
#include "pager/pool_state.h"
#include "pager/residency/prefetcher.h"

namespace olpager::pager {

void SparseUse::judgeTimed(Lock& lock) {
  if (!timer_.busy() || engine_.life_.broken) return;
  struct Sample {
    Region* region;
    uint64_t buffer_id;
    uint64_t ns;
    bool in_place;
    uint64_t tensor, bytes;
  };
  std::vector<Sample> samples;
  lock.unlock();
  timer_.collect(pool_.driver, [&](const TimedLaunch& launch, uint64_t ns) {
    samples.push_back(
        {launch.region, launch.buffer_id, ns, launch.in_place, launch.tensor, launch.bytes});
  });
  lock.lock();
  for (const Sample& sample : samples) {
    Region& region = *sample.region;
    if (region.dead || region.buffer_id != sample.buffer_id) continue;
    if (sample.tensor != 0) {
      if (region.arena == nullptr) continue;
      DensityRecord& density = region.arena->at(sample.tensor).density;
      if (judge(density, sample.bytes, sample.ns, sample.in_place, vram_bandwidth_))
        base::logInfo("device %d: launches touch %s of the tensor of %llu MiB at 0x%llx",
                      engine_.device_, density.verdict == Density::kSparse ? "little" : "much",
                      static_cast<unsigned long long>(sample.bytes >> 20),
                      static_cast<unsigned long long>(sample.tensor));
      continue;
    }
    const uint64_t bytes = region.pages * kPageBytes;
    const bool was_sparse = region.density.verdict == Density::kSparse;
    if (!judge(region.density, bytes, sample.ns, sample.in_place, vram_bandwidth_)) continue;
    countSparse(region, was_sparse);
    if (!region.isSparse() && !sample.in_place) continue;  // as it was treated so far
    base::logInfo(
        "device %d: launches touch %s of the %llu MiB at 0x%llx: %s", engine_.device_,
        region.isSparse() ? "little" : "much", static_cast<unsigned long long>(bytes >> 20),
        static_cast<unsigned long long>(region.base),
        region.isSparse() ? "it stays in host memory, used in place" : "it is fetched again");
    treatAnew(region);
  }
}

void SparseUse::countSparse(const Region& region, bool was_sparse) {
  const bool is_sparse = region.density.verdict == Density::kSparse;
  if (is_sparse == was_sparse) return;
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(engine_.device_));
  const uint64_t bytes = region.pages * kPageBytes;
  if (is_sparse) {
    add(why.sparse_allocations);
    add(why.sparse_bytes, bytes);
  } else {
    subtract(why.sparse_allocations, 1);
    subtract(why.sparse_bytes, bytes);
  }
}

void SparseUse::treatAnew(Region& region) {
  region.placement = Placement::kUnplanned;
  engine_.ahead_->replan();
}

uint64_t SparseUse::sparseInVram() const {
  uint64_t bytes = 0;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    const Region* const region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_ || !region->isSparse()) continue;
    for (const auto& extent : region->extents)
      if (extent->vram != nullptr) bytes += extent->bytes();
  }
  return bytes;
}

}  // namespace olpager::pager
