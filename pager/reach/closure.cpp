#include "pager/reach/closure.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/size.h"
#include "pager/reach/ranges.h"
#include "pager/residency/engine.h"
#include "pager/residency/in_place.h"

namespace olpager::pager {

void Closure::visit(Region* region) {
  if (region == nullptr || region->dead || region->mark == mark_) return;
  region->mark = mark_;
  if (region->engine == nullptr && !region->isRoot()) {  // a reservation
    state_.reach.forFixed(*region, [&](Region* target) {
      visit(target);
      everything_found_ |= target == nullptr;
    });
    return;
  }
  regions.push_back(region);
}

void Closure::visitWhole(Region* region) {
  visit(region);
  if (region->by_pieces && !region->dead && region->engine != nullptr) used.addWhole(*region);
}

void Closure::visitPage(uint64_t address) {
  Region* region = state_.book.find(address);
  visit(region);
  if (region != nullptr && region->by_pieces && !region->dead && region->engine != nullptr)
    used.addPage(*region, address / kPageBytes * kPageBytes);
}

void Closure::name(uint64_t address) {
  Region* region = state_.book.find(address);
  if (region == nullptr || region->dead) return;
  if (!tells_) return visitPage(address);
  if (region->arena != nullptr && region->engine != nullptr)
    used.name(*region, address, signature_);
  if (region->isOneUnit() && region->mark != mark_) state_.touch(unitOf(*region), signature_);
  visit(region);
}

void Closure::nameOutside(uint64_t address) { visit(state_.reach.roots.regionAt(address)); }

void Closure::mayWrite(uint64_t address, uint64_t bytes) {
  const Region* const region = state_.book.find(address);
  if (region == nullptr || region->dead || !region->isStreamed()) return;
  const ExtentRange range = extentsAt(*region, address, bytes);
  for (size_t e = range.first; e < range.last; ++e) written.push_back(region->extents[e].get());
}

CUresult Closure::nameRange(uint64_t address, uint64_t bytes, Mode mode) {
  // A range may run over several regions only through the program's own mappings, which are one
  // region.
  Region* region = state_.book.find(address);
  if (region == nullptr || region->dead || !holds(*region, address, bytes) ||
      region->engine == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const ExtentRange range = extentsAt(*region, address, bytes);
  for (size_t e = range.first; e < range.last; ++e) needed.push_back(region->extents[e].get());
  if (mode != Mode::kRead) mayWrite(address, bytes);
  const auto found = [&](Region* holder) {
    if (mode == Mode::kRead && holder != nullptr) sources.push_back(holder);
    source_unseen |= mode == Mode::kRead && holder == nullptr;
    visit(holder);
  };
  if (mode == Mode::kRead) sources.push_back(region);
  state_.reach.forFixed(*region, address, address + bytes, found);
  if (region->arena != nullptr) used.nameRange(*region, address, bytes, signature_);
  if (region->isOneUnit() && region->mark != mark_) state_.touch(unitOf(*region), signature_);
  visit(region);
  return CUDA_SUCCESS;
}

// Ranges overlap: a copy within one allocation, a batch of small ones. An extent is needed once,
// and takes room once.
void Closure::nothingElseIsNamed() {
  named_ = regions.size();
  const auto place = [](const Extent* extent) { return std::pair(extent->address, extent); };
  std::sort(needed.begin(), needed.end(),
            [&](const Extent* a, const Extent* b) { return place(a) < place(b); });
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
}

void Closure::clear() {
  regions.clear();
  sources.clear();
  needed.clear();
  fetched.clear();
  written.clear();
  shared_.clear();
  used.clear();
  source_unseen = everything = everything_found_ = false;
  named_ = listed_ = listed_pieces_ = 0;
  mark_ = state_.reach.newRegionMark();
}

bool Closure::reachesFreed() const {
  return std::any_of(regions.begin(), regions.end(),
                     [](const Region* region) { return region->dead; });
}

void Closure::reachEverything() {
  everything = true;
  mark_ = state_.reach.newRegionMark();
  for (Region* region : regions) region->mark = mark_;
  for (uint32_t id = 1; id < state_.book.regions.end(); ++id) {
    Region* region = state_.book.regions.at(id);
    if (region->dead || !(region->published || region->isRoot())) continue;
    if (region->shared() != nullptr) {
      shared_.push_back(region);
    } else {
      for (auto& extent : region->extents)
        if (!extent->mapped() || extent->state == ExtentState::kRetiring)
          needed.push_back(extent.get());
    }
    visit(region);
  }
  listTaken();
}

Engine* Closure::scannerOfVariables() const {
  if (!follows_ || everything || !state_.reach.unknown_variables.in(context_)) return nullptr;
  Engine* const engine = state_.devices.engineIn(context_);
  return engine == nullptr || engine->broken() ? nullptr : engine;
}

void Closure::followVariables() {
  for (const RootEdge& known : state_.reach.of_variables) {
    state_.reach.forEdge(known.edge, [&](Region& region) {
      if (region.by_pieces && known.page != 0 && region.buffer_id == known.edge.buffer_id)
        visitPage(known.page);
      else
        visitWhole(&region);
    });
  }
}

void Closure::notLookedThrough(const Region& root) {
  everything_found_ = true;
  const bool of_host = root.root->kind == RootKind::kHost || root.root->kind == RootKind::kManaged;
  base::warnOnce(
      "root that is not looked through",
      "%s memory at %#llx (%s), which kernels use, can't be looked through for pointers: each "
      "launch "
      "that uses such memory is taken to reach all of memory (counter launches_reaching_all); "
      "OL_REACH=learned "
      "says that it holds none",
      of_host ? (root.root->kind == RootKind::kHost ? "pinned" : "managed") : "the driver's own",
      static_cast<unsigned long long>(root.base), base::formatSize(root.requested_bytes).c_str());
}

// Lists what the region's extents, or a root's contents, add.
void Closure::list(Region& region) {
  if (region.isRoot()) {
    if (!state_.reach.refresh(region) && state_.reach.leadsAnywhere(region))
      notLookedThrough(region);
    return;
  }
  if (region.by_pieces) return;
  // A region that is all there stays so while a launch waits, except where older launches may take
  // it (Wants::hold). A reservation can have tens of thousands of extents: nobody looks at them
  // while all can be used.
  const bool changes = region.shared() != nullptr || region.isStreamed();
  const bool all = !mayBeInPlace(region) || changes;
  if (changes && region.unusable == 0) return shared_.push_back(&region);
  if (!all && region.unusable == 0) return;
  for (auto& extent : region.extents)
    if (all || !usable(extent->state)) needed.push_back(extent.get());
}

// Memory that another agent has taken some of, meanwhile: all of it is needed.
void Closure::listTaken() {
  const auto whole = std::stable_partition(
      shared_.begin(), shared_.end(), [](const Region* region) { return region->unusable == 0; });
  for (auto region = whole; region != shared_.end(); ++region)
    for (auto& extent : (*region)->extents) needed.push_back(extent.get());
  shared_.erase(whole, shared_.end());
}

void Closure::follow() {
  if (everything) return listTaken();
  if (!follows_) return;
  // Variables of a context that no engine lives in can't be scanned: they may name anything.
  if (everything_found_ ||
      (state_.reach.roots.hasVariables(context_) && state_.devices.engineIn(context_) == nullptr))
    return reachEverything();
  mark_ = state_.reach.newRegionMark();  // other launches have set marks of theirs meanwhile
  for (Region* region : regions) region->mark = mark_;
  used.remark();
  followVariables();
  FollowedRanges ranges;
  for (size_t i = 0; i < regions.size(); ++i) {
    Region& region = *regions[i];
    if (i >= listed_) list(region);
    for (const Edge& edge : region.edges)
      if (ranges.isNew(edge))
        state_.reach.forEdge(edge, [&](Region& target) { visitWhole(&target); });
    for (const uint64_t page : region.piece_edges) visitPage(page);
    state_.reach.forFixed(region, [&](Region* target) {
      visit(target);
      everything_found_ |= target == nullptr;
    });
    if (everything_found_) return reachEverything();
  }
  listed_ = regions.size();
  listTaken();
  for (; listed_pieces_ < used.extents().size(); ++listed_pieces_) {
    Extent* extent = used.extents()[listed_pieces_];
    if (!extent->region->by_pieces) continue;  // listed with its region
    if (!usable(extent->state) || !mayBeInPlace(*extent)) needed.push_back(extent);
  }
}

bool Closure::settled(bool in_vain) const {
  for (const Extent* extent : fetched)
    if (!in_vain && extent->state == ExtentState::kInPlace && !extent->region->engine->broken())
      return false;
  for (const Extent* extent : needed)
    if (!usable(extent->state) && !extent->region->engine->broken()) return false;
  const auto is_sealed = [](const Extent* extent) {
    return extent->sealed && !extent->region->engine->broken();
  };
  if (std::any_of(written.begin(), written.end(), is_sealed) ||
      std::any_of(used.extents().begin(), used.extents().end(), is_sealed) ||
      std::any_of(used.stays().begin(), used.stays().end(), is_sealed))
    return false;
  for (const Region* region : shared_)
    if (region->unusable > 0) return false;
  for (const Region* region : regions)
    if (const Engine* const engine = mustScan(*region) ? engineOf(*region) : nullptr;
        engine != nullptr && !engine->broken())
      return false;
  return scannerOfVariables() == nullptr;
}

}  // namespace olpager::pager
