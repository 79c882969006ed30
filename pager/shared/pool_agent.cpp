#include "pager/shared/pool_agent.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "pager/pool_state.h"
#include "pager/residency/give_away.h"

namespace olpager::pager {

namespace {

constexpr std::chrono::microseconds kShortestPoll{20}, kLongestPoll{500};
constexpr std::chrono::seconds kAsleep{1};
// Claims of operations that are over are given up when somebody waits for them, or beyond this
// many.
constexpr size_t kMostSubmitted = 256;

}  // namespace

// --- the thread ----------------------------------------------------------------------------------

void PoolAgent::startThread() {
  thread_ = base::ownThread([this] { run(); });
}

void PoolAgent::stopThreads() noexcept {
  ended_ = true;
  bell_.release();
  if (thread_.joinable()) thread_.join();
}

void PoolAgent::forked() noexcept {
  if (thread_.joinable()) thread_.detach();  // it is the parent's
}

void PoolAgent::run() {
  prctl(PR_SET_TIMERSLACK, 1000ul);  // the pauses below are to last microseconds
  auto pause = kShortestPoll;
  bool polls = false, relaxed = false;
  while (!ended_) {
    tell();
    if (!polls) {
      if (!bell_.try_acquire_for(kAsleep)) continue;
      pause = kShortestPoll;
    } else if (bell_.try_acquire_for(pause)) {
      pause = kShortestPoll;
    } else {
      pause = std::min(2 * pause, kLongestPoll);
    }
    if (ended_) return;
    // The thread may be older than the driver's initialisation, before which nothing is exchanged.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    relaxed = relaxed || state_.driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    Lock lock(state_.mutex);
    if (state_.forked.load()) return;
    turn(lock);
    polls = someoneWaits();
    if (!polls) continue;
    lock.unlock();
    state_.streams.poll();
    lock.lock();
    if (completeThoseOver(lock)) pause = kShortestPoll;
    polls = someoneWaits();
  }
}

// --- regions -------------------------------------------------------------------------------------

Extent& PoolAgent::extentAt(directory::ExtentId id) {
  Region& region = *region_of_[id];
  return *region.extents[id - region.shared()->first];
}

void PoolAgent::add(Region& region) {
  const directory::ExtentId first = region.shared()->first;
  const auto end = first + static_cast<directory::ExtentId>(region.pages);
  if (region_of_.size() < end) region_of_.resize(end);
  elsewhere_.resize(end);
  std::fill(region_of_.begin() + first, region_of_.begin() + end, &region);
  for (auto& extent : region.extents) region.engine->setState(*extent, ExtentState::kAbsent);
}

void PoolAgent::abandon(const Region& region, Lock& lock) {
  const SharedRegion& shared = *region.shared();
  // Others have asked for some that have not left: they never will.
  for (const auto& extent : region.extents)
    if (std::exchange(extent->leaving, false)) elsewhere_.quiet(shared.idOf(*extent), false, lock);
  for (const auto& extent : region.extents) elsewhere_.unneed(shared.idOf(*extent), lock);
}

void PoolAgent::remove(const Region& region) {
  std::fill_n(region_of_.begin() + region.shared()->first, region.pages, nullptr);
}

// --- operations ----------------------------------------------------------------------------------

void PoolAgent::submitted(ToldOperation& operation) {
  submitted_.push_back({operation.age, std::move(operation.points)});
  if (someoneWaits()) bell_.release();
}

bool PoolAgent::Submitted::isOver() const {
  return std::all_of(points.begin(), points.end(),
                     [](const auto& point) { return point.isOver(); });
}

bool PoolAgent::someoneWaits() const {
  return !submitted_.empty() &&
         (elsewhere_.agent().unsettled() > 0 || submitted_.size() > kMostSubmitted);
}

// The claims of operations that are over. True: there were some.
bool PoolAgent::completeThoseOver(Lock& lock) {
  bool any = false;
  for (size_t s = 0; s < submitted_.size();) {
    if (!submitted_[s].isOver()) {
      ++s;
      continue;
    }
    const directory::Age age = submitted_[s].age;
    submitted_[s] = std::move(submitted_.back());
    submitted_.pop_back();
    elsewhere_.complete(age, lock);
    any = true;
  }
  if (any) flush();
  return any;
}

void PoolAgent::stopPaging() {
  state_.stopped = true;
  state_.changed.notify_all();
}

// --- what Elsewhere asks for ---------------------------------------------------------------------

void PoolAgent::grant(directory::ExtentId id, directory::Mode, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state != ExtentState::kAbsent) return;  // it has it already, or it is being freed
  Region& region = *extent.region;
  const bool has_bytes = take(extent);
  region.engine->setState(extent,
                          extent.host != nullptr ? ExtentState::kParked : ExtentState::kEmpty);
  // Another agent may have put pointers there.
  if (has_bytes) state_.reach.noteUnknown(region, extentsAt(region, extent.address, kPageBytes));
}

void PoolAgent::stop(directory::ExtentId id, Lock& lock) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return elsewhere_.quiet(id, false, lock);
  extent.leaving = true;
  extent.region->engine->leaving().giveAway(extent, lock);
}

void PoolAgent::parked(Extent& extent, Lock& lock) {
  elsewhere_.quiet(extent.region->shared()->idOf(extent), true, lock);
  flush();
}

void PoolAgent::go(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (!extent.leaving) return;
  extent.leaving = false;
  extent.region->engine->leaving().keep(extent);
}

void PoolAgent::yield(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return;
  if (extent.state != ExtentState::kParked || extent.host == nullptr)
    return violated({.extent = id});
  extent.leaving = false;
  give(extent);
  extent.host_valid = extent.hash_valid = false;
  extent.region->engine->setState(extent, ExtentState::kAbsent);
}

void PoolAgent::lend(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }
void PoolAgent::lendOver(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }

void PoolAgent::runnable(directory::Age) { state_.changed.notify_all(); }

void PoolAgent::failed(directory::Age age, directory::ExtentId) {
  failed_.insert(age);
  state_.changed.notify_all();
}

}  // namespace olpager::pager
