#include "pager/residency/eviction.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/direct_moves.h"
#include "pager/residency/fetches.h"
#include "pager/residency/give_away.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/in_place.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kDrainAgainNs =
    20'000'000;  // the system gave no thread, or the driver another answer
constexpr uint64_t kNoPlaceNs = 100'000'000;  // between passes whose victims find no host memory
}  // namespace

void Eviction::beginRetiring(Extent& extent) {
  if (extent.vram != nullptr) engine_.flight_.leaves(extent);
  engine_.setState(extent, ExtentState::kRetiring);
}

void Eviction::cancelRetiring(Extent& extent) {
  // Out of its batch: the extent may be retired again at once, and then has to wait for its own
  // grace period.
  for (auto& batch : batches_)
    for (Extent*& victim : batch->victims)
      if (victim == &extent) victim = nullptr;
  add(engine_.figures_->evictions_cancelled);
  if (extent.vram != nullptr) {
    engine_.flight_.left(extent);
    engine_.setState(extent, ExtentState::kVram);
  } else {
    engine_.setState(extent, ExtentState::kInPlace);
  }
}

// Victims of the last pass had no place in host memory, nor will those of the next one: it would
// only keep the GPU and its memory busy. Some may be clean by then, so it is tried now and then.
bool Eviction::hasNoPlace() const {
  return pool_.devices.host.given == no_place_given_ && nowNs() < no_place_until_ns_;
}

// Likewise at memservers: what is here has no way down, so that what is there has none up.
bool Eviction::allIsFull() const {
  return hasNoPlace() && pool_.lower.tier != nullptr && nowNs() < pool_.lower.retry_ns;
}

// Another batch may set out. Batches that are given away do not count: they wait for the launches
// that reach them, however long these last, and other batches are not to wait for that.
bool Eviction::mayBegin() const {
  return !engine_.life_.broken &&
         static_cast<size_t>(std::count_if(batches_.begin(), batches_.end(), [](const auto& batch) {
           return !batch->isGivenAway();
         })) < PassKernels::kPasses;
}

bool Eviction::inPass(const Extent& victim) const {
  return std::any_of(batches_.begin(), batches_.end(), [&](const auto& batch) {
    return batch->stage == Batch::Stage::kPass &&
           std::find(batch->victims.begin(), batch->victims.end(), &victim) != batch->victims.end();
  });
}

bool Eviction::begin(std::unique_ptr<Batch> batch) {
  if (batch->isEmpty()) return false;
  batch->settles_floor = pool_.reach.floor.pending ? pool_.reach.floor.epoch : 0;
  // Launches that reach memory which other agents have in turns have been recorded under the mutex
  // since there is any (SharedRegion::users). A launch in its driver call may wait there for a host
  // function that waits for the batch.
  if (batch->isGivenAway() && !pool_.reach.floor.pending)
    batch->stage = Batch::Stage::kDrain;
  else
    hazards().snapshot(batch->hazards);
  batches_.push_back(std::move(batch));
  return true;
}

bool Eviction::promote(const std::vector<Extent*>& extents, bool fills) {
  if (!mayBegin()) return false;
  auto batch = std::make_unique<Batch>();
  batch->fills = fills;
  for (Extent* extent : extents) {
    if (extent->state != ExtentState::kInPlace) continue;
    beginRetiring(*extent);
    batch->victims.push_back(extent);
  }
  return begin(std::move(batch));
}

uint64_t Eviction::promotingBytes() const {
  uint64_t bytes = 0;
  for (const auto& batch : batches_)
    for (const Extent* victim : batch->victims)
      if (victim != nullptr && victim->state == ExtentState::kRetiring && victim->vram == nullptr &&
          victim->region->by_pieces)
        bytes += victim->bytes();
  return bytes;
}

bool Eviction::scanHostWritten(const std::vector<Region*>& regions, bool roots) {
  if (!mayBegin()) return false;
  for (const auto& batch : batches_)
    if (!batch->scan.host_written.empty() || batch->scan.for_variables) return false;
  auto batch = std::make_unique<Batch>();
  batch->scan.for_variables = roots;
  for (Region* region : regions) {
    if (!region->host_written ||
        (region->isRoot() ? pool_.reach.scannerOf(*region) : region->engine) != &engine_)
      continue;
    // The pass sees what is mapped: the launch needs all of it, and what is on its way is waited
    // for first.
    if (!region->by_pieces && region->unusable > 0) continue;
    batch->scan.host_written.push_back({region, 0, region->host_writes});
  }
  if (batch->scan.host_written.empty() && !roots) return false;
  return begin(std::move(batch));
}

// Victims that no pass has begun with stay where they are.
void Eviction::cancelBatches() {
  std::erase_if(batches_, [this](const auto& batch) {
    if (batch->stage == Batch::Stage::kPass) return false;
    for (Extent* victim : batch->victims)
      if (victim != nullptr && victim->state == ExtentState::kRetiring) cancelRetiring(*victim);
    return true;
  });
}

// Pointers to victims may lie in memory of other devices, whose kernels follow them here. The
// engines of those devices scan it once the victims are quiet; if that shows that launches in
// flight reach a victim after all, it is not quiet any more, and they scan again when it is.
bool Eviction::othersHaveScanned(Batch& batch, uint64_t stamp) {
  if (batch.victims.empty() || pool_.devices.engines.size() == 1) return true;
  if (batch.others_stamp != stamp || batch.others.empty()) {
    batch.others_stamp = stamp;
    batch.others.clear();
    batch.others.emplace_back(&engine_, 0);  // asked
    for (const auto& other : pool_.devices.engines) {
      if (other.get() == &engine_ || other->broken()) continue;
      const bool dirty = other->scanner().hasDirty();
      batch.others.emplace_back(other.get(), other->scanner().begun() + (dirty ? 1 : 0));
      if (dirty) other->askScan();
    }
  }
  return std::all_of(batch.others.begin(), batch.others.end(), [this](const auto& awaited) {
    // The engine may be gone by now.
    const bool there =
        std::any_of(pool_.devices.engines.begin(), pool_.devices.engines.end(),
                    [&](const auto& engine) { return engine.get() == awaited.first; });
    return !there || awaited.first->broken() || awaited.first->scanner_.ended() >= awaited.second;
  });
}

// Operations up to this number are to be over before the batch's pass begins.
uint64_t Eviction::stampToAwait(const Batch& batch) const {
  uint64_t stamp = batch.isGivenAway() ? pool_.reach.floor.found : pool_.reach.floor.number;
  for (const Extent* extent : batch.victims)
    stamp = std::max(stamp, batch.isGivenAway() ? extent->region->shared()->others
                                                : extent->region->stampOf(*extent));
  for (const auto& entry : batch.scan.host_written)
    stamp = std::max(stamp, Scanner::stampToScan(*entry.region));
  const auto* const written = pool_.reach.unknown_variables.of(engine_.context_);
  if (batch.scan.for_variables && written != nullptr) stamp = std::max(stamp, written->number);
  return stamp;
}

// True if the launches before the batch's pass are over; `stamp`: stampToAwait().
bool Eviction::isQuiet(const Batch& batch, uint64_t stamp) const {
  if (batch.isGivenAway()) {
    const std::vector<StreamPoint>& users = batch.scan.parts_of->shared()->users;
    if (!std::all_of(users.begin(), users.end(), [](const auto& use) { return use.isOver(); }))
      return false;
  }
  return pool_.streams.quiet(stamp);
}

bool Eviction::advanceBatches(Lock& lock) {
  if (engine_.asked_.scan) {
    engine_.asked_.scan = false;
    auto batch = std::make_unique<Batch>();
    batch->scan.all = true;
    begin(std::move(batch));
  }
  if (std::exchange(engine_.asked_.scan_ahead, false) && mayBegin()) {
    auto batch = std::make_unique<Batch>();
    batch->scan.ahead = true;
    begin(std::move(batch));
  }
  if (batches_.empty()) return false;
  bool progress = false;
  if (std::any_of(batches_.begin(), batches_.end(),
                  [](const auto& b) { return b->stage != Batch::Stage::kPass; }))
    engine_.pollStreams(lock);
  for (size_t b = 0; b < batches_.size(); ++b) {
    Batch& batch = *batches_[b];
    if (batch.stage != Batch::Stage::kPass) {
      // Extents that a launch took back are waited for no more.
      std::erase_if(batch.victims, [](const Extent* extent) {
        return extent == nullptr || extent->state != ExtentState::kRetiring;
      });
      if (batch.isEmpty()) {
        batches_.erase(batches_.begin() + static_cast<ptrdiff_t>(b));
        return true;
      }
    }
    if (batch.stage == Batch::Stage::kGrace && Hazards::passed(batch.hazards)) {
      if (pool_.reach.floor.pending && batch.settles_floor == pool_.reach.floor.epoch) {
        // Every launch of the time before has been submitted by now.
        pool_.reach.floor.settle(pool_.launch_number.load());
      }
      batch.stage = Batch::Stage::kDrain;
      progress = true;
    }
    if (batch.stage == Batch::Stage::kDrain) {
      const uint64_t stamp = stampToAwait(batch);
      if (engine_.life_.broken || isQuiet(batch, stamp)) {
        if (batch.isGivenAway() && !engine_.scanner_.mayBeNamedUnseen(*batch.scan.parts_of)) {
          engine_.leaving_->leaveUnseen(
              batch,
              lock);  // listed meanwhile: a free must find its extents in it
          std::erase_if(batches_, [&](const auto& entry) { return entry.get() == &batch; });
          return true;
        }
        if ((engine_.life_.broken || othersHaveScanned(batch, stamp)) && startPass(batch, lock))
          return true;
      } else {
        for (const auto& other : pool_.devices.engines)
          if (other.get() != &engine_) other->askPoll();
        drainContexts();
      }
    }
    // In the order of their numbers: what a pass found is known before a later one unmaps anything.
    if (batch.stage == Batch::Stage::kPass && engine_.scanner_.isNext(batch.scan) &&
        engine_.reached(batch.event, lock)) {
      finishPass(batch, lock);  // listed meanwhile: a free must find its extents in it
      std::erase_if(batches_, [&](const auto& entry) { return entry.get() == &batch; });
      return true;
    }
  }
  return progress;
}

// Per-thread default streams whose threads left launches unmarked: only a synchronisation of their
// context tells. The synchronisation can last as long as their kernels, so a thread of its own
// makes it. While something captures none may be made.
void Eviction::drainContexts() {
  if (pool_.streams.capturing() || draining_->load() || nowNs() < next_drain_ns_) return;
  auto contexts = pool_.streams.contextsToDrain();
  if (contexts.empty()) return;
  // Every launch up to this number has been submitted once the hazards of now have passed.
  const uint64_t number = pool_.launch_number.load();
  Hazards::Snapshot launching;
  hazards().snapshot(launching);
  auto drain = [&pool = pool_, contexts, number, launching, flag = draining_]() mutable {
    const DriverApi& driver = pool.driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    while (!Hazards::passed(launching)) std::this_thread::yield();
    bool all = true;
    for (const CUcontext context : contexts) {
      const CUresult result = pool.streams.synchronize(context, number);
      all &= result == CUDA_SUCCESS || endsContext(result);
    }
    if (!all) std::this_thread::sleep_for(std::chrono::nanoseconds(kDrainAgainNs));
    flag->store(false);
    pool.draining.fetch_sub(1);
  };
  draining_->store(true);
  pool_.draining.fetch_add(1);
  try {
    base::ownThread(std::move(drain)).detach();
  } catch (const std::exception& error) {
    base::warnOnce("drain", "device %d: eviction waits for a thread: %s", engine_.device_,
                   error.what());
    draining_->store(false);
    pool_.draining.fetch_sub(1);
    next_drain_ns_ = nowNs() + kDrainAgainNs;
  }
}

bool Eviction::startPass(Batch& batch, Lock& lock) {
  if (engine_.kernels_.freeScratch() == nullptr) return false;
  const TracedStep traced = engine_.step(TraceStep::kPass);
  batch.event = engine_.takeEvent(lock);  // from the stock: the mutex is not released
  batch.stage = Batch::Stage::kPass;
  chunks_.passBegins();
  const CUresult result = engine_.scanner_.begin(batch.scan, batch.victims, batch.event, lock);
  if (result != CUDA_SUCCESS) engine_.lost(result);
  return true;
}

// Victims that something has come to name stay this time, also if a later pass has begun, which
// waited for none of the launches that did not know; launches from now on know.
void Eviction::spare(const std::vector<uint64_t>& news) {
  if (news.empty()) return;
  const uint32_t mark = engine_.scanner_.markReachedBy(news);
  for (const auto& batch : batches_) {
    if (batch->stage != Batch::Stage::kPass) continue;
    const std::vector<Extent*> victims = batch->victims;  // cancelRetiring takes them off the batch
    for (Extent* extent : victims)
      if (extent != nullptr && extent->state == ExtentState::kRetiring &&
          (mark == 0 || extent->region->mark == mark))
        cancelRetiring(*extent);
  }
}

void Eviction::finishPass(Batch& batch, Lock& lock) {
  const TracedStep traced = engine_.step(TraceStep::kFound);
  engine_.events_.push_back(batch.event);
  const Scanner::Found found = engine_.scanner_.finish(batch.scan, batch.victims, lock);
  spare(found.news);
  const uint64_t unplaced = unplaced_, given = pool_.devices.host.given;
  bool left = batch.remaps;
  if (batch.remaps) engine_.arenas_->finishRemap(batch, found.hashes, lock);
  for (size_t v = 0; v < batch.victims.size() && !batch.remaps; ++v) {
    Extent* extent = batch.victims[v];
    if (extent == nullptr || extent->state != ExtentState::kRetiring) continue;
    // Nobody knows which piece a new pointer names in an arena that moves by pieces.
    if (found.any && !engine_.life_.broken && extent->region->by_pieces &&
        !pool_.streams.quiet(extent->region->stampOf(*extent))) {
      cancelRetiring(*extent);
      continue;
    }
    evict(*extent, found.hashes[v], lock);
    extent = batch.victims[v];  // a free has come meanwhile
    if (extent == nullptr) continue;
    // Nobody else would bring what no launch asks for.
    if (batch.fills && extent->state == ExtentState::kParked && extent->region->wanted == 0 &&
        !engine_.fetching_->startFetch(*extent, Engine::Fetch::kRoom, lock))
      engine_.fetching_->mapInPlace(*extent, lock);
    left |= extent->state != ExtentState::kVram;
    // A launch waits: what has come for it is not to wait until all victims have left.
    while (!engine_.wants_.empty() && engine_.fetching_->finishFetches(lock)) {
    }
  }
  if (unplaced_ != unplaced && !left) {
    no_place_given_ = given;
    no_place_until_ns_ = nowNs() + kNoPlaceNs;
  }
  engine_.scanner_.ends(batch.scan);
  const TracedStep gives = engine_.step(TraceStep::kGive);
  engine_.account(Limit::kThread);
  chunks_.passEnds(lock);
  engine_.account(Limit::kMapping);
  pool_.changed.notify_all();
}

// The extent is claimed, and nothing uses it any more.
CUresult Eviction::unmap(const Extent& extent, Lock& lock) {
  return engine_.outside(TraceStep::kUnmap, &extent, lock,
                         [&] { return chunks_.unmapAt(extent.address, extent.bytes()); });
}

// The victim leaves its place in host memory, to be fetched.
void Eviction::leavePlace(Extent& extent, const ContentHash& hash, Lock& lock) {
  engine_.setState(extent, ExtentState::kMoving);
  const CUresult result = unmap(extent, lock);
  if (result != CUDA_SUCCESS) {
    engine_.setState(extent, ExtentState::kInPlace);
    return engine_.lost(result);
  }
  engine_.pauses_.promoted.ns = Engine::kFirstPromotedPauseNs;
  extent.hash = hash;
  extent.hash_valid = !extent.region->by_pieces;
  engine_.setState(extent, ExtentState::kParked);
  // Ahead of a launch: it is on its way at once, or stays where it was.
  if (extent.region->by_pieces && extent.wanted == 0 &&
      !engine_.fetching_->startFetch(extent, Engine::Fetch::kAhead, lock))
    engine_.fetching_->mapInPlace(extent, lock);
}

// The victim is unmapped. Equal to its lower copy it is dropped, else it is written down.
void Eviction::evict(Extent& extent, const ContentHash& hash, Lock& lock) {
  if (engine_.life_.broken) return cancelRetiring(extent);
  if (extent.vram == nullptr) return leavePlace(extent, hash, lock);
  const bool clean =
      extent.host != nullptr && extent.host_valid && extent.hash_valid && extent.hash == hash;
  const auto heldThere = [&] {
    return pool_.lower.tier != nullptr &&
           pool_.lower.tier->holds(pool_.programs.tierAddress(extent), hash);
  };
  const bool held = !clean && !extent.leaving && heldThere();
  engine_.setState(extent, ExtentState::kMoving);
  const bool direct =
      !clean && !held && engine_.direct_ != nullptr && engine_.direct_->maySend(extent);
  if (!clean && !held && !direct && !engine_.host_->takeHost(extent, lock)) {
    ++unplaced_;
    if (extent.leaving) engine_.leaving_->noChunkToLeave(extent);
    engine_.flight_.left(extent);
    engine_.setState(extent, ExtentState::kVram);  // no place to go
    return;
  }
  engine_.ahead_->noteUsed(extent, false);
  CUresult result = unmap(extent, lock);
  if (result != CUDA_SUCCESS) {
    engine_.flight_.left(extent);
    engine_.setState(extent, ExtentState::kVram);
    return engine_.lost(result);
  }
  if (direct) return engine_.direct_->send(extent, hash);
  if (held && heldThere()) {  // by memservers: host RAM has no part in it
    engine_.flight_.left(extent);
    chunks_.giveVram(extent.vram);
    extent.vram = nullptr;
    engine_.remote_->leaveHost(extent, hash);
    add(engine_.figures_->evictions_clean);
    engine_.ahead_->lookAgain();
    return;
  }
  if (clean && extent.region->shared() == nullptr && engine_.fetching_->startPacking(extent, lock))
    return;
  if (clean) {
    engine_.flight_.left(extent);
    if (engine_.debts_.any() || !engine_.packed_.keep(*extent.vram, engine_.unallocated()))
      engine_.leaving_->leaveVram(extent);
    extent.vram = nullptr;
    add(engine_.figures_->evictions_clean);
    engine_.ahead_->lookAgain();
    engine_.setState(extent, ExtentState::kParked);
    if (extent.region->by_pieces && extent.wanted == 0) engine_.fetching_->mapInPlace(extent, lock);
    return;
  }
  if (held &&
      !engine_.host_->takeHost(extent, lock)) {  // lost there meanwhile, and no place to go here
    ++unplaced_;
    engine_.flight_.left(extent);
    if (result = engine_.fetching_->mapVram(extent, *extent.vram, lock); result != CUDA_SUCCESS)
      engine_.lost(result);
    return engine_.setState(extent, ExtentState::kVram);
  }
  startWrite(extent, hash, lock);
}

// The victim is unmapped, and its host chunk takes its bytes.
void Eviction::startWrite(Extent& extent, const ContentHash& hash, Lock& lock) {
  extent.host_valid = false;
  extent.hash = hash;
  extent.hash_valid = true;
  engine_.setState(extent, ExtentState::kWriting);
  const CUevent event = engine_.takeEvent(lock);
  const CUresult result = engine_.outside(TraceStep::kCopyOut, &extent, lock, [&] {
    const CUresult copied =
        pool_.driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(extent.host->alias),
                                          extent.vram->alias, extent.bytes(), engine_.streams_.out);
    return copied == CUDA_SUCCESS ? pool_.driver.cuEventRecord(event, engine_.streams_.out)
                                  : copied;
  });
  if (result != CUDA_SUCCESS) {
    engine_.events_.push_back(event);
    engine_.flight_.left(extent);
    chunks_.giveVram(extent.vram);  // its contents are gone with the context
    extent.vram = nullptr;
    engine_.setState(extent, ExtentState::kParked);
    return engine_.lost(result);
  }
  engine_.flight_.writing.push_back({&extent, event});
}

bool Eviction::finishWrites(Lock& lock) {
  if (engine_.flight_.writing.empty() ||
      !engine_.reached(engine_.flight_.writing.front().event, lock))
    return false;
  const Engine::Copy copy = engine_.flight_.writing.front();
  engine_.flight_.writing.pop_front();
  engine_.events_.push_back(copy.event);
  Extent& extent = *copy.extent;
  engine_.flight_.left(extent);
  if (engine_.life_.broken) {
    engine_.setState(extent, ExtentState::kParked);
    return true;
  }
  extent.host_valid = true;
  add(engine_.figures_->bytes_out, extent.bytes());
  add(engine_.figures_->evictions_written);
  if ((extent.region->by_pieces ? extent.wanted : extent.region->wanted) > 0 && !extent.in_host &&
      !extent.leaving &&
      engine_.debts_.surplus ==
          0) {  // a launch came for it meanwhile, and its VRAM is owed to nobody
    if (engine_.fetching_->mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
      engine_.setState(extent, ExtentState::kVram);
      return true;
    }
  }
  engine_.leaving_->leaveVram(extent);
  engine_.setState(extent, ExtentState::kParked);
  if (extent.region->by_pieces) engine_.fetching_->mapInPlace(extent, lock);
  return true;
}

}  // namespace olpager::pager
