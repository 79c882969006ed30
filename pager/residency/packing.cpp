// Packed images of what streams through VRAM (packed.h), made on its way out.
#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/fetches.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"

namespace olpager::pager {

bool Fetching::startPacking(Extent& extent, Lock& lock) {
  if (extent.region->by_pieces || !engine_.flight_.late.empty() ||
      !packed_.claim(extent, engine_.host_->spareForImages()))
    return false;
  engine_.setState(extent, ExtentState::kWriting);
  const CUevent event = engine_.takeEvent(lock);
  const HostChunk& image = packed_.imageOf(extent);
  bool queued = false;
  const CUresult result = engine_.outside(
      TraceStep::kPack, &extent, lock, [&] { return packed_.start(extent, image, event, queued); });
  if (result != CUDA_SUCCESS && (!queued || endsContext(result))) {
    engine_.events_.push_back(event);
    chunks_.giveHost(packed_.release(extent));
    engine_.setState(extent, ExtentState::kMoving);
    if (endsContext(result)) engine_.lost(result);
    return false;
  }
  if (result != CUDA_SUCCESS)
    engine_.lost(result);  // nobody would know when the chunk is free again
  engine_.flight_.packing.push_back({&extent, event, -1, false, false, nowNs()});
  return true;
}

// A kernel of the program's that holds the whole GPU may wait for what a launch that waits for the
// extent would do: it is waited for no more, and its chunks are free once the GPU is done with
// them.
void Fetching::makeLate(Extent& extent, const Engine::Copy& copy) {
  packed_.pause();
  engine_.flight_.late.push_back({extent.vram, packed_.release(extent), copy.event, copy.hash});
  extent.vram = nullptr;
}

bool Fetching::finishPacking(Lock& lock) {
  if (engine_.flight_.packing.empty()) return false;
  const Engine::Copy copy = engine_.flight_.packing.front();
  Extent& extent = *copy.extent;
  const bool done = engine_.reached(copy.event, lock);
  if (!done && nowNs() - copy.since_ns < Engine::kLateNs) return false;
  engine_.flight_.packing.pop_front();
  engine_.flight_.left(extent);
  engine_.ahead_->lookAgain();
  if (done) {
    engine_.events_.push_back(copy.event);
    if (!engine_.life_.broken) packed_.finish(extent);
  } else {
    makeLate(extent, copy);
  }
  add(engine_.figures_->evictions_clean);
  const bool wanted = extent.region->wanted > 0 && !extent.in_host &&
                      engine_.debts_.surplus == 0;  // a launch came for it meanwhile
  if (done && wanted && !engine_.life_.broken &&
      mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
    engine_.setState(extent, ExtentState::kVram);
    return true;
  }
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  engine_.setState(extent, ExtentState::kParked);
  return true;
}

}  // namespace olpager::pager
