// The way into VRAM, and into place in host memory (engine.h).
#include <algorithm>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/in_place.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kRefusalBytes = 16ull << 20;  // of free chunks that the driver then gets back
}  // namespace

/// The driver refused a call that brings an extent in. Launches that wait get it in place
/// meanwhile.
void Engine::refused(const char* what, CUresult result) {
  if (endsContext(result)) return lost(result);
  pauses_.refused_until_ns = nowNs() + kRefusalPauseNs;
  ++pauses_.refusals;
  base::warnOnce(
      "fetch refused",
      "device %d: the driver refused to %s memory in VRAM (CUDA error %d); it stays in host "
      "memory until the driver can",
      device_, what, static_cast<int>(result));
}

/// Maps a chunk where its extent is. Short of memory, the driver gets free chunks back before the
/// second try.
CUresult Engine::mapVram(const Extent& extent, const VramChunk& chunk, Lock& lock) {
  CUresult result = CUDA_SUCCESS;
  for (int tries = 0; tries < 2; ++tries) {
    lock.unlock();
    result = chunks_.mapAt(extent.address, extent.bytes(), chunk.handle, extent.read_only);
    lock.lock();
    if (result == CUDA_SUCCESS) pauses_.refusals = 0;
    if (result == CUDA_SUCCESS || endsContext(result) ||
        chunks_.releaseFreeVram(kRefusalBytes, lock) == 0)
      break;
  }
  return result;
}

CUresult Engine::mapNew(Region& region, Lock& lock) {
  for (auto& extent : region.extents) ++host_.without[extent->order];
  host_.wake.notify_all();
  for (auto& extent : region.extents)
    if (!mapEmpty(*extent, lock)) break;
  return CUDA_SUCCESS;
}

/// What is being exported comes back into chunks of its own.
VramChunk* Engine::takeVram(const Extent& extent, Lock& lock) {
  const Region& region = *extent.region;
  return region.exporting ? chunks_.makeExported(extent.order, region.exports_lent, lock)
                          : chunks_.takeVram(extent.order, lock);
}

bool Engine::mapEmpty(Extent& extent, Lock& lock) {
  if (extent.state != ExtentState::kEmpty) return false;
  setState(extent, ExtentState::kMapping);
  VramChunk* chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    setState(extent, ExtentState::kEmpty);
    return false;
  }
  if (const CUresult result = mapVram(extent, *chunk, lock); result != CUDA_SUCCESS) {
    if (endsContext(result)) lost(result);
    chunks_.giveVram(chunk);
    setState(extent, ExtentState::kEmpty);
    return false;
  }
  extent.vram = chunk;
  setState(extent, ExtentState::kVram);
  return true;
}

bool Engine::startFetch(Extent& extent, Fetch why, Lock& lock) {
  if (extent.state != ExtentState::kParked || extent.leaving || life_.broken ||
      nowNs() < pauses_.refused_until_ns)
    return false;
  setState(extent, ExtentState::kFetching);
  VramChunk* chunk = takeVram(extent, lock);
  if (chunk == nullptr) {
    setState(extent, ExtentState::kParked);
    return false;
  }
  extent.vram = chunk;
  const CUevent event = takeEvent(lock);
  const HostChunk* image =
      flight_.late.empty() && packed_.isReady(extent) ? &packed_.imageOf(extent) : nullptr;
  const bool hashed = image != nullptr ? !packed_.isChecked(extent)
                                       : extent.region->by_pieces && !extent.hash_valid;
  const int slot = hashed ? kernels_.takeHashSlot() : -1;
  if (hashed && slot < 0) image = nullptr;
  lock.unlock();
  const DriverApi& driver = pool_.driver;
  CUresult result = CUDA_SUCCESS;
  bool copying = false;
  if (image != nullptr) {
    result = packed_.fetch(extent, *image, chunk->alias, event, copying);
    if (result != CUDA_SUCCESS && !copying && !endsContext(result)) image = nullptr;
  }
  if (image == nullptr) {
    result = extent.blank ? driver.cuMemsetD8Async(chunk->alias, 0, extent.bytes(), streams_.in)
                          : driver.cuMemcpyHtoDAsync_v2(
                                chunk->alias, reinterpret_cast<const void*>(extent.host->alias),
                                extent.bytes(), streams_.in);
    copying = result == CUDA_SUCCESS;
    if (copying) result = driver.cuEventRecord(event, streams_.in);
  }
  // Not hashed, it will be written down, or compared the next time. The kernel may have been
  // launched: the slot is not used again.
  int hash = slot;
  if (slot >= 0 && result == CUDA_SUCCESS && !kernels_.launchHash(extent, event, slot)) hash = -1;
  const bool unchecked = image != nullptr && hashed && hash < 0;
  lock.lock();
  if (result != CUDA_SUCCESS) {
    copying ? lost(result)
            : refused("copy", result);  // nobody would know when the chunk is free again
    events_.push_back(event);
    if (hash >= 0) kernels_.giveHashSlot(hash);
    chunks_.giveVram(chunk);
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return false;
  }
  flight_.fetching.push_back({&extent, event, hash, image != nullptr, unchecked, nowNs()});
  flight_.fetching_bytes += extent.bytes();
  if (!extent.blank)
    add(figures_->bytes_in, image != nullptr ? PackedImages::bytesOf(extent) : extent.bytes());
  add(figures_->fetched_bytes, extent.bytes());
  if (why == Fetch::kAhead) {
    extent.prefetched = true;
    ++extent.region->ahead;
    prefetch_.ahead_bytes += extent.bytes();
    add(figures_->prefetches_issued);
  } else if (why == Fetch::kDemand) {
    add(figures_->demand_faults);
  }
  return true;
}

bool Engine::finishFetches(Lock& lock) {
  if (flight_.fetching.empty()) {
    if (flight_.late.empty() && flight_.packing.empty()) packed_.trimSlots(unallocated());
    return false;
  }
  const Copy copy = flight_.fetching.front();
  Extent& extent = *copy.extent;
  const auto parked = [&] {
    noteUsed(extent, false);
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return true;
  };
  if (!reached(copy.event, lock)) {
    if (!copy.packed || nowNs() - copy.since_ns < kLateNs) return false;
    flight_.fetching.pop_front();
    flight_.fetching_bytes -= extent.bytes();
    makeLate(extent, copy);
    return parked();
  }
  flight_.fetching.pop_front();
  events_.push_back(copy.event);
  flight_.fetching_bytes -= extent.bytes();
  bool good = !copy.unchecked || life_.broken;
  if (copy.hash >= 0) {
    const ContentHash hash = kernels_.takeHash(extent, copy.hash);
    if (copy.packed) {
      good = life_.broken || hash == extent.hash;
      packed_.checked(extent, good);
      if (!good)
        base::logError(
            "device %d: what was unpacked is not what was packed; 0x%llx is fetched as it is from "
            "now on",
            device_, static_cast<unsigned long long>(extent.address));
    } else {
      extent.hash = hash;
      extent.hash_valid = extent.host_valid;
    }
  }
  const CUresult result = good ? mapVram(extent, *extent.vram, lock) : CUDA_SUCCESS;
  if (!good || result != CUDA_SUCCESS || life_.broken) {
    if (good && !life_.broken) refused("map", result);
    chunks_.giveVram(extent.vram);
    prefetch_.again = true;
    return parked();
  }
  extent.blank = false;
  setState(extent, ExtentState::kVram);
  return true;
}

bool Engine::finishLate(Lock& lock) {
  if (flight_.late.empty() || !reached(flight_.late.front().event, lock)) return false;
  const Late late = flight_.late.front();
  flight_.late.pop_front();
  events_.push_back(late.event);
  if (late.hash >= 0) kernels_.giveHashSlot(late.hash);
  chunks_.giveVram(late.chunk);
  chunks_.giveHost(late.image);
  return true;
}

bool Engine::mapInPlace(Extent& extent, Lock& lock) {
  if (!mayBeInPlace(extent) || extent.leaving || life_.broken) return false;
  if (extent.state != ExtentState::kParked && extent.state != ExtentState::kEmpty) return false;
  const ExtentState before = extent.state;
  setState(extent, ExtentState::kMoving);
  if (extent.region->managed != nullptr ? !toMappableChunk(extent, lock)
                                        : !takeHost(extent, lock)) {
    setState(extent, before);
    return false;
  }
  lock.unlock();
  const CUresult result =
      chunks_.mapAt(extent.address, extent.bytes(), extent.host->handle, extent.read_only);
  lock.lock();
  if (result != CUDA_SUCCESS) {
    setState(extent, before);
    return false;
  }
  extent.host_valid = true;
  extent.blank = false;
  extent.hash_valid = false;  // the GPU may write it where it is
  setState(extent, ExtentState::kInPlace);
  return true;
}

void Engine::noteUsed(Extent& extent, bool used) {
  if (!extent.prefetched) return;
  extent.prefetched = false;
  --extent.region->ahead;
  prefetch_.ahead_bytes -= std::min(prefetch_.ahead_bytes, extent.bytes());
  add(used ? figures_->prefetches_useful : figures_->prefetches_wasted);
}

}  // namespace olpager::pager
