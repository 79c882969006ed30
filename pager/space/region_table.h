// The regions of a pool, by id.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/result.h"
#include "pager/launch/in_flight.h"
#include "pager/space/region.h"

namespace olpager::pager {

/// Region by id, as the page map names it. at() is wait-free; all else is under PoolState::mutex.
/// Ids start at 1. Regions are never deleted while the pool lives: a dead one is reused after a
/// grace period, so that a launch may look at one that is being freed.
class RegionTable {
 public:
  RegionTable() = default;
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  Status create();
  Region* at(uint32_t id) const { return entries_[id].load(std::memory_order_acquire); }
  /// A region object with a free id, as new; nullptr: there is no id left.
  Region* take();
  /// A dead region: its object is reused once no launch can look at it any more.
  void give(Region* region);
  /// Ids in use are below this. Asked at each step of a loop over all of them: counted, for
  /// steps().
  uint32_t end() const {
    ++steps_;
    return next_;
  }
  /// Steps of loops over all regions so far: they must not grow with the square of their number.
  uint64_t steps() const { return steps_; }

 private:
  struct Dead {
    Region* region;
    Hazards::Snapshot hazards;
  };
  std::atomic<Region*>* entries_ = nullptr;
  uint32_t next_ = 1;
  mutable uint64_t steps_ = 0;
  std::deque<Dead> dead_;
  std::vector<std::unique_ptr<Region>> owned_;
};

}  // namespace olpager::pager
