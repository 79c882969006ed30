// Brings memory to VRAM before a launch needs it: in the learned order, or because there is room.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/away/away.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/host_copies.h"

namespace olpager::pager {

// One extent at a time: the other device asks again for as long as it needs more. The extent's host
// chunk goes as a lower copy. A launch may need memory from memservers, for which host RAM has to
// make way. While memservers are full, only VRAM may have room for the extents that make way.
bool Engine::bringHome(Lock& lock) {
  const bool makes_way =
      host_->shortBytes() > 0 && pool_.lower.tier != nullptr && nowNs() < pool_.lower.retry_ns;
  if (life_.broken || (!makes_way && (!asked_.recall || wants_.short_bytes > 0))) return false;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != this || (region->unusable == 0 && region->in_place == 0))
      continue;
    for (auto& extent : region->extents) {
      if (extent->bytes() > chunks_.vramAvailable()) continue;
      if (extent->state == ExtentState::kInPlace && region->wanted == 0)
        return promote({extent.get()});
      if (extent->state == ExtentState::kParked) return startFetch(*extent, Fetch::kDemand, lock);
    }
  }
  asked_.recall = false;
  return false;
}

// Brings memory that other executors have given to VRAM, while there is room, and scans it there:
// ahead of the launches that name it, each of which would wait for both.
bool Engine::bringArrivals(Lock& lock) {
  if (pool_.away == nullptr || life_.broken) return false;
  const bool has_room = wants_.short_bytes == 0 && !debts_.any();
  Extent* parked = nullptr;
  std::vector<Region*> to_scan;
  pool_.away->keepArrivals([&](Extent& extent) {
    Region& region = *extent.region;
    if (region.engine != this || extent.leaving) return false;
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
    if (startFetch(*parked, Fetch::kAhead, lock)) return true;
    pool_.away->keepArrivals([](Extent&) { return false; });  // launches ask for them
    return false;
  }
  return !to_scan.empty() && scanHostWritten(to_scan, false);
}

// Fills free VRAM with memory that is used in place. Such memory found no room when it came. There
// may be room by now (memory was freed, or the budget is larger), but a launch that has all it
// needs in place asks for nothing, and without a learned order nothing is fetched ahead.
bool Engine::fillFreeVram() {
  constexpr uint64_t kEachNs = 20'000'000;
  if (life_.broken || valueOf(figures_->in_place_bytes) == 0 || !wants_.empty() ||
      wants_.short_bytes > 0 || debts_.surplus > 0 || !debts_.reliefs.empty() ||
      flight_.freesSoon() > 0 || !out_.batches.empty() || nowNs() < prefetch_.filled_ns + kEachNs)
    return false;
  prefetch_.filled_ns = nowNs();
  const uint64_t window = windowBytes();
  uint64_t room = chunks_.vramAvailable();
  if (room <= window) return false;
  room = std::min(room - window, kInFlightBytes);
  std::vector<Extent*> coming;
  for (uint32_t id = 1; id < pool_.book.regions.end() && room >= kPageBytes; ++id) {
    const Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != this || region->in_place == 0 || region->wanted > 0 ||
        region->isSparse() || region->arena != nullptr)
      continue;
    for (const auto& extent : region->extents) {
      if (extent->state != ExtentState::kInPlace || extent->bytes() > room) continue;
      room -= extent->bytes();
      coming.push_back(extent.get());
    }
  }
  return !coming.empty() && promote(coming, true);
}

uint64_t Engine::windowBytes() const {
  // Enough to keep the link busy over the latency of a launch, its end, and the way out of what it
  // used: some milliseconds of PCIe. Every byte of it is a byte of the model that can't stay.
  return std::clamp<uint64_t>(chunks_.vramBudget() / 16, 2 * kPageBytes, 320ull << 20);
}

/// A region, or a piece of one, that the learned order expects.
struct Engine::Upcoming {
  Region* region;
  uint64_t distance;
  uint64_t begin, end;  // of a piece; else nothing: all of the region
  bool piece() const { return begin != end; }
};

std::vector<Engine::Upcoming> Engine::upcoming(uint64_t window) {
  std::vector<Upcoming> found;
  uint64_t bytes = 0;
  pool_.predictor.upcoming(128, [&](uint32_t id, uint64_t distance) {
    const UnitRef unit = pool_.book.unitAt(id);
    Region* region = unit.region;
    if (region == nullptr || region->dead || region->engine != this) return true;
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

bool Engine::prefetch(Lock& lock) {
  if (life_.broken || !pool_.slow.load(std::memory_order_relaxed) || wants_.short_bytes > 0 ||
      debts_.any())
    return false;
  if (pool_.predictor.touches() == prefetch_.planned_touches && !prefetch_.again) return false;
  prefetch_.planned_touches = pool_.predictor.touches();
  prefetch_.again = false;
  const TracedStep traced = step(TraceStep::kAhead);
  plan();
  const uint64_t window = windowBytes();
  if (prefetch_.ahead_bytes >= window) return false;
  const std::vector<Upcoming> next = upcoming(window);
  uint64_t room_for = UINT64_MAX;  // the distance of the first that room is made for
  const bool progress = promoteAhead(next, &room_for);
  prefetch_.again |= progress;
  return fetchAhead(next, room_for, window, lock) || progress;
}

// Brings in memory that was put in place when there was no room, before it is used again. Memory
// that is known to stream makes room.
bool Engine::promoteAhead(const std::vector<Upcoming>& upcoming, uint64_t* room_for) {
  std::vector<Extent*> leaving;
  uint64_t room = chunks_.vramAvailable();
  bool progress = false;
  for (const Upcoming& next : upcoming) {
    if (next.region->in_place == 0 || next.region->wanted > 0 || next.region->isSparse()) continue;
    if (next.region->arena != nullptr)
      continue;  // by its pieces (below), or by what is used most (swap.cpp)
    for (auto& extent : next.region->extents) {
      if (extent->state != ExtentState::kInPlace) continue;
      const uint64_t coming = room + flight_.freesSoon();
      if (extent->bytes() <= room) {
        room -= extent->bytes();
        leaving.push_back(extent.get());
      } else if (planner_.known()) {
        *room_for = std::min(*room_for, next.distance);
        if (extent->bytes() > coming)
          progress |= retire(extent->bytes() - coming, next.distance, false);
      }
    }
  }
  return promote(leaving) || progress;
}

// Brings parked memory to VRAM, the window's bytes ahead of launches.
bool Engine::fetchAhead(const std::vector<Upcoming>& upcoming, uint64_t room_for, uint64_t window,
                        Lock& lock) {
  std::vector<Extent*> leaving;
  bool progress = false;
  uint64_t promoting = promotingBytes();
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
        cancelRetiring(extent);
        progress = true;
        continue;
      }
      if (extent.state == ExtentState::kParked && next.region->isSparse() &&
          mapInPlace(extent, lock)) {
        progress = prefetch_.again = true;
        if (next.region->dead) return true;
        continue;
      }
      const bool in_place = next.piece() && extent.state == ExtentState::kInPlace &&
                            extent.wanted == 0 && !next.region->isPinned(extent);
      if ((extent.state != ExtentState::kParked && !in_place) || extent.in_host) continue;
      const uint64_t ahead = prefetch_.ahead_bytes + promoting;
      if (ahead + extent.bytes() > window && ahead > 0) return promote(leaving) || progress;
      if (flight_.fetching_bytes >
          kInFlightBytes) {  // a demand would wait behind all that is queued
        prefetch_.again = true;
        return promote(leaving) || progress;
      }
      if (in_place && chunks_.vramAvailable() >= promoting + extent.bytes()) {
        // Unmapped once no launch uses it, then fetched at once (evict).
        promoting += extent.bytes();
        leaving.push_back(&extent);
        prefetch_.again = true;
        continue;
      }
      const bool has_chunk = chunks_.hasVram(extent.order);
      const auto start = [&] {
        if (in_place || !startFetch(extent, Fetch::kAhead, lock)) return false;
        progress = prefetch_.again = true;
        return true;
      };
      if (has_chunk && start()) {
        if (next.region->dead) return true;
        continue;
      }
      // A quarter of a window leaves at once: a pass costs the same for much as for little. Extents
      // that leave are cut as those that come, so chunks of this size come free. A chunk is made of
      // others only if none comes free: the others would have to be made again for the next extent.
      const uint64_t short_of = window - std::min(window, prefetch_.ahead_bytes);
      const uint64_t coming = chunks_.vramAvailable() + flight_.freesSoon();
      const bool of_its_size = in_place || has_chunk ||
                               flight_.freesWithin(extent.order, 10 * pool_.options.waits.chunk_ns);
      const bool leaves =
          (coming < short_of || (!of_its_size && coming < window / 4)) &&
          retire(std::max(short_of - std::min(short_of, coming), window / 4), next.distance, false);
      progress |= leaves;
      if (!of_its_size && !leaves && start()) {
        if (next.region->dead) return true;
        continue;
      }
      prefetch_.again = flight_.freesSoon() > 0;
      return promote(leaving) || progress;
    }
  }
  return promote(leaving) || progress;
}

// Judges regions by the times of the launches that used them.
void Engine::judgeTimed(Lock& lock) {
  if (!timing_.timer.busy() || life_.broken) return;
  struct Sample {
    Region* region;
    uint64_t buffer_id;
    uint64_t ns;
    bool in_place;
    uint64_t tensor, bytes;
  };
  std::vector<Sample> samples;
  lock.unlock();
  timing_.timer.collect(pool_.driver, [&](const TimedLaunch& launch, uint64_t ns) {
    samples.push_back(
        {launch.region, launch.buffer_id, ns, launch.in_place, launch.tensor, launch.bytes});
  });
  lock.lock();
  for (const Sample& sample : samples) {
    Region& region = *sample.region;
    if (region.dead || region.buffer_id != sample.buffer_id) continue;
    if (sample.tensor != 0) {
      if (region.arena == nullptr) continue;
      DensityRecord& density = region.arena->at(sample.tensor).density;
      if (judge(density, sample.bytes, sample.ns, sample.in_place, timing_.vram_bandwidth))
        base::logInfo("device %d: launches touch %s of the tensor of %llu MiB at 0x%llx", device_,
                      density.verdict == Density::kSparse ? "little" : "much",
                      static_cast<unsigned long long>(sample.bytes >> 20),
                      static_cast<unsigned long long>(sample.tensor));
      continue;
    }
    const uint64_t bytes = region.pages * kPageBytes;
    const bool was_sparse = region.density.verdict == Density::kSparse;
    if (!judge(region.density, bytes, sample.ns, sample.in_place, timing_.vram_bandwidth)) continue;
    countSparse(region, was_sparse);
    if (!region.isSparse() && !sample.in_place) continue;  // as it was treated so far
    base::logInfo(
        "device %d: launches touch %s of the %llu MiB at 0x%llx: %s", device_,
        region.isSparse() ? "little" : "much", static_cast<unsigned long long>(bytes >> 20),
        static_cast<unsigned long long>(region.base),
        region.isSparse() ? "it stays in host memory, used in place" : "it is fetched again");
    treatAnew(region);
  }
}

// A verdict on the region has been found.
void Engine::countSparse(const Region& region, bool was_sparse) {
  const bool is_sparse = region.density.verdict == Density::kSparse;
  if (is_sparse == was_sparse) return;
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(device_));
  const uint64_t bytes = region.pages * kPageBytes;
  if (is_sparse) {
    add(why.sparse_allocations);
    add(why.sparse_bytes, bytes);
  } else {
    subtract(why.sparse_allocations, 1);
    subtract(why.sparse_bytes, bytes);
  }
}

// The region is better fetched from now on, or better read in place.
void Engine::treatAnew(Region& region) {
  region.placement = Placement::kUnplanned;
  planner_.forget();  // there is more or less room for the others
  prefetch_.again = true;
}

/// Bytes of VRAM that memory has which is better read in place, and gives up.
uint64_t Engine::sparseInVram() const {
  uint64_t bytes = 0;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    const Region* const region = pool_.book.regions.at(id);
    if (region->dead || region->engine != this || !region->isSparse()) continue;
    for (const auto& extent : region->extents)
      if (extent->vram != nullptr) bytes += extent->bytes();
  }
  return bytes;
}

// Looks at the round that the learned order foretells, and lets the planner decide on it.
void Engine::plan() {
  const uint64_t touches = pool_.predictor.touches();
  if (!planner_.isDue(touches) || !pool_.predictor.confident()) return;
  std::vector<UnitRef> round;
  uint64_t total = 0;
  pool_.predictor.upcoming(1u << 16, [&](uint32_t unit, uint64_t) {
    const UnitRef found = pool_.book.unitAt(unit);
    if (found.region == nullptr || found.region->dead || found.region->engine != this ||
        found.region->isSparse())
      return true;
    round.push_back(found);
    total += found.pages();
    return true;
  });
  planner_.looked(touches, round.size());
  // An inner loop, not the round. Regions that are better read in place are in no round.
  if (total * kPageBytes * 2 < counts_.held - std::min(counts_.held, sparseInVram())) return;
  // VRAM of other regions (hot ones, and those outside the round) is not there for the round.
  uint64_t others = packed_.mostSlotBytes() / kPageBytes;
  const uint32_t mark = pool_.reach.newRegionMark();
  for (const UnitRef& unit : round) unit.region->mark = mark;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* region = pool_.book.regions.at(id);
    if (region->dead || region->engine != this) continue;
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
  const uint64_t streaming = std::max(windowBytes() * (packed_.mostSlotBytes() > 0 ? 4 : 3) / 2,
                                      arenas_->streamingBytes()) /
                             kPageBytes;
  const uint64_t room = budget > others + streaming ? budget - others - streaming : 0;
  const size_t units = round.size();
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(device_));
  const auto kept = planner_.plan(std::move(round), total, room);
  if (!kept) return;
  const unsigned long long total_mib = total * kPageBytes >> 20,
                           kept_mib = *kept * kPageBytes >> 20;
  set(why.round_kept_bytes, *kept * kPageBytes);
  set(why.round_bytes, total * kPageBytes);
  base::logInfo(
      "device %d: a round of %zu allocations and pieces of arenas, %llu MiB; %llu MiB of them stay "
      "in VRAM",
      device_, units, total_mib, kept_mib);
}

}  // namespace olpager::pager
