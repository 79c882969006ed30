#include "pager/reach/reach_graph.h"

#include <utility>

namespace olpager::pager {

namespace {
constexpr size_t kMostPieceEdges = 1024;  // of one region: beyond, it names arenas whole
constexpr size_t kMostPrecise = 256;      // edges of one region: beyond, host memory by kRoughBytes
constexpr uint64_t kRoughBytes = 1ull << 40;
}  // namespace

Region* ReachGraph::liveAt(uint64_t address) const {
  Region* const region =
      book_.map().contains(address) ? book_.find(address) : roots.regionAt(address);
  return region == nullptr || region->dead ? nullptr : region;
}

// True if something may have been there.
bool ReachGraph::everUsed(uint64_t address) const {
  const space::PageMap& map = book_.map();
  if (!map.contains(address)) return roots.span().contains(address);
  return (address - map.base()) / kPageBytes < book_.highWaterPages();
}

// The edge to an address where nothing lies now: its page.
Edge ReachGraph::edgeToNothing(uint64_t address) const {
  constexpr uint64_t kHostPage = 4096;  // beside it may be memory that the address does not mean
  const uint64_t page = book_.map().contains(address) ? kPageBytes : kHostPage;
  return {address / page * page, page, 0};
}

bool ReachGraph::add(Region& region, uint64_t address) const {
  if (const Region* target = liveAt(address); target != nullptr)
    return add(region, *target, address);
  if (!everUsed(address)) return false;
  // Plain integers can look like addresses of host memory: a region that is full of them leads to
  // few wide ranges. Nothing but roots is found there.
  const space::PageMap& map = book_.map();
  const Edge around{address / kRoughBytes * kRoughBytes, kRoughBytes, 0};
  const bool beside_map =
      around.begin >= map.base() + map.size() || around.begin + around.bytes <= map.base();
  const bool rough = region.edges.size() >= kMostPrecise && beside_map;
  return addEdge(region, rough ? around : edgeToNothing(address));
}

bool ReachGraph::add(Region& region, const Region& target, uint64_t address) const {
  if (&target == &region) return !std::exchange(region.names_itself, true);
  if (!target.by_pieces) return addEdge(region, edgeTo(target));
  const uint64_t page = pageIn(target, address);
  const auto it = std::lower_bound(region.piece_edges.begin(), region.piece_edges.end(), page);
  if (it != region.piece_edges.end() && *it == page) return false;
  region.piece_edges.insert(it, page);
  if (region.piece_edges.size() <= kMostPieceEdges) return true;
  for (const uint64_t named : region.piece_edges) {
    const Region* const arena = liveAt(named);
    addEdge(region, arena != nullptr ? edgeTo(*arena) : edgeToNothing(named));
  }
  region.piece_edges.clear();
  return true;
}

void ReachGraph::addAmong(Region& region, const void* data, uint64_t bytes) const {
  forPointersAmong(data, bytes, [&](uint64_t word) { add(region, word); });
}

void ReachGraph::addOfVariables(CUcontext context, const Edge& edge, uint64_t page) {
  const Engine* keeper = devices_.engineIn(context);
  for (RootEdge& known : of_variables) {
    if (known.edge != edge || known.keeper != keeper || known.page != page) continue;
    known.missed = 0;
    return;
  }
  of_variables.push_back({edge, keeper, 0, page});
}

void ReachGraph::addOfVariables(CUcontext context, uint64_t address) {
  if (const Region* const target = liveAt(address); target != nullptr)
    addOfVariables(context, edgeTo(*target), target->by_pieces ? pageIn(*target, address) : 0);
  else if (everUsed(address))
    addOfVariables(context, edgeToNothing(address));
}

void ReachGraph::forgetKeeper(const Engine* keeper) {
  std::erase_if(of_variables, [&](const RootEdge& edge) { return edge.keeper == keeper; });
}

Engine* ReachGraph::scannerOf(const Region& root) const {
  // Managed memory and what the CPU scans is every context's.
  if (root.root->kind != RootKind::kDevice) return devices_.first();
  return devices_.engineIn(root.root->context);
}

bool ReachGraph::refresh(Region& root) const {
  if (!root.root->scannable || scannerOf(root) == nullptr) return false;
  std::vector<ByteRun> by_cpu, by_gpu;
  rootRuns(root, by_cpu, by_gpu);
  for (const ByteRun& run : by_cpu)
    if (!forPieces(run, [&](const void* data, uint64_t bytes) { addAmong(root, data, bytes); }))
      root.root->scannable = false;
  return root.root->scannable;
}

void ReachGraph::everythingIsDirty() {
  floor.pending = true;
  ++floor.epoch;
  for (uint32_t id = 1; id < book_.regions.end(); ++id) {
    Region* region = book_.regions.at(id);
    if (region->dead) continue;
    markDirty(region);
    region->whole_due = region->by_pieces;
  }
}

}  // namespace olpager::pager
