// Extents that come and go with their regions, and the mappings of those that stay.
#include <chrono>

#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/give_away.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

void Engine::dismantle(Extent& extent, Lock& lock) {
  if (extent.prefetched) ahead_->noteUsed(extent, false);
  lock.unlock();
  if (extent.left_mapped) chunks_.unmapAt(extent.address, extent.bytes());
  lock.lock();
  const bool exported = extent.vram != nullptr && extent.vram->exported;
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  if (exported) chunks_.releaseFreeVram(0, lock);  // it goes back to the driver
  if (extent.region != nullptr && extent.region->managed != nullptr)
    chunks_.forgetKept(extent.region->managed->pageOf(extent).copy);
  host_->giveHost(extent);
  // Managed memory was not counted, whether or not it ever got frames.
  const Region* const region = extent.region;  // nullptr: of a handle that is mapped nowhere
  if (region == nullptr || region->allocation_kind != AllocationKind::kManaged)
    host_->lacksNone(extent);
  if (pool_.lower.tier != nullptr) pool_.lower.tier->drop(pool_.programs.tierAddress(extent));
  wake();
}

void Engine::forget(const Region* region) {
  if (region->density.verdict == Density::kSparse) {
    DeviceWhy& why = counters().whyOf(static_cast<unsigned>(device_));
    subtract(why.sparse_allocations, 1);
    subtract(why.sparse_bytes, region->pages * kPageBytes);
  }
  leaving_->forget(region);
  arenas_->forget(region);
  for (auto& batch : eviction_->batches()) {
    if (batch->scan.parts_of == region) batch->scan.parts_of = nullptr;
    for (Extent*& victim : batch->victims)
      if (victim != nullptr && victim->region == region) victim = nullptr;
    std::erase_if(batch->scan.host_written,
                  [region](const auto& entry) { return entry.region == region; });
  }
}

void Engine::adopt(VmmHandle& handle) {
  for (auto& extent : handle.extents) host_->lacksChunk(*extent);
  host_->wakeMaker();
}

void Engine::attach(Extent& extent, Lock& lock) {
  if (extent.vram != nullptr) {
    setState(extent, ExtentState::kMoving);
    if (const CUresult result = fetching_->mapVram(extent, *extent.vram, lock);
        result != CUDA_SUCCESS)
      lost(result);
    setState(extent, ExtentState::kVram);
  } else if (extent.host != nullptr && extent.host_valid) {
    setState(extent, ExtentState::kParked);
  } else if (extent.rests != ExtentState::kEmpty) {
    setState(extent, extent.rests);
  } else {
    setState(extent, ExtentState::kEmpty);
    fetching_->mapEmpty(extent, lock);
  }
}

void Engine::detach(Extent& extent, Lock& lock) {
  if (extent.state == ExtentState::kRetiring) eviction_->cancelRetiring(extent);
  for (auto& batch : eviction_->batches())
    for (Extent*& victim : batch->victims)
      if (victim == &extent) victim = nullptr;
  ahead_->noteUsed(extent, false);
  const bool mapped = extent.mapped();
  const bool away = extent.state == ExtentState::kRemote || extent.state == ExtentState::kLost;
  extent.rests = away ? extent.state : ExtentState::kEmpty;
  setState(extent, ExtentState::kDetached);
  if (!mapped) return;
  lock.unlock();
  chunks_.unmapAt(extent.address, extent.bytes());
  lock.lock();
}

void Engine::releaseAll() {
  const DriverApi& driver = pool_.driver;
  Lock lock(pool_.mutex);
  chunks_.leaveHost();
  lock.unlock();
  const InContext current(driver, context_);
  const bool there = current.result() == CUDA_SUCCESS;
  if (there) {
    // Work that nobody will finish reads chunks.
    for (CUstream stream : {kernels_.stream(), streams_.in, streams_.out})
      if (stream != nullptr) driver.cuStreamSynchronize(stream);
    packed_.synchronize();
  }
  lock.lock();
  for (const Late& late : flight_.late) {
    events_.push_back(late.event);
    chunks_.giveVram(late.chunk);
    if (late.image != nullptr) chunks_.giveHost(late.image);
  }
  flight_.late.clear();
  arenas_->releaseAll();
  chunks_.passesOver();
  packed_.releaseAll();
  if (!there) return chunks_.forgetAllFree(lock);
  chunks_.releaseAllFree(lock);
  lock.unlock();
  chunks_.releaseAliases();
  destroyObjects();
}

CUresult Engine::protect(const std::vector<Extent*>& extents, Lock& lock) {
  for (Extent* extent : extents) ++extent->pins;  // nothing of it is evicted meanwhile
  CUresult result = CUDA_SUCCESS;
  for (Extent* extent : extents) {
    while (moving(extent->state) && !pool_.stopped) {
      remote_->hurry(*extent);
      pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (extent->state == ExtentState::kRetiring) eviction_->cancelRetiring(*extent);
    if (!extent->mapped() || result != CUDA_SUCCESS)
      continue;  // else mapped as it is to be, the next time
    const uint64_t address = extent->address;
    const uint64_t bytes = extent->bytes();
    const bool read_only = extent->read_only;
    lock.unlock();
    result = chunks_.protectAt(address, bytes, read_only, fetching_->sharersOf(*extent));
    lock.lock();
    if (!extent->mapped()) result = CUDA_SUCCESS;
  }
  for (Extent* extent : extents) --extent->pins;
  return result;
}

CUresult Engine::addPeer(CUdevice peer, Lock& lock) {
  if (peer == device_ || chunks_.hasPeer(peer)) return CUDA_SUCCESS;
  if (!chunks_.addPeer(peer)) return CUDA_ERROR_TOO_MANY_PEERS;
  CUresult result = CUDA_SUCCESS;
  for (uint32_t id = 1; id < pool_.book.regions.end() && result == CUDA_SUCCESS; ++id) {
    Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != this) continue;
    std::vector<Extent*> extents;
    for (auto& extent : region->extents) extents.push_back(extent.get());
    ++region->wanted;  // it stays, and so do its extents: what joins them meanwhile is mapped for
                       // the peer
    result = protect(extents, lock);
    --region->wanted;
    pool_.changed.notify_all();
  }
  if (result == CUDA_SUCCESS) result = protectFixed(pool_, *this, lock);
  return result;
}

}  // namespace olpager::pager
