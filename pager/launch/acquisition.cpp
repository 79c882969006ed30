#include "pager/launch/acquisition.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/launch/refusal.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

Acquisition::Acquisition(PoolState& state, const Operation& operation)
    : state_(state),
      operation_(&operation),
      closure_(state, operation.stream.context, operation.follows_pointers,
               static_cast<uint32_t>(reinterpret_cast<uintptr_t>(operation.function) >> 4)),
      asked_(closure_),
      claim_(state) {}

Acquisition::~Acquisition() = default;

void Acquisition::keep() {
  if (own_ != nullptr) return;
  auto own = std::make_unique<Operation>(*operation_);
  if (own->graph != nullptr) {
    own_graph_ = std::make_unique<const ReachSet>(*own->graph);
    own->graph = own_graph_.get();
  }
  // Unstable bytes are not looked at.
  if (own->hostIsRead()) {
    const auto* const bytes = static_cast<const char*>(own->host_source);
    own_source_.assign(bytes, bytes + own->host_bytes);
    own->host_source = own_source_.data();
  }
  own_ = std::move(own);
  operation_ = own_.get();
}

Acquisition::State Acquisition::begin(Lock& lock) {
  assert(now_ == State::kDescribed);
  return describe(lock);
}

Acquisition::State Acquisition::describe(Lock& lock) {
  if (operation_->in_parts_beyond_vram && state_.options.reach != Reach::kAll &&
      state_.away == nullptr) {
    // Looked at first by another closure, which tells nobody what it names: where the parts run,
    // they do.
    Closure seen(state_, operation_->stream.context, operation_->follows_pointers, 0);
    seen.tellNobody();
    if (nameAll(seen) == CUDA_SUCCESS) seen.follow();
    if (isBetterInParts(seen)) return leaveToParts(lock, seen);
  }
  if (const CUresult result = nameAll(closure_); result != CUDA_SUCCESS)
    return refuse(lock, result);
  closure_.follow();
  chooseFetched();
  return look(lock);
}

Acquisition::State Acquisition::ready(Lock& lock) {
  if (now_ != State::kWaiting && now_ != State::kReady) return now_;
  if (closure_.reachesFreed()) return startOver(lock);
  hear();
  if (lost_) {  // its memory is gone: never other bytes in its place
    base::warnOnce("lost reach",
                   "a launch or copy is refused (CUDA_ERROR_ECC_UNCORRECTABLE): what it reaches "
                   "was lost with a memserver");
    return refuse(lock, CUDA_ERROR_ECC_UNCORRECTABLE);
  }
  if (failed_) {
    no_scan_ ? tellNoScan() : tellRefused(state_, closure_);
    return refuse(lock, CUDA_ERROR_OUT_OF_MEMORY);
  }
  closure_.follow();
  return look(lock);
}

// A free waits until nothing holds the region, and other executors may wait for the free: so the
// reach is found anew, without that region. Other agents stay asked for the rest. Engines are
// asked anew, and no more patiently than before.
Acquisition::State Acquisition::startOver(Lock& lock) {
  asked_.letGo();
  failed_ = lost_ = in_vain_ = scan_late_ = no_scan_ = false;
  closure_.clear();
  claim_.again();
  return describe(lock);
}

void Acquisition::cancel(Lock& lock) {
  if (now_ == State::kRefused || now_ == State::kCommitted) return;
  asked_.letGo();
  claim_.cancel(lock);
  now_ = State::kCancelled;
}

CUresult Acquisition::nameAll(Closure& closure) const {
  const Operation& operation = *operation_;
  for (unsigned i = 0; i < operation.uses.count(); ++i) {
    const Uses::Use& named = operation.uses[i];
    if (named.bytes == 0) {
      closure.name(named.address);
    } else if (const CUresult result = closure.nameRange(named.address, named.bytes, named.mode);
               result != CUDA_SUCCESS && !operation.only_shows) {
      return result;
    }
  }
  if (operation.graph != nullptr)
    for (const ReachSet::Range& range : operation.graph->ranges)
      closure.mayWrite(range.address, range.bytes);
  for (const uint64_t word : operation.outside_words) closure.nameOutside(word);
  closure.nothingElseIsNamed();
  if (operation.follows_pointers &&
      (state_.options.reach == Reach::kAll || operation.reaches_everything))
    closure.reachEverything();
  return CUDA_SUCCESS;
}

// True if a graph is better made as its nodes: all that it reaches is more than VRAM has room for.
// Memory that a part does not use counts only if it can leave while that part runs. An allocation
// that alone is larger than VRAM, and whole for each launch, can't: its parts would be used in
// place as all of it is. Under reach = all each part reaches what the graph does. Memory of several
// devices is a launch's that one stream can't stand for, and where other executors have pages in
// turns the graph is one of the home's operations.
bool Acquisition::isBetterInParts(const Closure& closure) const {
  if (state_.options.reach == Reach::kAll || state_.away != nullptr) return false;
  const Engine* engine = nullptr;
  for (const Region* region : closure.regions) {
    if (region->isRoot() || region->engine == nullptr) continue;
    if (engine != nullptr && engine != region->engine) return false;
    engine = region->engine;
  }
  if (engine == nullptr || engine->broken()) return false;
  const uint64_t room = engine->chunks().vramBudget();
  uint64_t bytes = 0;
  for (const Region* region : closure.regions) {
    if (region->isRoot() || (region->by_pieces && !closure.everything)) continue;
    uint64_t all = region->pages * kPageBytes;
    if (region->kind == RegionKind::kReservation) {
      all = 0;
      for (const auto& extent : region->extents)
        if (extent->state != ExtentState::kDetached) all += extent->bytes();
    }
    if (all <= room || region->by_pieces) bytes += all;
  }
  // The used part of an arena, unless all of it has been counted.
  if (!closure.everything)
    for (const Extent* extent : closure.used.extents())
      if (extent->state != ExtentState::kDetached &&
          (extent->region->by_pieces || extent->region->pages * kPageBytes > room))
        bytes += extent->bytes();
  return bytes > room;
}

Acquisition::State Acquisition::leaveToParts(Lock& lock, const Closure& closure) {
  GraphBeyond& found = beyond_.emplace();
  for (const Region* region : closure.regions) {
    if (region->isRoot() || region->engine == nullptr) continue;
    found.device = static_cast<unsigned>(region->engine->device());
    found.bytes += region->pages * kPageBytes;
  }
  return refuse(lock, CUDA_ERROR_OUT_OF_MEMORY);
}

// Chooses extents that could be used in place, and are worth waiting for.
void Acquisition::chooseFetched() {
  const bool follows = operation_->follows_pointers;
  if (follows && !closure_.used.empty() && !closure_.everything) {
    closure_.fetched = closure_.used.worthFetching(state_.launch_number.load());
    closure_.needed.insert(closure_.needed.end(), closure_.fetched.begin(), closure_.fetched.end());
  }
  for (Extent* extent : closure_.needed)
    if (operation_->only_shows && !extent->region->isSparse() &&
        state_.options.reach != Reach::kAll)
      closure_.fetched.push_back(extent);
}

// Takes what the engines have said since.
void Acquisition::hear() {
  bool scan_late = false;
  asked_.forEach([&](const Want& want) {
    failed_ |= want.failed;
    lost_ |= want.lost;
    in_vain_ |= want.in_place;
    scan_late |= want.scan_late;
    no_scan_ |= want.no_scan;
  });
  if (!scan_late || std::exchange(scan_late_, true) || closure_.everything) return;
  // Bytes that the host wrote can't be looked at in time: they may name anything. If all can't be
  // had the launch waits on for the scan.
  if (!allFits(state_)) return;
  closure_.reachEverything();
  asked_.scansNoMore();
}

// A constant extent in place is sealed (residency/arena_streaming.cpp): before the operation may
// write it, it comes to VRAM, or is unsealed.
void Acquisition::unsealWritten(Lock& lock) {
  const auto unseal = [&](Extent& extent, bool written = false) {
    if (extent.sealed) extent.region->engine->arenas().unseal(extent, written, lock);
  };
  for (Extent* extent : closure_.written) unseal(*extent, true);
  for (Extent* extent : closure_.used.stays()) unseal(*extent);
  if (operation_->reaches_everything)
    for (Region* region : closure_.regions)
      for (auto& extent : region->extents) unseal(*extent);
  for (Extent* extent : closure_.used.extents())
    if (in_vain_ || std::find(closure_.fetched.begin(), closure_.fetched.end(), extent) ==
                        closure_.fetched.end())
      unseal(*extent);
}

// The closure is followed to its end. Is all of it usable?
Acquisition::State Acquisition::look(Lock& lock) {
  // A scan that it has waited for may have shown more than there was to see before.
  if (operation_->in_parts_beyond_vram && isBetterInParts(closure_))
    return leaveToParts(lock, closure_);
  asked_.hold();
  held_back_ = followsFunction() || awaitsCode();
  if (held_back_) {
    if (began_ns_ == 0) began_ns_ = nowNs();
    return now_ = State::kWaiting;
  }
  unsealWritten(lock);
  if (closure_.settled(in_vain_) && claim_.isRunnable()) return now_ = State::kReady;
  // Nobody brings what is missing any more.
  if (state_.stopped) return refuse(lock, CUDA_ERROR_DEINITIALIZED);
  if (neverFits(state_, closure_)) {
    tellRefused(state_, closure_);
    return refuse(lock, CUDA_ERROR_OUT_OF_MEMORY);
  }
  if (began_ns_ == 0) began_ns_ = nowNs();
  if (!claim_.ask(closure_.needed, lock)) return refuse(lock, CUDA_ERROR_NOT_SUPPORTED);
  asked_.ask();
  return now_ = State::kWaiting;
}

// A host function before the operation, in its stream, may touch managed memory, which waits for
// whoever has submitted a claim of it. So what reaches such memory is not submitted before the
// function is over, and what other executors have, among whom such memory is, is not claimed; but a
// function may wait for what comes after it, so that has an end.
bool Acquisition::followsFunction() const {
  if (follows_nobody_ || !state_.anyHostFunction() ||
      !state_.host_functions.areBefore(operation_->stream))
    return false;
  if (began_ns_ != 0 && nowNs() - began_ns_ > HostFunctions::kPatienceNs && behind() == 0)
    return false;
  return claim_.mayNotAskYet(closure_.needed) || reachesManaged();
}

bool Acquisition::reachesManaged() const {
  return std::any_of(closure_.regions.begin(), closure_.regions.end(),
                     [](const Region* region) { return region->managed != nullptr; });
}

// The host function that is certain to be over before the operation runs, which may be deferred
// till then. 0: none, or it may not.
uint64_t Acquisition::behind() const {
  if (operation_->function == nullptr || operation_->graph != nullptr || closure_.everything ||
      operation_->stream.thread != 0 || state_.away != nullptr)
    return 0;
  return state_.host_functions.lastIn(operation_->stream);
}

bool Acquisition::mayDefer() const {
  if (now_ != State::kWaiting || !held_back_ || awaitsCode() || began_ns_ == 0 ||
      nowNs() - began_ns_ < HostFunctions::kSoonNs)
    return false;
  const uint64_t function = behind();
  if (function == 0) return false;
  uint64_t bytes = 0;
  const Engine* engine = nullptr;
  for (const Region* region : closure_.regions) {
    bytes += region->pages * kPageBytes;
    if (region->engine != nullptr) engine = region->engine;
  }
  for (const auto& launch : state_.deferred) bytes += launch->bytes;
  return engine != nullptr && bytes <= engine->chunks().vramBudget() / 2;
}

uint64_t Acquisition::defer(Lock& lock) {
  auto launch = std::make_shared<DeferredLaunch>(*operation_, ++state_.last_deferred);
  launch->device = state_.streams.find(operation_->stream)->device.load();
  launch->function = behind();
  for (const Region* region : closure_.regions) launch->bytes += region->pages * kPageBytes;
  launch->reached.assign(closure_.regions.begin(), closure_.regions.end());
  cancel(lock);
  state_.deferred.push_back(std::move(launch));
  return state_.last_deferred;
}

// The driver loads code (code_loads.h). A launch that has asked for pages goes on: the load waits.
bool Acquisition::awaitsCode() const {
  if (follows_nobody_ || !state_.loads.any() || claim_.isAsked()) return false;
  const CUdevice device = state_.streams.find(operation_->stream)->device.load();
  return state_.loads.hold(device, false) ||
         std::any_of(closure_.regions.begin(), closure_.regions.end(), [&](const Region* region) {
           return region->managed != nullptr && (state_.loads.hold(device, true) ||
                                                 state_.loads.hold(region->engine->device(), true));
         });
}

Acquisition::State Acquisition::refuse(Lock& lock, CUresult result) {
  stopWaiting();
  claim_.cancel(lock);
  result_ = result;
  return now_ = State::kRefused;
}

// The learned order is told whether what was to be fetched came in time.
void Acquisition::stopWaiting() {
  asked_.letGo();
  if (began_ns_ == 0) return;
  waited_ns_ = nowNs() - began_ns_;
  if (operation_->only_shows || closure_.fetched.empty()) return;
  if (in_vain_)
    closure_.used.fetchedInVain(state_.launch_number.load());
  else
    closure_.used.fetchedInTime();
}

}  // namespace olpager::pager
