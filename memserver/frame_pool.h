// Frames: power-of-two runs of 2 MiB pages, 2 MiB to 32 MiB, in the slabs of one memserver. Says
// which are free; moves no bytes.
//
// A run lies on a boundary of its own size, in one slab. The fullest place that has room is used
// first, so that slabs become empty and can be given back.
//
// Thread-safety: one caller at a time. Errors: none; an impossible request is std::nullopt or
// false.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "memserver/client.h"

namespace olpager::memserver {

class FramePool {
 public:
  static constexpr uint64_t kPageBytes = 2ull << 20;
  static constexpr uint64_t kBlockPages = 16;  // the largest run

  /// False: known already, or not whole pages.
  bool add(const Slab& slab);
  /// Forgets a slab (released or lost), with all that is in it; its frames can't be freed any more.
  /// False: not known.
  bool remove(SlabId slab);

  /// `bytes` is rounded up to a power of two of pages. None: no such run is free, or it is larger
  /// than kBlockPages.
  std::optional<FrameRange> allocate(uint64_t bytes);
  /// As allocate() gave it. False: it is not allocated (or its slab is gone).
  bool release(const FrameRange& frame);

  /// No new frames from this slab (it is being emptied), or again.
  bool close(SlabId slab, bool closed = true);
  /// The open slab with the fewest bytes in use: the one to empty when memory is recalled.
  std::optional<SlabId> emptiest() const;
  uint64_t used(SlabId slab) const;  // bytes; 0 also for what is not known

  uint64_t totalBytes() const { return total_; }  // of all slabs
  uint64_t usedBytes() const { return used_; }
  uint64_t freeBytes() const { return free_; }  // in open slabs

 private:
  static constexpr unsigned kOrders = 5;  // 1, 2, 4, 8, 16 pages
  struct Held {
    uint64_t pages = 0, used = 0;
    bool closed = false;
    std::vector<uint16_t> busy;  // a bit for each page of a block
  };
  using Place = std::pair<SlabId, uint32_t>;  // a block

  static int largestFree(uint16_t busy);  // order, -1: none
  void shelve(const Place& place, const Held& slab);
  void unshelve(const Place& place, const Held& slab);

  std::map<SlabId, Held> slabs_;
  std::set<Place> shelves_[kOrders];  // open blocks by their largest free run
  uint64_t total_ = 0, used_ = 0, free_ = 0;
};

}  // namespace olpager::memserver
