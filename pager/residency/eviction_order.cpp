// The order in which extents leave VRAM, and the batches that are taken from it.
#include <algorithm>

#include "pager/pool_state.h"
#include "pager/residency/eviction.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/victim_order.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kBatchBytes = 128ull << 20;
constexpr size_t kCandidates = 4096;  // regions and extents that are looked at, at most
constexpr size_t kSorted = 64;        // of them, those that a batch is taken from

struct Candidate {
  Region* region;
  Extent* extent;  // of an arena that moves by pieces; else any of the region's
  VictimScore score;
};
}  // namespace

VictimScore scoreOf(predict::Predictor& predictor, const UnitRef& unit, uint64_t age,
                    uint64_t nearer_than) {
  const Region& region = *unit.region;
  const predict::Unit id = unit.piece != nullptr ? unitOf(*unit.piece) : unitOf(region);
  if (region.isSparse()) return {kNeverAgain, UINT64_MAX};
  if (region.tiny || (region.isStreamed() && unit.piece == nullptr))
    return {age < kTinyLaunches ? kHot : kUnknown, age};
  if (predictor.isHot(id)) return {kHot, UINT64_MAX - unit.pages()};
  using Kind = predict::Predictor::NextUse::Kind;
  const auto next = predictor.nextUse(id);
  // A part of a streamed arena is shared by tensors that the planner keeps and others.
  const unsigned by_plan =
      unit.placement() == Placement::kKeep && !region.isStreamed() ? kStays : kStreams;
  if (next.kind == Kind::kNever) return {kNeverAgain, age};
  if (next.kind == Kind::kUnpredicted) return {kUnknown, age};
  return {next.distance <= nearer_than ? static_cast<unsigned>(kSoon) : by_plan, next.distance};
}

VictimScore scoreOfPart(predict::Predictor& predictor, const Extent& extent, uint64_t age,
                        uint64_t nearer_than) {
  Region& region = *extent.region;
  VictimScore score{kNeverAgain, UINT64_MAX};
  region.arena->overlapping(extent.address, extent.bytes(), [&](Piece& piece) {
    const VictimScore its = scoreOf(predictor, {&region, &piece}, age, nearer_than);
    if (score > its) score = its;
  });
  return score;
}

uint64_t nextUseOfPart(predict::Predictor& predictor, const Extent& extent) {
  uint64_t next = UINT64_MAX;
  extent.region->arena->overlapping(extent.address, extent.bytes(), [&](const Piece& piece) {
    if (piece.density.verdict != Density::kSparse)
      next = std::min(next, predictor.nextUse(unitOf(piece)).distance);
  });
  return next;
}

// Marks extents for eviction until `bytes` are on their way out. `demand`: a launch waits, anything
// that no launch waits for may go; else only what is used later than `nearer_than` touches from
// now.
bool Eviction::retire(uint64_t bytes, uint64_t nearer_than, bool demand) {
  if (!mayBegin() || hasNoPlace()) return false;
  // Every launch reaches everything: what found room in VRAM stays there, the rest is used in
  // place.
  if (pool_.options.reach == Reach::kAll) return false;
  const TracedStep traced = engine_.step(TraceStep::kChoose);
  std::vector<Candidate> candidates;
  const uint32_t end = pool_.book.regions.end();
  if (end <= 1) return false;
  const uint64_t newest = pool_.launch_number.load(std::memory_order_relaxed);
  const auto ageOf = [newest](uint64_t stamp) { return newest - std::min(newest, stamp); };
  for (uint32_t step = 0; step < pool_.book.regions.end() - 1 && candidates.size() < kCandidates;
       ++step) {
    clock_hand_ = clock_hand_ % (end - 1) + 1;
    Region* region = pool_.book.regions.at(static_cast<uint32_t>(clock_hand_));
    if (region->dead || region->engine != &engine_) continue;
    if (!region->by_pieces && (region->pins > 0 || engine_.wants_.hold(*region))) continue;
    if (region->extents.empty() ||
        region->blocked.load(std::memory_order_relaxed) >= region->extents.size())
      continue;
    const auto enter = [&](Extent* extent, const VictimScore& score) {
      if (!demand && score.victim_class <= (engine_.ahead_->hasPlan() ? kStays : kSoon)) return;
      candidates.push_back({region, extent, score});
    };
    if (!region->by_pieces) {
      enter(nullptr, scoreOf(pool_.predictor, {region, nullptr},
                             ageOf(region->stamp.load(std::memory_order_relaxed)), nearer_than));
      continue;
    }
    for (auto& extent : region->extents) {
      if (extent->state != ExtentState::kVram || region->isPinned(*extent) ||
          engine_.wants_.hold(*extent))
        continue;
      enter(extent.get(),
            scoreOfPart(pool_.predictor, *extent, ageOf(region->stampOf(*extent)), nearer_than));
    }
  }
  if (candidates.empty()) return false;
  const uint64_t wanted = std::min(bytes, kBatchBytes);
  const size_t first = std::min(candidates.size(), kSorted);
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
      beginRetiring(*extent);
    }
  }
  return begin(std::move(batch));
}

}  // namespace olpager::pager
