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
#include <map>
#include <unordered_set>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/engine.h"
#include "pager/kernels/page_pass.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kBatchBytes = 128ull << 20;
constexpr size_t kCandidates = 4096;
constexpr unsigned kMissedRoots = 3;  // passes, see Engine::noteRoots
constexpr uint64_t kDrainAgainNs =
    20'000'000;  // the system gave no thread, or the driver another answer
constexpr uint64_t kNoPlaceNs = 100'000'000;  // between passes whose victims find no host memory

// Who goes first: the higher class, then the higher key.
struct Score {
  unsigned victim_class = 0;
  uint64_t key = 0;
  bool operator>(const Score& other) const {
    return victim_class != other.victim_class ? victim_class > other.victim_class : key > other.key;
  }
};
/// Whether who reaches the region reaches more than it.
bool leadsOn(const Region& region) {
  return !region.edges.empty() || !region.piece_edges.empty() || region.fixed > 0 ||
         region.isRoot();
}

enum VictimClass : unsigned { kHot, kSoon, kStays, kStreams, kUnknown, kNeverAgain };
}  // namespace

void Engine::cancelRetiring(Extent& extent) {
  // Out of its batch: the extent may be retired again at once, and then has to wait for its own
  // grace period.
  for (auto& batch : batches_)
    for (Extent*& victim : batch->victims)
      if (victim == &extent) victim = nullptr;
  add(figures_->evictions_cancelled);
  if (extent.vram != nullptr) {
    incoming_ -= extent.bytes();
    setState(extent, ExtentState::kVram);
  } else {
    setState(extent, ExtentState::kInPlace);
  }
}

// Whether a launch that waits needs the region: no victim. Where nothing can be used in place,
// launches may fit only one at a time: then the one that is served takes from younger ones, never
// from itself or from an older one, which may have all it needs and not have noticed yet.
bool Engine::isHeld(const Region& region) const {
  if (region.wanted == 0) return false;
  if (chunks_.hostMappable()) return true;
  for (size_t w = 0; w < wants_.size(); ++w) {
    if (w > serving_ && !wants_[w]->in_vram) continue;
    const auto& needed = wants_[w]->regions;
    if (std::find(needed.begin(), needed.end(), &region) != needed.end()) return true;
  }
  return false;
}

bool Engine::isHeld(const Extent& extent) const {
  if (!extent.region->by_pieces) return isHeld(*extent.region);
  if (extent.wanted == 0) return false;
  if (chunks_.hostMappable()) return true;
  for (size_t w = 0; w < wants_.size(); ++w) {
    if (w > serving_ && !wants_[w]->in_vram) continue;
    const auto& needed = wants_[w]->extents;
    if (std::find(needed.begin(), needed.end(), &extent) != needed.end()) return true;
  }
  return false;
}

// Victims of the last pass had no place in host memory, nor will those of the next one: it would
// only keep the GPU and its memory busy. Some may be clean by then, so it is tried now and then.
bool Engine::hasNoPlace() const {
  return pool_.host_given == no_place_given_ && nowNs() < no_place_until_ns_;
}

// Likewise at memservers: what is here has no way down, so that what is there has none up.
bool Engine::allIsFull() const {
  return hasNoPlace() && pool_.remote != nullptr && nowNs() < pool_.remote_retry_ns;
}

// Marks extents for eviction until `bytes` are on their way out. `demand`: a launch waits, anything
// that no launch waits for may go; else only what is used later than `nearer_than` touches from
// now.
bool Engine::retire(uint64_t bytes, uint64_t nearer_than, bool demand) {
  if (broken_ || batches_.size() >= scratch_.size() || hasNoPlace()) return false;
  // Every launch reaches everything: what found room in VRAM stays there, the rest is used in
  // place.
  if (pool_.options.reach == Reach::kAll) return false;
  struct Candidate {
    Region* region;
    Extent* extent;  // of an arena that moves by pieces; else any of the region's
    Score score;
  };
  std::vector<Candidate> candidates;
  const uint32_t end = pool_.regions.end();
  if (end <= 1) return false;
  const uint64_t newest = pool_.launch_number.load(std::memory_order_relaxed);
  for (uint32_t step = 0; step < pool_.regions.end() - 1 && candidates.size() < kCandidates;
       ++step) {
    clock_hand_ = clock_hand_ % (end - 1) + 1;
    Region* region = pool_.regions.at(static_cast<uint32_t>(clock_hand_));
    if (region->dead || region->engine != this) continue;
    if (!region->by_pieces && (region->pins > 0 || isHeld(*region))) continue;
    if (region->extents.empty() ||
        region->blocked.load(std::memory_order_relaxed) >= region->extents.size())
      continue;
    const auto scoreOf = [&](const UnitRef& unit, uint64_t age) -> Score {
      const predict::Unit id = unit.piece != nullptr ? unitOf(*unit.piece) : unitOf(*region);
      if (region->isSparse()) return {kNeverAgain, UINT64_MAX};
      if (region->tiny) return {age < kTinyLaunches ? kHot : kUnknown, age};
      if (pool_.predictor.isHot(id)) return {kHot, UINT64_MAX - unit.pages()};
      using Kind = predict::Predictor::NextUse::Kind;
      const auto next = pool_.predictor.nextUse(id);
      const unsigned by_plan = unit.placement() == Placement::kKeep ? kStays : kStreams;
      if (next.kind == Kind::kNever) return {kNeverAgain, age};
      if (next.kind == Kind::kUnpredicted) return {kUnknown, age};
      return {next.distance <= nearer_than ? static_cast<unsigned>(kSoon) : by_plan, next.distance};
    };
    const auto enter = [&](Extent* extent, const Score& score) {
      if (!demand && score.victim_class <= (plan_known() ? kStays : kSoon)) return;
      candidates.push_back({region, extent, score});
    };
    if (!region->by_pieces) {
      const uint64_t age = newest - std::min(newest, region->stamp.load(std::memory_order_relaxed));
      enter(nullptr, scoreOf({region, nullptr}, age));
      continue;
    }
    for (auto& extent : region->extents) {
      if (extent->state != ExtentState::kVram || region->isPinned(*extent) || isHeld(*extent))
        continue;
      // One that several pieces share goes when the last of them can.
      const uint64_t age = newest - std::min(newest, region->stampOf(*extent));
      Score score{kNeverAgain, UINT64_MAX};
      region->arena->overlapping(extent->address, extent->bytes(), [&](Piece& piece) {
        const Score its = scoreOf({region, &piece}, age);
        if (score > its) score = its;
      });
      enter(extent.get(), score);
    }
  }
  if (candidates.empty()) return false;
  const uint64_t wanted = std::min(bytes, kBatchBytes);
  const size_t first = std::min<size_t>(candidates.size(), 64);
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(first),
                    candidates.end(),
                    [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  auto batch = std::make_unique<Batch>();
  for (size_t c = 0; c < first && batch->bytes < wanted; ++c) {
    for (auto& extent : candidates[c].region->extents) {
      if (candidates[c].extent != nullptr && candidates[c].extent != extent.get()) continue;
      if (extent->state != ExtentState::kVram) continue;
      if (batch->bytes >= wanted) break;
      batch->victims.push_back(extent.get());
      batch->bytes += extent->bytes();
      incoming_ += extent->bytes();
      setState(*extent, ExtentState::kRetiring);
    }
  }
  return begin(std::move(batch));
}

// Whether all that used the victim is over, and the GPU is looking at it.
bool Engine::inPass(const Extent& victim) const {
  return std::any_of(batches_.begin(), batches_.end(), [&](const auto& batch) {
    return batch->stage == Batch::Stage::kPass &&
           std::find(batch->victims.begin(), batch->victims.end(), &victim) != batch->victims.end();
  });
}

// The batch sets out, if there is anything in it.
bool Engine::begin(std::unique_ptr<Batch> batch) {
  if (batch->victims.empty() && batch->scan_for.empty() && !batch->for_roots && !batch->scan_all)
    return false;
  batch->settles_floor = pool_.floor_pending ? pool_.floor_epoch : 0;
  hazards().snapshot(batch->hazards);
  batches_.push_back(std::move(batch));
  return true;
}

// Extents in host memory in place are unmapped as victims are, once no launch reaches them, to be
// fetched after that.
bool Engine::promote(const std::vector<Extent*>& extents, bool fills) {
  if (broken_ || batches_.size() >= scratch_.size()) return false;
  auto batch = std::make_unique<Batch>();
  batch->fills = fills;
  for (Extent* extent : extents) {
    if (extent->state != ExtentState::kInPlace) continue;
    setState(*extent, ExtentState::kRetiring);
    batch->victims.push_back(extent);
  }
  return begin(std::move(batch));
}

// Of arenas that move by pieces: on their way from host memory in place to VRAM, no chunk taken
// yet.
uint64_t Engine::promotingBytes() const {
  uint64_t bytes = 0;
  for (const auto& batch : batches_)
    for (const Extent* victim : batch->victims)
      if (victim != nullptr && victim->state == ExtentState::kRetiring && victim->vram == nullptr &&
          victim->region->by_pieces)
        bytes += victim->bytes();
  return bytes;
}

// Regions and roots that the host wrote are scanned before a kernel follows pointers in them.
bool Engine::scanHostWritten(const std::vector<Region*>& regions, bool roots) {
  if (broken_ || batches_.size() >= scratch_.size()) return false;
  for (const auto& batch : batches_)
    if (!batch->scan_for.empty() || batch->for_roots) return false;
  auto batch = std::make_unique<Batch>();
  batch->for_roots = roots;
  for (Region* region : regions) {
    if (!region->host_written ||
        (region->isRoot() ? pool_.scannerOf(*region) : region->engine) != this)
      continue;
    // The pass sees what is mapped: the launch needs all of it, and what is on its way is waited
    // for first.
    if (!region->by_pieces && region->unusable > 0) continue;
    batch->scan_for.push_back({region, 0, region->host_writes});
  }
  if (batch->scan_for.empty() && !roots) return false;
  return begin(std::move(batch));
}

// Victims that no pass has begun with stay where they are.
void Engine::cancelBatches() {
  std::erase_if(batches_, [this](const auto& batch) {
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
  if (batch.victims.empty() || pool_.engines.size() == 1) return true;
  if (batch.others_stamp != stamp || batch.others.empty()) {
    batch.others_stamp = stamp;
    batch.others.clear();
    batch.others.emplace_back(this, 0);  // asked
    for (const auto& other : pool_.engines) {
      if (other.get() == this || other->broken()) continue;
      const bool dirty = other->hasDirty();
      batch.others.emplace_back(other.get(), other->passes_begun_ + (dirty ? 1 : 0));
      if (dirty) other->askScan();
    }
  }
  return std::all_of(batch.others.begin(), batch.others.end(), [this](const auto& awaited) {
    // It may be gone by now.
    const bool there =
        std::any_of(pool_.engines.begin(), pool_.engines.end(),
                    [&](const auto& engine) { return engine.get() == awaited.first; });
    return !there || awaited.first->broken() || awaited.first->passes_ended_ >= awaited.second;
  });
}

bool Engine::hasDirty() const {
  return std::any_of(pool_.dirty.begin(), pool_.dirty.end(), [this](const Region* region) {
    return !region->dead && (region->isRoot() ? pool_.scannerOf(*region) : region->engine) == this;
  });
}

bool Engine::advanceBatches(Lock& lock) {
  if (scan_asked_) {
    scan_asked_ = false;
    auto batch = std::make_unique<Batch>();
    batch->scan_all = true;
    begin(std::move(batch));
  }
  if (batches_.empty()) return false;
  bool progress = false;
  if (std::any_of(batches_.begin(), batches_.end(),
                  [](const auto& b) { return b->stage != Batch::Stage::kPass; })) {
    lock.unlock();
    pool_.streams.poll(device_);
    lock.lock();
  }
  for (size_t b = 0; b < batches_.size(); ++b) {
    Batch& batch = *batches_[b];
    if (batch.stage != Batch::Stage::kPass) {
      // What a launch took back needs no more waiting for.
      std::erase_if(batch.victims, [](const Extent* extent) {
        return extent == nullptr || extent->state != ExtentState::kRetiring;
      });
      if (batch.victims.empty() && batch.scan_for.empty() && !batch.for_roots && !batch.scan_all) {
        batches_.erase(batches_.begin() + static_cast<ptrdiff_t>(b));
        return true;
      }
    }
    if (batch.stage == Batch::Stage::kGrace && Hazards::passed(batch.hazards)) {
      if (pool_.floor_pending && batch.settles_floor == pool_.floor_epoch) {
        // Every launch of the time before has been submitted by now.
        pool_.floor = std::max(pool_.floor, pool_.launch_number.load());
        pool_.floor_pending = false;
      }
      batch.stage = Batch::Stage::kDrain;
      progress = true;
    }
    if (batch.stage == Batch::Stage::kDrain) {
      uint64_t stamp = pool_.floor;
      for (const Extent* extent : batch.victims)
        stamp = std::max(stamp, extent->region->stampOf(*extent));
      for (const auto& entry : batch.scan_for) stamp = std::max(stamp, stampToScan(*entry.region));
      if (const auto written = pool_.roots_written.find(context_);
          batch.for_roots && written != pool_.roots_written.end())
        stamp = std::max(stamp, written->second.number);
      if (broken_ || pool_.streams.quiet(stamp)) {
        if ((broken_ || othersHaveScanned(batch, stamp)) && startPass(batch, lock)) return true;
      } else {
        for (const auto& other : pool_.engines)
          if (other.get() != this) other->askPoll();
        drainContexts(lock);
      }
    }
    // In the order of their numbers: what a pass found is known before a later one unmaps anything.
    if (batch.stage == Batch::Stage::kPass && batch.pass_number == passes_ended_ + 1 &&
        reached(batch.event, lock)) {
      finishPass(batch, lock);  // listed meanwhile: a free must find its extents in it
      std::erase_if(batches_, [&](const auto& entry) { return entry.get() == &batch; });
      return true;
    }
  }
  return progress;
}

// Per-thread default streams whose threads left launches unmarked: only a synchronisation of their
// context tells. It can last as long as their kernels, so a thread of its own makes it. While
// something captures none may be made.
void Engine::drainContexts(Lock& lock) {
  if (pool_.streams.capturing() || draining_->load() || nowNs() < next_drain_ns_) return;
  auto contexts = pool_.streams.contextsToDrain();
  if (contexts.empty()) return;
  static_cast<void>(lock);
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
    std::thread(std::move(drain)).detach();
  } catch (const std::exception& error) {
    base::warnOnce("drain", "device %d: eviction waits for a thread: %s", device_, error.what());
    draining_->store(false);
    pool_.draining.fetch_sub(1);
    next_drain_ns_ = nowNs() + kDrainAgainNs;
  }
}

bool Engine::startPass(Batch& batch, Lock& lock) {
  Scratch* scratch = nullptr;
  for (Scratch& candidate : scratch_)
    if (!candidate.busy) scratch = &candidate;
  if (scratch == nullptr) return false;
  const kernels::ScanScope scope = scopeNow();
  uint64_t slots = 0;
  size_t jobs = 0;
  const auto addJob = [&](uint64_t address, uint64_t pages, const uint32_t* found) {
    if (slots + pages > scratch->pages) return false;
    scratch->jobs[jobs++] = {address, reinterpret_cast<uint64_t>(found),
                             static_cast<uint32_t>(pages), static_cast<uint32_t>(slots)};
    slots += pages;
    return true;
  };
  // The bitmaps: what is named by whatever has none of its own, what variables name (where there is
  // room), then those of the first regions of batch.scanned.
  const uint64_t words = scope.bitmapWords();
  const uint64_t room = kFoundBytes / sizeof(uint32_t) / words;  // bitmaps
  const size_t most_own = room > 2 ? std::min<size_t>(kOwnBitmaps, room - 2) : 0;
  std::vector<std::pair<const Extent*, size_t>> victim_jobs;
  // Of the region that is listed next. Its victims are in it as well.
  const auto bitmapOfNext = [&](const Region& region) {
    if (batch.scanned.size() >= most_own) return scratch->found;
    uint32_t* const bitmap = scratch->found + (2 + batch.scanned.size()) * words;
    for (const auto& [victim, job] : victim_jobs)
      if (victim->region == &region) scratch->jobs[job].found = reinterpret_cast<uint64_t>(bitmap);
    return bitmap;
  };
  batch.hash_slots.clear();
  for (const Extent* extent : batch.victims) {
    batch.hash_slots.push_back(static_cast<uint32_t>(slots));
    // What leaves its place in host memory is hashed in VRAM, where that is a hundred times as
    // fast.
    if (extent->vram == nullptr && extent->region->by_pieces && !extent->scan_due) continue;
    if (addJob(extent->vram != nullptr ? extent->vram->alias : extent->host->alias,
               1ull << extent->order, scratch->found))
      victim_jobs.emplace_back(extent, jobs - 1);
  }
  // Any page that was written since its last scan may hold a pointer to a victim.
  const uint64_t floor = pool_.streams.completedFloor(pool_.launch_number.load());
  for (auto& entry : batch.scan_for) {
    entry.stamp = entry.region->stamp.load();
    entry.host_writes = entry.region->host_writes;
    pool_.markDirty(entry.region);
  }
  batch.scanned.clear();

  std::vector<Region*> still_dirty;
  // A kernel may move a pointer from where the scan has not been yet to where it has: what kernels
  // use now is scanned once more, after all else.
  std::vector<kernels::PagePassJob> again;
  const bool roots_alone = batch.victims.empty() && batch.scan_for.empty() && !batch.scan_all;
  for (Region* region : pool_.dirty) {
    if (roots_alone) {
      still_dirty.push_back(region);
      continue;
    }
    if (region->isRoot() && !region->dead) {
      if (!listRoot(batch, *region, bitmapOfNext(*region), floor)) still_dirty.push_back(region);
      continue;
    }
    if (region->dead || region->engine == nullptr) {
      region->in_dirty_list = false;
      continue;
    }
    if (region->engine != this) {  // its aliases are mapped for its own device
      still_dirty.push_back(region);
      continue;
    }
    if (region == batch.swap_of) {
      // Who gets to the arena by its own pages has reached it before: only what leaves is looked at
      // now.
      std::vector<uint64_t> leaving;
      for (const Extent* extent : batch.victims) leaving.push_back(extent->address);
      std::sort(leaving.begin(), leaving.end());
      bitmapOfNext(*region);
      batch.scanned.push_back({region,
                               region->buffer_id,
                               false,
                               region->stamp.load(),
                               std::move(leaving),
                               {},
                               {},
                               false,
                               {}});
      still_dirty.push_back(region);
      continue;
    }
    bool fits = true;
    bool whole = true;
    std::vector<uint64_t> only;
    bool rest = false;  // some of it is to be scanned again
    const size_t first_job = jobs;
    const uint32_t* const bitmap = bitmapOfNext(*region);
    for (auto& extent : region->extents) {
      if (region->by_pieces && !extent->scan_due && !region->whole_due) {
        whole = false;
        continue;
      }
      const bool victim = extent->state == ExtentState::kRetiring;
      if (extent->state != ExtentState::kVram && extent->state != ExtentState::kInPlace &&
          !victim) {
        whole &= extent->state == ExtentState::kEmpty;
        continue;
      }
      if (victim && std::find(batch.victims.begin(), batch.victims.end(), extent.get()) !=
                        batch.victims.end()) {
        if (region->by_pieces) only.push_back(extent->address);
        extent->scan_due = false;
        continue;
      }
      const bool fitted =
          addJob(extent->vram != nullptr ? extent->vram->alias : extent->host->alias,
                 1ull << extent->order, bitmap);
      fits &= fitted;
      if (!region->by_pieces) continue;
      only.push_back(extent->address);
      extent->scan_due = !fitted || region->stampOf(*extent) > floor || pool_.floor_pending;
      rest |= extent->scan_due;
    }
    if (region->by_pieces) region->whole_due &= !fits;
    if (!fits || (region->by_pieces ? rest : region->stamp.load() > floor) || pool_.floor_pending) {
      still_dirty.push_back(region);  // may be written while it is scanned
      again.insert(again.end(), scratch->jobs + first_job, scratch->jobs + jobs);
    } else {
      region->in_dirty_list = false;
    }
    // What it names is known anew; of pages that are elsewhere, or may be written meanwhile, the
    // old knowledge stays.
    batch.scanned.push_back({region,
                             region->buffer_id,
                             whole && !region->in_dirty_list,
                             region->stamp.load(),
                             std::move(only),
                             {},
                             {},
                             false,
                             {}});
  }
  pool_.dirty.swap(still_dirty);
  batch.own_bitmaps = std::min(batch.scanned.size(), most_own);
  for (const Scanned& scanned : batch.scanned) ++scanned.region->scans;
  scratch->busy = true;
  chunks_.passBegins();
  batch.scratch = static_cast<unsigned>(scratch - scratch_.data());
  batch.event = takeEvent(lock);  // from the stock: the mutex is not released
  batch.stage = Batch::Stage::kPass;
  add(figures_->scans, slots);
  add(figures_->hashed_bytes, slots * kPageBytes);
  uint32_t* const by_variables = scratch->found + (room >= 2 ? words : 0);
  batch.scope = scope;
  batch.pass_number = ++passes_begun_;
  std::vector<kernels::ScanJob> scans = listVariables(by_variables);
  batch.scans_variables = !scans.empty();
  std::vector<kernels::ScanJob> scans_again;
  for (const Scanned& scanned : batch.scanned) {
    scans.insert(scans.end(), scanned.by_gpu.begin(), scanned.by_gpu.end());
    if (scanned.twice)
      scans_again.insert(scans_again.end(), scanned.by_gpu.begin(), scanned.by_gpu.end());
    batch.reads_roots |= scanned.region->isRoot();
  }
  batch.reads_roots |= batch.scans_variables;
  if (batch.reads_roots) ++pool_.root_scans;
  batch.completed = floor;
  if (const auto written = pool_.roots_written.find(context_);
      written != pool_.roots_written.end() && pool_.streams.quiet(written->second.number)) {
    batch.roots_serial = written->second.serial;
    if (!batch.scans_variables) pool_.roots_written.erase(written);  // they are gone
  }
  scanOnCpu(batch, false, lock);
  lock.unlock();
  std::fill_n(scratch->found, std::min(room, 2 + batch.own_bitmaps) * words, 0u);
  CUresult result = launchScans(*scratch, 0, scans, scope);
  if (result == CUDA_SUCCESS) result = launchPass(*scratch, 0, jobs, scope, nullptr);
  if (result == CUDA_SUCCESS) result = launchScans(*scratch, scans.size(), scans_again, scope);
  if (jobs + again.size() <= scratch->pages) {
    std::copy(again.begin(), again.end(), scratch->jobs + jobs);
    if (result == CUDA_SUCCESS)
      result = launchPass(*scratch, jobs, again.size(), scope, batch.event);
  } else if (result == CUDA_SUCCESS) {
    result = launchPass(*scratch, 0, jobs, scope, batch.event);
  }
  lock.lock();
  if (result != CUDA_SUCCESS) lost(result);
  return true;
}

// What a pass looks for now: addresses of the used part of the range, and between which roots lie.
kernels::ScanScope Engine::scopeNow() const {
  kernels::ScanScope scope{pool_.map->base(), pool_.highWaterPages(), 0, 0};
  const AddressSpan& outside = pool_.roots.span();
  if (outside.bytes() == 0) return scope;
  const uint64_t end = outside.low() + outside.bytes();
  for (;; ++scope.outside_shift) {
    scope.outside_base = outside.low() >> scope.outside_shift << scope.outside_shift;
    const uint64_t granules = ((end - scope.outside_base - 1) >> scope.outside_shift) + 1;
    scope.outside_granules = static_cast<uint32_t>(granules);
    if (granules <= kGranules) return scope;
  }
}

// Calls visit(region, address, bytes) for what a bitmap's bits stand for: regions, and roots, of
// which a granule may hold several. With nullptr for addresses where nothing lies, and for
// granules, in which a pointer may mean what has been freed.
template <typename Visit>
void Engine::forNamed(const kernels::ScanScope& scope, const uint32_t* found, Visit visit) const {
  for (uint64_t w = 0; w < scope.bitmapWords(); ++w) {
    for (uint32_t bits = found[w]; bits != 0; bits &= bits - 1) {
      const uint64_t bit = w * 32 + static_cast<uint64_t>(__builtin_ctz(bits));
      const uint64_t address = scope.addressOf(bit);
      if (!scope.isOutside(bit)) {
        Region* const region = pool_.find(address);
        visit(region == nullptr || region->dead ? nullptr : region, address, kPageBytes);
        continue;
      }
      const uint64_t end = address + (1ull << scope.outside_shift);
      pool_.roots.forAt(address, end - address, [&](uint64_t at, const Root& root) {
        if (root.region != nullptr && !root.region->dead) visit(root.region, at, root.bytes);
      });
      // Without the range, which a wide granule may overlap.
      const uint64_t low = pool_.map->base(), high = low + pool_.map->size();
      if (address < low) visit(nullptr, address, std::min(end, low) - address);
      if (end > high) visit(nullptr, std::max(address, high), end - std::max(address, high));
    }
  }
}

// The jobs [first, first + count) of the buffer, then the event.
CUresult Engine::launchPass(const Scratch& scratch, size_t first, size_t count,
                            const kernels::ScanScope& scope, CUevent event) {
  uint32_t widest = 1;
  const size_t end = first + count;
  for (size_t i = first; i < end; ++i) widest = std::max(widest, scratch.jobs[i].pages);
  kernels::PagePassParameters parameters{reinterpret_cast<uint64_t>(scratch.jobs), scope,
                                         reinterpret_cast<uint64_t>(scratch.hashes)};
  void* pointers[] = {&parameters.jobs, &parameters.scope, &parameters.hashes};
  CUresult result = CUDA_SUCCESS;
  constexpr size_t kGridY = 65535;
  for (size_t at = first; at < end && result == CUDA_SUCCESS; at += kGridY) {
    parameters.jobs = reinterpret_cast<uint64_t>(scratch.jobs + at);
    result = pool_.driver.cuLaunchKernel(
        pass_, widest, static_cast<unsigned>(std::min(kGridY, end - at)), 1,
        kernels::kPagePassThreads, 1, 1, 0, pass_stream_, pointers, nullptr);
  }
  if (result == CUDA_SUCCESS && event != nullptr)
    result = pool_.driver.cuEventRecord(event, pass_stream_);
  return result;
}

// Small ones share a launch, as many as the buffer holds from slot `first` on; each of the others
// has one of its own.
CUresult Engine::launchScans(const Scratch& scratch, size_t first,
                             const std::vector<kernels::ScanJob>& jobs,
                             const kernels::ScanScope& scope) {
  const DriverApi& driver = pool_.driver;
  constexpr unsigned kThreads = kernels::kPagePassThreads;
  CUresult result = CUDA_SUCCESS;
  size_t end = first;
  for (const kernels::ScanJob& job : jobs) {
    if (result != CUDA_SUCCESS) return result;
    if (job.words <= kSmallRoot / 8 && end < kRootJobs) {
      scratch.roots[end++] = job;
      continue;
    }
    kernels::ScanParameters scan{job.address, job.words, scope, job.found};
    void* pointers[] = {&scan.address, &scan.words, &scan.scope, &scan.found};
    const auto blocks =
        static_cast<unsigned>(std::clamp<uint64_t>(job.words / (uint64_t{16} * kThreads), 1, 2048));
    result = driver.cuLaunchKernel(scan_, blocks, 1, 1, kThreads, 1, 1, 0, pass_stream_, pointers,
                                   nullptr);
  }
  if (end == first || result != CUDA_SUCCESS) return result;
  auto shared = reinterpret_cast<uint64_t>(scratch.roots + first);
  kernels::ScanScope wanted = scope;
  void* pointers[] = {&shared, &wanted};
  return driver.cuLaunchKernel(scan_roots_, 4, static_cast<unsigned>(end - first), 1, kThreads, 1,
                               1, 0, pass_stream_, pointers, nullptr);
}

// All of the context's variables.
std::vector<kernels::ScanJob> Engine::listVariables(uint32_t* found) const {
  std::vector<kernels::ScanJob> jobs;
  for (const auto& [address, root] : pool_.roots) {
    if (root.kind != RootKind::kVariable || root.context != context_) continue;
    const uint64_t first = (address + 7) / 8 * 8;
    const uint64_t end = address + root.bytes;
    if (first + 8 <= end)
      jobs.push_back({first, reinterpret_cast<uint64_t>(found), (end - first) / 8});
  }
  return jobs;
}

// A root that launches have reached since its last scan takes part in the pass. False: it stays in
// the list.
bool Engine::listRoot(Batch& batch, Region& region, uint32_t* found, uint64_t floor) {
  if (!region.root->scannable) {  // whoever reaches it reaches all
    region.in_dirty_list = false;
    return true;
  }
  if (pool_.scannerOf(region) != this) return false;
  const bool quiet = region.stamp.load() <= floor && !pool_.floor_pending;
  region.in_dirty_list = !quiet;
  Scanned scanned{&region, region.buffer_id, quiet, region.stamp.load(), {}, {}, {}, !quiet, {}};
  std::vector<ByteRun> by_gpu;
  rootRuns(region, scanned.by_cpu, by_gpu);
  constexpr size_t kMostRuns = 64;
  if (by_gpu.size() > kMostRuns) by_gpu = {{by_gpu.front().begin, by_gpu.back().end}};
  for (const ByteRun& run : by_gpu)
    scanned.by_gpu.push_back(
        {run.begin, reinterpret_cast<uint64_t>(found), (run.end - run.begin) / 8});
  batch.scanned.push_back(std::move(scanned));
  return quiet;
}

// Without the mutex, which is released: root_scans keeps the memory there.
void Engine::scanOnCpu(Batch& batch, bool again, Lock& lock) {
  if (!batch.reads_roots) return;
  std::vector<std::vector<uint64_t>> found(batch.scanned.size());
  std::vector<bool> gone(batch.scanned.size(), false);
  const AddressSpan& outside = pool_.roots.span();
  const uint64_t base = pool_.map->base(), size = pool_.map->size();
  lock.unlock();
  for (size_t i = 0; i < batch.scanned.size(); ++i) {
    if (again && !batch.scanned[i].twice) continue;
    for (const ByteRun& run : batch.scanned[i].by_cpu) {
      const auto note = [&](uint64_t word) { found[i].push_back(word); };
      const bool there = forPieces(run, [&](const void* data, uint64_t bytes) {
        kernels::scanWords(data, bytes, base, size, note);
        kernels::scanWords(data, bytes, outside.low(), outside.bytes(), note);
      });
      if (!there) gone[i] = true;
    }
  }
  lock.lock();
  for (size_t i = 0; i < batch.scanned.size(); ++i) {
    Region& region = *batch.scanned[i].region;
    if (gone[i] && !region.dead && region.buffer_id == batch.scanned[i].buffer_id)
      region.root->scannable = false;
    std::sort(found[i].begin(), found[i].end());  // a table names the same again and again
    found[i].erase(std::unique(found[i].begin(), found[i].end()), found[i].end());
    batch.scanned[i].found.insert(batch.scanned[i].found.end(), found[i].begin(), found[i].end());
  }
}

// What the CPU found becomes edges, as what the GPU found has.
void Engine::noteFoundOnCpu(Batch& batch, std::vector<uint64_t>& news) {
  for (const Scanned& scanned : batch.scanned) {
    Region& region = *scanned.region;
    if (region.dead || region.buffer_id != scanned.buffer_id) continue;
    for (const uint64_t address : scanned.found)
      if (addEdge(pool_, region, address)) news.push_back(address);
  }
}

// What `region` names by now and did not `before`.
void Engine::noteNews(const Region& region, const std::vector<Edge>& before,
                      std::vector<uint64_t>& news) const {
  for (const Edge& edge : region.edges)
    if (!std::binary_search(before.begin(), before.end(), edge))
      pool_.forEdge(edge, [&](const Region& target) { news.push_back(target.base); });
}

// Roots that something has come to name, as far as anybody knew: launches in flight may follow what
// the CPU has put there.
void Engine::lookThroughNews(std::vector<uint64_t>& news) {
  for (size_t i = 0; i < news.size(); ++i) {
    Region* region = pool_.liveAt(news[i]);
    if (region == nullptr || !region->isRoot()) continue;
    pool_.markDirty(region);
    const std::vector<Edge> before = region->edges;
    if (!refreshRoot(pool_, *region)) continue;  // spare() sees to it
    noteNews(*region, before, news);
  }
}

// Takes over what the variables name.
void Engine::noteVariables(const Batch& batch, const uint32_t* found, std::vector<uint64_t>& news) {
  std::map<std::pair<Edge, uint64_t>, size_t> known;  // edges of this engine's, with their pages
  for (size_t i = 0; i < pool_.root_edges.size(); ++i) {
    RootEdge& root = pool_.root_edges[i];
    if (root.keeper != this) continue;
    ++root.missed;
    known[{root.edge, root.page}] = i;
  }
  forNamed(batch.scope, found, [&](Region* target, uint64_t address, uint64_t bytes) {
    const Edge edge = target != nullptr ? edgeTo(*target) : Edge{address, bytes, 0};
    const uint64_t named = target != nullptr && target->by_pieces ? address : 0;
    const auto [at, fresh] = known.try_emplace({edge, named}, pool_.root_edges.size());
    if (fresh) pool_.root_edges.push_back({edge, this, 0, named});
    pool_.root_edges[at->second].missed = 0;
    if (!fresh || target == nullptr) return;
    news.push_back(address);
    const uint64_t newest = pool_.launch_number.load();
    if (target->by_pieces) stampPage(*target, named, newest);
    raise(target->stamp, newest);
  });
  // A kernel that ran meanwhile may have moved a pointer from where the scan had not been yet to
  // where it had: what was not found is forgotten when nothing ran, or when it was missed again and
  // again, each time by a pass that began when all that had run beside the one before was over.
  const uint64_t newest = pool_.launch_number.load();
  const bool alone = batch.completed >= newest;
  const bool later = batch.completed >= variables_seen_;
  if (later) variables_seen_ = newest;
  std::erase_if(pool_.root_edges, [&](RootEdge& edge) {
    if (edge.keeper != this || edge.missed == 0) return false;
    if (!later) --edge.missed;
    return alone || edge.missed >= kMissedRoots;
  });
  const auto written = pool_.roots_written.find(context_);
  if (written != pool_.roots_written.end() && written->second.serial == batch.roots_serial)
    pool_.roots_written.erase(written);
}

// Of a region that was in the pass: what `found` says it names is known anew.
void Engine::takeEdges(const Scanned& scanned, const kernels::ScanScope& scope,
                       const uint32_t* found, std::vector<uint64_t>& news) {
  Region& region = *scanned.region;
  if (region.dead || region.buffer_id != scanned.buffer_id) return;
  const std::vector<Edge> before = region.edges;
  forgetEdges(scanned);
  forNamed(scope, found, [&](const Region* target, uint64_t address, uint64_t bytes) {
    if (target != nullptr)
      addEdge(pool_, region, *target, address);
    else
      addEdge(region, Edge{address, bytes, 0});
  });
  noteNews(region, before, news);
}

// Some page of the regions without bitmaps of their own names another region: finds out which, one
// scan for each of them.
void Engine::findEdges(Batch& batch, std::vector<uint64_t>& news, Lock& lock) {
  Scratch& scratch = scratch_[batch.scratch];
  const kernels::ScanScope scope = scopeNow();
  const uint64_t words = scope.bitmapWords();
  const size_t at_once = std::max<size_t>(1, kFoundBytes / 4 / std::max<uint64_t>(1, words));
  for (size_t from = batch.own_bitmaps; from < batch.scanned.size() && !broken_; from += at_once) {
    const size_t upto = std::min(batch.scanned.size(), from + at_once);
    size_t jobs = 0;
    uint64_t slots = 0;
    std::vector<kernels::ScanJob> scans;
    for (size_t r = from; r < upto; ++r) {
      Region* region = batch.scanned[r].region;
      if (region->dead || region->buffer_id != batch.scanned[r].buffer_id) continue;
      uint32_t* found = scratch.found + (r - from) * words;
      for (kernels::ScanJob scan : batch.scanned[r].by_gpu) {
        scan.found = reinterpret_cast<uint64_t>(found);
        scans.push_back(scan);
      }
      const auto& only = batch.scanned[r].only;
      for (auto& extent : region->extents) {
        const bool some = region->by_pieces || !only.empty();
        if (some && !std::binary_search(only.begin(), only.end(), extent->address)) continue;
        if (!extent->mapped() || slots + (1ull << extent->order) > scratch.pages) {
          // Another batch took it away since the pass: what it names must not be forgotten.
          batch.scanned[r].whole &= extent->state == ExtentState::kEmpty;
          continue;
        }
        scratch.jobs[jobs++] = {extent->vram != nullptr ? extent->vram->alias : extent->host->alias,
                                reinterpret_cast<uint64_t>(found), 1u << extent->order,
                                static_cast<uint32_t>(slots)};
        slots += 1ull << extent->order;
      }
    }
    lock.unlock();
    std::fill_n(scratch.found, (upto - from) * words, 0u);
    CUresult result = launchScans(scratch, 0, scans, scope);
    if (result == CUDA_SUCCESS) result = launchPass(scratch, 0, jobs, scope, nullptr);
    if (result == CUDA_SUCCESS) result = pool_.driver.cuStreamSynchronize(pass_stream_);
    lock.lock();
    if (result != CUDA_SUCCESS) lost(result);
    for (size_t r = from; r < upto; ++r)
      takeEdges(batch.scanned[r], scope, scratch.found + (r - from) * words, news);
  }
}

// What a region named before its pages were scanned whole. If a launch or copy came meanwhile, it
// has added what it knows, and nothing is forgotten.
void Engine::forgetEdges(const Scanned& scanned) {
  Region& region = *scanned.region;
  if (region.dead || region.buffer_id != scanned.buffer_id || !scanned.whole ||
      region.in_dirty_list || region.stamp.load() != scanned.stamp)
    return;
  region.host_written = region.names_itself = false;
  region.edges.clear();
  region.piece_edges.clear();
}

// What was named when the pass looked and nothing names any more: the pointer has moved since, who
// knows where.
void Engine::noteMoved(const kernels::ScanScope& scope, const std::vector<uint32_t>& named,
                       std::vector<uint64_t>& news) {
  std::unordered_set<const Region*> known;
  const auto note = [&](const Edge& edge) {
    pool_.forEdge(edge, [&](const Region& target) { known.insert(&target); });
  };
  for (uint32_t id = 1; id < pool_.regions.end(); ++id) {
    const Region* region = pool_.regions.at(id);
    if (region->dead) continue;
    for (const Edge& edge : region->edges) note(edge);
    if (region->names_itself) known.insert(region);
  }
  for (const RootEdge& root : pool_.root_edges) note(root.edge);
  forNamed(scope, named.data(), [&](const Region* target, uint64_t address, uint64_t) {
    if (target != nullptr && !target->by_pieces && !known.contains(target)) news.push_back(address);
  });
}

// Launches that were made before the pass ended did not know that something names `news`: they may
// follow it, or have put it elsewhere. What it leads to stays this time, also where a later pass
// has begun, which waited for none of them; launches from now on know.
void Engine::spare(const std::vector<uint64_t>& news) {
  if (news.empty()) return;
  const uint32_t mark = ++pool_.closure_mark;
  std::vector<Region*> named;
  for (const uint64_t address : news)
    if (Region* const region = pool_.liveAt(address); region != nullptr) named.push_back(region);
  while (!named.empty()) {
    Region* region = named.back();
    named.pop_back();
    if (region->dead || region->mark == mark) continue;
    region->mark = mark;
    // What can't be looked through leads anywhere.
    if (region->isRoot() && pool_.leadsAnywhere(*region))
      return spareVictims([](const Region&) { return true; });
    for (const Edge& edge : region->edges)
      pool_.forEdge(edge, [&](Region& target) { named.push_back(&target); });
    pool_.forFixed(*region, [&](Region* target) {
      if (target != nullptr) named.push_back(target);
    });
  }
  spareVictims([mark](const Region& region) { return region.mark == mark; });
}

// Takes back the victims of the passes that have begun, those in regions that named(region) names.
template <typename Named>
void Engine::spareVictims(Named named) {
  for (const auto& batch : batches_) {
    if (batch->stage != Batch::Stage::kPass) continue;
    const std::vector<Extent*> victims = batch->victims;  // cancelRetiring takes them off the batch
    for (Extent* extent : victims)
      if (extent != nullptr && extent->state == ExtentState::kRetiring && named(*extent->region))
        cancelRetiring(*extent);
  }
}

// Whoever reaches a region reaches what it names: stamps follow the edges, as far as they go.
void Engine::spreadStamps() {
  std::vector<Region*> raised;
  for (uint32_t id = 1; id < pool_.regions.end(); ++id) {
    Region* region = pool_.regions.at(id);
    if (!region->dead && leadsOn(*region)) raised.push_back(region);
  }
  while (!raised.empty()) {
    Region* region = raised.back();
    raised.pop_back();
    const uint64_t stamp = region->stamp.load();
    const auto raise = [&](Region* target) {
      uint64_t before = target->stamp.load();
      if (target->dead || before >= stamp) return;
      // Launching threads raise it too.
      while (before < stamp && !target->stamp.compare_exchange_weak(before, stamp)) {
      }
      if (leadsOn(*target)) raised.push_back(target);
    };
    // What can't be looked through leads anywhere.
    if (region->isRoot() && pool_.leadsAnywhere(*region))
      pool_.floor = std::max(pool_.floor, stamp);
    pool_.forFixed(*region, [&](Region* target) {
      if (target != nullptr) raise(target);
    });
    for (const Edge& edge : region->edges) {
      pool_.forEdge(edge, [&](Region& target) {
        if (target.by_pieces) target.whole_stamp = std::max(target.whole_stamp, stamp);
        raise(&target);
      });
    }
    for (const uint64_t page : region->piece_edges) {
      Region* target = pool_.find(page);
      if (target == nullptr || target->dead) continue;
      if (target->by_pieces) stampPage(*target, page, stamp);
      raise(target);
    }
  }
}

// A launch with that number reaches a page of an arena that moves by pieces.
void Engine::stampPage(Region& region, uint64_t page, uint64_t stamp) {
  region.arena->overlapping(page, kPageBytes, [&](const Piece& piece) {
    const ExtentRange range = extentsAt(region, piece.begin, piece.end - piece.begin);
    for (size_t e = range.first; e < range.last; ++e)
      region.extents[e]->stamp = std::max(region.extents[e]->stamp, stamp);
  });
}

// Launches up to this number may be writing what is to be scanned of a region that the host wrote.
uint64_t Engine::stampToScan(const Region& region) {
  if (region.isRoot()) return region.root->written;
  if (!region.by_pieces || region.whole_due) return region.stamp.load();
  uint64_t stamp = region.whole_stamp;
  for (const auto& extent : region.extents)
    if (extent->scan_due) stamp = std::max(stamp, extent->stamp);
  return stamp;
}

void Engine::finishPass(Batch& batch, Lock& lock) {
  Scratch& scratch = scratch_[batch.scratch];
  events_.push_back(batch.event);
  // The hashes before findEdges uses the buffer again.
  std::vector<ContentHash> hashes;
  for (size_t v = 0; v < batch.victims.size(); ++v) {
    hashes.push_back(batch.victims[v] == nullptr
                         ? ContentHash{}
                         : kernels::combineHashes(scratch.hashes + batch.hash_slots[v],
                                                  1u << batch.victims[v]->order));
  }
  const uint64_t words = batch.scope.bitmapWords();
  const auto some = [words](const uint32_t* found) {
    return std::any_of(found, found + words, [](uint32_t bits) { return bits != 0; });
  };
  std::vector<uint32_t> named;  // what some page or root names, where any does
  const bool others_name = some(scratch.found);
  if (others_name) named.assign(scratch.found, scratch.found + words);
  std::vector<uint64_t> news;  // addresses that something names of which that was not known
  if (batch.scans_variables && !broken_) {  // before findEdges uses the bitmap again
    const bool apart = 2 * words * sizeof(uint32_t) <= kFoundBytes;
    noteVariables(batch, scratch.found + (apart ? words : 0), news);
  }
  scanOnCpu(batch, true, lock);
  for (size_t r = 0; r < batch.own_bitmaps; ++r) {
    const uint32_t* const found = scratch.found + (2 + r) * words;
    if (!some(found)) {
      forgetEdges(batch.scanned[r]);
      continue;
    }
    named.resize(words);
    for (uint64_t w = 0; w < words; ++w) named[w] |= found[w];
    takeEdges(batch.scanned[r], batch.scope, found, news);
  }
  if (others_name) {
    findEdges(batch, news, lock);
  } else {
    for (size_t r = batch.own_bitmaps; r < batch.scanned.size(); ++r) forgetEdges(batch.scanned[r]);
  }
  noteFoundOnCpu(batch, news);
  if (batch.reads_roots) --pool_.root_scans;
  batch.reads_roots = batch.scans_variables = false;
  for (const Scanned& scanned : batch.scanned)
    if (scanned.region->buffer_id == scanned.buffer_id && scanned.region->scans > 0)
      --scanned.region->scans;
  if (!named.empty()) noteMoved(batch.scope, named, news);
  lookThroughNews(news);
  if (!named.empty() || !news.empty()) spreadStamps();
  spare(news);
  // Copies into these had completed when the pass began; none has come since if the stamp is the
  // same.
  for (const auto& entry : batch.scan_for) {
    const bool same = entry.region->by_pieces || entry.region->isRoot()
                          ? entry.region->host_writes == entry.host_writes
                          : entry.region->stamp.load() == entry.stamp;
    if (same) entry.region->host_written = false;
  }
  const uint64_t unplaced = unplaced_, given = pool_.host_given;
  bool left = false;
  for (size_t v = 0; v < batch.victims.size(); ++v) {
    Extent* extent = batch.victims[v];
    if (extent == nullptr || extent->state != ExtentState::kRetiring) continue;
    // Of an arena that moves by pieces it is not known which of them a new pointer names.
    if (!named.empty() && !broken_ && extent->region->by_pieces &&
        !pool_.streams.quiet(extent->region->stampOf(*extent))) {
      cancelRetiring(*extent);
      continue;
    }
    evict(*extent, hashes[v], lock);
    extent = batch.victims[v];  // a free has come meanwhile
    if (extent == nullptr) continue;
    // Nobody else would bring what no launch asks for.
    if (batch.fills && extent->state == ExtentState::kParked && extent->region->wanted == 0 &&
        !startFetch(*extent, Fetch::kRoom, lock))
      mapInPlace(*extent, lock);
    left |= extent->state != ExtentState::kVram;
  }
  if (unplaced_ != unplaced && !left) {
    no_place_given_ = given;
    no_place_until_ns_ = nowNs() + kNoPlaceNs;
  }
  scratch.busy = false;
  passes_ended_ = batch.pass_number;
  chunks_.passEnds(lock);
  pool_.changed.notify_all();
}

void Engine::evict(Extent& extent, const ContentHash& hash, Lock& lock) {
  if (broken_) return cancelRetiring(extent);
  const DriverApi& driver = pool_.driver;
  if (extent.vram == nullptr) {  // leaves its place in host memory, to be fetched
    setState(extent, ExtentState::kMoving);
    lock.unlock();
    const CUresult result = chunks_.unmapAt(extent.address, extent.bytes());
    lock.lock();
    if (result != CUDA_SUCCESS) {
      setState(extent, ExtentState::kInPlace);
      return lost(result);
    }
    promoted_pause_ns_ = kFirstPromotedPauseNs;
    extent.hash = hash;
    extent.hash_valid = !extent.region->by_pieces;
    setState(extent, ExtentState::kParked);
    // Ahead of a launch: it is on its way at once, or stays where it was.
    if (extent.region->by_pieces && extent.wanted == 0 && !startFetch(extent, Fetch::kAhead, lock))
      mapInPlace(extent, lock);
    return;
  }
  const bool clean =
      extent.host != nullptr && extent.host_valid && extent.hash_valid && extent.hash == hash;
  const auto heldThere = [&] {
    return pool_.remote != nullptr && pool_.remote->holds(remoteId(extent), hash);
  };
  const bool held = !clean && heldThere();
  setState(extent, ExtentState::kMoving);
  if (!clean && !held && !takeHost(extent, lock)) {
    ++unplaced_;
    incoming_ -= extent.bytes();
    setState(extent, ExtentState::kVram);  // no place to go
    return;
  }
  noteUsed(extent, false);
  lock.unlock();
  CUresult result = chunks_.unmapAt(extent.address, extent.bytes());
  lock.lock();
  if (result != CUDA_SUCCESS) {
    incoming_ -= extent.bytes();
    setState(extent, ExtentState::kVram);
    return lost(result);
  }
  if (held && heldThere()) {  // by memservers: host RAM has no part in it
    incoming_ -= extent.bytes();
    chunks_.giveVram(extent.vram);
    extent.vram = nullptr;
    leaveHost(extent, hash);
    add(figures_->evictions_clean);
    prefetch_again_ = true;
    return;
  }
  if (clean && startPacking(extent, lock)) return;
  if (clean) {
    incoming_ -= extent.bytes();
    const bool owed = surplus_ > 0 || !reliefs_.empty();
    if (owed || !packed_.keep(*extent.vram, unallocated())) chunks_.giveVram(extent.vram);
    extent.vram = nullptr;
    add(figures_->evictions_clean);
    prefetch_again_ = true;
    setState(extent, ExtentState::kParked);
    if (extent.region->by_pieces && extent.wanted == 0) mapInPlace(extent, lock);
    return;
  }
  if (held && !takeHost(extent, lock)) {  // lost there meanwhile, and no place to go here
    ++unplaced_;
    incoming_ -= extent.bytes();
    if (result = mapVram(extent, *extent.vram, lock); result != CUDA_SUCCESS) lost(result);
    return setState(extent, ExtentState::kVram);
  }
  extent.host_valid = false;
  extent.hash = hash;
  extent.hash_valid = true;
  setState(extent, ExtentState::kWriting);
  const CUevent event = takeEvent(lock);
  lock.unlock();
  result = driver.cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(extent.host->alias),
                                       extent.vram->alias, extent.bytes(), out_stream_);
  if (result == CUDA_SUCCESS) result = driver.cuEventRecord(event, out_stream_);
  lock.lock();
  if (result != CUDA_SUCCESS) {
    events_.push_back(event);
    incoming_ -= extent.bytes();
    chunks_.giveVram(extent.vram);  // its contents are gone with the context
    extent.vram = nullptr;
    setState(extent, ExtentState::kParked);
    return lost(result);
  }
  writing_.push_back({&extent, event});
}

}  // namespace olpager::pager
