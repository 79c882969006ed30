// Memory whose users pass no launch: it stays in VRAM for as long as they say.
#include <chrono>

#include "pager/clock.h"
#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/shared/claim.h"

namespace olpager::pager {

namespace {

// One region's want, on its engine's list and keeping the region from eviction until the wait ends,
// however it does.
class WaitingFor {
 public:
  WaitingFor(Engine& engine, Want& want, Region& region)
      : engine_(engine), want_(want), region_(region) {
    engine.addWant(&want);
    ++region.wanted;
    for (Extent* extent : want.extents) ++extent->wanted;
  }
  ~WaitingFor() {
    engine_.removeWant(&want_);
    --region_.wanted;
    for (Extent* extent : want_.extents) --extent->wanted;
  }
  WaitingFor(const WaitingFor&) = delete;
  WaitingFor& operator=(const WaitingFor&) = delete;

 private:
  Engine& engine_;
  Want& want_;
  Region& region_;
};

}  // namespace

CUresult bringToVram(PoolState& state, Region& region, uint64_t address, uint64_t bytes,
                     Lock& lock) {
  Engine& engine = *region.engine;
  Want want;
  want.in_vram = true;
  want.since_ns = nowNs();
  const ExtentRange range = extentsAt(region, address, bytes);
  for (size_t e = range.first; e < range.last; ++e) want.extents.push_back(region.extents[e].get());
  const WaitingFor waiting(engine, want, region);
  const auto there = [&] {
    for (const Extent* extent : want.extents)
      if (extent->state != ExtentState::kVram) return false;
    return true;
  };
  // Extents that other agents have are claimed until they are there. From then on the pin holds
  // them.
  Claim claim(state);
  const base::HeldSignals held;  // as Access waits for what it claims
  // In place is no help here: who uses the address does not come by again.
  while (!(there() && claim.submit()) && !want.failed && !want.lost && !want.in_place &&
         !engine.broken() && !state.stopped) {
    if (!claim.ask(want.extents, lock)) break;
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
  }
  claim.over(lock);
  if (want.lost) return CUDA_ERROR_ECC_UNCORRECTABLE;
  return there() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Pool::pin(CUdeviceptr address, uint64_t* pinned) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.book.find(address);
  if (region == nullptr || region->dead) return CUDA_ERROR_INVALID_VALUE;
  ++region->pins;
  const CUresult result =
      bringToVram(state, *region, region->base, region->pages * kPageBytes, lock);
  if (pinned != nullptr) *pinned = region->buffer_id;
  if (result != CUDA_SUCCESS) {
    --region->pins;
  } else if (region->pins == 1) {
    add(region->engine->figures().pinned_extents, region->extents.size());
    add(region->engine->figures().pinned_bytes, region->pages * kPageBytes);
  }
  return result;
}

CUresult Pool::unpin(CUdeviceptr address, uint64_t pinned) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.book.find(address);
  if (region == nullptr || region->dead || region->pins == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pinned != 0 && region->buffer_id != pinned) return CUDA_ERROR_INVALID_VALUE;
  // Launches under way may still use it, by an address that none of them has named.
  raiseStamps(*region, state.launch_number.load(), state.launch_number.load());
  if (--region->pins == 0) {
    subtract(region->engine->figures().pinned_extents, region->extents.size());
    subtract(region->engine->figures().pinned_bytes, region->pages * kPageBytes);
  }
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
