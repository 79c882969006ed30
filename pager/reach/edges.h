// Edges of a region: the targets of pointers kept in its pages. Everything here runs under
// PoolState::mutex.
#pragma once

#include <cstdint>

#include "pager/reach/edge.h"
#include "pager/space/region.h"

namespace olpager::pager {

/// The edge to a live region, or to a root.
Edge edgeTo(const Region& target);
/// Pointers in `region` lead there. True: that was not known.
bool addEdge(Region& region, const Edge& edge);
/// Pages of `from`, copied to `region`, name what they name.
void addEdgesOf(Region& region, const Region& from);
/// Nothing in the region is known to name anything.
void forgetEdges(Region& region);
/// True if the region leads to further memory.
bool leadsOn(const Region& region);
/// The page that a pointer into an arena means; the arena's last one for its end.
uint64_t pageIn(const Region& arena, uint64_t address);

}  // namespace olpager::pager
