#include "pager/pool_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/log.h"

namespace olpager::pager {

namespace {
constexpr size_t kMaxRegions = 8u << 20;  // one for each page of the range
}

Status RegionTable::create() {
  void* memory = mmap(nullptr, kMaxRegions * sizeof(std::atomic<Region*>), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{"cannot reserve 64 MiB of address space for the table of regions"};
  entries_ = static_cast<std::atomic<Region*>*>(memory);
  return {};
}

RegionTable::~RegionTable() {
  if (entries_ != nullptr) munmap(entries_, kMaxRegions * sizeof(std::atomic<Region*>));
}

Region* RegionTable::take() {
  if (!dead_.empty() && Hazards::passed(dead_.front().hazards)) {
    Region* region = dead_.front().region;
    dead_.pop_front();
    region->dead = false;
    return region;
  }
  if (next_ >= kMaxRegions) return nullptr;
  owned_.push_back(std::make_unique<Region>());
  Region* region = owned_.back().get();
  region->id = next_++;
  entries_[region->id].store(region, std::memory_order_release);
  return region;
}

void RegionTable::give(Region* region) {
  region->dead = true;
  dead_.push_back({region, {}});
  hazards().snapshot(dead_.back().hazards);
}

ExtentRange extentsAt(const Region& region, uint64_t address, uint64_t bytes) {
  const auto first = std::partition_point(
      region.extents.begin(), region.extents.end(),
      [address](const auto& extent) { return extent->address + extent->bytes() <= address; });
  const auto last = std::partition_point(first, region.extents.end(), [&](const auto& extent) {
    return extent->address - address < bytes || extent->address < address;
  });
  return {static_cast<size_t>(first - region.extents.begin()),
          static_cast<size_t>(last - region.extents.begin())};
}

void resetRegion(Region& region) {
  region.stamp.store(0);
  region.blocked.store(0);
  region.placement = Placement::kUnplanned;
  region.density = {};
  region.tiny = region.published = region.dead = region.host_written = region.names_itself = false;
  region.by_pieces = region.whole_due = region.divisible = false;
  region.whole_stamp = region.fetch_after = region.fetch_pause = 0;
  region.host_writes = 0;
  region.swap_after = region.swap_pause = 0;
  region.swap_asked = region.swapping = false;
  region.arena.reset();
  region.root.reset();
  region.fixed = 0;
  region.scans = 0;
  region.piece_edges.clear();
  region.exporting = region.exports_lent = false;
  region.wanted = 0;
  region.pins = region.ahead = region.in_place = region.remote = region.unusable = 0;
  region.slot_bytes = 0;
  region.engine = nullptr;
  region.context = nullptr;
  region.edges.clear();
  region.extents.clear();
}

void RecentKernels::note(const char* name) {
  auto at = static_cast<size_t>(std::find(places_.begin(), places_.end(), name) - places_.begin());
  if (at == places_.size()) {
    at = static_cast<size_t>(std::min_element(noted_.begin(), noted_.end()) - noted_.begin());
    places_[at] = name;
    std::strncpy(names_[at].data(), name, names_[at].size() - 1);
  }
  noted_[at] = ++notes_;
}

std::string RecentKernels::list() const {
  std::array<size_t, std::tuple_size_v<decltype(noted_)>> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return noted_[a] > noted_[b]; });
  std::string text;
  for (const size_t at : order)
    if (noted_[at] != 0) text += (text.empty() ? "" : ", ") + std::string(names_[at].data());
  return text;
}

bool tellUnmapped(PoolState& state, CUcontext context) {
  const bool ever_paged = state.floor_epoch > 0;
  if (state.options.reach == Reach::kAll || !ever_paged) return false;
  if (!state.told_unmapped.insert(context).second) return true;
  const char* const why = state.options.reach == Reach::kLearned
                              ? "it went beyond the pieces of an arena that it was taken to use "
                                "(reach = learned): OL_REACH=traced or "
                                "OL_REACH=all (olrun --reach all) does not take that risk"
                              : "it follows pointers that no scan finds (marks in their upper "
                                "bits, offsets, halves that lie apart): "
                                "OL_REACH=all (olrun --reach all) maps everything for every launch";
  const Engine* const engine = state.engineIn(context);
  const std::string kernels = state.recent_kernels.list();
  base::logError(
      "%sthe context is lost (CUDA error %d): a kernel touched memory that was not mapped for it. "
      "If it "
      "works without the pager, %s%s%s",
      engine != nullptr ? base::format("device {}: ", engine->device()).c_str() : "",
      static_cast<int>(CUDA_ERROR_ILLEGAL_ADDRESS), why,
      kernels.empty() ? "" : ". Launched of late: ", kernels.c_str());
  return true;
}

void makeArena(PoolState& state, Region& region) {
  state.predictor.forget(unitOf(region));
  region.arena = std::make_unique<Arena>(state.pieces, &region, region.base, region.end());
  region.tiny = false;
  if (state.options.reach != Reach::kLearned) return;
  region.by_pieces = region.whole_due = true;
  region.whole_stamp = region.stamp.load();
}

namespace {
constexpr size_t kMostPieceEdges = 1024;  // of one region: beyond, it names arenas whole

// The page of an arena by pieces that a pointer means.
uint64_t pageIn(const Region& arena, uint64_t address) {
  return std::min(address, arena.end() - 1) / kPageBytes * kPageBytes;
}

// Whether something may have been there.
bool everUsed(const PoolState& state, uint64_t address) {
  if (!state.map->contains(address)) return state.roots.span().contains(address);
  return (address - state.map->base()) / kPageBytes < state.highWaterPages();
}
}  // namespace

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

// With the guard behind it: a region whose end a pointer names may get another one as its
// neighbour.
Edge edgeTo(const Region& target) {
  const uint64_t bytes = target.isRoot() ? target.requested_bytes : (target.pages + 1) * kPageBytes;
  return {target.base, bytes, target.buffer_id};
}

Edge edgeToNothing(const PoolState& state, uint64_t address) {
  constexpr uint64_t kHostPage = 4096;  // beside it may be memory that the address does not mean
  const uint64_t page = state.map->contains(address) ? kPageBytes : kHostPage;
  return {address / page * page, page, 0};
}

bool addEdge(const PoolState& state, Region& region, uint64_t address) {
  if (const Region* target = state.liveAt(address); target != nullptr)
    return addEdge(state, region, *target, address);
  return everUsed(state, address) && addEdge(region, edgeToNothing(state, address));
}

bool addEdge(const PoolState& state, Region& region, const Region& target, uint64_t address) {
  if (&target == &region) return !std::exchange(region.names_itself, true);
  if (!target.by_pieces) return addEdge(region, edgeTo(target));
  const uint64_t page = pageIn(target, address);
  const auto it = std::lower_bound(region.piece_edges.begin(), region.piece_edges.end(), page);
  if (it != region.piece_edges.end() && *it == page) return false;
  region.piece_edges.insert(it, page);
  if (region.piece_edges.size() <= kMostPieceEdges) return true;
  for (const uint64_t named : region.piece_edges) {
    const Region* const arena = state.liveAt(named);
    addEdge(region, arena != nullptr ? edgeTo(*arena) : edgeToNothing(state, named));
  }
  region.piece_edges.clear();
  return true;
}

void addEdgesOf(Region& region, const Region& from) {
  for (const Edge& edge : from.edges) addEdge(region, edge);
  std::vector<uint64_t> pages;
  std::set_union(region.piece_edges.begin(), region.piece_edges.end(), from.piece_edges.begin(),
                 from.piece_edges.end(), std::back_inserter(pages));
  region.piece_edges.swap(pages);
}

void drainUnmarked(PoolState& state, uint64_t number) {
  for (const CUcontext context : state.streams.contextsToDrain())
    static_cast<void>(state.streams.synchronize(context, number));
}

void PoolState::addRootEdge(CUcontext context, const Edge& edge, uint64_t page) {
  const Engine* keeper = engineIn(context);
  for (RootEdge& known : root_edges) {
    if (known.edge != edge || known.keeper != keeper || known.page != page) continue;
    known.missed = 0;
    return;
  }
  root_edges.push_back({edge, keeper, 0, page});
}

void PoolState::addRootEdge(CUcontext context, uint64_t address) {
  if (const Region* const target = liveAt(address); target != nullptr)
    addRootEdge(context, edgeTo(*target), target->by_pieces ? pageIn(*target, address) : 0);
  else if (everUsed(*this, address))
    addRootEdge(context, edgeToNothing(*this, address));
}

Engine* PoolState::scannerOf(const Region& root) const {
  // Managed memory and what the CPU scans is every context's.
  if (root.root->kind != RootKind::kDevice)
    return engines.empty() ? nullptr : engines.front().get();
  return engineIn(root.root->context);
}

uint64_t remoteCapacity(const PoolState& state) {
  return state.remote == nullptr || state.options.reach == Reach::kAll
             ? 0
             : state.remote->figures().capacity_bytes;
}

void tellRoom(const PoolState& state) {
  const uint64_t remote = remoteCapacity(state);
  uint64_t all = state.host.limit + remote;
  for (const auto& engine : state.engines) all += engine->chunks().vramBudget();
  set(counters().memserver_bytes, remote);
  set(counters().pool_bytes, all);
}

bool refreshRoot(const PoolState& state, Region& region) {
  if (!region.root->scannable || state.scannerOf(region) == nullptr) return false;
  std::vector<ByteRun> by_cpu, by_gpu;
  rootRuns(region, by_cpu, by_gpu);
  for (const ByteRun& run : by_cpu)
    if (!forPieces(run, [&](const void* data, uint64_t bytes) {
          addEdgesAmong(state, region, data, bytes);
        }))
      region.root->scannable = false;
  return region.root->scannable;
}

void addEdgesAmong(const PoolState& state, Region& region, const void* data, uint64_t bytes) {
  forPointersAmong(state, data, bytes, [&](uint64_t word) { addEdge(state, region, word); });
}

void PoolState::updateSlow() {
  const bool now = outside != 0 || options.reach == Reach::kAll;
  if (now == slow.load(std::memory_order_relaxed)) return;
  slow.store(now, std::memory_order_seq_cst);
  if (!now) return;
  // Nobody recorded what launches reached up to here, nor looked for pointers.
  floor_pending = true;
  ++floor_epoch;
  for (uint32_t id = 1; id < regions.end(); ++id) {
    Region* region = regions.at(id);
    if (region->dead) continue;
    markDirty(region);
    region->whole_due = region->by_pieces;
  }
}

}  // namespace olpager::pager
