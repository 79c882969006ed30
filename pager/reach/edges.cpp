#include "pager/reach/edges.h"

#include <algorithm>
#include <iterator>

namespace olpager::pager {

// With the guard behind it: a region whose end a pointer names may get another one as its
// neighbour.
Edge edgeTo(const Region& target) {
  const uint64_t bytes = target.isRoot() ? target.requested_bytes : (target.pages + 1) * kPageBytes;
  return {target.base, bytes, target.buffer_id};
}

bool addEdge(Region& region, const Edge& edge) {
  std::vector<Edge>& edges = region.edges;
  const auto it = std::lower_bound(edges.begin(), edges.end(), edge);
  if (it != edges.end() && *it == edge) return false;
  // Pages where nothing lies come in ascending order, many beside each other: they become one edge.
  if (edge.buffer_id == 0 && it != edges.begin()) {
    Edge& before = *std::prev(it);
    const uint64_t end = before.begin + before.bytes, now = edge.begin + edge.bytes;
    if (before.buffer_id == 0 && before.begin < edge.begin && end >= edge.begin) {
      before.bytes = std::max(end, now) - before.begin;
      return end < now;
    }
  }
  edges.insert(it, edge);
  return true;
}

void addEdgesOf(Region& region, const Region& from) {
  for (const Edge& edge : from.edges) addEdge(region, edge);
  std::vector<uint64_t> pages;
  std::set_union(region.piece_edges.begin(), region.piece_edges.end(), from.piece_edges.begin(),
                 from.piece_edges.end(), std::back_inserter(pages));
  region.piece_edges.swap(pages);
}

void forgetEdges(Region& region) {
  region.edges.clear();
  region.piece_edges.clear();
}

bool leadsOn(const Region& region) {
  return !region.edges.empty() || !region.piece_edges.empty() || region.fixed > 0 ||
         region.isRoot();
}

uint64_t pageIn(const Region& arena, uint64_t address) {
  return std::min(address, arena.end() - 1) / kPageBytes * kPageBytes;
}

}  // namespace olpager::pager
