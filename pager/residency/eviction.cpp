// The way out of VRAM. A batch of victims goes through these stages, each polled by the engine's
// thread:
//
//   kGrace  victims are kRetiring (no new launch takes them unseen); waits until every launch that
//           was being made when they were marked has been submitted
//   kDrain  waits until the launches that reached a victim have completed
//   kPass   the GPU hashes the victims and scans every page that launches may have written since
//           its last scan for pointers
//   then    each victim is unmapped; equal to its lower copy it is dropped, else written down
//           (kWriting)
//
// A launch that comes for a victim before it is unmapped takes it back (cancelRetiring). While VRAM
// is owed to others it waits for it first, a bounded time; and for what leaves its place in host
// memory when there is room for it in VRAM (serveWants).
#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/direct_moves.h"
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

// The extent, which is mapped, is about to leave VRAM, or its place in host memory: from here on no
// launch begins to use it unseen. The caller puts it into a batch, which waits for those before.
void Engine::beginRetiring(Extent& extent) {
  if (extent.vram != nullptr) flight_.leaves(extent);
  setState(extent, ExtentState::kRetiring);
}

void Engine::cancelRetiring(Extent& extent) {
  // Out of its batch: the extent may be retired again at once, and then has to wait for its own
  // grace period.
  for (auto& batch : out_.batches)
    for (Extent*& victim : batch->victims)
      if (victim == &extent) victim = nullptr;
  add(figures_->evictions_cancelled);
  if (extent.vram != nullptr) {
    flight_.left(extent);
    setState(extent, ExtentState::kVram);
  } else {
    setState(extent, ExtentState::kInPlace);
  }
}

// Victims of the last pass had no place in host memory, nor will those of the next one: it would
// only keep the GPU and its memory busy. Some may be clean by then, so it is tried now and then.
bool Engine::hasNoPlace() const {
  return pool_.devices.host.given == out_.no_place_given && nowNs() < out_.no_place_until_ns;
}

// Likewise at memservers: what is here has no way down, so that what is there has none up.
bool Engine::allIsFull() const {
  return hasNoPlace() && pool_.lower.tier != nullptr && nowNs() < pool_.lower.retry_ns;
}

// Another batch may set out. What the CPU waits for does not count: it waits for the launches that
// reach it, however long these last, and others are not to wait for that.
bool Engine::mayBegin() const {
  return !life_.broken && static_cast<size_t>(std::count_if(
                              out_.batches.begin(), out_.batches.end(), [](const auto& batch) {
                                return !batch->isGivenAway();
                              })) < PassKernels::kPasses;
}

// Whether all that used the victim is over, and the GPU is looking at it.
bool Engine::inPass(const Extent& victim) const {
  return std::any_of(out_.batches.begin(), out_.batches.end(), [&](const auto& batch) {
    return batch->stage == Batch::Stage::kPass &&
           std::find(batch->victims.begin(), batch->victims.end(), &victim) != batch->victims.end();
  });
}

// The batch sets out, if there is anything in it.
bool Engine::begin(std::unique_ptr<Batch> batch) {
  if (batch->isEmpty()) return false;
  batch->settles_floor = pool_.reach.floor.pending ? pool_.reach.floor.epoch : 0;
  // Who reaches memory that other agents have in turns has been recorded under the mutex since
  // there is any (SharedRegion::users). A launch in its driver call may wait there for a host
  // function that waits for the batch.
  if (batch->isGivenAway() && !pool_.reach.floor.pending)
    batch->stage = Batch::Stage::kDrain;
  else
    hazards().snapshot(batch->hazards);
  out_.batches.push_back(std::move(batch));
  return true;
}

// Extents in host memory in place are unmapped as victims are, once no launch reaches them, to be
// fetched after that.
bool Engine::promote(const std::vector<Extent*>& extents, bool fills) {
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

// Of arenas that move by pieces: on their way from host memory in place to VRAM, no chunk taken
// yet.
uint64_t Engine::promotingBytes() const {
  uint64_t bytes = 0;
  for (const auto& batch : out_.batches)
    for (const Extent* victim : batch->victims)
      if (victim != nullptr && victim->state == ExtentState::kRetiring && victim->vram == nullptr &&
          victim->region->by_pieces)
        bytes += victim->bytes();
  return bytes;
}

// Regions and roots that the host wrote are scanned before a kernel follows pointers in them.
bool Engine::scanHostWritten(const std::vector<Region*>& regions, bool roots) {
  if (!mayBegin()) return false;
  for (const auto& batch : out_.batches)
    if (!batch->scan.host_written.empty() || batch->scan.for_variables) return false;
  auto batch = std::make_unique<Batch>();
  batch->scan.for_variables = roots;
  for (Region* region : regions) {
    if (!region->host_written ||
        (region->isRoot() ? pool_.reach.scannerOf(*region) : region->engine) != this)
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
void Engine::cancelBatches() {
  std::erase_if(out_.batches, [this](const auto& batch) {
    if (batch->stage == Batch::Stage::kPass) return false;
    for (Extent* victim : batch->victims)
      if (victim != nullptr && victim->state == ExtentState::kRetiring) cancelRetiring(*victim);
    return true;
  });
}

// Pointers to victims may lie in memory of other devices, whose kernels follow them here. Their
// engines scan it once the victims are quiet; if that shows that launches in flight reach a victim
// after all, it is not quiet any more, and they scan again when it is.
bool Engine::othersHaveScanned(Batch& batch, uint64_t stamp) {
  if (batch.victims.empty() || pool_.devices.engines.size() == 1) return true;
  if (batch.others_stamp != stamp || batch.others.empty()) {
    batch.others_stamp = stamp;
    batch.others.clear();
    batch.others.emplace_back(this, 0);  // asked
    for (const auto& other : pool_.devices.engines) {
      if (other.get() == this || other->broken()) continue;
      const bool dirty = other->scanner().hasDirty();
      batch.others.emplace_back(other.get(), other->scanner().begun() + (dirty ? 1 : 0));
      if (dirty) other->askScan();
    }
  }
  return std::all_of(batch.others.begin(), batch.others.end(), [this](const auto& awaited) {
    // It may be gone by now.
    const bool there =
        std::any_of(pool_.devices.engines.begin(), pool_.devices.engines.end(),
                    [&](const auto& engine) { return engine.get() == awaited.first; });
    return !there || awaited.first->broken() || awaited.first->scanner_.ended() >= awaited.second;
  });
}

// Operations up to this number are to be over before the batch's pass begins.
uint64_t Engine::stampToAwait(const Batch& batch) const {
  uint64_t stamp = batch.isGivenAway() ? pool_.reach.floor.found : pool_.reach.floor.number;
  for (const Extent* extent : batch.victims)
    stamp = std::max(stamp, batch.isGivenAway() ? extent->region->shared()->others
                                                : extent->region->stampOf(*extent));
  for (const auto& entry : batch.scan.host_written)
    stamp = std::max(stamp, Scanner::stampToScan(*entry.region));
  const auto* const written = pool_.reach.unknown_variables.of(context_);
  if (batch.scan.for_variables && written != nullptr) stamp = std::max(stamp, written->number);
  return stamp;
}

// Whether those before the batch's pass are over; `stamp`: stampToAwait().
bool Engine::isQuiet(const Batch& batch, uint64_t stamp) const {
  if (batch.isGivenAway()) {
    const std::vector<StreamPoint>& users = batch.scan.parts_of->shared()->users;
    if (!std::all_of(users.begin(), users.end(), [](const auto& use) { return use.isOver(); }))
      return false;
  }
  return pool_.streams.quiet(stamp);
}

bool Engine::advanceBatches(Lock& lock) {
  if (asked_.scan) {
    asked_.scan = false;
    auto batch = std::make_unique<Batch>();
    batch->scan.all = true;
    begin(std::move(batch));
  }
  if (std::exchange(asked_.scan_ahead, false) && mayBegin()) {
    auto batch = std::make_unique<Batch>();
    batch->scan.ahead = true;
    begin(std::move(batch));
  }
  if (out_.batches.empty()) return false;
  bool progress = false;
  if (std::any_of(out_.batches.begin(), out_.batches.end(),
                  [](const auto& b) { return b->stage != Batch::Stage::kPass; }))
    pollStreams(lock);
  for (size_t b = 0; b < out_.batches.size(); ++b) {
    Batch& batch = *out_.batches[b];
    if (batch.stage != Batch::Stage::kPass) {
      // What a launch took back needs no more waiting for.
      std::erase_if(batch.victims, [](const Extent* extent) {
        return extent == nullptr || extent->state != ExtentState::kRetiring;
      });
      if (batch.isEmpty()) {
        out_.batches.erase(out_.batches.begin() + static_cast<ptrdiff_t>(b));
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
      if (life_.broken || isQuiet(batch, stamp)) {
        if (batch.isGivenAway() && !scanner_.mayBeNamedUnseen(*batch.scan.parts_of)) {
          leaving_->leaveUnseen(batch,
                                lock);  // listed meanwhile: a free must find its extents in it
          std::erase_if(out_.batches, [&](const auto& entry) { return entry.get() == &batch; });
          return true;
        }
        if ((life_.broken || othersHaveScanned(batch, stamp)) && startPass(batch, lock))
          return true;
      } else {
        for (const auto& other : pool_.devices.engines)
          if (other.get() != this) other->askPoll();
        drainContexts();
      }
    }
    // In the order of their numbers: what a pass found is known before a later one unmaps anything.
    if (batch.stage == Batch::Stage::kPass && scanner_.isNext(batch.scan) &&
        reached(batch.event, lock)) {
      finishPass(batch, lock);  // listed meanwhile: a free must find its extents in it
      std::erase_if(out_.batches, [&](const auto& entry) { return entry.get() == &batch; });
      return true;
    }
  }
  return progress;
}

// Per-thread default streams whose threads left launches unmarked: only a synchronisation of their
// context tells. It can last as long as their kernels, so a thread of its own makes it. While
// something captures none may be made.
void Engine::drainContexts() {
  if (pool_.streams.capturing() || out_.draining->load() || nowNs() < out_.next_drain_ns) return;
  auto contexts = pool_.streams.contextsToDrain();
  if (contexts.empty()) return;
  // Every launch up to this number has been submitted once the hazards of now have passed.
  const uint64_t number = pool_.launch_number.load();
  Hazards::Snapshot launching;
  hazards().snapshot(launching);
  auto drain = [&pool = pool_, contexts, number, launching, flag = out_.draining]() mutable {
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
  out_.draining->store(true);
  pool_.draining.fetch_add(1);
  try {
    base::ownThread(std::move(drain)).detach();
  } catch (const std::exception& error) {
    base::warnOnce("drain", "device %d: eviction waits for a thread: %s", device_, error.what());
    out_.draining->store(false);
    pool_.draining.fetch_sub(1);
    out_.next_drain_ns = nowNs() + kDrainAgainNs;
  }
}

bool Engine::startPass(Batch& batch, Lock& lock) {
  if (kernels_.freeScratch() == nullptr) return false;
  const TracedStep traced = step(TraceStep::kPass);
  batch.event = takeEvent(lock);  // from the stock: the mutex is not released
  batch.stage = Batch::Stage::kPass;
  chunks_.passBegins();
  const CUresult result = scanner_.begin(batch.scan, batch.victims, batch.event, lock);
  if (result != CUDA_SUCCESS) lost(result);
  return true;
}

// What something has come to name stays this time, also where a later pass has begun, which waited
// for none of the launches that did not know; launches from now on know.
void Engine::spare(const std::vector<uint64_t>& news) {
  if (news.empty()) return;
  const uint32_t mark = scanner_.markReachedBy(news);
  for (const auto& batch : out_.batches) {
    if (batch->stage != Batch::Stage::kPass) continue;
    const std::vector<Extent*> victims = batch->victims;  // cancelRetiring takes them off the batch
    for (Extent* extent : victims)
      if (extent != nullptr && extent->state == ExtentState::kRetiring &&
          (mark == 0 || extent->region->mark == mark))
        cancelRetiring(*extent);
  }
}

void Engine::finishPass(Batch& batch, Lock& lock) {
  const TracedStep traced = step(TraceStep::kFound);
  events_.push_back(batch.event);
  const Scanner::Found found = scanner_.finish(batch.scan, batch.victims, lock);
  spare(found.news);
  const uint64_t unplaced = out_.unplaced, given = pool_.devices.host.given;
  bool left = batch.remaps;
  if (batch.remaps) arenas_->finishRemap(batch, found.hashes, lock);
  for (size_t v = 0; v < batch.victims.size() && !batch.remaps; ++v) {
    Extent* extent = batch.victims[v];
    if (extent == nullptr || extent->state != ExtentState::kRetiring) continue;
    // Of an arena that moves by pieces it is not known which of them a new pointer names.
    if (found.any && !life_.broken && extent->region->by_pieces &&
        !pool_.streams.quiet(extent->region->stampOf(*extent))) {
      cancelRetiring(*extent);
      continue;
    }
    evict(*extent, found.hashes[v], lock);
    extent = batch.victims[v];  // a free has come meanwhile
    if (extent == nullptr) continue;
    // Nobody else would bring what no launch asks for.
    if (batch.fills && extent->state == ExtentState::kParked && extent->region->wanted == 0 &&
        !startFetch(*extent, Fetch::kRoom, lock))
      mapInPlace(*extent, lock);
    left |= extent->state != ExtentState::kVram;
    // A launch waits: what has come for it is not to wait until all victims have left.
    while (!wants_.empty() && finishFetches(lock)) {
    }
  }
  if (out_.unplaced != unplaced && !left) {
    out_.no_place_given = given;
    out_.no_place_until_ns = nowNs() + kNoPlaceNs;
  }
  scanner_.ends(batch.scan);
  const TracedStep gives = step(TraceStep::kGive);
  account(Limit::kThread);
  chunks_.passEnds(lock);
  account(Limit::kMapping);
  pool_.changed.notify_all();
}

// The extent is claimed, and nothing uses it any more.
CUresult Engine::unmap(const Extent& extent, Lock& lock) {
  return outside(TraceStep::kUnmap, &extent, lock,
                 [&] { return chunks_.unmapAt(extent.address, extent.bytes()); });
}

// The victim leaves its place in host memory, to be fetched.
void Engine::leavePlace(Extent& extent, const ContentHash& hash, Lock& lock) {
  setState(extent, ExtentState::kMoving);
  const CUresult result = unmap(extent, lock);
  if (result != CUDA_SUCCESS) {
    setState(extent, ExtentState::kInPlace);
    return lost(result);
  }
  pauses_.promoted.ns = kFirstPromotedPauseNs;
  extent.hash = hash;
  extent.hash_valid = !extent.region->by_pieces;
  setState(extent, ExtentState::kParked);
  // Ahead of a launch: it is on its way at once, or stays where it was.
  if (extent.region->by_pieces && extent.wanted == 0 && !startFetch(extent, Fetch::kAhead, lock))
    mapInPlace(extent, lock);
}

// The victim is unmapped. Equal to its lower copy it is dropped, else it is written down.
void Engine::evict(Extent& extent, const ContentHash& hash, Lock& lock) {
  if (life_.broken) return cancelRetiring(extent);
  if (extent.vram == nullptr) return leavePlace(extent, hash, lock);
  const bool clean =
      extent.host != nullptr && extent.host_valid && extent.hash_valid && extent.hash == hash;
  const auto heldThere = [&] {
    return pool_.lower.tier != nullptr &&
           pool_.lower.tier->holds(pool_.programs.tierAddress(extent), hash);
  };
  const bool held = !clean && !extent.leaving && heldThere();
  setState(extent, ExtentState::kMoving);
  const bool direct = !clean && !held && direct_ != nullptr && direct_->maySend(extent);
  if (!clean && !held && !direct && !host_->takeHost(extent, lock)) {
    ++out_.unplaced;
    if (extent.leaving) leaving_->noChunkToLeave(extent);
    flight_.left(extent);
    setState(extent, ExtentState::kVram);  // no place to go
    return;
  }
  ahead_->noteUsed(extent, false);
  CUresult result = unmap(extent, lock);
  if (result != CUDA_SUCCESS) {
    flight_.left(extent);
    setState(extent, ExtentState::kVram);
    return lost(result);
  }
  if (direct) return direct_->send(extent, hash);
  if (held && heldThere()) {  // by memservers: host RAM has no part in it
    flight_.left(extent);
    chunks_.giveVram(extent.vram);
    extent.vram = nullptr;
    remote_->leaveHost(extent, hash);
    add(figures_->evictions_clean);
    ahead_->lookAgain();
    return;
  }
  if (clean && extent.region->shared() == nullptr && startPacking(extent, lock)) return;
  if (clean) {
    flight_.left(extent);
    if (debts_.any() || !packed_.keep(*extent.vram, unallocated())) leaving_->leaveVram(extent);
    extent.vram = nullptr;
    add(figures_->evictions_clean);
    ahead_->lookAgain();
    setState(extent, ExtentState::kParked);
    if (extent.region->by_pieces && extent.wanted == 0) mapInPlace(extent, lock);
    return;
  }
  if (held && !host_->takeHost(extent, lock)) {  // lost there meanwhile, and no place to go here
    ++out_.unplaced;
    flight_.left(extent);
    if (result = mapVram(extent, *extent.vram, lock); result != CUDA_SUCCESS) lost(result);
    return setState(extent, ExtentState::kVram);
  }
  startWrite(extent, hash, lock);
}

// The victim is unmapped, and its host chunk takes its bytes.
void Engine::startWrite(Extent& extent, const ContentHash& hash, Lock& lock) {
  extent.host_valid = false;
  extent.hash = hash;
  extent.hash_valid = true;
  setState(extent, ExtentState::kWriting);
  const CUevent event = takeEvent(lock);
  const CUresult result = outside(TraceStep::kCopyOut, &extent, lock, [&] {
    const CUresult copied =
        pool_.driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(extent.host->alias),
                                          extent.vram->alias, extent.bytes(), streams_.out);
    return copied == CUDA_SUCCESS ? pool_.driver.cuEventRecord(event, streams_.out) : copied;
  });
  if (result != CUDA_SUCCESS) {
    events_.push_back(event);
    flight_.left(extent);
    chunks_.giveVram(extent.vram);  // its contents are gone with the context
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return lost(result);
  }
  flight_.writing.push_back({&extent, event});
}

bool Engine::finishWrites(Lock& lock) {
  if (flight_.writing.empty() || !reached(flight_.writing.front().event, lock)) return false;
  const Copy copy = flight_.writing.front();
  flight_.writing.pop_front();
  events_.push_back(copy.event);
  Extent& extent = *copy.extent;
  flight_.left(extent);
  if (life_.broken) {
    setState(extent, ExtentState::kParked);
    return true;
  }
  extent.host_valid = true;
  add(figures_->bytes_out, extent.bytes());
  add(figures_->evictions_written);
  if ((extent.region->by_pieces ? extent.wanted : extent.region->wanted) > 0 && !extent.in_host &&
      !extent.leaving &&
      debts_.surplus == 0) {  // a launch came for it meanwhile, and its VRAM is owed to nobody
    if (mapVram(extent, *extent.vram, lock) == CUDA_SUCCESS) {
      setState(extent, ExtentState::kVram);
      return true;
    }
  }
  leaving_->leaveVram(extent);
  setState(extent, ExtentState::kParked);
  if (extent.region->by_pieces) mapInPlace(extent, lock);
  return true;
}

}  // namespace olpager::pager
