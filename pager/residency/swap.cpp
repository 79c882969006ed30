// Chooses which parts of an arena lie in VRAM and which are used in place, under reach = traced:
// each launch that names an address in an arena reaches all of it, so that none of its mappings
// changes while such a launch is in flight.
//
// When launches have named an arena for a while, the parts in place that are named most are
// exchanged for the parts in VRAM that are named least, one batch at a time:
//
//   asked     a launch found the arena partly in place, and it was named often enough since the
//             last exchange
//   begun     the parts are victims of one batch (eviction.cpp); launches that reach the arena
//             wait, and take nothing back
//   over      the batch is through: what was cold is mapped in place, what was hot is fetched, by
//             the launches that need it
//   given up  the arena was not quiet in time: everything stays where it is, and the next attempt
//             comes later
//
// Launches wait kQuietNs at most for others to end, since one of those may wait for them.
#include <algorithm>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/eviction.h"
#include "pager/residency/in_place.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kQuietNs = 50'000'000;
constexpr uint64_t kSwapShare = 4;           // of VRAM: more is not exchanged at once
constexpr uint64_t kLeastNames = 64;         // of the arena, between two exchanges,
constexpr uint64_t kNamesForEachPiece = 4;   // or so many for each piece;
constexpr uint64_t kLongestPause = 1 << 18;  // twice as many after each attempt that was of no use
constexpr float kHotter = 2;                 // than what goes for it, by this factor, and by a name
}  // namespace

void ArenaStreaming::askSwap(Region& region) {
  if (region.swap_asked || region.arena == nullptr || region.arena->names() < region.swap_after)
    return;
  region.swap_asked = true;
  asked_.push_back(&region);
  engine_.wake();
}

void ArenaStreaming::swapAgainAfter(Region& region, bool useful) {
  const uint64_t least = std::max(kLeastNames, kNamesForEachPiece * region.arena->size());
  region.swap_pause =
      useful ? least : std::clamp(region.swap_pause * 2, least, std::max(least, kLongestPause));
  region.swap_after = region.arena->names() + region.swap_pause;
}

bool ArenaStreaming::swapArenas() {
  if (swapping_ != nullptr) {
    const auto batch =
        std::find_if(engine_.eviction_->batches().begin(), engine_.eviction_->batches().end(),
                     [this](const auto& entry) { return entry->scan.parts_of == swapping_; });
    if (batch != engine_.eviction_->batches().end()) {
      if ((*batch)->stage == VictimBatch::Stage::kPass || nowNs() < swap_until_ns_) return false;
      for (Extent* victim : std::vector<Extent*>((*batch)->victims)) {
        if (victim == nullptr || victim->state != ExtentState::kRetiring) continue;
        victim->in_host = victim->vram == nullptr && !(*batch)->remaps;
        engine_.eviction_->cancelRetiring(*victim);
      }
      (*batch)->scan.parts_of = nullptr;
      swapAgainAfter(*swapping_, false);
    }
    swapping_->swapping = false;
    swapping_ = nullptr;
    pool_.changed.notify_all();
    return true;
  }
  // Extents that launches wait for stay as they are.
  if (asked_.empty() || engine_.life_.broken || !engine_.wants_.empty() ||
      !engine_.debts_.reliefs.empty() || engine_.debts_.surplus > 0 ||
      engine_.wants_.short_bytes > 0 || engine_.eviction_->batches().size() >= PassKernels::kPasses)
    return false;
  Region& region = *asked_.back();
  asked_.pop_back();
  region.swap_asked = false;
  if (region.dead || region.arena == nullptr || !mayBeInPlace(region)) return false;
  if (region.pins > 0 || region.wanted > 0 || !beginSwap(region)) {
    swapAgainAfter(region, false);
    return false;
  }
  return true;
}

bool ArenaStreaming::beginSwap(Region& region) {
  struct Part {
    Extent* extent;
    float heat;
  };
  std::vector<Part> hot, cold;
  for (auto& extent : region.extents) {
    if (extent->state != ExtentState::kInPlace && extent->state != ExtentState::kVram) continue;
    // A part that the program fills by copies comes when a launch names it.
    if (region.isStreamed() &&
        region.arena->isFilled(extent->address, extent->address + extent->bytes()))
      continue;
    float heat = 0;
    region.arena->overlapping(extent->address, extent->bytes(), [&](const Piece& piece) {
      heat = std::max(heat, region.arena->heat(piece));
    });
    (extent->state == ExtentState::kVram ? cold : hot).push_back({extent.get(), heat});
  }
  std::stable_sort(hot.begin(), hot.end(),
                   [](const Part& a, const Part& b) { return a.heat > b.heat; });
  std::stable_sort(cold.begin(), cold.end(),
                   [](const Part& a, const Part& b) { return a.heat < b.heat; });
  uint64_t room = chunks_.vramAvailable();
  uint64_t bytes = 0;
  auto batch = std::make_unique<Batch>();
  size_t next_cold = 0;
  const auto take = [&](Extent* extent) { batch->victims.push_back(extent); };
  for (const Part& part : hot) {
    const uint64_t size = part.extent->bytes();
    if (part.heat <= 0 || bytes + size > std::max(chunks_.vramBudget() / kSwapShare, size)) break;
    size_t upto = next_cold;
    uint64_t freed = 0;
    while (room + freed < size && upto < cold.size() && cold[upto].heat * kHotter + 1 < part.heat)
      freed += cold[upto++].extent->bytes();
    if (room + freed < size) break;
    for (; next_cold < upto; ++next_cold) {
      cold[next_cold].extent->in_host = true;
      take(cold[next_cold].extent);
    }
    room += freed;
    room -= size;
    bytes += size;
    part.extent->in_host = false;
    take(part.extent);
  }
  if (bytes == 0) return false;
  for (Extent* extent : batch->victims) engine_.eviction_->beginRetiring(*extent);
  batch->scan.parts_of = swapping_ = &region;
  region.swapping = true;
  swap_until_ns_ = nowNs() + kQuietNs;
  swapAgainAfter(region, true);
  base::logDebug(
      "device %d: %llu MiB of an arena of %llu MiB come to VRAM for parts that are used less",
      engine_.device_, static_cast<unsigned long long>(bytes >> 20), 2ULL * region.pages);
  return engine_.eviction_->begin(std::move(batch));
}

}  // namespace olpager::pager
