// Edges to ranges of addresses in which many roots lie. A kernel may have stored the address of
// each root that it reached in each. An edge from each to each would count the square of their
// number, and programs have thousands of pinned blocks: one edge leads to all that lie beside each
// other, and a traversal follows it once.
//
// Everything here runs under PoolState::mutex.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pager/reach/edge.h"
#include "pager/reach/roots.h"

namespace olpager::pager {

/// Edges that lead to these roots of the table, and to no other one.
std::vector<Edge> edgesTo(const RootTable& roots, std::vector<const Region*> targets);

/// The ranges that a traversal has followed, for launches up to a stamp.
class FollowedRanges {
 public:
  /// True if the edge may lead to something new. The edge counts as followed then.
  bool isNew(const Edge& edge, uint64_t stamp = 0, uint64_t followed = 0);

 private:
  std::map<Edge, std::pair<uint64_t, uint64_t>> upto_;
};

}  // namespace olpager::pager
