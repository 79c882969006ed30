#include "memserver/frame_pool.h"

#include <bit>

namespace olpager::memserver {
namespace {

uint16_t runMask(unsigned order, unsigned at) {
  return static_cast<uint16_t>(((1u << (1u << order)) - 1u) << at);
}

// The place of a free run of this order, lowest first; -1: there is none.
int findRun(uint16_t busy, unsigned order) {
  const unsigned pages = 1u << order;
  for (unsigned at = 0; at < FramePool::kBlockPages; at += pages) {
    if ((busy & runMask(order, at)) == 0) return static_cast<int>(at);
  }
  return -1;
}

// 0 to 4; -1: not a size that frames have.
int orderOf(uint64_t bytes) {
  const uint64_t pages = (bytes + FramePool::kPageBytes - 1) / FramePool::kPageBytes;
  if (bytes == 0 || pages > FramePool::kBlockPages) return -1;
  return std::countr_zero(std::bit_ceil(pages));
}

}  // namespace

int FramePool::largestFree(uint16_t busy) {
  for (int order = kOrders - 1; order >= 0; --order) {
    if (findRun(busy, static_cast<unsigned>(order)) >= 0) return order;
  }
  return -1;
}

void FramePool::shelve(const Place& place, const Held& slab) {
  const int order = largestFree(slab.busy[place.second]);
  if (order >= 0 && !slab.closed) shelves_[order].insert(place);
}

void FramePool::unshelve(const Place& place, const Held& slab) {
  const int order = largestFree(slab.busy[place.second]);
  if (order >= 0) shelves_[order].erase(place);
}

bool FramePool::add(const Slab& slab) {
  if (slab.bytes == 0 || slab.bytes % kPageBytes != 0 || slabs_.count(slab.id) != 0) return false;
  Held& held = slabs_[slab.id];
  held.pages = slab.bytes / kPageBytes;
  held.busy.assign((held.pages + kBlockPages - 1) / kBlockPages, 0);
  if (const uint64_t rest = held.pages % kBlockPages; rest != 0) {
    held.busy.back() = static_cast<uint16_t>(~((1u << rest) - 1u));  // pages that are not there
  }
  for (uint32_t block = 0; block < held.busy.size(); ++block) shelve({slab.id, block}, held);
  total_ += slab.bytes;
  free_ += slab.bytes;
  return true;
}

bool FramePool::remove(SlabId slab) {
  const auto found = slabs_.find(slab);
  if (found == slabs_.end()) return false;
  const Held& held = found->second;
  for (uint32_t block = 0; block < held.busy.size(); ++block) unshelve({slab, block}, held);
  total_ -= held.pages * kPageBytes;
  used_ -= held.used;
  if (!held.closed) free_ -= held.pages * kPageBytes - held.used;
  slabs_.erase(found);
  return true;
}

std::optional<FrameRange> FramePool::allocate(uint64_t bytes) {
  const int wanted = orderOf(bytes);
  if (wanted < 0) return std::nullopt;
  for (auto order = static_cast<unsigned>(wanted); order < kOrders; ++order) {
    if (shelves_[order].empty()) continue;
    const Place place = *shelves_[order].begin();
    Held& held = slabs_.at(place.first);
    unshelve(place, held);
    const auto at =
        static_cast<unsigned>(findRun(held.busy[place.second], static_cast<unsigned>(wanted)));
    held.busy[place.second] |= runMask(static_cast<unsigned>(wanted), at);
    shelve(place, held);
    const uint64_t length = kPageBytes << wanted;
    held.used += length;
    used_ += length;
    free_ -= length;
    return FrameRange{place.first, (place.second * kBlockPages + at) * kPageBytes, length};
  }
  return std::nullopt;
}

bool FramePool::release(const FrameRange& frame) {
  const auto found = slabs_.find(frame.slab);
  const int order = orderOf(frame.bytes);
  if (found == slabs_.end() || order < 0 || frame.bytes != kPageBytes << order ||
      frame.offset % frame.bytes != 0) {
    return false;
  }
  Held& held = found->second;
  const uint64_t page = frame.offset / kPageBytes;
  if (page >= held.pages || frame.bytes / kPageBytes > held.pages - page) return false;
  const Place place{frame.slab, static_cast<uint32_t>(page / kBlockPages)};
  const uint16_t mask =
      runMask(static_cast<unsigned>(order), static_cast<unsigned>(page % kBlockPages));
  if ((held.busy[place.second] & mask) != mask) return false;
  unshelve(place, held);
  held.busy[place.second] = static_cast<uint16_t>(held.busy[place.second] & ~mask);
  shelve(place, held);
  held.used -= frame.bytes;
  used_ -= frame.bytes;
  if (!held.closed) free_ += frame.bytes;
  return true;
}

bool FramePool::close(SlabId slab, bool closed) {
  const auto found = slabs_.find(slab);
  if (found == slabs_.end()) return false;
  Held& held = found->second;
  if (held.closed == closed) return true;
  const uint64_t rest = held.pages * kPageBytes - held.used;
  for (uint32_t block = 0; block < held.busy.size(); ++block) unshelve({slab, block}, held);
  held.closed = closed;
  for (uint32_t block = 0; block < held.busy.size(); ++block) shelve({slab, block}, held);
  if (closed) {
    free_ -= rest;
  } else {
    free_ += rest;
  }
  return true;
}

std::optional<SlabId> FramePool::emptiest() const {
  std::optional<SlabId> best;
  uint64_t least = 0;
  for (const auto& [id, held] : slabs_) {
    if (held.closed || (best && held.used >= least)) continue;
    best = id;
    least = held.used;
  }
  return best;
}

uint64_t FramePool::used(SlabId slab) const {
  const auto found = slabs_.find(slab);
  return found == slabs_.end() ? 0 : found->second.used;
}

}  // namespace olpager::memserver
