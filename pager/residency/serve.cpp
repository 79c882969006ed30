// Launches that wait (wants.h): each round of the engine's thread does the next step for every
// extent that one of them lacks, then makes room for what found none.
#include <algorithm>

#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/direct_moves.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/in_place.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {
// The patience of a launch for which in place is no way out: it may wait for a kernel of minutes,
// or for one that waits for this launch.
constexpr uint64_t kRefusedAfterNs = 60'000'000'000;
constexpr uint64_t kDirectPatience = 10;  // Waits::chunk_ns
constexpr uint64_t kScanPatienceNs = 5 * kPatienceNs;
constexpr uint64_t kLongestPromotedPauseNs = 10'000'000'000;
constexpr uint64_t kLongestOwedPatienceNs = 5'000'000'000;
}  // namespace

/// A round's results for one want.
struct Engine::Serving {
  WantTimes times;
  uint64_t missing = 0;  // bytes that found no chunk
  bool in_flight = false;
  bool moved = false;
  bool lingering = false;        // the launch could go on with what is in place, and waits for VRAM
  std::vector<Extent*> leaving;  // their place in host memory
};

// A launch waited for what was to leave its place in host memory, which was not quiet in time: for
// a while none waits for such.
void Engine::waitedInVain(uint64_t now) {
  Patience& promoted = pauses_.promoted;
  promoted.from_ns = now + promoted.ns;
  promoted.ns = std::min(2 * promoted.ns, kLongestPromotedPauseNs);
}

// A launch waited for a victim whose VRAM is owed to others, which was not quiet in time: the next
// ones wait for longer.
void Engine::surplusCameBack(uint64_t now) {
  Patience& patience = debts_.patience;
  if (now < patience.from_ns) return;  // those of one batch are one time
  patience.ns = std::min(2 * std::max(kPatienceNs, patience.ns), kLongestOwedPatienceNs);
  patience.from_ns = now + patience.ns;
}

// Does what is to be done about one extent. May release the mutex.
void Engine::take(WantStep step, Extent& extent, Want& want, Serving& found, Lock& lock) {
  switch (step) {
    case WantStep::kReady:
      break;
    case WantStep::kWait:
      found.in_flight = true;
      break;
    case WantStep::kLinger:
      found.in_flight = found.lingering = true;
      break;
    case WantStep::kLeavePlace:
      found.leaving.push_back(&extent);
      found.in_flight = true;
      found.lingering |= !want.in_vram;
      break;
    case WantStep::kTakeBackLate:
      waitedInVain(found.times.now_ns);
      [[fallthrough]];
    case WantStep::kTakeBack:
      if (extent.vram != nullptr && found.times.vram_owed) surplusCameBack(found.times.now_ns);
      eviction_->cancelRetiring(extent);
      found.moved = true;
      break;
    case WantStep::kHurry:
      pool_.lower.tier->raise(pool_.programs.tierAddress(extent));
      found.in_flight = true;
      break;
    case WantStep::kReceive:
      // An extent that comes straight to VRAM needs a chunk there, which a victim is about to
      // leave.
      if (direct_ != nullptr && direct_->may(extent) && !chunks_.hasVram(extent.order) &&
          found.times.now_ns - want.since_ns < kDirectPatience * pool_.options.waits.chunk_ns) {
        found.in_flight = true;
        found.missing += extent.bytes();
        break;
      }
      if (remote_->startReceive(extent, true, lock)) found.moved = true;
      found.in_flight |= found.moved || !pool_.lower.under_way.empty() ||
                         !flight_.writing.empty() || !flight_.packing.empty();
      found.missing += extent.bytes();
      break;
    case WantStep::kLost:
      want.lost = true;
      pool_.changed.notify_all();
      break;
    case WantStep::kMapInPlace:
    case WantStep::kBring:
      if (step == WantStep::kMapInPlace && fetching_->mapInPlace(extent, lock)) {
        found.moved = true;
      } else if (step == WantStep::kBring && !chunks_.hasVram(extent.order) &&
                 flight_.freesWithin(extent.order, pool_.options.waits.chunk_ns) &&
                 !extent.region->exporting &&
                 found.times.now_ns - want.since_ns < pool_.options.waits.chunk_ns) {
        // A chunk of its size is about to come free. To make one of others takes as long, and they
        // would have to be made again.
        found.in_flight = true;
        found.missing += extent.bytes();
      } else if (extent.state == ExtentState::kParked
                     ? fetching_->startFetch(extent, Fetch::kDemand, lock)
                     : fetching_->mapEmpty(extent, lock)) {
        found.moved = found.in_flight = true;
      } else {
        found.missing += extent.bytes();
      }
      break;
  }
}

// Extents that the host wrote are scanned before the launch follows pointers in them. Extents still
// on their way can't be, and do not make the scan a late one.
void Engine::serveScans(Want& want, Serving& found) {
  const bool roots = want.scan_roots && pool_.reach.unknown_variables.in(context_);
  bool regions = false, here = roots;
  for (const Region* region : want.to_scan) {
    if (!region->host_written) continue;
    regions = true;
    here |= region->by_pieces || region->unusable == 0;
  }
  if (!here) want.scan_since_ns = 0;
  if (!roots && !regions) return;
  const uint64_t now = found.times.now_ns;
  if (here && want.scan_since_ns == 0) want.scan_since_ns = now;
  const uint64_t waited = here ? now - want.scan_since_ns : 0;
  if (!want.scan_late && waited > kScanPatienceNs) {
    want.scan_late = true;
    pool_.changed.notify_all();
  } else if (!want.failed && waited > kRefusedAfterNs) {
    want.failed = want.no_scan = true;
    pool_.changed.notify_all();
  }
  found.in_flight = true;
  if (!eviction_->scanHostWritten(want.to_scan, roots)) return;
  found.moved = true;
  want.scan_since_ns = now;
}

// Evicts for what the want lacks; else ends its waiting when that is of no use. True: progress.
bool Engine::makeRoomFor(Want& want, const Serving& found) {
  const uint64_t now = found.times.now_ns;
  bool progress = false;
  // A launch that could go on at once waits longer for what is on its way already.
  const bool coming_soon =
      want.fetch && (flight_.freesSoon() > 0 || !eviction_->batches().empty() || isCopyingAhead());
  const uint64_t patience = (coming_soon ? 5 : 1) * pool_.options.waits.in_place_ns;
  if (found.lingering && now - want.since_ns > patience) {
    want.in_place = true;
    progress = true;
    pool_.changed.notify_all();
  }
  if (found.missing == 0) return progress;
  if (found.missing > chunks_.vramAvailable() && arenas_->giveStagedUp(found.missing)) return true;
  const uint64_t coming = chunks_.vramAvailable() + flight_.freesSoon();
  if (found.missing > coming && eviction_->retire(found.missing - coming, 0, true)) return true;
  // Host memory comes free when memservers have what is being sent.
  const bool hopeless = !found.in_flight && flight_.freesSoon() == 0 &&
                        eviction_->batches().empty() && !eviction_->hasNoPlace() &&
                        pool_.lower.under_way.empty();
  // A launch that needs VRAM waits for kernels that have it, as long as there are some.
  const uint64_t longest = want.in_vram && !hopeless ? kRefusedAfterNs : patience;
  if (!want.in_place &&
      (life_.broken || (hopeless && !want.in_vram) || now - want.since_ns > longest)) {
    want.in_place = true;
    want.since_ns = now;
    return true;
  }
  // Neither VRAM nor host memory in place: the launch is refused before it starts, but not while
  // pages leave. That all is full does not last where other executors take pages.
  const bool stays_full = (hopeless || eviction_->allIsFull()) && pool_.away == nullptr;
  const uint64_t until_failed = stays_full ? pool_.options.waits.all_full_ns : kRefusedAfterNs;
  const uint64_t since = std::min(now, std::max(want.since_ns, want.room_ns));
  if (want.in_place && (life_.broken || (!found.moved && now - since > until_failed))) {
    want.failed = true;
    pool_.changed.notify_all();
  }
  return progress;
}

// One want's round. True: progress; also when the list changed while the mutex was released, and
// the round has to begin anew.
bool Engine::serve(size_t index, Want& want, uint64_t now, Lock& lock) {
  Serving found;
  now = std::max(now, want.since_ns);  // it may have come since the round began
  found.times.now_ns = now;
  if (want.extents.size() != want.counted) {
    want.counted = want.extents.size();
    want.nearest = UINT64_MAX;
  }
  uint64_t left = 0;
  for (size_t i = 0; i < want.extents.size(); ++i) {
    Extent& extent = *want.extents[i];
    found.times = {now, debts_.surplus > 0, debts_.patience.ns, pauses_.promoted.from_ns,
                   chunks_.vramAvailable()};
    const bool in_pass = extent.state == ExtentState::kRetiring && eviction_->inPass(extent);
    WantStep step = stepFor(want, extent, found.times, in_pass);
    // An older launch is about to have all that it needs, and would take it back.
    if (step == WantStep::kLeavePlace && !want.in_vram && wants_.isForOlder(index, extent))
      step = WantStep::kLinger;
    take(step, extent, want, found, lock);
    if (!wants_.has(index, &want)) return true;
    left += stepsLeft(step, extent.state);
  }
  serveScans(want, found);
  const auto streamed =
      std::stable_partition(found.leaving.begin(), found.leaving.end(),
                            [](const Extent* extent) { return !extent->region->isStreamed(); });
  const std::vector<Extent*> named(streamed, found.leaving.end());
  found.leaving.erase(streamed, found.leaving.end());
  if (eviction_->promote(found.leaving)) found.moved = true;
  if (arenas_->remapFor(named, lock)) found.moved = true;
  if (!wants_.has(index, &want)) return true;
  if (!found.moved && !arenas_->isSwapping() && !named.empty() && arenas_->hasNoneStaged())
    for (const Extent* extent : named) found.missing += extent->bytes();  // others have the room
  if (left < want.nearest) {
    // Extents that have been added make it no nearer.
    if (want.nearest != UINT64_MAX && pauses_.refusals == 0) want.since_ns = now;
    want.nearest = left;
  }
  for (const Extent* extent : found.leaving)
    if (extent->state == ExtentState::kRetiring && want.fetch)
      found.missing += extent->bytes();  // soon
  wants_.short_bytes += found.missing;
  if (want.in_vram && !found.leaving.empty() && now - want.since_ns > kRefusedAfterNs) {
    want.failed = true;  // launches that never end reach it where it is
    pool_.changed.notify_all();
  }
  return makeRoomFor(want, found) || found.moved;
}

bool Engine::serveWants(Lock& lock) {
  bool progress = false;
  wants_.short_bytes = 0;
  if (wants_.empty()) {
    wants_.serving = SIZE_MAX;
    return false;
  }
  const TracedStep traced = step(TraceStep::kServe);
  const uint64_t now = nowNs();
  // By index: the list may change while the mutex is released. A waiting thread leaves it only
  // under the mutex.
  for (size_t w = 0; w < wants_.size(); ++w) {
    Want* const want = wants_.at(w);
    wants_.serving = w;
    // If memory can't be used in place, launches that fit only one at a time must not hold half of
    // VRAM each: the oldest gets what it needs first, from the others if need be.
    const auto needsVram = [this, want] {
      if (want->extents.empty()) return !chunks_.hostMappable();  // it waits for scans alone
      return std::any_of(want->extents.begin(), want->extents.end(),
                         [](const Extent* extent) { return !mayBeInPlace(*extent); });
    };
    const bool one_by_one = wants_.short_bytes > 0 && needsVram();
    if (one_by_one) {
      want->since_ns = now;
      continue;
    }
    progress |= serve(w, *want, now, lock);
    if (wants_.has(w, want)) continue;
    progress = true;
    break;
  }
  wants_.serving = SIZE_MAX;  // what follows is on no launch's behalf
  return progress;
}

}  // namespace olpager::pager
