#include "pager/residency/prefetcher.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/away/away.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/host_copies.h"
#include "pager/residency/sparse_use.h"

namespace olpager::pager {

// One extent at a time: the other device asks again for as long as it needs more. The extent's host
// chunk goes as a lower copy. A launch may need memory from memservers, for which host RAM has to
// make way. While memservers are full, only VRAM may have room for the extents that make way.
bool Prefetcher::bringHome(Lock& lock) {
  const bool makes_way = engine_.host_->shortBytes() > 0 && pool_.lower.tier != nullptr &&
                         nowNs() < pool_.lower.retry_ns;
  if (engine_.life_.broken ||
      (!makes_way && (!engine_.asked_.recall || engine_.wants_.short_bytes > 0)))
    return false;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_ ||
        (region->unusable == 0 && region->in_place == 0))
      continue;
    for (auto& extent : region->extents) {
      if (extent->bytes() > chunks_.vramAvailable()) continue;
      if (extent->state == ExtentState::kInPlace && region->wanted == 0)
        return engine_.eviction_->promote({extent.get()});
      if (extent->state == ExtentState::kParked)
        return engine_.fetching_->startFetch(*extent, Engine::Fetch::kDemand, lock);
    }
  }
  engine_.asked_.recall = false;
  return false;
}

// Brings memory that other executors have given to VRAM, while there is room, and scans it there:
// ahead of the launches that name it, each of which would wait for both.
bool Prefetcher::bringArrivals(Lock& lock) {
  if (pool_.away == nullptr || engine_.life_.broken) return false;
  const bool has_room = engine_.wants_.short_bytes == 0 && !engine_.debts_.any();
  Extent* parked = nullptr;
  std::vector<Region*> to_scan;
  pool_.away->keepArrivals([&](Extent& extent) {
    Region& region = *extent.region;
    if (region.engine != &engine_ || extent.leaving) return false;
    switch (extent.state) {
      case ExtentState::kParked:
        if (!has_room || extent.bytes() > chunks_.vramAvailable()) return false;
        if (parked == nullptr) parked = &extent;
        return true;
      case ExtentState::kFetching:
        return true;
      case ExtentState::kVram:
        if (parked != nullptr) return true;  // once all are there
        // A pass looks at all of a region, so all of it has to be there. And it would wait for
        // launches that use the region: then it is left to a launch that follows pointers in it,
        // since others' scans wait for this one.
        if (!region.host_written || (!region.by_pieces && region.unusable > 0) ||
            !pool_.streams.quiet(Scanner::stampToScan(region)))
          return false;
        if (std::find(to_scan.begin(), to_scan.end(), &region) == to_scan.end())
          to_scan.push_back(&region);
        return true;
      default:
        return false;
    }
  });
  if (parked != nullptr) {
    if (engine_.fetching_->startFetch(*parked, Engine::Fetch::kAhead, lock)) return true;
    pool_.away->keepArrivals([](Extent&) { return false; });  // launches ask for them
    return false;
  }
  return !to_scan.empty() && engine_.eviction_->scanHostWritten(to_scan, false);
}

// Fills free VRAM with memory that is used in place. Such memory found no room when it came. There
// may be room by now (memory was freed, or the budget is larger), but a launch that has all it
// needs in place asks for nothing, and without a learned order nothing is fetched ahead.
bool Prefetcher::fillFreeVram() {
  constexpr uint64_t kEachNs = 20'000'000;
  if (engine_.life_.broken || valueOf(engine_.figures_->in_place_bytes) == 0 ||
      !engine_.wants_.empty() || engine_.wants_.short_bytes > 0 || engine_.debts_.surplus > 0 ||
      !engine_.debts_.reliefs.empty() || engine_.flight_.freesSoon() > 0 ||
      !engine_.eviction_->batches().empty() || nowNs() < filled_ns_ + kEachNs)
    return false;
  filled_ns_ = nowNs();
  const uint64_t window = windowBytes();
  uint64_t room = chunks_.vramAvailable();
  if (room <= window) return false;
  room = std::min(room - window, Engine::kInFlightBytes);
  std::vector<Extent*> coming;
  for (uint32_t id = 1; id < pool_.book.regions.end() && room >= kPageBytes; ++id) {
    const Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_ || region->in_place == 0 || region->wanted > 0 ||
        region->isSparse() || region->arena != nullptr)
      continue;
    for (const auto& extent : region->extents) {
      if (extent->state != ExtentState::kInPlace || extent->bytes() > room) continue;
      room -= extent->bytes();
      coming.push_back(extent.get());
    }
  }
  return !coming.empty() && engine_.eviction_->promote(coming, true);
}

uint64_t Prefetcher::windowBytes() const {
  // Enough to keep the link busy over the latency of a launch, its end, and the way out of what it
  // used: some milliseconds of PCIe. Every byte of it is a byte of the model that can't stay.
  return std::clamp<uint64_t>(chunks_.vramBudget() / 16, 2 * kPageBytes, 320ull << 20);
}

/// A region, or a piece of one, that the learned order expects.
struct Prefetcher::Upcoming {
  Region* region;
  uint64_t distance;
  uint64_t begin, end;  // of a piece; else nothing: all of the region
  bool piece() const { return begin != end; }
};

std::vector<Prefetcher::Upcoming> Prefetcher::upcoming(uint64_t window) {
  std::vector<Upcoming> found;
  uint64_t bytes = 0;
  pool_.predictor.upcoming(128, [&](uint32_t id, uint64_t distance) {
    const UnitRef unit = pool_.book.unitAt(id);
    Region* region = unit.region;
    if (region == nullptr || region->dead || region->engine != &engine_) return true;
    if (unit.piece != nullptr) {
      found.push_back({region, distance, unit.begin(), unit.end()});
      if (unit.placement() != Placement::kKeep) bytes += unit.pages() * kPageBytes;
      return bytes < 2 * window;
    }
    found.push_back({region, distance, 0, 0});
    if (region->unusable != 0) bytes += region->pages * kPageBytes;
    return bytes < 2 * window;
  });
  return found;
}

bool Prefetcher::prefetch(Lock& lock) {
  if (engine_.life_.broken || !pool_.slow.load(std::memory_order_relaxed) ||
      engine_.wants_.short_bytes > 0 || engine_.debts_.any())
    return false;
  if (pool_.predictor.touches() == planned_touches_ && !again_) return false;
  planned_touches_ = pool_.predictor.touches();
  again_ = false;
  const TracedStep traced = engine_.step(TraceStep::kAhead);
  plan();
  const uint64_t window = windowBytes();
  if (ahead_bytes_ >= window) return false;
  const std::vector<Upcoming> next = upcoming(window);
  uint64_t room_for = UINT64_MAX;  // the distance of the first that room is made for
  const bool progress = promoteAhead(next, &room_for);
  again_ |= progress;
  return fetchAhead(next, room_for, window, lock) || progress;
}

// Brings in memory that was put in place when there was no room, before it is used again. Memory
// that is known to stream makes room.
bool Prefetcher::promoteAhead(const std::vector<Upcoming>& upcoming, uint64_t* room_for) {
  std::vector<Extent*> leaving;
  uint64_t room = chunks_.vramAvailable();
  bool progress = false;
  for (const Upcoming& next : upcoming) {
    if (next.region->in_place == 0 || next.region->wanted > 0 || next.region->isSparse()) continue;
    if (next.region->arena != nullptr)
      continue;  // by its pieces (below), or by what is used most (swap.cpp)
    for (auto& extent : next.region->extents) {
      if (extent->state != ExtentState::kInPlace) continue;
      const uint64_t coming = room + engine_.flight_.freesSoon();
      if (extent->bytes() <= room) {
        room -= extent->bytes();
        leaving.push_back(extent.get());
      } else if (planner_.known()) {
        *room_for = std::min(*room_for, next.distance);
        if (extent->bytes() > coming)
          progress |= engine_.eviction_->retire(extent->bytes() - coming, next.distance, false);
      }
    }
  }
  return engine_.eviction_->promote(leaving) || progress;
}

// Brings parked memory to VRAM, the window's bytes ahead of launches.
bool Prefetcher::fetchAhead(const std::vector<Upcoming>& upcoming, uint64_t room_for,
                            uint64_t window, Lock& lock) {
  std::vector<Extent*> leaving;
  bool progress = false;
  uint64_t promoting = engine_.eviction_->promotingBytes();
  for (const Upcoming& next : upcoming) {
    if (next.region->dead || next.region->isStreamed()) continue;
    if (!next.piece() && next.region->unusable == 0) continue;  // nothing of it is parked or leaves
    const ExtentRange range = next.piece()
                                  ? extentsAt(*next.region, next.begin, next.end - next.begin)
                                  : ExtentRange{0, next.region->extents.size()};
    for (size_t i = range.first; i < std::min(range.last, next.region->extents.size()); ++i) {
      Extent& extent = *next.region->extents[i];
      if (extent.leaving) continue;  // somebody waits for it at another agent
      if (extent.state == ExtentState::kRetiring && extent.vram != nullptr) {
        if (next.distance > room_for) continue;  // it goes for what is used before it
        engine_.eviction_->cancelRetiring(extent);
        progress = true;
        continue;
      }
      if (extent.state == ExtentState::kParked && next.region->isSparse() &&
          engine_.fetching_->mapInPlace(extent, lock)) {
        progress = again_ = true;
        if (next.region->dead) return true;
        continue;
      }
      const bool in_place = next.piece() && extent.state == ExtentState::kInPlace &&
                            extent.wanted == 0 && !next.region->isPinned(extent);
      if ((extent.state != ExtentState::kParked && !in_place) || extent.in_host) continue;
      const uint64_t ahead = ahead_bytes_ + promoting;
      if (ahead + extent.bytes() > window && ahead > 0)
        return engine_.eviction_->promote(leaving) || progress;
      if (engine_.flight_.fetching_bytes >
          Engine::kInFlightBytes) {  // a demand would wait behind all that is queued
        again_ = true;
        return engine_.eviction_->promote(leaving) || progress;
      }
      if (in_place && chunks_.vramAvailable() >= promoting + extent.bytes()) {
        // Unmapped once no launch uses it, then fetched at once (evict).
        promoting += extent.bytes();
        leaving.push_back(&extent);
        again_ = true;
        continue;
      }
      const bool has_chunk = chunks_.hasVram(extent.order);
      const auto start = [&] {
        if (in_place || !engine_.fetching_->startFetch(extent, Engine::Fetch::kAhead, lock))
          return false;
        progress = again_ = true;
        return true;
      };
      if (has_chunk && start()) {
        if (next.region->dead) return true;
        continue;
      }
      // A quarter of a window leaves at once: a pass costs the same for much as for little. Extents
      // that leave are cut as those that come, so chunks of this size come free. A chunk is made of
      // others only if none comes free: the others would have to be made again for the next extent.
      const uint64_t short_of = window - std::min(window, ahead_bytes_);
      const uint64_t coming = chunks_.vramAvailable() + engine_.flight_.freesSoon();
      const bool of_its_size =
          in_place || has_chunk ||
          engine_.flight_.freesWithin(extent.order, 10 * pool_.options.waits.chunk_ns);
      const bool leaves =
          (coming < short_of || (!of_its_size && coming < window / 4)) &&
          engine_.eviction_->retire(std::max(short_of - std::min(short_of, coming), window / 4),
                                    next.distance, false);
      progress |= leaves;
      if (!of_its_size && !leaves && start()) {
        if (next.region->dead) return true;
        continue;
      }
      again_ = engine_.flight_.freesSoon() > 0;
      return engine_.eviction_->promote(leaving) || progress;
    }
  }
  return engine_.eviction_->promote(leaving) || progress;
}

// Looks at the round that the learned order foretells, and lets the planner decide on it.
void Prefetcher::plan() {
  const uint64_t touches = pool_.predictor.touches();
  if (!planner_.isDue(touches) || !pool_.predictor.confident()) return;
  std::vector<UnitRef> round;
  uint64_t total = 0;
  pool_.predictor.upcoming(1u << 16, [&](uint32_t unit, uint64_t) {
    const UnitRef found = pool_.book.unitAt(unit);
    if (found.region == nullptr || found.region->dead || found.region->engine != &engine_ ||
        found.region->isSparse())
      return true;
    round.push_back(found);
    total += found.pages();
    return true;
  });
  planner_.looked(touches, round.size());
  // An inner loop, not the round. Regions that are better read in place are in no round.
  if (total * kPageBytes * 2 <
      engine_.counts_.held - std::min(engine_.counts_.held, engine_.sparse_->sparseInVram()))
    return;
  // VRAM of other regions (hot ones, and those outside the round) is not there for the round.
  uint64_t others = engine_.packed_.mostSlotBytes() / kPageBytes;
  const uint32_t mark = pool_.reach.newRegionMark();
  for (const UnitRef& unit : round) unit.region->mark = mark;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != &engine_) continue;
    if (region->by_pieces ||
        region->isStreamed()) {  // what nobody uses of an arena is in nobody's way
      region->arena->overlapping(region->base, region->pages * kPageBytes, [&](const Piece& piece) {
        if (pool_.predictor.isHot(unitOf(piece))) others += piece.pages();
      });
      continue;
    }
    if (region->mark == mark || region->isSparse()) continue;
    if (pool_.predictor.isHot(unitOf(*region)) || region->placement == Placement::kUnplanned)
      others += region->pages;
  }
  const uint64_t budget = chunks_.vramBudget() / kPageBytes;
  // The window, and what is on its way out: the more, the faster what comes in.
  const uint64_t streaming =
      std::max(windowBytes() * (engine_.packed_.mostSlotBytes() > 0 ? 4 : 3) / 2,
               engine_.arenas_->streamingBytes()) /
      kPageBytes;
  const uint64_t room = budget > others + streaming ? budget - others - streaming : 0;
  const size_t units = round.size();
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(engine_.device_));
  const auto kept = planner_.plan(std::move(round), total, room);
  if (!kept) return;
  const unsigned long long total_mib = total * kPageBytes >> 20,
                           kept_mib = *kept * kPageBytes >> 20;
  set(why.round_kept_bytes, *kept * kPageBytes);
  set(why.round_bytes, total * kPageBytes);
  base::logInfo(
      "device %d: a round of %zu allocations and pieces of arenas, %llu MiB; %llu MiB of them stay "
      "in VRAM",
      engine_.device_, units, total_mib, kept_mib);
}

void Prefetcher::replan() {
  planner_.forget();
  again_ = true;
}

void Prefetcher::broughtAhead(Extent& extent) {
  extent.prefetched = true;
  ++extent.region->ahead;
  ahead_bytes_ += extent.bytes();
  add(engine_.figures_->prefetches_issued);
}

void Prefetcher::noteUsed(Extent& extent, bool used) {
  if (!extent.prefetched) return;
  extent.prefetched = false;
  --extent.region->ahead;
  ahead_bytes_ -= std::min(ahead_bytes_, extent.bytes());
  add(used ? engine_.figures_->prefetches_useful : engine_.figures_->prefetches_wasted);
}

}  // namespace olpager::pager
