#include "pager/residency/host_copies.h"

#include <algorithm>

#include "base/log.h"
#include "pager/pool_state.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kHostAheadBytes = 1ull << 30;  // host chunks made ahead of need, for each size
constexpr uint64_t kTransitShare = 16;            // one part of so many of the host tier
constexpr uint64_t kLeastTransit = 32ull << 20;   // bytes
}  // namespace

// Host chunks take milliseconds to make (pinning), so they are made before the first eviction needs
// them. One thread makes them: the driver makes one after the other anyway, under a lock that its
// calls for mapping wait for.
void HostCopies::makeHostChunks() {
  const DriverApi& driver = pool_.driver;
  driver.cuCtxPushCurrent_v2(engine_.context_);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
  Lock lock(pool_.mutex);
  while (!engine_.life_.stop)
    if (!makeHostAhead(lock)) wake_.wait_for(lock, std::chrono::milliseconds(full_ ? 500 : 50));
}

// False: there is nothing to make, or no more of it.
bool HostCopies::makeHostAhead(Lock& lock) {
  // From three quarters of the budget on something will have to leave.
  if (engine_.counts_.held <= chunks_.vramBudget() / 4 * 3 || engine_.life_.broken) return false;
  HostCounts ahead{};
  for (unsigned order = 0; order < kOrders; ++order)
    ahead[order] = std::min<uint64_t>(without_[order], kHostAheadBytes / (kPageBytes << order)) +
                   imagesWanted(order);
  for (unsigned order = kOrders; order-- > 0;) {
    if (chunks_.hostFreeOf(order) >= ahead[order]) continue;
    const TracedStep traced = engine_.step(TraceStep::kMakeHost);
    if (chunks_.makeHostAhead(order, ahead, lock)) return true;
    if (!full_) {
      full_ = true;
      base::logInfo("device %d: the host tier is full at %llu MiB", engine_.device_,
                    static_cast<unsigned long long>(chunks_.hostInUse() >> 20));
    }
  }
  return false;
}

void HostCopies::giveHost(Extent& extent) {
  if (extent.host == nullptr) return;
  ManagedRegion* const managed =
      extent.region != nullptr ? extent.region->managed.get() : nullptr;  // else a handle's
  if (managed != nullptr) {
    // The page's frame stays where it is; only a chunk that was mapped in place goes back.
    extent.host_valid = extent.hash_valid = false;
    if (managed->isPlace(extent.host)) return;
    chunks_.giveHost(extent.host);
    ++pool_.devices.host.given;
    extent.host = managed->placeOf(extent);
    return;
  }
  chunks_.giveHost(extent.host);
  ++pool_.devices.host.given;
  extent.host = nullptr;
  extent.host_valid = extent.hash_valid = false;
  ++without_[extent.order];
  engine_.packed_.drop(extent);
}

HostChunk* HostCopies::takeHostChunk(unsigned order, uint64_t beyond, Lock& lock) {
  const uint64_t bytes = kPageBytes << order;
  HostChunk* chunk = chunks_.takeHost(order, lock);
  for (size_t e = 0; e < pool_.devices.engines.size() && chunk == nullptr;
       ++e)  // the mutex is released meanwhile
    if (pool_.devices.engines[e]->packed_.drop(bytes) > 0) chunk = chunks_.takeHost(order, lock);
  for (const bool own : {true, false})  // other devices' last
    if (chunk == nullptr && dropLowerCopies(bytes, own) > 0) chunk = chunks_.takeHost(order, lock);
  if (chunk == nullptr && pool_.away != nullptr) {  // what was given away and is kept, just in case
    pool_.away->giveRetained(lock);
    chunk = chunks_.takeHost(order, lock, beyond);
  }
  if (chunk != nullptr) return chunk;
  // Parked extents go to memservers to make room, if there are any.
  short_bytes_ = std::max(short_bytes_, bytes);
  for (const auto& other : pool_.devices.engines)
    if (other.get() != &engine_) other->recall();
  return nullptr;
}

void HostCopies::giveChunkOfOthers(HostChunk* chunk) {
  chunks_.giveHost(chunk);
  ++pool_.devices.host.given;
}

// Pages that executors of a unified view give each other are in host memory on their way. If each
// had no room left for what the other one gives, both would wait for ever. So pages on their way
// may exceed the limit: by so much what comes, by twice as much what goes, which makes room here
// when it has gone.
// Free chunks beyond the limit go back to the system (giveHostSurplus).
uint64_t HostCopies::transitBytes() const {
  return pool_.away == nullptr ? 0 : std::max(chunks_.hostLimit() / kTransitShare, kLeastTransit);
}

bool HostCopies::takeHost(Extent& extent, Lock& lock) {
  if (extent.host != nullptr) return true;
  extent.host = takeHostChunk(extent.order, extent.leaving ? 2 * transitBytes() : 0, lock);
  if (extent.host == nullptr) return false;
  --without_[extent.order];
  wake_.notify_all();
  return true;
}

// Gives up copies in host RAM of what is in VRAM until `bytes` came free: those that may(region,
// extent) names. Returns the bytes.
template <typename May>
uint64_t HostCopies::dropHostCopies(uint64_t bytes, May may) {
  uint64_t dropped = 0;
  for (uint32_t id = 1; id < pool_.book.regions.end() && dropped < bytes; ++id) {
    Region* const region = pool_.book.regions.at(id);
    if (region->dead || region->engine == nullptr || region->managed != nullptr) continue;
    for (auto& extent : region->extents) {
      if (dropped >= bytes) break;
      if (extent->state != ExtentState::kVram || extent->host == nullptr || !may(*region, *extent))
        continue;
      dropped += extent->bytes();
      region->engine->host().giveHost(*extent);
    }
  }
  return dropped;
}

// The host tier is full: lower copies of extents that are in VRAM are a convenience only.
uint64_t HostCopies::dropLowerCopies(uint64_t bytes, bool own) {
  return dropHostCopies(bytes, [&](const Region& region, const Extent&) {
    return (region.engine == &engine_) == own;
  });
}

// Lower copies that nobody will miss: of what is to stay in VRAM, and those that memservers have as
// well. A parked extent is needed sooner than any of them.
uint64_t HostCopies::dropSpareCopies(uint64_t bytes) {
  return dropHostCopies(bytes, [&](const Region& region, const Extent& extent) {
    if (region.engine != &engine_ || region.by_pieces) return false;
    return region.placement == Placement::kKeep || engine_.remote_->remoteHolds(extent);
  });
}

// Host memory that images may still take: what would be left if all allocations had their copies in
// it.
uint64_t HostCopies::spareForImages() const {
  if (pool_.lower.tier != nullptr) return 0;
  uint64_t needed = 0;
  for (const auto& engine : pool_.devices.engines)
    needed += engine->counts_.held + engine->packed_.hostBytes();
  return chunks_.hostLimit() - std::min(chunks_.hostLimit(), needed);
}

// Host chunks of the order that images wait for: what has left VRAM unchanged without one. None are
// made before that: while a program fills its memory the driver's time is short.
uint64_t HostCopies::imagesWanted(unsigned order) const {
  return std::min<uint64_t>(engine_.packed_.wanted(order),
                            spareForImages() / (kPageBytes << order));
}

// The host tier's limit was lowered: what is free goes back to the system, and copies of what is in
// VRAM go with it. Parked extents have their place: the limit is not below them.
bool HostCopies::giveHostSurplus(Lock& lock) {
  const uint64_t surplus = chunks_.hostSurplus();
  if (surplus == 0 || engine_.life_.broken) return false;
  if (chunks_.hostFree() < surplus) engine_.packed_.drop(surplus - chunks_.hostFree());
  if (chunks_.hostFree() < surplus) dropLowerCopies(surplus - chunks_.hostFree(), true);
  return chunks_.releaseFreeHost(surplus, lock) > 0;
}

}  // namespace olpager::pager
