#include "pager/pool_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace olpager::pager {

namespace {
constexpr size_t kMaxRegions = 8u << 20;  // one for each page of the range
}

Status RegionTable::create() {
  void* memory = mmap(nullptr, kMaxRegions * sizeof(std::atomic<Region*>), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Error{"cannot reserve 64 MiB of address space for the table of regions"};
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
  const auto first = std::partition_point(region.extents.begin(), region.extents.end(), [address](const auto& extent) {
    return extent->address + extent->bytes() <= address;
  });
  const auto last = std::partition_point(first, region.extents.end(), [&](const auto& extent) {
    return extent->address - address < bytes || extent->address < address;
  });
  return {static_cast<size_t>(first - region.extents.begin()), static_cast<size_t>(last - region.extents.begin())};
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
  if (std::find(places_.begin(), places_.end(), name) != places_.end()) return;
  places_[next_] = name;
  std::strncpy(names_[next_].data(), name, names_[next_].size() - 1);
  next_ = (next_ + 1) % names_.size();
}

std::string RecentKernels::list() const {
  std::string text;
  for (size_t i = 1; i <= names_.size(); ++i) {
    const char* name = names_[(next_ + names_.size() - i) % names_.size()].data();
    if (*name != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
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

void insertUnique(std::vector<uint32_t>& edges, uint32_t id) {
  const auto it = std::lower_bound(edges.begin(), edges.end(), id);
  if (it == edges.end() || *it != id) edges.insert(it, id);
}
}  // namespace

void addEdge(const PoolState& state, Region& region, uint64_t address) {
  if (const Region* target = state.find(address); target != nullptr && !target->dead)
    addEdge(state, region, *target, address);
}

void addEdge(const PoolState& state, Region& region, const Region& of, uint64_t address) {
  const Region* const target = &of;
  if (target == &region) {
    region.names_itself = true;
    return;
  }
  if (!target->by_pieces) return insertUnique(region.edges, target->id);
  const uint64_t page = std::min(address, target->end() - 1) / kPageBytes * kPageBytes;
  const auto it = std::lower_bound(region.piece_edges.begin(), region.piece_edges.end(), page);
  if (it != region.piece_edges.end() && *it == page) return;
  region.piece_edges.insert(it, page);
  if (region.piece_edges.size() <= kMostPieceEdges) return;
  for (const uint64_t named : region.piece_edges)
    if (const Region* arena = state.find(named); arena != nullptr) insertUnique(region.edges, arena->id);
  region.piece_edges.clear();
}

void addEdgesOf(Region& region, const Region& from) {
  for (const uint32_t id : from.edges) insertUnique(region.edges, id);
  std::vector<uint64_t> pages;
  std::set_union(region.piece_edges.begin(), region.piece_edges.end(), from.piece_edges.begin(), from.piece_edges.end(),
                 std::back_inserter(pages));
  region.piece_edges.swap(pages);
}

void drainUnmarked(PoolState& state, uint64_t number) {
  for (const CUcontext context : state.streams.contextsToDrain())
    static_cast<void>(state.streams.synchronize(context, number));
}

void PoolState::addRootEdge(CUcontext context, const Region& region, uint64_t address) {
  const Engine* keeper = engineIn(context);
  const uint64_t page =
      region.by_pieces && address != 0 ? std::min(address, region.end() - 1) / kPageBytes * kPageBytes : 0;
  for (RootEdge& edge : root_edges) {
    if (edge.id != region.id || edge.keeper != keeper || edge.page != page) continue;
    edge.buffer_id = region.buffer_id;
    edge.missed = 0;
    return;
  }
  root_edges.push_back({region.id, region.buffer_id, keeper, 0, page});
}

Engine* PoolState::scannerOf(const Region& root) const {
  // Managed memory and what the CPU scans is every context's.
  if (root.root->kind != RootKind::kDevice) return engines.empty() ? nullptr : engines.front().get();
  return engineIn(root.root->context);
}

uint64_t remoteCapacity(const PoolState& state) {
  return state.remote == nullptr || state.options.reach == Reach::kAll ? 0 : state.remote->figures().capacity_bytes;
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
    if (!forPieces(run, [&](const void* data, uint64_t bytes) { addEdgesAmong(state, region, data, bytes); }))
      region.root->scannable = false;
  return region.root->scannable;
}

void addEdgesAmong(const PoolState& state, Region& region, const void* data, uint64_t bytes) {
  forPointersAmong(state, data, bytes,
                   [&](const Region& target, uint64_t word) { addEdge(state, region, target, word); });
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
