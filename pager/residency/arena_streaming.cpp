#include "pager/residency/arena_streaming.h"

#include <algorithm>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/in_place.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/sparse_use.h"

namespace olpager::pager {

namespace {
constexpr uint8_t kConstantLooks = 3;
constexpr uint64_t kHotShare = 2;  // of VRAM: more is not brought since launches use it often

void noteLook(Extent& extent, bool unchanged) {
  extent.looks = unchanged ? std::min<uint8_t>(extent.looks + 1, kConstantLooks) : 0;
}
}  // namespace

ArenaStreaming::ArenaStreaming(Engine& engine)
    : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

/// The copy of a sealed extent that is being made or has been made; nullptr: there is none.
ArenaStreaming::Staged* ArenaStreaming::stagedOf(const Extent& extent) {
  const auto staged = std::find_if(staging_.begin(), staging_.end(),
                                   [&](const Staged& one) { return one.extent == &extent; });
  return staged == staging_.end() ? nullptr : &*staged;
}

uint64_t ArenaStreaming::stagedBytes() const {
  uint64_t bytes = 0;
  for (const Staged& staged : staging_) bytes += kPageBytes << staged.chunk->order;
  return bytes;
}

/// Drops the staged copies of these extents. A chunk is free once its copy is over.
template <typename Of>
void ArenaStreaming::dropStaged(Of of) {
  for (Staged& staged : staging_)
    if (staged.extent != nullptr && of(*staged.extent)) staged.extent = nullptr;
}

void ArenaStreaming::forget(const Region* region) {
  std::erase(asked_, region);
  if (swapping_ == region) swapping_ = nullptr;
  if (streamed_ == region) streamed_ = nullptr;
  dropStaged([region](const Extent& extent) { return extent.region == region; });
}

void ArenaStreaming::releaseAll() {
  for (const Staged& staged : staging_) {
    if (staged.event != nullptr) engine_.events_.push_back(staged.event);
    chunks_.giveVram(staged.chunk);
  }
  staging_.clear();
}

/// The region's host memory is about to go: what is being copied from there is over.
void ArenaStreaming::awaitStaged(const Region& region, Lock& lock) {
  const auto last = std::find_if(staging_.rbegin(), staging_.rend(), [&](const Staged& one) {
    return one.region == &region && one.event != nullptr;
  });
  if (last == staging_.rend()) return;
  const CUevent event = last->event;  // in the order of their stream
  const auto is_under_way = [&] {
    return std::any_of(staging_.begin(), staging_.end(),
                       [&](const Staged& one) { return one.event == event; });
  };
  while (is_under_way() && !engine_.life_.broken && !pool_.stopped && !engine_.reached(event, lock))
    pool_.changed.wait_for(lock, std::chrono::milliseconds(1));
}

/// Others need the room: what would come last goes. True: some did.
bool ArenaStreaming::giveStagedUp(uint64_t bytes) {
  uint64_t given = 0;
  for (auto staged = staging_.rbegin(); staged != staging_.rend() && given < bytes; ++staged) {
    if (staged->extent == nullptr || staged->extent->wanted > 0) continue;
    given += kPageBytes << staged->chunk->order;
    staged->extent = nullptr;
  }
  return given > 0;
}

/// Copies that have come; chunks of those that nobody wants any more.
bool ArenaStreaming::pollStaged(Lock& lock) {
  bool progress = false;
  for (size_t s = 0; s < staging_.size(); ++s) {
    if (staging_[s].event != nullptr) {
      const bool first = s == 0 || staging_[s - 1].event == nullptr;
      if (!first || !engine_.reached(staging_[s].event, lock))
        break;  // in the order of their stream
      engine_.events_.push_back(std::exchange(staging_[s].event, nullptr));
      engine_.account_.copyEnds(kPageBytes << staging_[s].chunk->order);
      if (engine_.flight_.fetching.empty() && !isCopying(s + 1)) engine_.account_.noCopyEnded();
      progress = true;
    }
    const Extent* const extent = staging_[s].extent;
    if (extent != nullptr && extent->sealed) continue;
    chunks_.giveVram(staging_[s].chunk);
    staging_.erase(staging_.begin() + static_cast<ptrdiff_t>(s--));
    progress = true;
  }
  return progress;
}

bool ArenaStreaming::stage(Extent& extent, Lock& lock) {
  if (!chunks_.hasVram(extent.order) || nowNs() < engine_.pauses_.refused_until_ns) return false;
  Region& region = *extent.region;
  ++region.wanted;  // it is not freed meanwhile
  VramChunk* const chunk = engine_.fetching_->takeVram(extent, lock);
  const CUevent event = chunk != nullptr ? engine_.takeEvent(lock) : nullptr;
  --region.wanted;
  if (chunk == nullptr) return false;
  if (event == nullptr || !extent.sealed || region.dead) {
    if (event != nullptr) engine_.events_.push_back(event);
    chunks_.giveVram(chunk);
    return true;
  }
  staging_.push_back({&extent, chunk, event, &region});
  return copyAhead({staging_.back()}, lock);
}

/// Queues the copies of these, which are the last of staging_ and of one region. False: the driver
/// refused.
bool ArenaStreaming::copyAhead(const std::vector<Staged>& begun, Lock& lock) {
  engine_.account_.copyBegins(engine_.flight_.fetching.empty() && !isCopying(0, begun.size()));
  Region& region = *begun.front().region;
  ++region.wanted;  // nor before the copies have begun: after that awaitStaged() knows of them
  const CUresult result = engine_.outside(TraceStep::kCopyIn, begun.front().extent, lock, [&] {
    for (const Staged& staged : begun) {
      CUresult queued = pool_.driver.cuMemcpyHtoDAsync_v2(
          staged.chunk->alias, reinterpret_cast<const void*>(staged.extent->host->alias),
          staged.extent->bytes(), engine_.streams_.in);
      if (queued == CUDA_SUCCESS)
        queued = pool_.driver.cuEventRecord(staged.event, engine_.streams_.in);
      if (queued != CUDA_SUCCESS) return queued;
    }
    return CUDA_SUCCESS;
  });
  --region.wanted;
  if (result != CUDA_SUCCESS) {
    engine_.fetching_->refused("copy", result);
    dropStaged([&](const Extent& extent) {
      return std::any_of(begun.begin(), begun.end(),
                         [&](const Staged& staged) { return staged.extent == &extent; });
    });
    return false;
  }
  for (const Staged& staged : begun) {
    add(engine_.figures_->bytes_in, staged.extent->bytes());
    add(engine_.figures_->fetched_bytes, staged.extent->bytes());
  }
  add(engine_.figures_->prefetches_issued, begun.size());
  return true;
}

/// Stages what will be named next, as far as there is room.
bool ArenaStreaming::stageAhead(Lock& lock) {
  if (engine_.life_.broken || streamed_ == nullptr || streamed_->dead) return false;
  if (engine_.debts_.any()) return giveStagedUp(UINT64_MAX);
  if (engine_.wants_.short_bytes > 0 || stagedBytes() >= stagingWindow()) return false;
  Extent* const next = nextToStage(*streamed_);
  return next != nullptr && stage(*next, lock);
}

/// A sealed extent without a staged copy: one for which a launch waits, else the one that is used
/// next.
Extent* ArenaStreaming::nextToStage(const Region& region) {
  struct Turn {
    bool waits_nobody;
    uint64_t distance, stamp;
    auto operator<=>(const Turn&) const = default;
  };
  const bool known = pool_.predictor.confident();
  Extent* next = nullptr;
  Turn next_turn{};
  for (const auto& extent : region.extents) {
    if (!extent->sealed || extent->state != ExtentState::kInPlace || extent->stamp == 0 ||
        stagedOf(*extent) != nullptr)
      continue;
    const bool waits_nobody = extent->wanted == 0;
    const Turn turn{waits_nobody,
                    known && waits_nobody ? nextUseOfPart(pool_.predictor, *extent) : 0,
                    extent->stamp};
    if (known && turn.distance == UINT64_MAX) continue;  // nobody knows that it is used again
    if (next != nullptr && next_turn <= turn) continue;
    next = extent.get();
    next_turn = turn;
  }
  return next;
}

/// Chunks of what leaves get copies of what comes next, at once: no launch reads them any more, and
/// host memory has what they hold. So the link is busy while the mappings change. `kept`: bytes of
/// them that are left for what is not constant and comes with this remap.
void ArenaStreaming::stageInto(const std::vector<Move>& leaves, uint64_t kept, Lock& lock) {
  if (leaves.empty() || engine_.debts_.any() || engine_.wants_.short_bytes > 0) return;
  std::vector<Staged> begun;
  for (const Move& move : leaves) {
    if (kept > 0) {
      kept -= std::min(kept, move.extent->bytes());
      continue;
    }
    Extent* const next = nextToStage(*move.extent->region);
    if (next == nullptr || (next->wanted == 0 && stagedBytes() >= stagingWindow())) break;
    if (next->order != move.extent->order) continue;
    const CUevent event = engine_.takeEvent(lock);
    if (event == nullptr) break;
    if (!next->sealed || next->state != ExtentState::kInPlace) {  // while the mutex was released
      engine_.events_.push_back(event);
      continue;
    }
    begun.push_back({next, std::exchange(move.extent->vram, nullptr), event, next->region});
    staging_.push_back(begun.back());
  }
  if (!begun.empty()) copyAhead(begun, lock);
}

uint64_t ArenaStreaming::partBytes() const {
  return streamed_ == nullptr || streamed_->extents.empty() ? 0
                                                            : streamed_->extents.front()->bytes();
}

/// Two parts have come and one is coming.
uint64_t ArenaStreaming::stagingWindow() const {
  return std::max(engine_.ahead_->windowBytes() / 2 * 3, 3 * partBytes());
}

/// Bytes of VRAM for streaming: the window, and a mapped tensor, which may lie in two parts.
uint64_t ArenaStreaming::streamingBytes() const {
  return streamed_ == nullptr ? 0 : stagingWindow() + 2 * partBytes();
}

/// True if mappings of the arena may change.
bool ArenaStreaming::mayRemap(const Region& region) const {
  return swapping_ == nullptr && engine_.eviction_->mayBegin() && !region.dead &&
         !region.exporting && region.pins == 0 && mayBeInPlace(region);
}

/// Launches wait for these, which are in place in one streamed arena. True: something was begun.
bool ArenaStreaming::remapFor(std::span<Extent* const> named, Lock& lock) {
  if (named.empty()) return false;
  Region& region = *named.front()->region;
  if (!mayRemap(region)) return false;
  streamed_ = &region;
  bool progress = false, here = true, short_of_room = false;
  for (Extent* const extent : named) {
    if (extent->region != &region || !extent->sealed) continue;
    const Staged* staged = stagedOf(*extent);
    if (staged == nullptr) {
      const bool begun = stage(*extent, lock);
      if (swapping_ != nullptr || region.dead) return true;
      progress |= begun;
      short_of_room |= !begun;
      staged = begun ? stagedOf(*extent) : nullptr;
    }
    here &= staged != nullptr && staged->event == nullptr;
  }
  if (!here && !short_of_room) return progress;
  return beginRemap(region, named, here) || progress;
}

/// Extents of the arena that may leave VRAM, the first that leaves first.
std::vector<ArenaStreaming::Leaver> ArenaStreaming::whoLeaves(const Region& region) {
  const Extent* const next = nextToStage(region);
  const uint64_t nearest =
      next == nullptr || next->wanted > 0 ? 0 : nextUseOfPart(pool_.predictor, *next);
  const bool known = pool_.predictor.confident();
  std::vector<Leaver> found;
  for (const auto& extent : region.extents) {
    if (extent->state != ExtentState::kVram || extent->wanted > 0 || extent->pins > 0) continue;
    // The longest ago first would be the wrong one of what is used in turns; stamp - 1: what was
    // never named is the greatest.
    const uint64_t recent = extent->stamp - 1;
    found.push_back({extent.get(), known ? scoreOfPart(pool_.predictor, *extent, recent, nearest)
                                         : VictimScore{kUnknown, recent}});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Leaver& a, const Leaver& b) { return a.score > b.score; });
  return found;
}

bool ArenaStreaming::beginRemap(Region& region, std::span<Extent* const> named, bool all_here) {
  auto batch = std::make_unique<Batch>();
  batch->remaps = true;
  uint64_t need = 0;
  const auto comes = [&](Extent& extent) {
    if (extent.state != ExtentState::kInPlace || extent.region != &region) return;
    if (std::find(batch->victims.begin(), batch->victims.end(), &extent) != batch->victims.end())
      return;
    batch->victims.push_back(&extent);
    if (!extent.sealed) need += extent.bytes();
  };
  if (all_here)
    for (Extent* const extent : named) comes(*extent);
  for (const Staged& staged : staging_)
    if (staged.extent != nullptr && staged.event == nullptr) comes(*staged.extent);
  // Extents that are not constant yet come several at a time too: each remap waits for all
  // launches.
  std::vector<Extent*> others;
  for (const auto& extent : region.extents)
    if (extent->state == ExtentState::kInPlace && !extent->sealed && extent->stamp != 0)
      others.push_back(extent.get());
  const auto older = [](const Extent* a, const Extent* b) { return a->stamp < b->stamp; };
  std::sort(others.begin(), others.end(), older);
  for (Extent* const extent : others)
    if (need > 0 && need + extent->bytes() <= engine_.ahead_->windowBytes()) comes(*extent);
  for (const Extent* const extent : named)
    if (extent->sealed && extent->state == ExtentState::kInPlace && stagedOf(*extent) == nullptr)
      need += extent->bytes();
  const uint64_t must = need;
  const bool any_sealed = std::any_of(region.extents.begin(), region.extents.end(),
                                      [](const auto& extent) { return extent->sealed; });
  const uint64_t staged = stagedBytes(), window = stagingWindow();
  if (any_sealed) need += window - std::min(window, staged) + sealedBytes(batch->victims);
  uint64_t room = chunks_.vramAvailable();
  bool any_leaves = false;
  for (const Leaver& leaver : whoLeaves(region)) {
    // An extent that is used before the next staged one leaves only for one that a launch waits
    // for.
    const bool stays = leaver.score.victim_class <= kSoon;
    if (room >= need || (stays && room >= must)) break;
    room += leaver.extent->bytes();
    batch->victims.push_back(leaver.extent);
    any_leaves = true;
  }
  // Nothing can leave: what was staged ahead of its use makes room.
  if (room < must || (!any_leaves && !all_here)) return giveStagedUp(engine_.ahead_->windowBytes());
  if (batch->victims.empty()) return false;
  return startRemap(region, std::move(batch));
}

/// So many bytes of the arena make room in VRAM for what is worth more there.
bool ArenaStreaming::leaveArena(Region& region, uint64_t bytes) {
  auto batch = std::make_unique<Batch>();
  batch->remaps = true;
  uint64_t left = 0;
  for (const Leaver& leaver : whoLeaves(region)) {
    if (left >= bytes) break;
    left += leaver.extent->bytes();
    batch->victims.push_back(leaver.extent);
  }
  return !batch->victims.empty() && startRemap(region, std::move(batch));
}

/// Launches use it all the time, and may have written it: each pass looks through it for pointers.
/// Over the link that takes longer than its VRAM is worth, however little of it they touch.
void ArenaStreaming::makeDense(Region& region) {
  region.density = {Density::kDense};
  engine_.sparse_->countSparse(region, true);
  engine_.sparse_->treatAnew(region);
  base::logInfo("device %d: launches use the %llu MiB at 0x%llx all the time: it comes to VRAM",
                engine_.device_, static_cast<unsigned long long>(region.pages * kPageBytes >> 20),
                static_cast<unsigned long long>(region.base));
}

/// Brings memory that launches use all the time. Such memory is in place if the arena filled VRAM
/// before the memory was allocated; parts of the arena make way.
bool ArenaStreaming::bringHot() {
  constexpr uint64_t kEachNs = 20'000'000;
  if (engine_.life_.broken || streamed_ == nullptr || streamed_->dead || engine_.debts_.any() ||
      engine_.wants_.short_bytes > 0 || !mayRemap(*streamed_) || nowNs() < hot_ns_ + kEachNs)
    return false;
  hot_ns_ = nowNs();
  std::vector<Extent*> hot;
  uint64_t bytes = 0;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* const region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_ || region->arena != nullptr ||
        (region->in_place == 0 && !region->isSparse()) || !mayBeInPlace(*region) ||
        !pool_.predictor.isHot(unitOf(*region)) ||
        region->pages * kPageBytes > chunks_.vramBudget() / kHotShare)
      continue;
    if (region->isSparse()) makeDense(*region);
    for (const auto& extent : region->extents) {
      if (extent->state != ExtentState::kInPlace || extent->in_host ||
          bytes + extent->bytes() > chunks_.vramBudget() / kHotShare)
        continue;
      bytes += extent->bytes();
      hot.push_back(extent.get());
    }
  }
  if (hot.empty()) return false;
  const uint64_t room = chunks_.vramAvailable() + engine_.flight_.freesSoon();
  if (room < bytes) return leaveArena(*streamed_, bytes - room);
  return engine_.eviction_->promote(hot, true);
}

/// The mappings of the batch's extents change once no launch uses the arena.
bool ArenaStreaming::startRemap(Region& region, std::unique_ptr<Batch> batch) {
  for (Extent* const extent : batch->victims) engine_.eviction_->beginRetiring(*extent);
  base::logDebug(
      "device %d: %zu parts of an arena of %llu MiB change place, %zu of them for VRAM",
      engine_.device_, batch->victims.size(),
      static_cast<unsigned long long>(region.pages * kPageBytes >> 20),
      static_cast<size_t>(std::count_if(batch->victims.begin(), batch->victims.end(),
                                        [](const Extent* one) { return one->vram == nullptr; })));
  batch->scan.parts_of = swapping_ = &region;
  region.swapping = true;
  swap_until_ns_ = nowNs() + pool_.options.waits.in_place_ns;
  return engine_.eviction_->begin(std::move(batch));
}

uint64_t ArenaStreaming::sealedBytes(std::span<Extent* const> extents) {
  uint64_t bytes = 0;
  for (const Extent* const extent : extents)
    if (extent->sealed) bytes += extent->bytes();
  return bytes;
}

/// Changes mappings; neighbours are given to the device by one call. After a failure none is
/// mapped. Without the mutex.
CUresult ArenaStreaming::changeMappings(std::vector<Move>& moves) const {
  std::sort(moves.begin(), moves.end(),
            [](const Move& a, const Move& b) { return a.extent->address < b.extent->address; });
  CUresult result = CUDA_SUCCESS;
  const auto unless = [&](CUresult done) {
    if (result == CUDA_SUCCESS) result = done;
  };
  for (const Move& move : moves)
    unless(chunks_.unmapAt(move.extent->address, move.extent->bytes()));
  for (const Move& move : moves) {
    if (result != CUDA_SUCCESS) break;
    const CUmemGenericAllocationHandle to =
        move.chunk != nullptr ? move.chunk->handle : move.extent->host->handle;
    unless(pool_.driver.cuMemMap(move.extent->address, move.extent->bytes(), 0, to, 0));
  }
  for (size_t first = 0, next = 0; first < moves.size() && result == CUDA_SUCCESS; first = next) {
    const uint64_t begin = moves[first].extent->address;
    uint64_t end = begin;
    while (next < moves.size() && moves[next].extent->address == end &&
           moves[next].seals == moves[first].seals)
      end += moves[next++].extent->bytes();
    unless(chunks_.protectAt(begin, end - begin, moves[first].seals));
  }
  if (result == CUDA_SUCCESS) return result;
  for (const Move& move : moves) chunks_.unmapAt(move.extent->address, move.extent->bytes());
  return result;
}

/// Copies all of these, down or up, and waits for that. False: the driver refused.
bool ArenaStreaming::copyNow(std::span<const Move> moves, bool down, Lock& lock) {
  if (moves.empty()) return true;
  const CUstream stream = engine_.streams_.out;
  const CUresult result = engine_.outside(
      down ? TraceStep::kCopyOut : TraceStep::kCopyIn, moves.front().extent, lock, [&] {
        const DriverApi& driver = pool_.driver;
        CUresult queued = CUDA_SUCCESS;
        for (const Move& move : moves) {
          void* const host = reinterpret_cast<void*>(move.extent->host->alias);
          const uint64_t bytes = move.extent->bytes();
          if (queued == CUDA_SUCCESS)
            queued =
                down ? driver.cuMemcpyDtoHAsync_v2(host, move.extent->vram->alias, bytes, stream)
                     : driver.cuMemcpyHtoDAsync_v2(move.chunk->alias, host, bytes, stream);
        }
        const CUresult ended = driver.cuStreamSynchronize(stream);
        return queued == CUDA_SUCCESS ? ended : queued;
      });
  if (result != CUDA_SUCCESS) engine_.fetching_->refused("copy", result);
  for (const Move& move : moves)
    add(down ? engine_.figures_->bytes_out : engine_.figures_->bytes_in, move.extent->bytes());
  return result == CUDA_SUCCESS;
}

/// No launch uses the arena, and the GPU has hashed what leaves. Everything is claimed before the
/// mutex is released first.
void ArenaStreaming::finishRemap(Batch& batch, std::span<const ContentHash> hashes, Lock& lock) {
  const uint64_t began = nowNs();
  std::vector<Move> leaves, changed, comes, sealed;
  for (size_t v = 0; v < batch.victims.size(); ++v) {
    Extent* const extent = batch.victims[v];
    if (extent == nullptr || extent->state != ExtentState::kRetiring) continue;
    const bool is_here = extent->vram != nullptr;
    Staged* const staged = extent->sealed ? stagedOf(*extent) : nullptr;
    const bool lacks_copy = extent->sealed && (staged == nullptr || staged->event != nullptr);
    if (engine_.life_.broken || lacks_copy) {
      engine_.eviction_->cancelRetiring(*extent);
      continue;
    }
    engine_.setState(*extent, ExtentState::kMoving);
    if (is_here) {
      const bool clean = extent->host != nullptr && extent->host_valid && extent->hash_valid &&
                         extent->hash == hashes[v];
      noteLook(*extent, clean);
      extent->hash = hashes[v];
      extent->hash_valid = true;
      (clean ? leaves : changed).push_back({extent, nullptr, extent->looks >= kConstantLooks});
    } else if (extent->sealed) {
      sealed.push_back({extent, staged->chunk, false});
      staging_.erase(staging_.begin() + (staged - staging_.data()));
    } else {
      noteLook(*extent, extent->hash_valid && extent->hash == hashes[v]);
      extent->hash = hashes[v];
      extent->hash_valid = extent->host_valid = true;
      comes.push_back({extent, nullptr, false});
    }
  }
  add(engine_.figures_->evictions_clean, leaves.size());
  uint64_t needed = 0;
  for (const Move& move : comes) needed += move.extent->bytes();
  stageInto(leaves, needed - std::min(needed, chunks_.vramAvailable()), lock);
  writeChanged(changed, lock);
  leaves.insert(leaves.end(), changed.begin(), changed.end());
  leaveForPlace(leaves, lock);
  std::erase_if(comes, [&](Move& move) {
    move.chunk = engine_.life_.broken ? nullptr : engine_.fetching_->takeVram(*move.extent, lock);
    if (move.chunk == nullptr) engine_.setState(*move.extent, ExtentState::kInPlace);
    return move.chunk == nullptr;
  });
  const bool copied = copyNow(comes, false, lock);
  for (const Move& move : comes) {
    if (copied) continue;
    chunks_.giveVram(move.chunk);
    engine_.setState(*move.extent, ExtentState::kInPlace);
  }
  if (copied) sealed.insert(sealed.end(), comes.begin(), comes.end());
  comeToVram(sealed, lock);
  // Host memory that had to be made for what leaves took its time: nobody has waited that in vain.
  // That something has moved renews no want: it may be moved again and again.
  const uint64_t now = nowNs();
  for (size_t w = 0; w < engine_.wants_.size(); ++w) {
    Want& want = *engine_.wants_.at(w);
    want.since_ns = std::min(now, want.since_ns + (now - began));
  }
}

/// Writes extents that have changed since they came to host memory. One for which there is none
/// stays.
void ArenaStreaming::writeChanged(std::vector<Move>& changed, Lock& lock) {
  const auto stays = [this](Extent& extent) {
    engine_.flight_.left(extent);
    engine_.setState(extent, ExtentState::kVram);
  };
  std::erase_if(changed, [&](const Move& move) {
    if (engine_.host_->takeHost(*move.extent, lock)) return false;
    engine_.eviction_->foundNoPlace();
    stays(*move.extent);
    return true;
  });
  for (const Move& move : changed) move.extent->host_valid = false;
  if (copyNow(changed, true, lock)) {
    for (const Move& move : changed) move.extent->host_valid = true;
    add(engine_.figures_->evictions_written, changed.size());
    return;
  }
  for (const Move& move : changed) stays(*move.extent);
  changed.clear();
}

/// False: the driver refused, and none of them is mapped. Such an extent is what a launch brings
/// that needs it.
bool ArenaStreaming::remap(std::vector<Move>& moves, Lock& lock) {
  if (moves.empty()) return true;
  const CUresult result = engine_.outside(TraceStep::kMap, moves.front().extent, lock,
                                          [&] { return changeMappings(moves); });
  if (result != CUDA_SUCCESS) engine_.fetching_->refused("map", result);
  return result == CUDA_SUCCESS;
}

void ArenaStreaming::leaveForPlace(std::vector<Move>& moves, Lock& lock) {
  const bool mapped = remap(moves, lock);
  for (const Move& move : moves) {
    Extent& extent = *move.extent;
    engine_.ahead_->noteUsed(extent, false);
    engine_.flight_.left(extent);
    if (extent.vram != nullptr) chunks_.giveVram(std::exchange(extent.vram, nullptr));
    extent.sealed = move.seals && mapped;
    engine_.setState(extent, mapped ? ExtentState::kInPlace : ExtentState::kParked);
  }
}

void ArenaStreaming::comeToVram(std::vector<Move>& moves, Lock& lock) {
  const bool mapped = remap(moves, lock);
  for (const Move& move : moves) {
    Extent& extent = *move.extent;
    if (mapped)
      extent.vram = move.chunk;
    else
      chunks_.giveVram(move.chunk);
    engine_.setState(extent, mapped ? ExtentState::kVram : ExtentState::kParked);
  }
}

void ArenaStreaming::unseal(Extent& extent, bool written, Lock& lock) {
  if (!extent.sealed || extent.state != ExtentState::kInPlace) return;
  dropStaged([&](const Extent& staged) { return &staged == &extent; });
  engine_.setState(extent, ExtentState::kMoving);
  const CUresult result = engine_.outside(TraceStep::kMap, &extent, lock, [&] {
    return chunks_.protectAt(extent.address, extent.bytes(), false);
  });
  if (result != CUDA_SUCCESS) engine_.lost(result);
  extent.sealed = false;
  if (written) extent.hash_valid = false;
  extent.looks = written ? 0 : kConstantLooks - 1;
  engine_.setState(extent, ExtentState::kInPlace);
}

}  // namespace olpager::pager
