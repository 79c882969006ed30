// The order in which extents leave VRAM: first what is used farthest in the future (Belady 1966),
// as far as the learned order tells, else by recency.
//
// Thread-safety: none; under PoolState::mutex. Nothing here fails.
#pragma once

#include <cstdint>

#include "pager/space/address_book.h"

namespace olpager::pager {

/// The first that goes last:
///   kHot         used all the time
///   kSoon        used sooner than what it would make room for
///   kStays       the planner keeps it (planner.h); by its next use
///   kStreams     it streams through VRAM once in each round; by its next use
///   kUnknown     the learned order does not know it; by its last use
///   kNeverAgain  the learned order does not expect it, or it is better read in place
enum VictimClass : unsigned { kHot, kSoon, kStays, kStreams, kUnknown, kNeverAgain };

/// The greater one leaves before the smaller one.
struct VictimScore {
  unsigned victim_class = 0;
  uint64_t key = 0;
  bool operator>(const VictimScore& other) const {
    return victim_class != other.victim_class ? victim_class > other.victim_class : key > other.key;
  }
};

/// `age`: launches since its last use. `nearer_than`: touches to the use of what it makes room for.
VictimScore scoreOf(predict::Predictor& predictor, const UnitRef& unit, uint64_t age,
                    uint64_t nearer_than);
/// The score of an extent of an arena whose pieces the learned order knows: one that several pieces
/// share goes when the last of them can.
VictimScore scoreOfPart(predict::Predictor& predictor, const Extent& extent, uint64_t age,
                        uint64_t nearer_than);
/// Touches until any piece is used that the extent shares in; UINT64_MAX: nobody knows.
uint64_t nextUseOfPart(predict::Predictor& predictor, const Extent& extent);

}  // namespace olpager::pager
