// Memory that other processes map: it lies in chunks of its own that never serve anything else,
// pinned in VRAM. An allocation moves into such chunks when it is exported for the first time, the
// way by which all memory leaves VRAM and comes back (residency/eviction.cpp), so that no launch
// finds it unmapped; all other memory is spared what the driver keeps for exportable chunks.
#include <algorithm>
#include <chrono>

#include "pager/clock.h"
#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/residency/eviction.h"

namespace olpager::pager {

namespace {

// While no page moves for the export.
constexpr uint64_t kExportPatienceNs = 10'000'000'000;

bool isExported(const Extent& extent) { return extent.vram != nullptr && extent.vram->exported; }

/// Bytes of the region that lie elsewhere.
uint64_t toExport(const Region& region) {
  uint64_t bytes = 0;
  for (const auto& extent : region.extents)
    if (!isExported(*extent)) bytes += extent->bytes();
  return bytes;
}

/// And the way that they have to go: out of VRAM, and into chunks of their own.
uint64_t wayToExport(const Region& region) {
  uint64_t bytes = 0;
  for (const auto& extent : region.extents)
    if (!isExported(*extent))
      bytes += (extent->state == ExtentState::kParked ? 1 : 2) * extent->bytes();
  return bytes;
}

}  // namespace

bool Engine::retireForExport(Region& region) {
  if (life_.broken || eviction_->batches().size() >= PassKernels::kPasses) return false;
  auto batch = std::make_unique<VictimBatch>();
  for (auto& extent : region.extents) {
    if (extent->state != ExtentState::kVram || isExported(*extent)) continue;
    batch->victims.push_back(extent.get());
    batch->bytes += extent->bytes();
    eviction_->beginRetiring(*extent);
  }
  const bool begun = eviction_->begin(std::move(batch));
  if (begun) wake();
  return begun;
}

CUresult Pool::makeExportable(CUdeviceptr address, Exported* out) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address) || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.book.find(address);
  if (region == nullptr || region->dead || region->pins == 0 ||
      region->kind == RegionKind::kReservation)
    return CUDA_ERROR_INVALID_VALUE;
  Engine& engine = *region->engine;
  const CUdevice device = region->device;
  const uint64_t buffer_id = region->buffer_id;
  uint64_t until = nowNs() + kExportPatienceNs, nearest = UINT64_MAX;
  // The nearest that it has been begins the time anew: launches may take back what is on its way.
  const auto renew = [&] {
    const uint64_t way = wayToExport(*region);
    if (way < nearest) until = nowNs() + kExportPatienceNs;
    nearest = std::min(nearest, way);
  };
  const auto gone = [&] { return region->dead || region->buffer_id != buffer_id || state.stopped; };
  // One thread at a time.
  while (region->exporting && nowNs() < until && !gone()) {
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
    if (!gone()) renew();
  }
  if (gone()) return CUDA_ERROR_INVALID_VALUE;
  if (region->exporting) return CUDA_ERROR_NOT_READY;
  const uint64_t missing = toExport(*region);
  CUresult result = CUDA_SUCCESS;
  if (missing > 0) {
    region->exporting = true;
    // The chunks are the driver's memory beside the budget: as much of that is given up, where it
    // is in use.
    lock.unlock();
    const uint64_t given = relieve(device, missing);
    if (given > missing) regain(device, given - missing);
    lock.lock();
    if (gone()) return CUDA_ERROR_INVALID_VALUE;
    region->exports_lent = given >= missing;
    renew();
    while (toExport(*region) > 0 && result == CUDA_SUCCESS) {
      if (engine.broken()) result = CUDA_ERROR_UNKNOWN;
      if (nowNs() > until) result = CUDA_ERROR_NOT_READY;
      if (result != CUDA_SUCCESS) break;
      const auto leaves = [](const auto& extent) {
        return !isExported(*extent) && extent->state != ExtentState::kParked;
      };
      if (std::any_of(region->extents.begin(), region->extents.end(), leaves)) {
        // A launch that takes one back keeps it for a while: tried again.
        engine.retireForExport(*region);
        state.changed.wait_for(lock, std::chrono::milliseconds(1));
      } else {
        result = bringToVram(state, *region, region->base, region->pages * kPageBytes, lock);
      }
      if (gone()) return CUDA_ERROR_INVALID_VALUE;
      renew();
    }
    const uint64_t left = toExport(*region);
    region->exporting = false;
    if (left > 0 && region->exports_lent) {
      lock.unlock();
      regain(device, left);
      lock.lock();
      if (gone()) return CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS)
      static_cast<void>(
          bringToVram(state, *region, region->base, region->pages * kPageBytes, lock));
  }
  if (result != CUDA_SUCCESS) return result;
  if (gone()) return CUDA_ERROR_INVALID_VALUE;
  out->pieces.clear();
  for (const auto& extent : region->extents)
    out->pieces.push_back({extent->vram->handle, extent->bytes()});
  out->offset = address - region->base;
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
