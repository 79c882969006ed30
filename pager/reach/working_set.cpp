#include "pager/reach/working_set.h"
#include "pager/residency/prefetcher.h"

#include <algorithm>

namespace olpager::pager {

namespace {
constexpr unsigned kMostTouched = 64;  // pieces of one copy that the learned order is told of
constexpr uint64_t kFetchShare = 2;    // of VRAM: more is not waited for
constexpr uint64_t kLeastPause = 32;   // launches
constexpr uint64_t kLongestPause = 1 << 14;
}  // namespace

bool WorkingSet::knows(const Region& region) const {
  return std::find(regions_.begin(), regions_.end(), &region) != regions_.end();
}

void WorkingSet::know(Region& region) {
  if (mark_ == 0) mark_ = state_.reach.newExtentMark();
  if (!knows(region)) regions_.push_back(&region);
}

void WorkingSet::add(Region& region, uint64_t begin, uint64_t end) {
  const ExtentRange range = extentsAt(region, begin, end - begin);
  for (size_t e = range.first; e < range.last; ++e) {
    Extent& extent = *region.extents[e];
    if (extent.mark == mark_) continue;
    extent.mark = mark_;
    extents_.push_back(&extent);
  }
}

void WorkingSet::name(Region& region, uint64_t address, uint32_t signature) {
  address = std::min(address, region.end() - 1);
  const Piece& piece = region.arena->name(address);
  if (!region.by_pieces) {
    if (!region.isStreamed()) return;
    const uint64_t end = region.arena->tensorEnd(address, piece);
    if (!region.arena->isFilled(address, end)) return;
    know(region);
    tensors_.push_back({&region, address, end});
    if (piece.density.verdict != Density::kSparse) {
      state_.touch(unitOf(piece), signature);
      return add(region, address, end);
    }
    const ExtentRange range = extentsAt(region, address, end - address);
    for (size_t e = range.first; e < range.last; ++e) stays_.push_back(region.extents[e].get());
    return;
  }
  know(region);
  state_.touch(unitOf(piece), signature);
  add(region, piece.begin, piece.end);
}

void WorkingSet::nameRange(Region& region, uint64_t address, uint64_t bytes, uint32_t signature) {
  region.arena->nameRange(address, bytes);
  if (!region.by_pieces) return;
  know(region);
  unsigned touched = 0;
  region.arena->overlapping(address, bytes, [&](const Piece& piece) {
    if (touched++ < kMostTouched) state_.touch(unitOf(piece), signature);
  });
  add(region, address, address + bytes);
}

void WorkingSet::addPage(Region& region, uint64_t page) {
  know(region);
  region.arena->overlapping(page, kPageBytes,
                            [&](const Piece& piece) { add(region, piece.begin, piece.end); });
}

void WorkingSet::addWhole(Region& region) {
  know(region);
  if (std::find(whole_.begin(), whole_.end(), &region) != whole_.end()) return;
  whole_.push_back(&region);
  add(region, region.base, region.end());
}

void WorkingSet::clear() {
  regions_.clear();
  whole_.clear();
  extents_.clear();
  tensors_.clear();
  stays_.clear();
  mark_ = 0;
}

void WorkingSet::remark() {
  if (regions_.empty()) return;
  mark_ = state_.reach.newExtentMark();
  for (Extent* extent : extents_) extent->mark = mark_;
}

std::vector<Extent*> WorkingSet::worthFetching(uint64_t newest) const {
  std::vector<Extent*> found;
  uint64_t bytes = 0;
  for (Extent* extent : extents_) bytes += extent->bytes();
  if (!whole_.empty() || bytes == 0) return found;
  for (Extent* extent : extents_) {
    const bool is_outside = extent->region->by_pieces ? extent->state == ExtentState::kInPlace
                                                      : extent->state != ExtentState::kVram;
    if (!is_outside || extent->region->fetch_after >= newest) continue;
    if (bytes > extent->region->engine->chunks().vramBudget() / kFetchShare) continue;
    found.push_back(extent);
  }
  return found;
}

void WorkingSet::fetchedInVain(uint64_t newest) {
  for (Region* region : regions_) {
    // Once is no reason: what is sealed and used in place all the same is constant no more.
    if (region->fetch_pause == 0 && region->isStreamed()) {
      region->fetch_pause = 1;
      continue;
    }
    region->fetch_pause = std::clamp(region->fetch_pause * 2, kLeastPause, kLongestPause);
    region->fetch_after = newest + region->fetch_pause;
  }
}

void WorkingSet::fetchedInTime() {
  for (Region* region : regions_) region->fetch_pause = 0;
}

size_t WorkingSet::hold(size_t held) {
  for (; held < extents_.size(); ++held) ++extents_[held]->wanted;
  return held;
}

void WorkingSet::release(size_t held) {
  for (size_t e = 0; e < held; ++e) --extents_[e]->wanted;
}

void WorkingSet::stamp(uint64_t number, bool written) {
  for (Region* region : whole_) {
    region->whole_stamp = std::max(region->whole_stamp, number);
    region->whole_due |= written;
  }
  for (Extent* extent : extents_) {
    extent->stamp = std::max(extent->stamp, number);
    extent->scan_due |= written;
    if (extent->prefetched && extent->state == ExtentState::kVram)
      extent->region->engine->ahead().noteUsed(*extent, true);
  }
}

bool WorkingSet::usesInPlace() const {
  const auto is_in_place = [](const Extent* extent) {
    return extent->state == ExtentState::kInPlace;
  };
  return std::any_of(extents_.begin(), extents_.end(), is_in_place) ||
         std::any_of(stays_.begin(), stays_.end(), is_in_place);
}

}  // namespace olpager::pager
