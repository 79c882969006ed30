#include "pager/launch/acquisition.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/log.h"
#include "pager/clock.h"
#include "pager/launch/refusal.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

Acquisition::Acquisition(PoolState& state, const Operation& operation)
    : state_(state),
      operation_(&operation),
      closure_(state, operation.stream.context, operation.follows_pointers,
               static_cast<uint32_t>(reinterpret_cast<uintptr_t>(operation.function) >> 4)),
      asked_(closure_),
      claim_(state),
      away_claim_(state) {}

Acquisition::~Acquisition() = default;

void Acquisition::keep() {
  if (own_ != nullptr) return;
  auto own = std::make_unique<Operation>(*operation_);
  if (own->graph != nullptr) {
    own_graph_ = std::make_unique<const ReachSet>(*own->graph);
    own->graph = own_graph_.get();
  }
  // What is not stable is not looked at.
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
  if (const CUresult result = nameAll(); result != CUDA_SUCCESS) return refuse(lock, result);
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

// Who frees waits until nothing holds the region, and other executors may wait for who frees: so
// what is reached is found anew, without it. Other agents stay asked for the rest. Engines are
// asked anew, and no more patiently than before.
Acquisition::State Acquisition::startOver(Lock& lock) {
  asked_.letGo();
  failed_ = lost_ = in_vain_ = scan_late_ = no_scan_ = false;
  closure_.clear();
  claim_.again();
  away_claim_.again();
  return describe(lock);
}

void Acquisition::cancel(Lock& lock) {
  if (now_ == State::kRefused || now_ == State::kCommitted) return;
  asked_.letGo();
  claim_.cancel(lock);
  away_claim_.cancel(lock);
  now_ = State::kCancelled;
}

CUresult Acquisition::nameAll() {
  const Operation& operation = *operation_;
  for (unsigned i = 0; i < operation.uses.count(); ++i) {
    const Uses::Use& named = operation.uses[i];
    if (named.bytes == 0) {
      closure_.name(named.address);
    } else if (const CUresult result = closure_.nameRange(named.address, named.bytes, named.mode);
               result != CUDA_SUCCESS && !operation.only_shows) {
      return result;
    }
  }
  for (const uint64_t word : operation.outside_words) closure_.nameOutside(word);
  closure_.nothingElseIsNamed();
  if (operation.follows_pointers &&
      (state_.options.reach == Reach::kAll || operation.reaches_everything))
    closure_.reachEverything();
  return CUDA_SUCCESS;
}

// What could be used where it is, and is worth waiting for.
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

// What the engines have said since.
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
  // What the host wrote can't be looked at in time: it may name anything. Where that can't be had
  // the launch waits on for the scan.
  if (!allFits(state_)) return;
  closure_.reachEverything();
  asked_.scansNoMore();
}

// The closure is followed to its end. Is all of it usable?
Acquisition::State Acquisition::look(Lock& lock) {
  asked_.hold();
  follows_function_ = followsFunction();
  if (follows_function_) {
    if (began_ns_ == 0) began_ns_ = nowNs();
    return now_ = State::kWaiting;
  }
  if (closure_.settled(in_vain_) && claim_.isRunnable() && away_claim_.isRunnable())
    return now_ = State::kReady;
  // Nobody brings what is missing any more.
  if (state_.stopped) return refuse(lock, CUDA_ERROR_DEINITIALIZED);
  if (neverFits(state_, closure_)) {
    tellRefused(state_, closure_);
    return refuse(lock, CUDA_ERROR_OUT_OF_MEMORY);
  }
  if (began_ns_ == 0) began_ns_ = nowNs();
  claim_.ask(closure_.needed, lock);
  if (!away_claim_.ask(closure_.needed, lock)) return refuse(lock, CUDA_ERROR_NOT_SUPPORTED);
  asked_.ask();
  return now_ = State::kWaiting;
}

// A host function before the operation, in its stream, may touch managed memory, which waits for
// whoever has submitted a claim of it. So what reaches such memory is not submitted before the
// function is over, and what other executors have, among whom such memory is, is not claimed; but a
// function may wait for what comes after it, so that has an end.
bool Acquisition::followsFunction() const {
  if (!state_.anyHostFunction() || !state_.host_functions.areBefore(operation_->stream))
    return false;
  if (began_ns_ != 0 && nowNs() - began_ns_ > HostFunctions::kPatienceNs) return false;
  return away_claim_.mayNotAskYet(closure_.needed) ||
         std::any_of(closure_.regions.begin(), closure_.regions.end(),
                     [](const Region* region) { return region->managed != nullptr; });
}

Acquisition::State Acquisition::refuse(Lock& lock, CUresult result) {
  stopWaiting();
  claim_.cancel(lock);
  away_claim_.cancel(lock);
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
