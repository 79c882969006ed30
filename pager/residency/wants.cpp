#include "pager/residency/wants.h"

#include <algorithm>

#include "pager/residency/in_place.h"

namespace olpager::pager {

namespace {

constexpr uint64_t kPassPatienceNs = 5'000'000'000;

// A launch needs all of an arena that is streamed, and brings what it names.
bool isNamed(const Extent& extent) { return !extent.region->isStreamed() || extent.wanted > 0; }

// The step for an extent that is on its way out of VRAM, or out of its place in host memory.
WantStep stepForRetiring(const Want& want, const Extent& extent, const WantTimes& times,
                         bool in_pass) {
  const Region& region = *extent.region;
  const bool in_vram = extent.vram != nullptr;
  if (region.swapping && !want.in_vram) return WantStep::kWait;
  if (!in_vram && want.in_vram) return WantStep::kWait;
  if (!in_vram && (want.fetch || region.by_pieces) && !want.in_place) return WantStep::kLinger;
  // Launches that come all the time would for ever take back VRAM that is owed to others, and for
  // ever keep in place what there is room for: they wait, a bounded time.
  const bool owed = in_vram && times.vram_owed;
  const bool promoted = !in_vram && times.now_ns >= times.promoted_from_ns;
  // A region that is better read in place gives up its VRAM, also where each launch names it.
  const bool gives_up = in_vram && region.isSparse();
  const bool waits =
      owed || gives_up || (promoted && !want.in_place && times.vram_available >= extent.bytes());
  // Once nothing uses it any more, it is a matter of the GPU alone.
  const uint64_t patience = owed ? std::max(kPatienceNs, times.owed_patience_ns)
                                 : (promoted && in_pass ? kPassPatienceNs : kPatienceNs);
  const bool patient = times.now_ns - want.since_ns < patience;
  if (waits && patient) return WantStep::kWait;
  return promoted && !patient ? WantStep::kTakeBackLate : WantStep::kTakeBack;
}

}  // namespace

bool Wants::hold(const Region& region) const {
  if (region.wanted == 0) return false;
  if (mayBeInPlace(region)) return true;
  for (size_t w = 0; w < list_.size(); ++w) {
    if (w > serving && !list_[w]->in_vram) continue;
    const auto& needed = list_[w]->regions;
    if (std::find(needed.begin(), needed.end(), &region) != needed.end()) return true;
  }
  return false;
}

bool Wants::hold(const Extent& extent) const {
  if (!extent.region->by_pieces) return hold(*extent.region);
  if (extent.wanted == 0) return false;
  if (mayBeInPlace(extent)) return true;
  for (size_t w = 0; w < list_.size(); ++w) {
    if (w > serving && !list_[w]->in_vram) continue;
    const auto& needed = list_[w]->extents;
    if (std::find(needed.begin(), needed.end(), &extent) != needed.end()) return true;
  }
  return false;
}

bool Wants::isForOlder(size_t index, const Extent& extent) const {
  return std::any_of(
      list_.begin(), list_.begin() + static_cast<ptrdiff_t>(index), [&](const Want* older) {
        return std::find(older->regions.begin(), older->regions.end(), extent.region) !=
               older->regions.end();
      });
}

uint64_t stepsLeft(WantStep step, ExtentState state) {
  if (step == WantStep::kReady) return 0;
  switch (state) {
    case ExtentState::kMapping:
    case ExtentState::kFetching:
      return 1;
    case ExtentState::kEmpty:
    case ExtentState::kParked:
      return 2;
    case ExtentState::kReceiving:
    case ExtentState::kMoving:
    case ExtentState::kWriting:
    case ExtentState::kSending:
      return 3;
    case ExtentState::kRetiring:
      return 4;
    default:
      return 5;
  }
}

WantStep stepFor(const Want& want, const Extent& extent, const WantTimes& times, bool in_pass) {
  // Another agent is to have it. The launch claims it meanwhile, and gets it back.
  if (extent.leaving && !usable(extent.state)) return WantStep::kWait;
  switch (extent.state) {
    case ExtentState::kVram:
    case ExtentState::kDetached:
    case ExtentState::kFreeing:
      return WantStep::kReady;
    case ExtentState::kInPlace:
      if (want.in_vram || (want.fetch && !want.in_place && isNamed(extent)))
        return WantStep::kLeavePlace;
      return WantStep::kReady;
    case ExtentState::kRetiring:
      return stepForRetiring(want, extent, times, in_pass);
    case ExtentState::kMapping:
    case ExtentState::kWriting:
    case ExtentState::kFetching:
    case ExtentState::kMoving:
    case ExtentState::kAbsent:  // the launch has claimed it (Claim)
      return WantStep::kWait;
    case ExtentState::kSending:
    case ExtentState::kReceiving:
      return WantStep::kHurry;
    case ExtentState::kRemote:
      return WantStep::kReceive;
    case ExtentState::kLost:
      return WantStep::kLost;
    case ExtentState::kEmpty:
    case ExtentState::kParked:
      return want.in_place || (!want.in_vram && (extent.in_host || extent.region->isSparse()))
                 ? WantStep::kMapInPlace
                 : WantStep::kBring;
  }
  return WantStep::kWait;
}

}  // namespace olpager::pager
