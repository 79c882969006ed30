// An edge: the target of a pointer kept in memory.
#pragma once

#include <compare>
#include <cstdint>

namespace olpager::pager {

/// Addresses that a pointer names, and the buffer that was there when a scan found the pointer. The
/// addresses count, not the region's id or object: both are used again for other memory, and the
/// pointer stays what it is. While the buffer is there, the edge leads to its region. Once the
/// buffer is freed, the edge leads to whatever lies at these addresses, until a scan looks at the
/// pointer anew (ReachGraph::forEdge). `buffer_id` 0: nothing was there; the program may allocate
/// there again.
struct Edge {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  auto operator<=>(const Edge&) const = default;
};

}  // namespace olpager::pager
