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

namespace {

bool isRange(const Edge& edge) { return edge.buffer_id == 0; }
uint64_t endOf(const Edge& edge) { return edge.begin + edge.bytes; }

// A range joins those that it overlaps or touches. Pages where nothing lies come in ascending
// order, many beside each other; a range of roots grows at either end.
bool addRange(std::vector<Edge>& edges, std::vector<Edge>::iterator at, Edge range) {
  uint64_t end = endOf(range);
  auto before = at;
  while (before != edges.begin() && !isRange(*std::prev(before))) --before;
  if (before != edges.begin() && endOf(*std::prev(before)) >= range.begin) {
    if (endOf(*std::prev(before)) >= end) return false;
    at = std::prev(before);
    range.begin = at->begin;
  }
  auto last = at;
  for (; last != edges.end() && last->begin <= end; ++last)
    if (isRange(*last)) end = std::max(end, endOf(*last));
  range.bytes = end - range.begin;
  if (std::find(at, last, range) != last) return false;
  last = edges.erase(std::remove_if(at, last, isRange), last);
  edges.insert(std::lower_bound(edges.begin(), last, range), range);
  return true;
}

}  // namespace

bool addEdge(Region& region, const Edge& edge) {
  std::vector<Edge>& edges = region.edges;
  const auto it = std::lower_bound(edges.begin(), edges.end(), edge);
  if (it != edges.end() && *it == edge) return false;
  if (isRange(edge)) return addRange(edges, it, edge);
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
  if (!isRange(edge)) return true;
  const auto after = upto_.upper_bound(edge);
  if (after != upto_.begin()) {
    const auto& [known, upto] = *std::prev(after);
    if (endOf(known) >= endOf(edge) && stamp <= upto.first && followed <= upto.second) return false;
  }
  const auto [at, fresh] = upto_.try_emplace(edge, stamp, followed);
  auto& [known_stamp, known_followed] = at->second;
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
