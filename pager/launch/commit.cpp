// The end of an acquisition: the operation gets its number, and all that it reaches knows it. Under
// the mutex, in one go.
#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "pager/clock.h"
#include "pager/counters/trace.h"
#include "pager/kernels/hash_and_scan.h"
#include "pager/launch/acquisition.h"
#include "pager/reach/ranges.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/engine.h"
#include "pager/residency/in_place.h"
#include "pager/residency/prefetcher.h"
#include "pager/residency/sparse_use.h"

namespace olpager::pager {

namespace {

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

}  // namespace

Acquisition::State Acquisition::commit(Lock& lock, Submission& into) {
  if (now_ != State::kReady) return now_;
  if (!closure_.settled(in_vain_) && ready(lock) != State::kReady) return now_;
  // An older operation may have taken something.
  if (!claim_.submit()) return now_ = State::kWaiting;
  stopWaiting();
  const uint64_t number = takeNumber(into);
  claim_.begun(*into.stream, number);
  Engine* engine = nullptr;
  bool in_place = false;
  stampReached(into, &engine, &in_place);
  if (operation_->follows_pointers) assumeStored();
  noteNames();
  if (operation_->function != nullptr && !closure_.everything && !follows_nobody_)
    into.timed = chooseTimed();
  if (!operation_->follows_pointers) writesRanges(number);
  if (!operation_->root_writes.empty()) writesRoots(number);
  if (engine != nullptr) count(*engine, in_place, into);
  return now_ = State::kCommitted;
}

uint64_t Acquisition::takeNumber(Submission& into) {
  StreamState* const stream = state_.streams.find(operation_->stream);
  stream->pending.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t number = state_.launch_number.fetch_add(1, std::memory_order_acq_rel) + 1;
  into.stream = stream;
  into.number = number;
  into.holds_signals = base::holdSignals();
  // Before the mutex is released: whoever marks an extent later waits for this.
  hazards().mine()->enter();
  return number;
}

// `engine`: of the last of the regions; untouched where there are roots alone. `in_place`: some of
// it is used where it is, in host memory.
void Acquisition::stampReached(const Submission& into, Engine** engine, bool* in_place) {
  const uint64_t number = into.number;
  const bool follows = operation_->follows_pointers;
  if (closure_.everything) state_.reach.floor.raise(number);
  for (Region* region : closure_.regions) {
    raise(region->stamp, number);
    if (follows) region->followed = number;
    if (region->managed != nullptr) raise(into.stream->managed, number);
    if (SharedRegion* const shared = region->shared(); shared != nullptr)
      shared->usedBy(*into.stream, number);
    if (region->isRoot()) {
      if (follows) state_.reach.markDirty(region);
      continue;
    }
    *engine = region->engine;
    if (region->by_pieces) {
      if (!closure_.used.knows(*region))
        region->whole_stamp = number;  // it was no arena when it was named
    } else if (!closure_.used.knows(*region)) {
      *in_place |= region->in_place > 0;
      if (region->in_place > 0 && region->arena != nullptr)
        region->engine->arenas().askSwap(*region);
    }
    if (region->ahead > 0 && !region->by_pieces)
      for (auto& extent : region->extents)
        if (extent->prefetched && extent->state == ExtentState::kVram)
          region->engine->ahead().noteUsed(*extent, true);
    if (!follows) continue;
    if (region->isSparse() && region->in_place > 0 && !closure_.everything)
      assumeNames(state_, *region, closure_.regions);
    else
      state_.reach.markDirty(region);
  }
  if (closure_.used.empty()) return;
  bool written = follows;
  for (unsigned i = 0; i < operation_->uses.count(); ++i)
    written |= operation_->uses[i].mode != Mode::kRead;
  closure_.used.stamp(number, written);
  *in_place |= closure_.used.usesInPlace();
}

// For reports of a context that a kernel ends.
void Acquisition::noteNames() {
  if (operation_->name != nullptr) state_.lost.recent.note(operation_->name);
  if (operation_->graph == nullptr) return;
  for (const char* name : operation_->graph->kernels)
    if (name != nullptr) state_.lost.recent.note(name);
}

// A copy or memset.
void Acquisition::writesRanges(uint64_t number) {
  for (unsigned i = 0; i < operation_->uses.count(); ++i) {
    const Uses::Use& write = operation_->uses[i];
    if (write.mode == Mode::kRead) continue;
    Region& region = *state_.book.find(write.address);
    noteWritten(write, region, number);
    if (state_.options.stream_arenas && region.arena != nullptr &&
        operation_->host_source != nullptr)
      region.arena->fill(write.address, write.bytes);
    // Written through another mapping than that by which the memory's pages are looked at.
    state_.reach.forFixed(region, write.address, write.address + write.bytes, [&](Region* holder) {
      if (holder != nullptr) noteWritten(write, *holder, number);
    });
  }
}

void Acquisition::count(Engine& engine, bool in_place, Submission& into) {
  DeviceCounters& figures = engine.figures();
  if (operation_->follows_pointers) {
    add(figures.launches);
    if (waited_ns_ == 0 && !in_place) add(figures.launches_resident);
    if (in_place) add(figures.launches_in_place);
    if (closure_.everything && state_.options.reach != Reach::kAll)
      add(figures.launches_reaching_all);
  } else {
    add(figures.copies);
  }
  if (waited_ns_ != 0) {
    figures.fault_wait.record(waited_ns_);
    add(counters().whyOf(static_cast<unsigned>(engine.device())).waited_ns, waited_ns_);
  }
  const uint64_t begins = traceBegins(figures);
  into.traced = begins;
  if (begins != 0 && waited_ns_ != 0) {
    const auto first = std::find_if(
        closure_.regions.begin(), closure_.regions.end(),
        [&](const Region* region) { return !region->isRoot() && region->engine == &engine; });
    traced(TraceKind::kFault, static_cast<unsigned>(engine.device()), begins - waited_ns_, begins,
           (*first)->base, (*first)->pages * kPageBytes, into.number);
  }
  if (state_.learnsOrder()) engine.touched();
  if (operation_->follows_pointers) countWhy(engine, in_place);
}

// Counts what makes the launch slow, for `olpagestat --why`.
void Acquisition::countWhy(const Engine& engine, bool in_place) {
  DeviceWhy& why = counters().whyOf(static_cast<unsigned>(engine.device()));
  const ReachSet* const graph = operation_->graph;
  const char* kernel = graph != nullptr ? graph->kernels[0] : operation_->name;
  if (kernel == nullptr) kernel = "";
  if (closure_.everything && state_.options.reach != Reach::kAll) {
    const AllReason reason = scan_late_                        ? AllReason::kHost
                             : !operation_->reaches_everything ? AllReason::kRoot
                             : graph != nullptr                ? AllReason::kGraph
                                                               : AllReason::kOther;
    add(why.reaching_all[static_cast<unsigned>(reason)]);
    setName(why.reaching_all_kernel, kernel);
  }
  if (graph != nullptr && operation_->function != nullptr) countGraph(engine);  // else it is held
  if (in_place) countInPlace(engine, why, kernel);
}

void countGraphLaunch(unsigned device, uint64_t bytes, bool is_beyond, bool in_parts) {
  DeviceWhy& why = counters().whyOf(device);
  add(why.graph_launches);
  if (is_beyond) add(why.graph_launches_beyond);
  if (in_parts) add(why.graph_launches_in_parts);
  uint64_t most = valueOf(why.graph_most_bytes);
  while (most < bytes && !why.graph_most_bytes.compare_exchange_weak(most, bytes)) {
  }
}

void Acquisition::countGraph(const Engine& engine) const {
  uint64_t bytes = 0;
  for (const Region* region : closure_.regions)
    if (!region->isRoot() && region->engine == &engine) bytes += region->pages * kPageBytes;
  countGraphLaunch(static_cast<unsigned>(engine.device()), bytes,
                   bytes > engine.chunks().vramBudget(), false);
}

// The allocation of which most is used where it is.
void Acquisition::countInPlace(const Engine& engine, DeviceWhy& why, const char* kernel) const {
  for (const Region* region : closure_.regions) {
    if (region->isRoot() || region->engine != &engine || region->in_place == 0) continue;
    const uint64_t all = region->pages * kPageBytes;
    // Extents are of like size: the region's share of bytes is that of its extents.
    const uint64_t bytes = all / std::max<size_t>(1, region->extents.size()) * region->in_place;
    if (region->isSparse()) add(why.sparse_launches);
    const bool same = valueOf(why.in_place_base) == region->base;
    if (same) add(why.in_place_launches);
    if (bytes <= valueOf(why.in_place_bytes)) continue;
    set(why.in_place_bytes, bytes);
    set(why.in_place_allocation_bytes, all);
    setName(why.in_place_kernel, kernel);
    if (same) continue;
    set(why.in_place_base, region->base);
    set(why.in_place_launches, 1);
  }
}

// A kernel may have stored the addresses of roots wherever it came to. The CPU may put pointers
// into such a root at any time after, before a pass has found out who names it.
void Acquisition::assumeStored() {
  std::vector<const Region*> stored;
  for (const Region* const region : closure_.regions)
    if (region->isRoot() && region->root->scannable && region->root->kind != RootKind::kDevice)
      stored.push_back(region);
  if (closure_.everything || stored.empty()) return;
  const bool in_variables = state_.reach.roots.hasVariables(operation_->stream.context);
  for (const Edge& edge : edgesTo(state_.reach.roots, std::move(stored))) {
    for (Region* region : closure_.regions)
      if (edge != edgeTo(*region)) addEdge(*region, edge);
    if (in_variables) state_.reach.addOfVariables(operation_->stream.context, edge);
  }
}

// A copy or memset writes to the region: what pointers come in with it.
void Acquisition::noteWritten(const Uses::Use& write, Region& region, uint64_t number) {
  if (region.managed != nullptr) region.managed->written = number;
  bool known =
      (operation_->host_source != nullptr || !closure_.sources.empty()) && !closure_.source_unseen;
  const auto unknown = [&] {
    if (region.isRoot()) region.root->written = number;
    state_.reach.noteUnknown(region, write.bytes != 0
                                         ? extentsAt(region, write.address, write.bytes)
                                         : ExtentRange{0, region.extents.size()});
  };
  if (closure_.source_unseen) unknown();
  for (const Region* source : closure_.sources) {
    const bool unseen = source->in_dirty_list || source->scans > 0;
    known &= !unseen && !source->host_written && !source->by_pieces;
    if (source == &region) continue;
    addEdgesOf(region, *source);
    // Pointers of an arena by pieces into itself are not followed: reach = learned means that.
    if ((source->names_itself || unseen) && !source->by_pieces)
      state_.reach.add(region, source->base);
    if (source->host_written) unknown();
  }
  if (operation_->hostIsRead()) {
    forPointersBrought(state_, operation_->host_source, operation_->host_bytes, write.address,
                       write.bytes == operation_->host_bytes,
                       [&](uint64_t word) { state_.reach.add(region, word); });
  } else if (operation_->host_source != nullptr) {
    unknown();
    known = false;
  }
  // Plain data in a region of plain data: no pass has to look at it. If there are pointers, a pass
  // finds out which are left.
  if (!known || region.names_itself || !region.edges.empty() || !region.piece_edges.empty())
    state_.reach.markDirty(&region);
}

// Copies to memory outside the range. Every launch from now on reaches what they put into module
// variables.
void Acquisition::writesRoots(uint64_t number) {
  for (const Uses::Use& write : operation_->root_writes) {
    state_.reach.roots.forAt(write.address, write.bytes, [&](uint64_t, const Root& root) {
      if (root.region != nullptr) {
        raise(root.region->stamp, number);
        return noteWritten(write, *root.region, number);
      }
      bool known = !closure_.source_unseen;
      for (const Region* source : closure_.sources) {
        for (const Edge& edge : source->edges) state_.reach.addOfVariables(root.context, edge);
        for (const uint64_t page : source->piece_edges)
          state_.reach.addOfVariables(root.context, page);
        const bool unseen = source->in_dirty_list || source->scans > 0;
        if ((source->names_itself || unseen) && !source->by_pieces)
          state_.reach.addOfVariables(root.context, edgeTo(*source));
        known &= !source->host_written && !(source->by_pieces && unseen);
      }
      if (operation_->hostIsRead()) {
        forPointersBrought(state_, operation_->host_source, operation_->host_bytes, write.address,
                           write.bytes == operation_->host_bytes,
                           [&](uint64_t word) { state_.reach.addOfVariables(root.context, word); });
      } else if (operation_->host_source != nullptr) {
        known = false;
      }
      if (!known) state_.reach.unknown_variables.note(root.context, number);
    });
  }
}

// The largest allocation that the launch names and of which it is not known how much launches
// touch.
TimedLaunch* Acquisition::chooseTimed() {
  if (!closure_.used.tensors().empty()) return chooseTimedTensor();
  Region* chosen = nullptr;
  bool all_resident = true;
  size_t in_place = 0;
  for (Region* region : closure_.named()) {
    all_resident &= region->blocked.load(std::memory_order_relaxed) == 0;
    in_place += region->in_place > 0 ? 1 : 0;
    if (region->pages * kPageBytes < kLeastSparseBytes ||
        region->density.verdict == Density::kDense || region->arena != nullptr ||
        region->managed != nullptr)  // which is copied to come into place
      continue;
    if (chosen == nullptr || region->pages > chosen->pages) chosen = region;
  }
  // Recorded only where the launch goes to the device's own engine's context, and into no graph.
  if (chosen == nullptr || chosen->engine->context() != operation_->stream.context ||
      state_.streams.capturing() || !mayBeInPlace(*chosen))
    return nullptr;
  const bool alone = in_place == 1 && chosen->in_place > 0;  // nothing else is read over the link
  if (chosen->isSparse()) {
    const uint16_t use = chosen->density.uses++;
    if (!alone || (use >= kTimedUses / 8 && use % kTimedUses != 0)) return nullptr;
    return chosen->engine->sparse().timer().take(*chosen, true);
  }
  return all_resident || alone ? chosen->engine->sparse().timer().take(*chosen, alone) : nullptr;
}

// Likewise of the tensors that it names of arenas that are streamed. Those of which launches touch
// much are in VRAM by now.
TimedLaunch* Acquisition::chooseTimedTensor() {
  const WorkingSet::Tensor* chosen = nullptr;
  size_t in_place = 0;
  for (const WorkingSet::Tensor& tensor : closure_.used.tensors()) {
    const Density verdict = tensor.piece().density.verdict;
    in_place += verdict == Density::kSparse ? 1 : 0;
    // One that shares its parts with others comes with them.
    const uint64_t least = std::max(kLeastSparseBytes, 2 * tensor.region->extents.front()->bytes());
    if (tensor.bytes() < least || verdict == Density::kDense) continue;
    if (chosen == nullptr || tensor.bytes() > chosen->bytes()) chosen = &tensor;
  }
  if (chosen == nullptr || in_vain_ ||
      chosen->region->engine->context() != operation_->stream.context || state_.streams.capturing())
    return nullptr;
  DensityRecord& density = chosen->piece().density;
  const bool is_sparse = density.verdict == Density::kSparse;
  if (is_sparse) {
    const uint16_t use = density.uses++;
    if (in_place > 1 || (use >= kTimedUses / 8 && use % kTimedUses != 0)) return nullptr;
  } else if (in_place > 0) {
    return nullptr;
  }
  TimedLaunch* const timed =
      chosen->region->engine->sparse().timer().take(*chosen->region, is_sparse);
  if (timed != nullptr) {
    timed->tensor = chosen->begin;
    timed->bytes = chosen->bytes();
  }
  return timed;
}

}  // namespace olpager::pager
