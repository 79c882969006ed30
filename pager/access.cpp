// The launch path. While everything is in VRAM (`slow` is false): no lock, no system call. Else the launch's reach is worked
// out under the mutex and waits for what is missing.
#include <algorithm>
#include <cstring>
#include <deque>

#include "pager/clock.h"
#include "pager/kernels/page_pass.h"
#include "pager/working_set.h"

namespace olpager::pager {

namespace {

constexpr uint64_t kScanOnCpu = 64 << 10;
constexpr uint64_t kRootOnCpu = 64 << 20;  // of a larger one, as much from where the launch names it

/// Whether a range lies in the region's pages; its guard is none of them. Sums could wrap.
bool inside(const Region& region, uint64_t address, uint64_t bytes) {
  const uint64_t offset = address - region.base;
  const uint64_t size = region.pages * kPageBytes;
  if (offset >= size || bytes > size - offset) return false;
  // As native: a small allocation ends where what is rounded up for it does.
  return region.slot_bytes == 0 || bytes <= region.slot_bytes - offset % region.slot_bytes;
}

// A launch may have written to memory that stays in place. Instead of scanning it over the link: what it can have written
// there are pointers to what it reached. Now and then a scan after all, which forgets what is not there.
void assumeNames(PoolState& state, Region& region, const std::vector<Region*>& reach) {
  constexpr size_t kMostAssumed = 256;
  constexpr uint16_t kScannedUses = 4096;
  if (region.density.uses % kScannedUses == kScannedUses - 1 || region.edges.size() > kMostAssumed)
    return state.markDirty(&region);
  region.names_itself = true;
  for (const Region* other : reach)
    if (other != &region && std::find(region.edges.begin(), region.edges.end(), other->id) == region.edges.end())
      region.edges.push_back(other->id);
}

/// Calls a function at the end of a scope, also when an exception ends it.
template <typename Function>
class AtEnd {
 public:
  explicit AtEnd(Function function) : function_(function) {}
  ~AtEnd() { function_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  Function function_;
};

}  // namespace

Access::Access(Pool& pool, const StreamKey& stream) : pool_(pool), stream_(stream) {}

Access::~Access() {
  if (stream_state_ != nullptr) submitted(CUDA_ERROR_UNKNOWN);
}

Access::Use& Access::push() {
  if (count_ < kInlineUses) return inline_[count_++];
  ++count_;
  return more_.emplace_back();
}

void Access::addWord(uint64_t word) {
  if (pool_.contains(word)) {
    push() = {word, 0, Mode::kReadWrite};
    return;
  }
  if (pool_.state_->host_roots.contains(word)) host_words_.push_back(word);
}

void Access::addParameter(const void* bytes_at, size_t bytes) {
  follows_pointers_ = true;
  const char* at = static_cast<const char*>(bytes_at);
  for (size_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += 4) {
    uint64_t word;
    std::memcpy(&word, at + offset, sizeof(word));
    addWord(word);
  }
}

void Access::addRange(uint64_t address, uint64_t bytes, Mode mode) {
  if (bytes == 0) return;
  if (pool_.contains(address)) {
    push() = {address, bytes, mode};
  } else if (mode != Mode::kRead && pool_.mayHoldRoot(address, bytes)) {
    root_writes_.push_back({address, bytes, mode});
  }
}

void Access::addHostSource(const void* host, uint64_t bytes, bool stable) {
  host_source_ = host;
  host_bytes_ = bytes;
  host_stable_ = stable;
}

void Access::addReach(const ReachSet& set) {
  follows_pointers_ = true;
  reaches_everything_ |= set.everything;
  for (const uint64_t address : set.addresses) addWord(address);
}

void Access::collect(ReachSet& into) const {
  if (pool_.state_->forked.load(std::memory_order_relaxed)) return;
  into.everything |= reaches_everything_;
  for (unsigned i = 0; i < count_; ++i) {
    const Region* region = pool_.state_->find(use(i).address);
    if (region == nullptr) continue;
    if (use(i).bytes != 0) into.addRange(use(i).address, use(i).bytes);
    if (region->divisible)
      into.addInPage(use(i).address);
    else
      into.add(region->base);
  }
}

CUresult Access::acquire() {
  PoolState& state = *pool_.state_;
  // A kernel that names nothing counts as well: a module variable or a texture, which may be gone before it ends, can lead it
  // somewhere.
  if (count_ == 0 && root_writes_.empty() && !follows_pointers_) return CUDA_SUCCESS;
  if (state.forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  HazardSlot* slot = hazards().mine();
  StreamState* stream = state.streams.find(stream_);
  if (stream->device.load(std::memory_order_relaxed) < 0) findDevice(*stream);
  if (!state.slow.load(std::memory_order_relaxed)) {
    slot->enter();
    if (!state.slow.load(std::memory_order_seq_cst)) {
      stream->pending.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t number = state.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
      bool clear = true;
      Region* last = nullptr;
      for (unsigned i = 0; i < count_ && clear; ++i) {
        const Use& named = use(i);
        Region* region = state.find(named.address);
        if (region == nullptr || (named.bytes != 0 && !inside(*region, named.address, named.bytes))) {
          clear = named.bytes == 0;  // a range that is not ours to give: the slow path says so
          continue;
        }
        if (region == last) continue;
        clear =
            region->blocked.load(std::memory_order_seq_cst) == 0 && (named.bytes == 0 || !crosses(*stream, *region));
        raise(region->stamp, number);
        last = region;
      }
      if (clear) {
        number_ = number;
        stream_state_ = stream;
        if (last != nullptr && last->engine != nullptr) {
          DeviceCounters& figures = last->engine->figures();
          add(follows_pointers_ ? figures.launches : figures.copies);
          if (follows_pointers_) add(figures.launches_resident);
        }
        return CUDA_SUCCESS;
      }
      stream->pending.fetch_sub(1, std::memory_order_acq_rel);
    }
    slot->leave();
  }
  reachAcross(*stream);
  return acquireSlow();
}

// Whether a copy meets memory of another device that this one has not been given access to. Native copies can; kernels need
// what the program asks for by cuCtxEnablePeerAccess.
bool Access::crosses(const StreamState& stream, const Region& region) const {
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  return region.engine != nullptr && region.device != device && !region.engine->chunks().hasPeer(device);
}

void Access::findDevice(StreamState& stream) const {
  const DriverApi& driver = pool_.state_->driver;
  CUdevice device = 0;
  if (driver.cuCtxPushCurrent_v2(stream_.context) != CUDA_SUCCESS) return;
  const CUresult result = driver.cuCtxGetDevice(&device);
  CUcontext popped = nullptr;
  driver.cuCtxPopCurrent_v2(&popped);
  if (result == CUDA_SUCCESS) stream.device.store(device, std::memory_order_relaxed);
}

// Gives the device of a copy access to the memory of others that it names, where the hardware can. Else the driver answers.
void Access::reachAcross(StreamState& stream) {
  PoolState& state = *pool_.state_;
  const DriverApi& driver = state.driver;
  const CUdevice device = stream.device.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {
    const Region* region = use(i).bytes != 0 ? state.find(use(i).address) : nullptr;
    if (region == nullptr || region->device == device) continue;
    Lock lock(state.mutex);
    if (region->dead || !crosses(stream, *region)) continue;
    const CUdevice owner = region->device;
    lock.unlock();
    int can = 0;
    if (driver.cuDeviceCanAccessPeer(&can, device, owner) != CUDA_SUCCESS || can == 0) continue;
    static_cast<void>(pool_.peerEnabled(device, owner));
  }
}

CUresult Access::acquireSlow() {
  PoolState& state = *pool_.state_;
  Lock lock(state.mutex);
  std::vector<Region*> reach;
  uint32_t mark = ++state.closure_mark;
  const auto visit = [&](Region* region) {
    if (region == nullptr || region->dead || region->mark == mark || region->engine == nullptr) return;
    region->mark = mark;
    reach.push_back(region);
  };
  std::vector<Extent*> needed;
  std::vector<Region*> sources;  // regions that a copy reads
  WorkingSet used(state);        // of arenas that move by pieces
  const auto signature = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(function_) >> 4);
  for (unsigned i = 0; i < count_; ++i) {
    const Use& named = use(i);
    Region* region = state.find(named.address);
    if (named.bytes != 0) {
      // Exact ranges: the extents that they overlap. A range may run over several regions only through the program's own
      // mappings, which are one region.
      if (region == nullptr || region->dead || !inside(*region, named.address, named.bytes) ||
          region->engine == nullptr) {
        if (only_shows_) continue;
        return CUDA_ERROR_INVALID_VALUE;
      }
      const ExtentRange range = extentsAt(*region, named.address, named.bytes);
      for (size_t e = range.first; e < range.last; ++e) needed.push_back(region->extents[e].get());
      if (named.mode == Mode::kRead) sources.push_back(region);
    }
    if (region != nullptr && !region->dead && region->arena != nullptr && region->engine != nullptr) {
      if (named.bytes != 0)
        used.nameRange(*region, named.address, named.bytes, signature);
      else
        used.name(*region, named.address, signature);
    }
    if (region != nullptr && !region->dead && !region->tiny && !region->by_pieces && region->mark != mark)
      state.predictor.touch(unitOf(*region), signature);
    visit(region);
  }
  // Module variables of a context that no engine lives in can't be scanned: they may name anything.
  const bool unseen_roots =
      follows_pointers_ && state.roots_written.contains(stream_.context) && state.engineIn(stream_.context) == nullptr;
  bool reach_all = follows_pointers_ && (state.options.reach == Reach::kAll || unseen_roots || reaches_everything_);
  const auto reachEverything = [&] {
    mark = ++state.closure_mark;
    for (Region* region : reach) region->mark = mark;
    for (uint32_t id = 1; id < state.regions.end(); ++id) {
      Region* region = state.regions.at(id);
      if (region->dead || !region->published) continue;
      for (auto& extent : region->extents)
        if (!extent->mapped() || extent->state == ExtentState::kRetiring) needed.push_back(extent.get());
      visit(region);
    }
  };
  if (reach_all) reachEverything();
  const auto visitWhole = [&](Region* region) {
    visit(region);
    if (region->by_pieces && !region->dead && region->engine != nullptr) used.addWhole(*region);
  };
  const size_t named = reach.size();  // by the launch itself; the rest it finds in memory
  // Follows the pointers from all that is reached so far. Repeated after each wait: a scan may have shown more of them.
  size_t listed = 0;         // regions of `reach` whose extents are in `needed`
  size_t listed_pieces = 0;  // extents of `used` that are
  const auto visitPage = [&](uint64_t address) {
    Region* region = state.find(address);
    visit(region);
    if (region != nullptr && region->by_pieces && !region->dead && region->engine != nullptr)
      used.addPage(*region, address / kPageBytes * kPageBytes);
  };
  const auto follow = [&] {
    if (!follows_pointers_ || reach_all) return;
    mark = ++state.closure_mark;  // other launches have set marks of theirs meanwhile
    for (Region* region : reach) region->mark = mark;
    used.remark();
    for (const RootEdge& edge : state.root_edges) {
      Region* region = state.regions.at(edge.id);
      if (region->buffer_id != edge.buffer_id) continue;
      if (region->by_pieces && edge.page != 0)
        visitPage(edge.page);
      else
        visitWhole(region);
    }
    for (const uint64_t word : host_words_) {
      state.forRootsAt(word, 1, [&](CUdeviceptr at, const Root& root) {
        if (root.host == nullptr) return;
        const uint64_t from = root.bytes <= kRootOnCpu ? 0 : (word - at) / 8 * 8;
        kernels::scanWords(static_cast<const char*>(root.host) + from, std::min(root.bytes - from, kRootOnCpu),
                           pool_.base(), pool_.end() - pool_.base(), [&](uint64_t pointer) { visitPage(pointer); });
      });
    }
    for (size_t i = 0; i < reach.size(); ++i) {
      for (const uint32_t id : reach[i]->edges) visitWhole(state.regions.at(id));
      for (const uint64_t page : reach[i]->piece_edges) visitPage(page);
      if (i < listed || reach[i]->by_pieces) continue;
      // What is all there stays so while a launch waits, except where older launches may take it (Engine::isHeld).
      // A reservation can have tens of thousands of extents: nobody looks at them while all can be used.
      const bool all = !reach[i]->engine->chunks().hostMappable();
      if (!all && reach[i]->unusable == 0) continue;
      for (auto& extent : reach[i]->extents)
        if (all || !usable(extent->state)) needed.push_back(extent.get());
    }
    listed = reach.size();
    for (; listed_pieces < used.extents().size(); ++listed_pieces) {
      Extent* extent = used.extents()[listed_pieces];
      if (!usable(extent->state) || !extent->region->engine->chunks().hostMappable()) needed.push_back(extent);
    }
  };

  bool waited = false;
  uint64_t began = 0;
  std::deque<std::pair<Engine*, Want>> wants;  // the engines keep pointers to them
  // The engine that has to scan module variables before this kernel may follow them.
  const auto rootsToScan = [&]() -> Engine* {
    if (!follows_pointers_ || reach_all || !state.roots_written.contains(stream_.context)) return nullptr;
    Engine* const engine = state.engineIn(stream_.context);
    return engine == nullptr || engine->broken() ? nullptr : engine;
  };
  std::vector<Extent*> fetched;  // in host memory in place, worth waiting for
  bool in_vain = false;          // waiting for them
  const auto settled = [&] {
    for (const Extent* extent : fetched)
      if (!in_vain && extent->state == ExtentState::kInPlace && !extent->region->engine->broken()) return false;
    for (const Extent* extent : needed)
      if (!usable(extent->state) && !extent->region->engine->broken()) return false;
    if (follows_pointers_ && !reach_all) {
      for (const Region* region : reach)
        if (region->host_written && !region->engine->broken()) return false;
      if (rootsToScan() != nullptr) return false;
    }
    return true;
  };
  const auto wantOf = [&](Engine* engine) -> Want& {
    auto it = std::find_if(wants.begin(), wants.end(), [&](auto& want) { return want.first == engine; });
    if (it != wants.end()) return it->second;
    wants.emplace_back(engine, Want{});
    wants.back().second.since_ns = nowNs();
    engine->addWant(&wants.back().second);
    return wants.back().second;
  };
  bool refused = false;
  size_t asked = 0;  // extents of `needed` that are in wants
  size_t held = 0;   // regions of `reach` that are no victims meanwhile
  size_t held_pieces = 0;
  const auto let_go = [&] {
    for (auto& [engine, want] : wants) engine->removeWant(&want);
    wants.clear();
    for (; held > 0; --held) --reach[held - 1]->wanted;
    used.release(held_pieces);
    held_pieces = 0;
  };
  const AtEnd without_memory(let_go);
  follow();
  if (follows_pointers_ && !used.empty() && !reach_all) {
    fetched = used.worthFetching(state.launch_number.load());
    needed.insert(needed.end(), fetched.begin(), fetched.end());
  }
  for (Extent* extent : needed)
    if (only_shows_ && !extent->region->isSparse() && state.options.reach != Reach::kAll) fetched.push_back(extent);
  for (; !settled(); follow()) {
    if (!waited) began = nowNs();
    waited = true;
    for (; asked < needed.size(); ++asked) wantOf(needed[asked]->region->engine).extents.push_back(needed[asked]);
    for (; held < reach.size(); ++held) {
      Region* region = reach[held];
      wantOf(region->engine).regions.push_back(region);
      ++region->wanted;
    }
    held_pieces = used.hold(held_pieces);
    for (auto& [engine, want] : wants) want.fetch = !fetched.empty();
    for (Region* region : reach) {  // also what the host wrote meanwhile
      if (!follows_pointers_ || reach_all || !region->host_written) continue;
      auto& to_scan = wantOf(region->engine).to_scan;
      if (std::find(to_scan.begin(), to_scan.end(), region) == to_scan.end()) to_scan.push_back(region);
    }
    if (Engine* const engine = rootsToScan(); engine != nullptr) wantOf(engine).scan_roots = true;
    for (auto& [engine, want] : wants) engine->wake();
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
    for (auto& [engine, want] : wants) {
      refused |= want.failed;
      in_vain |= want.in_place;
      if (!want.scan_late || reach_all) continue;
      reach_all = true;  // what the host wrote can't be looked at in time: it may name anything
      reachEverything();
    }
    if (refused || state.stopped) break;
  }
  let_go();
  if (waited && !only_shows_) {
    if (!fetched.empty() && in_vain) used.fetchedInVain(state.launch_number.load());
    if (!fetched.empty() && !in_vain) used.fetchedInTime();
  }
  if (refused) return CUDA_ERROR_OUT_OF_MEMORY;
  if (state.stopped && !settled()) return CUDA_ERROR_DEINITIALIZED;  // nobody brings what is missing any more

  StreamState* stream = state.streams.find(stream_);
  stream->pending.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t number = state.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
  number_ = number;
  stream_state_ = stream;
  hazards().mine()->enter();  // before the mutex is released: whoever marks an extent later waits for this
  if (reach_all) state.floor = std::max(state.floor, number);
  Engine* engine = nullptr;
  bool in_place = false;
  for (Region* region : reach) {
    raise(region->stamp, number);
    engine = region->engine;
    if (region->by_pieces) {
      if (!used.knows(*region)) region->whole_stamp = number;  // it was no arena when it was named
    } else {
      in_place |= region->in_place > 0;
      if (region->in_place > 0 && region->arena != nullptr) region->engine->askSwap(*region);
    }
    if (region->ahead > 0 && !region->by_pieces)
      for (auto& extent : region->extents)
        if (extent->prefetched && extent->state == ExtentState::kVram) engine->noteUsed(*extent, true);
    if (!follows_pointers_) continue;
    if (region->isSparse() && region->in_place > 0 && !reach_all) {
      assumeNames(state, *region, reach);
    } else {
      state.markDirty(region);
    }
  }
  if (!used.empty()) {
    bool written = follows_pointers_;
    for (unsigned i = 0; i < count_; ++i) written |= use(i).mode != Mode::kRead;
    used.stamp(number, written);
    if (name_ != nullptr) state.recent_kernels.note(name_);
    in_place |= used.usesInPlace();
  }
  if (function_ != nullptr && !reach_all) timed_ = chooseTimed({reach.data(), named});
  for (unsigned i = 0; !follows_pointers_ && i < count_; ++i) {
    if (use(i).mode == Mode::kRead) continue;
    Region* region = state.find(use(i).address);
    bool known = host_source_ != nullptr || !sources.empty();  // what pointers come in
    for (const Region* source : sources) {
      known &= !source->in_dirty_list && !source->host_written && !source->by_pieces;
      if (source == region) continue;
      addEdgesOf(*region, *source);
      // Pointers of an arena by pieces into itself are not followed: reach = learned means that.
      if ((source->names_itself || source->in_dirty_list) && !source->by_pieces) addEdge(state, *region, source->base);
      if (!source->host_written) continue;
      region->host_written = true;
      ++region->host_writes;
    }
    if (host_source_ != nullptr && host_stable_ && host_bytes_ <= kScanOnCpu) {
      kernels::scanWords(host_source_, host_bytes_, pool_.base(), pool_.end() - pool_.base(),
                         [&](uint64_t word) { addEdge(state, *region, word); });
    } else if (host_source_ != nullptr) {
      region->host_written = true;
      ++region->host_writes;
      known = false;
    }
    // Plain data in a region of plain data: no pass has to look at it. Where there are pointers, one finds out which are left.
    if (!known || region->names_itself || !region->edges.empty() || !region->piece_edges.empty())
      state.markDirty(region);
  }
  if (!root_writes_.empty()) writesRoots(sources, number);
  if (engine != nullptr) {
    DeviceCounters& figures = engine->figures();
    if (follows_pointers_) {
      add(figures.launches);
      if (!waited && !in_place) add(figures.launches_resident);
      if (in_place) add(figures.launches_in_place);
    } else {
      add(figures.copies);
    }
    if (waited) figures.fault_wait.record(nowNs() - began);
    engine->touched();
  }
  lock.unlock();
  if (timed_ != nullptr) timed_->begin(state.driver, stream_.stream);
  return CUDA_SUCCESS;
}

// Copies into module variables: what they put there is reached by every launch from now on.
void Access::writesRoots(const std::vector<Region*>& sources, uint64_t number) {
  PoolState& state = *pool_.state_;
  for (const Use& write : root_writes_) {
    state.forRootsAt(write.address, write.bytes, [&](CUdeviceptr, const Root& root) {
      if (root.host != nullptr) return;
      bool known = true;
      for (const Region* source : sources) {
        for (const uint32_t id : source->edges)
          if (const Region* target = state.regions.at(id); !target->dead) state.addRootEdge(root.context, *target);
        for (const uint64_t page : source->piece_edges)
          if (const Region* target = state.find(page); target != nullptr && !target->dead)
            state.addRootEdge(root.context, *target, page);
        if ((source->names_itself || source->in_dirty_list) && !source->by_pieces)
          state.addRootEdge(root.context, *source);
        known &= !source->host_written && !(source->by_pieces && source->in_dirty_list);
      }
      if (host_source_ != nullptr && host_stable_ && host_bytes_ <= kScanOnCpu) {
        kernels::scanWords(host_source_, host_bytes_, pool_.base(), pool_.end() - pool_.base(), [&](uint64_t word) {
          if (const Region* target = state.find(word); target != nullptr)
            state.addRootEdge(root.context, *target, word);
        });
      } else if (host_source_ != nullptr) {
        known = false;
      }
      if (!known) state.noteRootsWritten(root.context, number);
    });
  }
}

// The largest allocation that the launch names and of which it is not known how much launches touch.
TimedLaunch* Access::chooseTimed(std::span<Region* const> named) {
  PoolState& state = *pool_.state_;
  Region* chosen = nullptr;
  bool all_resident = true;
  size_t in_place = 0;
  for (Region* region : named) {
    all_resident &= region->blocked.load(std::memory_order_relaxed) == 0;
    in_place += region->in_place > 0 ? 1 : 0;
    if (region->pages * kPageBytes < kLeastSparseBytes || region->density.verdict == Density::kDense ||
        region->arena != nullptr)
      continue;
    if (chosen == nullptr || region->pages > chosen->pages) chosen = region;
  }
  // Recorded only where the launch goes to the device's own engine's context, and into no graph.
  if (chosen == nullptr || chosen->engine->context() != stream_.context || state.streams.capturing() ||
      !chosen->engine->chunks().hostMappable())
    return nullptr;
  const bool alone = in_place == 1 && chosen->in_place > 0;  // nothing else is read over the link
  if (chosen->isSparse()) {
    const uint16_t use = chosen->density.uses++;
    if (!alone || (use >= kTimedUses / 8 && use % kTimedUses != 0)) return nullptr;
    return chosen->engine->timer().take(*chosen, true);
  }
  return all_resident || alone ? chosen->engine->timer().take(*chosen, alone) : nullptr;
}

void Access::submitted(CUresult result) {
  static_cast<void>(result);
  if (stream_state_ == nullptr) return;
  if (timed_ != nullptr) timed_->finish(pool_.state_->driver, stream_.stream);
  timed_ = nullptr;
  raise(stream_state_->last, number_);
  stream_state_->pending.fetch_sub(1, std::memory_order_acq_rel);
  hazards().mine()->leave();
  // No other thread can name a per-thread default stream.
  if (stream_.thread != 0 && pool_.state_->slow.load(std::memory_order_relaxed))
    pool_.state_->streams.markOwn(stream_state_);
  stream_state_ = nullptr;
}

void ReachSet::add(uint64_t address) {
  const auto it = std::lower_bound(addresses.begin(), addresses.end(), address);
  if (it == addresses.end() || *it != address) addresses.insert(it, address);
}

void ReachSet::addInPage(uint64_t address) {
  const uint64_t page = address / kPageBytes;
  const auto it = std::lower_bound(addresses.begin(), addresses.end(), page * kPageBytes);
  if (it == addresses.end() || *it / kPageBytes != page) addresses.insert(it, address);
}

void ReachSet::addRange(uint64_t address, uint64_t bytes) {
  const std::pair range{address, bytes};
  const auto it = std::lower_bound(ranges.begin(), ranges.end(), range);
  if (it == ranges.end() || *it != range) ranges.insert(it, range);
}

void ReachSet::add(const ReachSet& other) {
  everything |= other.everything;
  for (const auto& [address, bytes] : other.ranges) addRange(address, bytes);
  for (const uint64_t address : other.addresses) add(address);
}

}  // namespace olpager::pager
