// Packed images of what streams through VRAM (packed.h), made on its way out.
#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"

namespace olpager::pager {

// What has left its mapping and is as its host copy stays in VRAM until the GPU has packed it.
// False: there is nothing to pack, or no place for it.
bool Engine::startPacking(Extent& extent, Lock& lock) {
  if (extent.region->by_pieces || !flight_.late.empty() ||
      !packed_.claim(extent, host_->spareForImages()))
    return false;
  setState(extent, ExtentState::kWriting);
  const CUevent event = takeEvent(lock);
  const HostChunk& image = packed_.imageOf(extent);
  bool queued = false;
  const CUresult result = outside(TraceStep::kPack, &extent, lock,
                                  [&] { return packed_.start(extent, image, event, queued); });
  if (result != CUDA_SUCCESS && (!queued || endsContext(result))) {
    events_.push_back(event);
    chunks_.giveHost(packed_.release(extent));
    setState(extent, ExtentState::kMoving);
    if (endsContext(result)) lost(result);
    return false;
  }
  if (result != CUDA_SUCCESS) lost(result);  // nobody would know when the chunk is free again
  flight_.packing.push_back({&extent, event, -1, false, false, nowNs()});
  return true;
}

// A kernel of the program's that holds the whole GPU may wait for what a launch that waits for the
// extent would do: it is waited for no more, and its chunks are free once the GPU is done with
// them.
void Engine::makeLate(Extent& extent, const Copy& copy) {
  packed_.pause();
  flight_.late.push_back({extent.vram, packed_.release(extent), copy.event, copy.hash});
  extent.vram = nullptr;
}

bool Engine::finishPacking(Lock& lock) {
  if (flight_.packing.empty()) return false;
  const Copy copy = flight_.packing.front();
  Extent& extent = *copy.extent;
  const bool done = reached(copy.event, lock);
  if (!done && nowNs() - copy.since_ns < kLateNs) return false;
  flight_.packing.pop_front();
  flight_.left(extent);
  ahead_->lookAgain();
  if (done) {
    events_.push_back(copy.event);
    if (!life_.broken) packed_.finish(extent);
  } else {
    makeLate(extent, copy);
  }
  add(figures_->evictions_clean);
  const bool wanted = extent.region->wanted > 0 && !extent.in_host &&
                      debts_.surplus == 0;  // a launch came for it meanwhile
  if (done && wanted && !life_.broken && mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
    setState(extent, ExtentState::kVram);
    return true;
  }
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  setState(extent, ExtentState::kParked);
  return true;
}

}  // namespace olpager::pager
