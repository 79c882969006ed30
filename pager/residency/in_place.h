// Whether memory may be used in place: mapped for the GPU where it is in host RAM, instead of being
// fetched to VRAM. That is a property of an extent, which all of a region's share: the device of
// one may be able to and that of another not, and memory whose host RAM is not the GPU's to map
// never may.
#pragma once

#include "pager/space/region.h"

namespace olpager::pager {

/// Under PoolState::mutex. A region that no engine holds (a reservation in which nothing is mapped)
/// has nothing to be used in place: false.
bool mayBeInPlace(const Region& region);
inline bool mayBeInPlace(const Extent& extent) { return mayBeInPlace(*extent.region); }

}  // namespace olpager::pager
