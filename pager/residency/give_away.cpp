#include "pager/residency/give_away.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "pager/away/away.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/eviction.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kNoChunkNs = 500'000;

bool isInFrame(const Extent& extent) {
  const ManagedRegion* const managed = extent.region->managed.get();
  return extent.state == ExtentState::kParked &&
         (managed != nullptr ? managed->isPlace(extent.host) : extent.host != nullptr);
}
}  // namespace

void GivingAway::noChunkToLeave(Extent& extent) {
  pause_until_ns_ = nowNs() + kNoChunkNs;
  auto& all = leaving_;
  if (const auto at = std::find(all.begin(), all.end(), &extent); at != all.end())
    std::rotate(at, std::next(at), all.end());
}

// Any bytes are good for an extent that never had any.
bool GivingAway::parkEmpty(Extent& extent, Lock& lock) {
  engine_.setState(extent, ExtentState::kMoving);
  const bool placed = engine_.host_->takeHost(extent, lock);
  if (!placed) noChunkToLeave(extent);
  extent.host_valid = placed;
  engine_.setState(extent, placed ? ExtentState::kParked : ExtentState::kEmpty);
  return placed;
}

void GivingAway::giveAway(Extent& extent, Lock& lock) {
  if (isInFrame(extent)) return pool_.agent()->parked(extent, lock);
  // At once: no launch begins to use it from here on.
  if ((extent.state == ExtentState::kVram || extent.state == ExtentState::kInPlace) &&
      !extent.region->isPinned(extent))
    engine_.eviction_->beginRetiring(extent);
  engine_.remote_->hurry(extent);
  leaving_.push_back(&extent);
  engine_.wake();
}

void GivingAway::forget(const Region* region) {
  std::erase_if(leaving_, [region](const Extent* extent) { return extent->region == region; });
}

void GivingAway::keep(Extent& extent) {
  std::erase(leaving_, &extent);
  if (extent.state == ExtentState::kRetiring) engine_.eviction_->cancelRetiring(extent);
  engine_.wake();
}

// One step for each extent that is to leave. True: progress.
bool GivingAway::step(Lock& lock) {
  if (leaving_.empty() || nowNs() < pause_until_ns_) return false;
  // True if the extent is leaving already. A victim whose batch waits for all launches is taken out
  // of it: one of the launches may wait for the CPU.
  const auto inBatch = [this](const Extent* extent) {
    for (const auto& batch : engine_.eviction_->batches()) {
      const auto found = std::find(batch->victims.begin(), batch->victims.end(), extent);
      if (found == batch->victims.end()) continue;
      if (batch->isGivenAway() || batch->stage == Batch::Stage::kPass) return true;
      *found = nullptr;
    }
    return false;
  };
  // One that waits for the launches that reach the region takes its other pages along.
  const auto waitsFor = [this](const Region& region) -> Batch* {
    for (const auto& other : engine_.eviction_->batches())
      if (other->isGivenAway() && other->scan.parts_of == &region &&
          other->stage == Batch::Stage::kDrain)
        return other.get();
    return nullptr;
  };
  const bool may_begin = !engine_.life_.broken;
  // The batch is of one region: pointers to its pages from its other pages need not be looked for.
  auto batch = std::make_unique<Batch>();
  for (size_t i = 0; i < leaving_.size(); ++i) {
    Extent& extent = *leaving_[i];
    if (engine_.life_.broken && extent.region->away != nullptr)
      continue;  // never other bytes in its place
    if (engine_.life_.broken && extent.mapped()) {
      abandonBytes(extent);
      return true;
    }
    switch (extent.state) {
      case ExtentState::kEmpty:
        engine_.eviction_->begin(std::move(batch));
        return parkEmpty(extent, lock);  // releases the mutex: what follows begins anew
      case ExtentState::kParked:
        if (!isInFrame(extent)) {
          engine_.eviction_->begin(std::move(batch));
          toFrame(extent, lock);  // likewise
          return true;
        }
        std::erase(leaving_, &extent);
        engine_.eviction_->begin(std::move(batch));
        pool_.agent()->parked(extent, lock);
        return true;
      case ExtentState::kRemote: {
        engine_.eviction_->begin(std::move(batch));
        if (engine_.remote_->startReceive(extent, true, lock))
          return true;  // it may have released the mutex
        noChunkToLeave(extent);
        return false;
      }
      case ExtentState::kLost:
        std::erase(leaving_, &extent);
        engine_.eviction_->begin(std::move(batch));
        pool_.away->lost(extent);
        return true;
      case ExtentState::kVram:
      case ExtentState::kInPlace:  // a pass has spared it, or it was pinned
        if (!may_begin || extent.region->isPinned(extent)) break;
        engine_.eviction_->beginRetiring(extent);
        [[fallthrough]];
      case ExtentState::kRetiring:
        if (!may_begin || inBatch(&extent)) break;
        if (Batch* const waiting = waitsFor(*extent.region); waiting != nullptr) {
          waiting->victims.push_back(&extent);
          waiting->bytes += extent.bytes();
          break;
        }
        if (batch->scan.parts_of == nullptr) batch->scan.parts_of = extent.region;
        if (batch->scan.parts_of != extent.region) break;
        batch->victims.push_back(&extent);
        batch->bytes += extent.bytes();
        break;
      default:  // on its way: it comes to a stable state
        break;
    }
  }
  return engine_.eviction_->begin(std::move(batch));
}

// The context is lost, and with it what the extent held in VRAM: whoever waits for it gets what its
// frame held before.
void GivingAway::abandonBytes(Extent& extent) {
  base::warnOnce("managed bytes lost",
                 "device %d: managed memory was in VRAM when its context was lost: the CPU finds "
                 "there what it held when it came to VRAM",
                 engine_.device_);
  if (extent.state == ExtentState::kRetiring) engine_.eviction_->cancelRetiring(extent);
  if (extent.vram != nullptr) chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
  extent.hash_valid = false;
  engine_.setState(extent, ExtentState::kParked);
}

// Nothing uses the victims any more, and only pages of their own region may lead to them. A launch
// that reaches the region has to have them back first, and what the CPU may have written is scanned
// then. So nothing is looked at now, and nothing hashed: a copy takes no longer.
void GivingAway::leaveUnseen(Batch& batch, Lock& lock) {
  for (Extent*& victim : batch.victims) {
    if (victim == nullptr || victim->state != ExtentState::kRetiring) continue;
    Extent& extent = *victim;
    extent.hash_valid = false;
    if (engine_.life_.broken) {  // step() knows what to do then
      engine_.eviction_->cancelRetiring(extent);
      continue;
    }
    engine_.ahead_->noteUsed(extent, false);
    engine_.setState(extent, ExtentState::kMoving);
    if (extent.vram != nullptr && !engine_.host_->takeHost(extent, lock)) {
      noChunkToLeave(extent);
      engine_.flight_.left(extent);
      engine_.setState(extent, ExtentState::kVram);
      continue;
    }
    const CUresult result = engine_.eviction_->unmap(extent, lock);
    if (result != CUDA_SUCCESS) {
      if (extent.vram != nullptr) engine_.flight_.left(extent);
      engine_.setState(extent, extent.vram != nullptr ? ExtentState::kVram : ExtentState::kInPlace);
      engine_.lost(result);
    } else if (extent.vram == nullptr) {
      engine_.setState(extent, ExtentState::kParked);
    } else if (isUnwritten(extent)) {
      engine_.flight_.left(extent);
      add(engine_.figures_->evictions_clean);
      leaveVram(extent);
      engine_.setState(extent, ExtentState::kParked);
    } else {
      engine_.eviction_->startWrite(extent, {}, lock);
      extent.hash_valid = false;
    }
  }
}

// Nothing can have written the managed page since it came to VRAM from host memory. Nothing uses it
// now.
bool GivingAway::isUnwritten(const Extent& extent) const {
  ManagedRegion* const managed = extent.region->managed.get();
  if (managed == nullptr || !extent.host_valid || extent.region->by_pieces ||
      pool_.reach.floor.pending)
    return false;
  const std::optional<uint64_t>& came = managed->pageOf(extent).came;
  return came && std::max({extent.region->followed, managed->written, managed->others,
                           pool_.reach.floor.number, pool_.reach.floor.found}) < *came;
}

// The extent's host chunk has its bytes from now on, and its VRAM is free. The CPU may only read
// what it gets: then the page comes back as it left.
void GivingAway::leaveVram(Extent& extent) {
  ManagedRegion* const managed = extent.region->managed.get();
  if (managed != nullptr && extent.leaving && !engine_.life_.broken)
    chunks_.keepVram(extent.vram, managed->pageOf(extent).copy);
  else
    chunks_.giveVram(extent.vram);
  extent.vram = nullptr;
}

// The bytes of one that was in place go back to its frame, and the chunk is free.
void GivingAway::toFrame(Extent& extent, Lock& lock) {
  const HostChunk* const chunk = extent.host;
  const HostChunk* const frame = extent.region->managed->placeOf(extent);
  engine_.setState(extent, ExtentState::kMoving);
  lock.unlock();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's addresses of both
  std::memcpy(reinterpret_cast<void*>(frame->alias), reinterpret_cast<const void*>(chunk->alias),
              extent.bytes());
  lock.lock();
  const ContentHash hash = extent.hash;
  const bool hashed = extent.hash_valid;
  engine_.host_->giveHost(extent);
  extent.host_valid = true;
  extent.hash = hash;
  extent.hash_valid = hashed;
  engine_.setState(extent, ExtentState::kParked);
}

// The other way, before it is mapped in place: a frame can't be.
bool GivingAway::toMappableChunk(Extent& extent, Lock& lock) {
  // Launches may write it where it is mapped: what VRAM had of it is old then.
  chunks_.forgetKept(extent.region->managed->pageOf(extent).copy);
  if (!extent.region->managed->isPlace(extent.host)) return true;
  HostChunk* const chunk = engine_.host_->takeHostChunk(extent.order, 0, lock);
  if (chunk == nullptr) return false;
  const HostChunk* const frame = extent.host;
  const bool blank = extent.blank;
  lock.unlock();
  // NOLINTBEGIN(performance-no-int-to-ptr): the CPU's addresses of both
  if (blank)
    std::memset(reinterpret_cast<void*>(chunk->alias), 0, extent.bytes());
  else
    std::memcpy(reinterpret_cast<void*>(chunk->alias), reinterpret_cast<const void*>(frame->alias),
                extent.bytes());
  // NOLINTEND(performance-no-int-to-ptr)
  lock.lock();
  extent.host = chunk;
  return true;
}

}  // namespace olpager::pager
