// The path of an operation while something is not in VRAM. Under the mutex: what it names, what it
// can get to from there (Closure), the wait for what is missing, then its number.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "base/log.h"
#include "base/size.h"
#include "pager/clock.h"
#include "pager/counters/trace.h"
#include "pager/kernels/hash_and_scan.h"
#include "pager/pool.h"
#include "pager/reach/closure.h"
#include "pager/residency/engine.h"
#include "pager/residency/in_place.h"

namespace olpager::pager {

namespace {

constexpr uint64_t kScanOnCpu = 64 << 10;

// A launch may have written to memory that stays in place. Instead of scanning it over the link:
// what it can have written there are pointers to what it reached. Now and then a scan after all,
// which forgets what is not there.
void assumeNames(PoolState& state, Region& region, const std::vector<Region*>& reach) {
  constexpr size_t kMostAssumed = 256;
  constexpr uint16_t kScannedUses = 4096;
  if (region.density.uses % kScannedUses == kScannedUses - 1 || region.edges.size() > kMostAssumed)
    return state.reach.markDirty(&region);
  region.names_itself = true;
  for (const Region* other : reach)
    if (other != &region) addEdge(region, edgeTo(*other));
}

// Calls visit(word) for the pointers that a copy of `bytes` from `from` brings, as they lie at
// `to`: aligned there, whatever the source is. `plain`: one piece from one; else rows, each of
// which may lie otherwise.
template <typename Visit>
void forPointersBrought(const PoolState& state, const void* from, uint64_t bytes, uint64_t to,
                        bool plain, Visit visit) {
  const auto* const data = static_cast<const char*>(from);
  for (uint64_t skip = plain ? -to % 8 : 0; skip < 8; ++skip) {
    std::array<uint64_t, 512> words;
    for (uint64_t at = skip; at + sizeof(uint64_t) <= bytes;) {
      const uint64_t count = std::min<uint64_t>(words.size(), (bytes - at) / sizeof(uint64_t));
      std::memcpy(words.data(), data + at, count * sizeof(uint64_t));
      state.reach.forPointersAmong(words.data(), count * sizeof(uint64_t), visit);
      at += count * sizeof(uint64_t);
    }
    if (plain) return;
  }
}

// Where memory can't be used in place: the engine in whose VRAM what is needed of it can't ever be
// all at once. Else nullptr.
const Engine* tooSmallFor(const PoolState& state, const Closure& closure) {
  if (closure.everything) return nullptr;  // which lists some twice
  for (const auto& engine : state.devices.engines) {
    uint64_t bytes = 0;
    for (const Extent* extent : closure.needed)
      if (extent->region->engine == engine.get() && extent->state != ExtentState::kDetached &&
          !mayBeInPlace(*extent))
        bytes += extent->bytes();
    if (bytes > engine->mostVram()) return engine.get();
  }
  return nullptr;
}

// Bytes of the engine's that have to be mapped at once.
uint64_t mappedAtOnce(const Engine& engine, const Closure& closure) {
  uint64_t bytes = 0;
  const auto addExtent = [&](const Extent& extent) {
    if (extent.region->engine == &engine && extent.state != ExtentState::kDetached)
      bytes += extent.bytes();
  };
  if (!closure.follows()) {
    for (const Extent* extent : closure.needed) addExtent(*extent);
    return bytes;
  }
  for (const Region* region : closure.regions) {
    if (region->engine != &engine || (region->by_pieces && !closure.everything)) continue;
    if (region->kind != RegionKind::kReservation) {
      bytes += region->pages * kPageBytes;
    } else {
      for (const auto& extent : region->extents) addExtent(*extent);
    }
  }
  if (!closure.everything)
    for (const Extent* extent : closure.used.extents()) addExtent(*extent);
  return bytes;
}

// VRAM and host memory together are too small, whatever leaves them: memservers are no place from
// which the GPU can use memory.
bool neverFits(const PoolState& state, const Closure& closure) {
  if (tooSmallFor(state, closure) != nullptr) return true;
  uint64_t beyond = 0;  // VRAM
  for (const auto& engine : state.devices.engines) {
    if (engine->broken()) continue;
    const uint64_t bytes = mappedAtOnce(*engine, closure);
    beyond += bytes - std::min(bytes, engine->mostVram());
  }
  return beyond > state.devices.host.most;
}

void tellRefused(const PoolState& state, const Closure& closure) {
  uint64_t bytes = 0, vram = 0, vram_used = 0, host_used = 0;
  for (const Region* region : closure.regions) bytes += region->pages * kPageBytes;
  for (const auto& engine : state.devices.engines) {
    host_used += engine->chunks().hostInUse();
    if (std::none_of(closure.regions.begin(), closure.regions.end(),
                     [&](const Region* region) { return region->engine == engine.get(); }))
      continue;
    vram += engine->chunks().vramBudget();
    vram_used += engine->chunks().vramBudget() - engine->chunks().vramAvailable();
  }
  const unsigned long long reached = bytes >> 20;
  if (const Engine* const engine = tooSmallFor(state, closure); engine != nullptr) {
    base::warnOnce("reach does not fit VRAM",
                   "device %d: a launch or copy that reaches %llu MiB is refused (out of memory): "
                   "the GPU can't use "
                   "host memory in place "
                   "here (olrun --check), so what it reaches has to fit the budget of %llu MiB of "
                   "VRAM (OL_VRAM)",
                   engine->device(), reached,
                   static_cast<unsigned long long>(engine->mostVram() >> 20));
    return;
  }
  if (bytes > vram + state.devices.host.limit) {
    base::warnOnce(
        "reach does not fit",
        "a launch or copy that reaches %llu MiB is refused (out of memory): what it reaches has to "
        "fit VRAM "
        "and host RAM of this machine together, however much memservers have (OL_VRAM, OL_HOST)",
        reached);
    return;
  }
  const auto ofAll = [](uint64_t used, uint64_t all) {
    return base::formatSize(std::min(used, all)) + " of " + base::formatSize(all);
  };
  std::string remote;
  if (state.lower.tier != nullptr) {
    const TierFigures figures = state.lower.tier->figures();
    remote = ", memservers " + ofAll(figures.held_bytes, figures.capacity_bytes);
  }
  base::warnOnce("no room for reach",
                 "a launch or copy that reaches %llu MiB is refused (out of memory): it waited in "
                 "vain for room. In use: "
                 "VRAM %s, host RAM %s%s (OL_VRAM, OL_HOST; olmemserver --memory)",
                 reached, ofAll(vram_used, vram).c_str(),
                 ofAll(host_used, state.devices.host.limit).c_str(), remote.c_str());
}

/// What a thread asks the engines for while it waits. Let go at the end of its scope, also when an
/// exception ends it.
class WaitingLaunch {
 public:
  explicit WaitingLaunch(Closure& closure) : closure_(closure) {}
  ~WaitingLaunch() { letGo(); }
  WaitingLaunch(const WaitingLaunch&) = delete;
  WaitingLaunch& operator=(const WaitingLaunch&) = delete;

  /// Asks for what the closure needs by now.
  void ask() {
    // An engine that knows what is wanted looks often enough: rung each time, the two would wake
    // each other without end.
    bool news = extents_ < closure_.needed.size() || held_ < closure_.regions.size();
    for (; extents_ < closure_.needed.size(); ++extents_)
      wantOf(*closure_.needed[extents_]->region->engine)
          .extents.push_back(closure_.needed[extents_]);
    for (; held_ < closure_.regions.size(); ++held_) {
      Region* region = closure_.regions[held_];
      if (!region->isRoot()) wantOf(*region->engine).regions.push_back(region);
      ++region->wanted;
    }
    held_pieces_ = closure_.used.hold(held_pieces_);
    for (Region* region : closure_.regions) {  // also what the host wrote meanwhile
      Engine* const engine = closure_.mustScan(*region) ? closure_.engineOf(*region) : nullptr;
      if (engine == nullptr) continue;
      auto& to_scan = wantOf(*engine).to_scan;
      if (std::find(to_scan.begin(), to_scan.end(), region) != to_scan.end()) continue;
      to_scan.push_back(region);
      news = true;
    }
    if (Engine* const engine = closure_.scannerOfVariables(); engine != nullptr)
      wantOf(*engine).scan_roots = true;
    for (auto& [engine, want] : wants_) {
      want.fetch = !closure_.fetched.empty();
      if (news) engine->wake();
    }
  }
  template <typename Visit>
  void forEach(Visit visit) {
    for (auto& [engine, want] : wants_) visit(want);
  }
  void letGo() {
    for (auto& [engine, want] : wants_) engine->removeWant(&want);
    wants_.clear();
    for (; held_ > 0; --held_) --closure_.regions[held_ - 1]->wanted;
    closure_.used.release(held_pieces_);
    held_pieces_ = 0;
  }

 private:
  Want& wantOf(Engine& engine) {
    auto it = std::find_if(wants_.begin(), wants_.end(),
                           [&](auto& want) { return want.first == &engine; });
    if (it != wants_.end()) return it->second;
    wants_.emplace_back(&engine, Want{});
    wants_.back().second.since_ns = nowNs();
    engine.addWant(&wants_.back().second);
    return wants_.back().second;
  }

  Closure& closure_;
  std::deque<std::pair<Engine*, Want>> wants_;  // the engines keep pointers to them
  size_t extents_ = 0;                          // of what is needed, that are in wants
  size_t held_ = 0;                             // regions that are no victims meanwhile
  size_t held_pieces_ = 0;
};

}  // namespace

CUresult Access::acquireSlow() {
  PoolState& state = *pool_.state_;
  Lock lock(state.mutex);
  Closure closure(state, stream_.context, follows_pointers_,
                  static_cast<uint32_t>(reinterpret_cast<uintptr_t>(function_) >> 4));
  if (const CUresult result = nameAll(closure); result != CUDA_SUCCESS) return result;
  ManagedClaim claim(state);
  uint64_t waited_ns = 0;
  if (const CUresult result = await(closure, claim, lock, &waited_ns); result != CUDA_SUCCESS)
    return result;
  commit(closure, waited_ns);
  claim.begun(*stream_state_, number_);
  lock.unlock();
  if (timed_ != nullptr) timed_->begin(state.driver, stream_);
  return CUDA_SUCCESS;
}

CUresult Access::nameAll(Closure& closure) {
  for (unsigned i = 0; i < count_; ++i) {
    const Use& named = use(i);
    if (named.bytes == 0) {
      closure.name(named.address);
    } else if (const CUresult result = closure.nameRange(named.address, named.bytes, named.mode);
               result != CUDA_SUCCESS && !only_shows_) {
      return result;
    }
  }
  for (const uint64_t word : outside_words_) closure.nameOutside(word);
  closure.nothingElseIsNamed();
  if (follows_pointers_ && (pool_.state_->options.reach == Reach::kAll || reaches_everything_))
    closure.reachEverything();
  return CUDA_SUCCESS;
}

// Until all that the operation reaches is mapped, or the engines have given up. `waited_ns`: 0,
// nothing was missing.
CUresult Access::await(Closure& closure, ManagedClaim& claim, Lock& lock, uint64_t* waited_ns) {
  PoolState& state = *pool_.state_;
  WaitingLaunch waiting(closure);
  closure.follow();
  if (follows_pointers_ && !closure.used.empty() && !closure.everything) {
    closure.fetched = closure.used.worthFetching(state.launch_number.load());
    closure.needed.insert(closure.needed.end(), closure.fetched.begin(), closure.fetched.end());
  }
  for (Extent* extent : closure.needed)
    if (only_shows_ && !extent->region->isSparse() && state.options.reach != Reach::kAll)
      closure.fetched.push_back(extent);
  uint64_t began = 0;
  bool in_vain = false, refused = false, lost = false;
  for (; !closure.settled(in_vain) || !claim.submit(); closure.follow()) {
    if (neverFits(state, closure)) {
      refused = true;
      break;
    }
    if (began == 0) began = nowNs();
    waiting.ask();
    claim.ask(closure.needed, lock);
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
    bool too_late = false;
    waiting.forEach([&](const Want& want) {
      refused |= want.failed;
      lost |= want.lost;
      in_vain |= want.in_place;
      too_late |= want.scan_late;
    });
    // What the host wrote can't be looked at in time: it may name anything.
    if (too_late && !closure.everything) closure.reachEverything();
    if (refused || lost || state.stopped) break;
  }
  waiting.letGo();
  if (began != 0) {
    *waited_ns = nowNs() - began;
    if (only_shows_) closure.fetched.clear();
    if (!closure.fetched.empty() && in_vain) closure.used.fetchedInVain(state.launch_number.load());
    if (!closure.fetched.empty() && !in_vain) closure.used.fetchedInTime();
  }
  if (lost) {  // its memory is gone: never other bytes in its place
    base::warnOnce("lost reach",
                   "a launch or copy is refused (CUDA_ERROR_ECC_UNCORRECTABLE): what it reaches "
                   "was lost with a memserver");
    return CUDA_ERROR_ECC_UNCORRECTABLE;
  }
  if (refused) {
    tellRefused(state, closure);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Stopped: nobody brings what is missing any more.
  return state.stopped && !closure.settled(in_vain) ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

// The operation gets its number, and all that it reaches knows it.
void Access::commit(Closure& closure, uint64_t waited_ns) {
  PoolState& state = *pool_.state_;
  StreamState* stream = state.streams.find(stream_);
  stream->pending.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t number = state.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
  number_ = number;
  stream_state_ = stream;
  hazards()
      .mine()
      ->enter();  // before the mutex is released: whoever marks an extent later waits for this
  if (closure.everything) state.reach.floor.raise(number);
  Engine* engine = nullptr;
  bool in_place = false;
  for (Region* region : closure.regions) {
    raise(region->stamp, number);
    if (region->isRoot()) {
      if (follows_pointers_) state.reach.markDirty(region);
      continue;
    }
    engine = region->engine;
    if (region->by_pieces) {
      if (!closure.used.knows(*region))
        region->whole_stamp = number;  // it was no arena when it was named
    } else {
      in_place |= region->in_place > 0;
      if (region->in_place > 0 && region->arena != nullptr) region->engine->askSwap(*region);
    }
    if (region->ahead > 0 && !region->by_pieces)
      for (auto& extent : region->extents)
        if (extent->prefetched && extent->state == ExtentState::kVram)
          engine->noteUsed(*extent, true);
    if (!follows_pointers_) continue;
    if (region->isSparse() && region->in_place > 0 && !closure.everything) {
      assumeNames(state, *region, closure.regions);
    } else {
      state.reach.markDirty(region);
    }
  }
  if (follows_pointers_) assumeStored(closure);
  if (!closure.used.empty()) {
    bool written = follows_pointers_;
    for (unsigned i = 0; i < count_; ++i) written |= use(i).mode != Mode::kRead;
    closure.used.stamp(number, written);
    in_place |= closure.used.usesInPlace();
  }
  if (name_ != nullptr) state.lost.recent.note(name_);
  if (graph_ != nullptr)
    for (const char* name : graph_->kernels)
      if (name != nullptr) state.lost.recent.note(name);
  if (function_ != nullptr && !closure.everything) timed_ = chooseTimed(closure.named());
  for (unsigned i = 0; !follows_pointers_ && i < count_; ++i) {
    const Use& write = use(i);
    if (write.mode == Mode::kRead) continue;
    Region& region = *state.book.find(write.address);
    noteWritten(write, region, closure, number);
    // Written through another mapping than that by which the memory's pages are looked at.
    state.reach.forFixed(region, write.address, write.address + write.bytes, [&](Region* holder) {
      if (holder != nullptr) noteWritten(write, *holder, closure, number);
    });
  }
  if (!root_writes_.empty()) writesRoots(closure, number);
  if (engine == nullptr) return;
  DeviceCounters& figures = engine->figures();
  if (follows_pointers_) {
    add(figures.launches);
    if (waited_ns == 0 && !in_place) add(figures.launches_resident);
    if (in_place) add(figures.launches_in_place);
    if (closure.everything && state.options.reach != Reach::kAll)
      add(figures.launches_reaching_all);
  } else {
    add(figures.copies);
  }
  if (waited_ns != 0) figures.fault_wait.record(waited_ns);
  traced_ = traceBegins(figures);
  if (traced_ != 0 && waited_ns != 0) {
    const auto first = std::find_if(
        closure.regions.begin(), closure.regions.end(),
        [&](const Region* region) { return !region->isRoot() && region->engine == engine; });
    traced(TraceKind::kFault, static_cast<unsigned>(engine->device()), traced_ - waited_ns, traced_,
           (*first)->base, (*first)->pages * kPageBytes, number);
  }
  engine->touched();
}

// A kernel may have stored the addresses of roots wherever it came to. The CPU may put pointers
// into such a root at any time after, before a pass has found out who names it.
void Access::assumeStored(const Closure& closure) {
  PoolState& state = *pool_.state_;
  const auto cpuWrites = [](const Region& region) {
    return region.isRoot() && region.root->scannable && region.root->kind != RootKind::kDevice;
  };
  if (closure.everything || std::none_of(closure.regions.begin(), closure.regions.end(),
                                         [&](const Region* region) { return cpuWrites(*region); }))
    return;
  for (const Region* root : closure.regions) {
    if (!cpuWrites(*root)) continue;
    for (Region* region : closure.regions)
      if (region != root) state.reach.add(*region, *root, root->base);
    if (state.reach.roots.hasVariables(stream_.context))
      state.reach.addOfVariables(stream_.context, edgeTo(*root));
  }
}

// A copy or memset writes to the region: what pointers come in with it.
void Access::noteWritten(const Use& write, Region& region, const Closure& closure,
                         uint64_t number) {
  PoolState& state = *pool_.state_;
  bool known = (host_source_ != nullptr || !closure.sources.empty()) && !closure.source_unseen;
  const auto unknown = [&] {
    region.host_written = true;
    ++region.host_writes;
    if (region.isRoot()) region.root->written = number;
  };
  if (closure.source_unseen) unknown();
  for (const Region* source : closure.sources) {
    const bool unseen = source->in_dirty_list || source->scans > 0;
    known &= !unseen && !source->host_written && !source->by_pieces;
    if (source == &region) continue;
    addEdgesOf(region, *source);
    // Pointers of an arena by pieces into itself are not followed: reach = learned means that.
    if ((source->names_itself || unseen) && !source->by_pieces)
      state.reach.add(region, source->base);
    if (source->host_written) unknown();
  }
  if (host_source_ != nullptr && host_stable_ && host_bytes_ <= kScanOnCpu) {
    forPointersBrought(state, host_source_, host_bytes_, write.address, write.bytes == host_bytes_,
                       [&](uint64_t word) { state.reach.add(region, word); });
  } else if (host_source_ != nullptr) {
    unknown();
    known = false;
  }
  // Plain data in a region of plain data: no pass has to look at it. Where there are pointers, one
  // finds out which are left.
  if (!known || region.names_itself || !region.edges.empty() || !region.piece_edges.empty())
    state.reach.markDirty(&region);
}

// Copies to memory outside the range. What they put into module variables is reached by every
// launch from now on.
void Access::writesRoots(const Closure& closure, uint64_t number) {
  PoolState& state = *pool_.state_;
  for (const Use& write : root_writes_) {
    state.reach.roots.forAt(write.address, write.bytes, [&](uint64_t, const Root& root) {
      if (root.region != nullptr) {
        raise(root.region->stamp, number);
        return noteWritten(write, *root.region, closure, number);
      }
      bool known = !closure.source_unseen;
      for (const Region* source : closure.sources) {
        for (const Edge& edge : source->edges) state.reach.addOfVariables(root.context, edge);
        for (const uint64_t page : source->piece_edges)
          state.reach.addOfVariables(root.context, page);
        const bool unseen = source->in_dirty_list || source->scans > 0;
        if ((source->names_itself || unseen) && !source->by_pieces)
          state.reach.addOfVariables(root.context, edgeTo(*source));
        known &= !source->host_written && !(source->by_pieces && unseen);
      }
      if (host_source_ != nullptr && host_stable_ && host_bytes_ <= kScanOnCpu) {
        forPointersBrought(state, host_source_, host_bytes_, write.address,
                           write.bytes == host_bytes_,
                           [&](uint64_t word) { state.reach.addOfVariables(root.context, word); });
      } else if (host_source_ != nullptr) {
        known = false;
      }
      if (!known) state.reach.unknown_variables.note(root.context, number);
    });
  }
}

// The largest allocation that the launch names and of which it is not known how much launches
// touch.
TimedLaunch* Access::chooseTimed(std::span<Region* const> named) {
  PoolState& state = *pool_.state_;
  Region* chosen = nullptr;
  bool all_resident = true;
  size_t in_place = 0;
  for (Region* region : named) {
    all_resident &= region->blocked.load(std::memory_order_relaxed) == 0;
    in_place += region->in_place > 0 ? 1 : 0;
    if (region->pages * kPageBytes < kLeastSparseBytes ||
        region->density.verdict == Density::kDense || region->arena != nullptr)
      continue;
    if (chosen == nullptr || region->pages > chosen->pages) chosen = region;
  }
  // Recorded only where the launch goes to the device's own engine's context, and into no graph.
  if (chosen == nullptr || chosen->engine->context() != stream_.context ||
      state.streams.capturing() || !mayBeInPlace(*chosen))
    return nullptr;
  const bool alone = in_place == 1 && chosen->in_place > 0;  // nothing else is read over the link
  if (chosen->isSparse()) {
    const uint16_t use = chosen->density.uses++;
    if (!alone || (use >= kTimedUses / 8 && use % kTimedUses != 0)) return nullptr;
    return chosen->engine->timer().take(*chosen, true);
  }
  return all_resident || alone ? chosen->engine->timer().take(*chosen, alone) : nullptr;
}

}  // namespace olpager::pager
