#include "pager/away/away.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "coherence/pages/batch.h"
#include "coherence/pages/blocks.h"
#include "pager/counters/counters.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

constexpr std::chrono::microseconds kShortestPoll{20}, kLongestPoll{500};
constexpr std::chrono::seconds kAsleep{1};
// Claims of operations that are over are given up when somebody waits for them, or beyond this
// many.
constexpr size_t kMostSubmitted = 256;
constexpr unsigned kScanEvery = 64;  // operations
constexpr unsigned kScans = 64;      // after a page was given away
// What was given stays in host memory, of so many pages at most, and of one part of it in so many.
constexpr uint64_t kRetainedShare = 16;

// Begun and ended by one call (olpager_operation, olpager_operation_over), which owns it.
__attribute__((tls_model("initial-exec"))) thread_local AwayOperation* t_operation = nullptr;

}  // namespace

Away::Away(PoolState& state, directory::AgentId agent, AwayLink& link)
    : state_(state), link_(link), elsewhere_(agent, *this) {
  thread_ = base::ownThread([this] { run(); });
  dropper_ = base::ownThread([this] { dropFreed(); });
}

Away::~Away() { stopThreads(); }

void Away::stopThreads() noexcept {
  ended_ = true;
  bell_.release();
  freed_bell_.release();
  for (std::thread* const thread : {&thread_, &dropper_})
    if (thread->joinable()) thread->join();
}

void Away::forked() noexcept {
  for (std::thread* const thread : {&thread_, &dropper_})
    if (thread->joinable()) thread->detach();  // it is the parent's
}

// --- regions -------------------------------------------------------------------------------------

Extent& Away::extentAt(directory::ExtentId id) {
  Region& region = *region_of_[id];
  return *region.extents[id - region.away->first];
}

Engine& Away::engineOf(directory::ExtentId id) { return *region_of_[id]->engine; }

void Away::add(Region& region) {
  const directory::ExtentId first = region.away->first;
  const auto end = first + static_cast<directory::ExtentId>(region.pages);
  if (region_of_.size() < end) region_of_.resize(end);
  elsewhere_.resize(end);
  std::fill(region_of_.begin() + first, region_of_.begin() + end, &region);
  for (auto& extent : region.extents) region.engine->setState(*extent, ExtentState::kAbsent);
}

// Of a region whose pages are all to be forgotten.
void Away::drop(Region& region, Lock& lock) {
  AwayRegion& away = *region.away;
  if (away.forgets.size() < region.pages) {  // its context goes, and takes what is here along
    link_.failed("a context is gone, and pages of the program with it");
    state_.stopped = true;
    return state_.changed.notify_all();
  }
  // Another executor has asked for some that have not left: they never will.
  for (const auto& extent : region.extents)
    if (std::exchange(extent->leaving, false)) elsewhere_.quiet(away.idOf(*extent), false, lock);
  for (const directory::Message& message : away.forgets) {
    elsewhere_.unneed(message.extent, lock);
    elsewhere_.receive(message, lock);
  }
  send();
  bell_.release();  // operations that used them may not be known to be over
  while (away.forgotten.size() < region.pages && !state_.stopped)
    state_.changed.wait_for(lock, std::chrono::milliseconds(1));
  if (state_.stopped) return;
  subtract(region.engine->figures().allocated_bytes, region.requested_bytes);
  subtract(region.engine->figures().allocations, 1);
  std::fill_n(region_of_.begin() + away.first, region.pages, nullptr);
}

void Away::dropped(const AwayRegion& region) {
  outbox_.insert(outbox_.end(), region.forgotten.begin(), region.forgotten.end());
  send();
}

void Away::forget(const std::vector<directory::Message>& forgets) {
  for (const directory::Message& message : forgets) {
    Region* const region = region_of_[message.extent];
    region->away->forgets.push_back(message);
    if (region->away->forgets.size() < region->pages) continue;
    // One that goes with its context is being dropped. From here on the end of a context waits for
    // dropFreed().
    if (std::exchange(region->dead, true)) continue;
    freed_.push_back(region);
    freed_bell_.release();
    state_.changed.notify_all();  // launches that wait go without it
  }
}

void Away::dropFreed() {
  while (true) {
    freed_bell_.acquire();
    if (ended_) return;
    const RelaxedThread relaxed(state_.driver);
    Lock lock(state_.mutex);
    if (state_.forked.load()) return;
    Region* const region = freed_.front();
    freed_.pop_front();
    dropRegion(state_, region, lock);
  }
}

void Away::receive(std::span<const directory::Message> messages, Lock& lock) {
  std::vector<directory::Message> forgets;
  for (const directory::Message& message : messages) {
    if (message.kind != directory::MessageKind::kOver && region_of_[message.extent] == nullptr)
      return violated({.extent = message.extent, .message = message});
    if (message.kind == directory::MessageKind::kForget) {
      forgets.push_back(message);
    } else {
      elsewhere_.receive(message, lock);
    }
  }
  elsewhere_.shed(retainedPages(), lock);
  forget(forgets);
  send();
  if (someoneWaits()) bell_.release();
}

// --- operations ----------------------------------------------------------------------------------

void Away::alone() {
  if (t_operation != nullptr) t_operation->alone = true;
}

void Away::begin(directory::Age age, directory::Age oldest) {
  delete t_operation;
  t_operation = new AwayOperation{.age = age, .oldest = oldest};
}

void Away::uses(uint64_t address, uint64_t bytes) {
  if (t_operation != nullptr && bytes != 0) t_operation->uses.emplace_back(address, bytes);
}

bool Away::over() {
  const std::unique_ptr<AwayOperation> operation(std::exchange(t_operation, nullptr));
  if (operation == nullptr) return false;
  using Stage = AwayOperation::Stage;
  Lock lock(state_.mutex);
  scanAhead();
  if (operation->stage == Stage::kSubmitted) {
    submitted_.push_back({operation->age, std::move(operation->points)});
    if (someoneWaits()) bell_.release();
  } else if (operation->stage == Stage::kUntold) {
    // What came for it ahead is nobody's claim any more.
    const directory::AgentId self = elsewhere_.agent().id();
    elsewhere_.receive({.kind = directory::MessageKind::kOver,
                        .to = self,
                        .age = operation->age,
                        .served = operation->oldest},
                       lock);
    send();
  }
  return operation->stage != Stage::kUntold;
}

void Away::scanAhead() {
  if (scans_to_come_ == 0 || ++made_ < kScanEvery) return;
  made_ = 0;
  --scans_to_come_;
  for (const auto& engine : state_.devices.engines) engine->scanAhead();
}

bool Away::Submitted::isOver() const {
  return std::all_of(points.begin(), points.end(),
                     [](const auto& point) { return point.isOver(); });
}

// Others want what an operation that is under way may have claimed: nobody rings at its end.
bool Away::someoneWaits() const {
  return !short_.empty() || (!submitted_.empty() && (elsewhere_.agent().unsettled() > 0 ||
                                                     submitted_.size() > kMostSubmitted));
}

// The claims of operations that are over. True: there were some.
bool Away::completeThoseOver(Lock& lock) {
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
  if (any) send();
  return any;
}

void Away::run() {
  prctl(PR_SET_TIMERSLACK, 1000ul);  // the pauses below are to last microseconds
  auto pause = kShortestPoll;
  bool polls = false;
  while (!ended_) {
    if (!polls) {
      if (!bell_.try_acquire_for(kAsleep)) continue;
      pause = kShortestPoll;
    } else if (bell_.try_acquire_for(pause)) {
      pause = kShortestPoll;
    } else {
      pause = std::min(2 * pause, kLongestPoll);
    }
    if (ended_) return;
    // The thread is older than the driver's initialisation, before which nothing is exchanged.
    const RelaxedThread relaxed(state_.driver);
    state_.streams.poll();
    Lock lock(state_.mutex);
    if (state_.forked.load()) return;
    if (completeThoseOver(lock)) pause = kShortestPoll;
    fetchShort(lock);
    polls = someoneWaits();
  }
}

// --- what the agent asks for ---------------------------------------------------------------------

// The chunk of an extent that is not granted; null: it has none. Nobody reads it any more.
Away::Frame Away::takeFrame(directory::ExtentId extent) {
  const auto found = frames_.extract(extent);
  if (found.empty()) return {};
  if (found.mapped().number != 0) link_.takenBack(extent, found.mapped().number);
  return found.mapped();
}

void Away::startFetch(const Key& key, directory::AgentId from, const Frame& frame) {
  coming_[key] = frame.chunk;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address
  auto* const into = reinterpret_cast<void*>(frame.chunk->alias);
  link_.fetch(key.first, key.second, from, into, frame.hash);
}

// A page that goes to and fro often comes back as it left: scratch memory of a library, say.
uint64_t Away::retainedPages() const {
  return std::min(pages::kMostKept, state_.devices.host.limit / kRetainedShare / kPageBytes);
}

void Away::giveRetained(Lock& lock) {
  elsewhere_.shed(0, lock);
  send();
}

void Away::fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
                 directory::Content, Lock& lock) {
  const Key key{extent, number};
  if (const Frame frame = takeFrame(extent); frame.chunk != nullptr)
    return startFetch(key, from, frame);
  short_.push_back({key, from});
  fetchShort(lock);
  if (!short_.empty()) bell_.release();
}

// In their order. Releases the mutex: one thread at a time.
void Away::fetchShort(Lock& lock) {
  if (std::exchange(fetching_short_, true)) return;
  while (!short_.empty()) {
    Engine& engine = engineOf(short_.front().key.first);
    HostChunk* const chunk = engine.takeChunkForOthers(lock);
    if (chunk == nullptr) break;
    const Short next = short_.front();
    short_.pop_front();
    startFetch(next.key, next.from, {chunk, 0, std::nullopt});
  }
  fetching_short_ = false;
}

void Away::landed(directory::ExtentId extent, directory::Number number,
                  std::optional<ContentHash> hash, Lock& lock) {
  const auto found = coming_.extract(Key{extent, number});
  if (found.empty()) return;
  frames_[extent] = {found.mapped(), 0, hash};
  elsewhere_.landed(extent, number, lock);
  send();
}

void Away::clear(directory::ExtentId, Lock&) {}

void Away::grant(directory::ExtentId id, directory::Mode, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state != ExtentState::kAbsent) return;  // it has it already, or it is being freed
  Region& region = *extent.region;
  const Frame frame = takeFrame(id);
  extent.host = frame.chunk;
  extent.host_valid = extent.host != nullptr;
  extent.hash_valid = frame.hash.has_value();
  if (frame.hash) extent.hash = *frame.hash;
  if (extent.host == nullptr) return region.engine->setState(extent, ExtentState::kEmpty);
  region.engine->setState(extent, ExtentState::kParked);
  // Another executor may have put pointers there.
  state_.reach.noteUnknown(region, extentsAt(region, extent.address, kPageBytes));
  arrived_.push_back(id);
  region.engine->wake();
}

void Away::keepArrivals(const std::function<bool(Extent&)>& keeps) {
  std::erase_if(arrived_, [&](directory::ExtentId id) {
    return region_of_[id] == nullptr || region_of_[id]->dead || !keeps(extentAt(id));
  });
}

void Away::stop(directory::ExtentId id, Lock& lock) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return elsewhere_.quiet(id, false, lock);
  extent.leaving = true;
  extent.region->engine->giveAway(extent, lock);
}

void Away::parked(Extent& extent, Lock& lock) {
  elsewhere_.quiet(extent.region->away->idOf(extent), true, lock);
  send();
}

void Away::lost(const Extent& extent) {
  const std::string why = base::format(
      "the page at {:#x}, which another gpunode needs, was lost with a memserver (OL_REPLICAS=2 "
      "keeps two of each)",
      extent.address);
  link_.failed(why.c_str());
  state_.stopped = true;
  state_.changed.notify_all();
}

void Away::go(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (!extent.leaving) return;
  extent.leaving = false;
  extent.region->engine->keep(extent);
}

void Away::yield(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return;
  if (extent.state != ExtentState::kParked || extent.host == nullptr)
    return violated({.extent = id});
  extent.leaving = false;
  scans_to_come_ = kScans;
  frames_[id] = {
      std::exchange(extent.host, nullptr), 0,
      extent.hash_valid && extent.host_valid ? std::optional(extent.hash) : std::nullopt};
  extent.host_valid = extent.hash_valid = false;
  extent.region->engine->setState(extent, ExtentState::kAbsent);
}

void Away::release(directory::ExtentId extent, Lock&) {
  if (const Frame frame = takeFrame(extent); frame.chunk != nullptr)
    engineOf(extent).giveChunkOfOthers(frame.chunk);
}

void Away::lend(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }
void Away::lendOver(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }

void Away::runnable(directory::Age) { state_.changed.notify_all(); }

void Away::failed(directory::Age age, directory::ExtentId) {
  failed_.insert(age);
  state_.changed.notify_all();
}

void Away::post(const directory::Message& message) {
  if (message.kind == directory::MessageKind::kReady) {
    Frame& frame = frames_[message.extent];
    if (frame.chunk == nullptr) return violated({.extent = message.extent, .message = message});
    frame.number = message.number;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address
    link_.given(message.extent, message.number, message.to,
                reinterpret_cast<const void*>(frame.chunk->alias), frame.hash);
  } else if (message.kind == directory::MessageKind::kForgotten) {
    AwayRegion& region = *region_of_[message.extent]->away;
    region.forgotten.push_back(message);  // told by dropped()
    return state_.changed.notify_all();
  }
  outbox_.push_back(message);
}

// What steps have left to be said.
void Away::send() {
  retained_.store(elsewhere_.retained(), std::memory_order_relaxed);
  std::span<const directory::Message> left = outbox_;
  while (!left.empty()) {
    link_.post(pages::encode(left));
  }
  outbox_.clear();
}

void Away::violated(const directory::Action& action) {
  base::logError(
      "the unified view: the ownership protocol was violated at extent %u (message %d): paging has "
      "stopped",
      action.extent, static_cast<int>(action.message.kind));
  link_.failed("the ownership protocol was violated");
  state_.stopped = true;
  state_.changed.notify_all();
}

// --- claims --------------------------------------------------------------------------------------

AwayClaim::AwayClaim(PoolState& state)
    : state_(state), operation_(state.away != nullptr ? t_operation : nullptr) {}

AwayClaim::~AwayClaim() {
  if (!asked_) return;
  // The mutex is held; nothing below releases it.
  Lock lock(state_.mutex, std::adopt_lock);
  cancel(lock);
  lock.release();
}

void AwayClaim::cancel(Lock& lock) {
  if (!std::exchange(asked_, false) || operation_ == nullptr) return;
  Away& away = *state_.away;
  operation_->stage = AwayOperation::Stage::kOver;
  away.failed_.erase(operation_->age);
  away.elsewhere_.cancel(operation_->age, lock);
  away.send();
}

void AwayClaim::again() {
  needs_.clear();
  looked_at_ = told_ = 0;
}

bool AwayClaim::isAway() const {
  return std::any_of(needs_.begin(), needs_.end(), [this](const directory::Need& need) {
    return isAway(state_.away->extentAt(need.extent));
  });
}

bool AwayClaim::isAway(const Extent& extent) {
  return extent.state == ExtentState::kAbsent || extent.leaving;
}

bool AwayClaim::mayNotAskYet(std::span<Extent* const> needed) const {
  if (operation_ == nullptr || operation_->alone ||
      operation_->stage != AwayOperation::Stage::kUntold)
    return false;
  return std::any_of(needed.begin(), needed.end(), [](const Extent* extent) {
    return extent->region->away != nullptr && isAway(*extent);
  });
}

// What the operation's other acquisitions need.
void AwayClaim::needUses() {
  for (const auto& [address, bytes] : operation_->uses) {
    const Region* const region =
        state_.book.map().contains(address) ? state_.book.find(address) : nullptr;
    if (region == nullptr || region->dead || region->away == nullptr) continue;
    const ExtentRange range = extentsAt(*region, address, bytes);
    for (size_t e = range.first; e < range.last; ++e)
      needs_.push_back({region->away->idOf(*region->extents[e]), directory::Mode::kOwn});
  }
}

// Of an operation of several calls, an earlier one of which was submitted: what it lacks is only to
// leave, and stays until the last call is over.
bool AwayClaim::mayUseAgain(Lock& lock) const {
  if (operation_ == nullptr || operation_->stage != AwayOperation::Stage::kSubmitted) return false;
  return std::all_of(needs_.begin(), needs_.end(), [&](const directory::Need& need) {
    return state_.away->elsewhere_.useAgain(operation_->age, need.extent, lock);
  });
}

bool AwayClaim::ask(std::span<Extent* const> needed, Lock& lock) {
  if (state_.away == nullptr) return true;
  using Stage = AwayOperation::Stage;
  Away& away = *state_.away;
  for (; looked_at_ < needed.size(); ++looked_at_)
    if (const Extent& extent = *needed[looked_at_]; extent.region->away != nullptr)
      needs_.push_back({extent.region->away->idOf(extent), directory::Mode::kOwn});
  if (!asked_) {
    if (!isAway()) return true;
    if (mayUseAgain(lock)) return true;
    if (operation_ == nullptr || operation_->stage != Stage::kUntold) {
      base::warnOnce("unified without an age",
                     "a call uses memory that another executor of the unified view has, and did "
                     "not say so ahead: it is refused (CUDA_ERROR_NOT_SUPPORTED)");
      return false;
    }
    needUses();
    operation_->stage = Stage::kTold;
    asked_ = true;
    told_ = needs_.size();
    away.elsewhere_.need(operation_->age, needs_, operation_->oldest, lock);
  }
  for (; told_ < needs_.size(); ++told_) away.elsewhere_.more(operation_->age, needs_[told_], lock);
  away.send();
  return !away.failed_.contains(operation_->age);
}

bool AwayClaim::isRunnable() const {
  return !asked_ || state_.away->elsewhere_.runnable(operation_->age);
}

bool AwayClaim::submit() {
  if (!asked_) return true;
  if (!state_.away->elsewhere_.submit(operation_->age)) return false;
  asked_ = false;
  operation_->stage = AwayOperation::Stage::kSubmitted;
  return true;
}

void AwayClaim::over(Lock& lock) {
  if (operation_ != nullptr && operation_->stage == AwayOperation::Stage::kSubmitted) {
    operation_->stage = AwayOperation::Stage::kOver;
    state_.away->elsewhere_.complete(operation_->age, lock);
    state_.away->send();
  }
  cancel(lock);
}

void AwayClaim::begun(const StreamState& stream, uint64_t number) {
  if (operation_ != nullptr && operation_->stage == AwayOperation::Stage::kSubmitted)
    operation_->points.emplace_back(stream, number);
}

}  // namespace olpager::pager
