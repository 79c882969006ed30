// Tells if memory may be used in place: mapped for the GPU where it is in host RAM, instead of
// being fetched to VRAM. Use in place is a property of the extent. All extents of a region share
// the property; two regions may differ, since the device of one can map host RAM and the device of
// the other can't.
#pragma once

#include "pager/space/region.h"

namespace olpager::pager {

/// Under PoolState::mutex. A region that no engine holds (a reservation in which nothing is mapped)
/// has nothing to be used in place: false.
bool mayBeInPlace(const Region& region);
inline bool mayBeInPlace(const Extent& extent) { return mayBeInPlace(*extent.region); }

}  // namespace olpager::pager
