// Plans which allocations stay in VRAM and which stream through it, once the learned order knows a
// round.
//
// Any set that stays gives the same number of bytes a round; an evenly spread one lets copies and
// kernels overlap all the time, where the set that plain farthest-next-use ends up with (one
// contiguous run) would leave the link idle while the run is used. Another choice costs a round of
// traffic, so the planner decides anew only when the round or the room has changed noticeably, and
// then changes as few as need be.
//
// Pure: no clock, no driver. The result is Placement of the units. Under PoolState::mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pager/space/address_book.h"

namespace olpager::pager {

class Planner {
 public:
  /// A round has been planned.
  bool known() const { return planned_round_ != 0; }
  /// `touches`: of the learned order so far.
  bool isDue(uint64_t touches) const { return touches >= next_plan_; }
  /// A round of so many units has been looked at: the next look comes later.
  void looked(uint64_t touches, size_t units);
  /// The plan holds no more.
  void forget() { planned_round_ = next_plan_ = 0; }
  /// Plans a round of `total` pages with room for `room` of them to stay. Returns the pages that
  /// stay; nullopt: nothing is decided anew.
  std::optional<uint64_t> plan(std::vector<UnitRef> round, uint64_t total, uint64_t room);

 private:
  /// Units that share the extent in which they begin stay or go together.
  struct Group {
    size_t first, last;
    uint64_t pages;
    bool kept;
  };
  static std::vector<Group> groupsOf(const std::vector<UnitRef>& round);
  bool isNews(const std::vector<UnitRef>& round, uint64_t total, uint64_t room);

  uint64_t next_plan_ = 0;                         // touches
  uint64_t planned_round_ = 0, planned_room_ = 0;  // pages
  uint64_t candidate_round_ = 0;                   // pages of another round than the planned one
  unsigned candidate_seen_ = 0;
};

}  // namespace olpager::pager
