#include "pager/reach/edges.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "pager/reach/ranges.h"

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
  // So does a range that has grown.
  if (edge.buffer_id == 0 && it != edges.begin()) {
    Edge& before = *std::prev(it);
    const uint64_t end = before.begin + before.bytes, now = edge.begin + edge.bytes;
    if (before.buffer_id == 0 && before.begin <= edge.begin && end >= edge.begin) {
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

namespace {

// No other root lies between.
bool isBeside(const RootTable& roots, const Edge& before, const Edge& edge) {
  const uint64_t end = before.begin + before.bytes;
  bool any = false;
  if (end < edge.begin)
    roots.forAt(end, edge.begin - end, [&](uint64_t, const Root&) { any = true; });
  return !any;
}

}  // namespace

std::vector<Edge> edgesTo(const RootTable& roots, std::vector<const Region*> targets) {
  constexpr size_t kMostApart = 16;
  const bool many = targets.size() > kMostApart;
  if (many)
    std::sort(targets.begin(), targets.end(),
              [](const Region* a, const Region* b) { return a->base < b->base; });
  std::vector<Edge> edges;
  for (const Region* const target : targets) {
    const Edge edge = edgeTo(*target);
    if (many && !edges.empty() && isBeside(roots, edges.back(), edge))
      edges.back() = {edges.back().begin, edge.begin + edge.bytes - edges.back().begin, 0};
    else
      edges.push_back(edge);
  }
  return edges;
}

bool FollowedRanges::isNew(const Edge& edge, uint64_t stamp, uint64_t followed) {
  if (edge.buffer_id != 0) return true;
  const auto [at, fresh] = upto_.try_emplace(edge, stamp, followed);
  auto& [known_stamp, known_followed] = at->second;
  if (!fresh && stamp <= known_stamp && followed <= known_followed) return false;
  known_stamp = std::max(known_stamp, stamp);
  known_followed = std::max(known_followed, followed);
  return true;
}

bool leadsOn(const Region& region) {
  return !region.edges.empty() || !region.piece_edges.empty() || region.fixed > 0 ||
         region.isRoot();
}

uint64_t pageIn(const Region& arena, uint64_t address) {
  return std::min(address, arena.end() - 1) / kPageBytes * kPageBytes;
}

}  // namespace olpager::pager
