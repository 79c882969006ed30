#include "pager/managed/managed.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "coherence/cpu/frames.h"
#include "coherence/cpu/userfaults.h"
#include "pager/clock.h"
#include "pager/counters/counters.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

constexpr directory::AgentId kPoolAgent = 0, kCpuAgent = 1;
constexpr std::chrono::microseconds kShortestPoll{20}, kLongestPoll{500};
constexpr std::chrono::seconds kLookPause{1};  // between looks at what the CPU's agent counts
// Claims of launches that are over are given up when somebody waits for them, or beyond this many.
constexpr size_t kMostSubmitted = 256;

}  // namespace

namespace {
// The devices that the program sees. A page that is at one of them is used there by kernels of the
// others.
Result<std::vector<CUdevice>> devicesOf(const DriverApi& driver) {
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
  std::vector<CUdevice> devices(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  for (const CUdevice device : devices) {
    for (const CUdevice peer : devices) {
      int can = 0;
      if (peer == device ||
          (driver.cuDeviceCanAccessPeer(&can, device, peer) == CUDA_SUCCESS && can != 0))
        continue;
      return Error{"device " + std::to_string(device) + " has no access to the memory of device " +
                   std::to_string(peer) +
                   ". It is paged where a program sees one of them (CUDA_VISIBLE_DEVICES)"};
    }
  }
  return devices;
}
}  // namespace

Managed::Managed(PoolState& state) : state_(state), elsewhere_(kPoolAgent, *this) {}

Result<std::unique_ptr<Managed>> Managed::start(PoolState& state) {
  auto devices = devicesOf(state.driver);
  if (!devices) return devices.error();
  auto faults = cpu::openUserFaults();
  if (!faults) return faults.error();
  // The system's reads and writes of the program's memory would fail there.
  if (faults.value()->reach() != UserFaults::Reach::kAll) return Error{faults.value()->why()};
  std::unique_ptr<Managed> made(new Managed(state));
  made->devices_ = std::move(devices.value());
  made->exchange_.join(kPoolAgent, [managed = made.get()] { managed->bell_.release(); });
  base::signalsMatter();
  auto cpu = CpuAgent::start(made->exchange_, kCpuAgent, std::move(faults.value()),
                             [managed = made.get()] { managed->serveNow(); });
  if (!cpu) return cpu.error();
  made->cpu_ = std::move(cpu.value());
  try {
    made->thread_ = base::ownThread([managed = made.get()] { managed->run(); });
  } catch (const std::exception& error) {
    return Error{std::string("managed memory: no thread for it: ") + error.what() +
                 " (see ulimit -u and the cgroup's pids.max)"};
  }
  return made;
}

Managed::~Managed() { stopThreads(); }

void Managed::stopThreads() noexcept {
  ended_ = true;
  bell_.release();
  if (thread_.joinable()) thread_.join();
  if (cpu_ != nullptr) cpu_->stop();
}

void Managed::forked() noexcept {
  if (thread_.joinable()) thread_.detach();  // it is the parent's
  if (cpu_ != nullptr) cpu_->forked();
}

// --- regions -------------------------------------------------------------------------------------

directory::ExtentId Managed::idOf(const Extent& extent) {
  return extent.region->managed->idOf(extent);
}

Extent& Managed::extentAt(directory::ExtentId id) {
  Region& region = *region_of_[id];
  return *region.extents[id - region.managed->first];
}

Result<std::shared_ptr<Frames>> Managed::makeFrames(uint64_t address, uint64_t pages) {
  auto made = Frames::make(address, static_cast<uint32_t>(pages));
  if (!made) return made.error();
  return std::shared_ptr<Frames>(std::move(made.value()));
}

namespace {
// Copies to and from frames are asynchronous only where these are pinned. Without that they are
// slow. A context is current.
bool pin(const DriverApi& driver, const Frames& frames) {
  const CUresult result =
      driver.cuMemHostRegister_v2(frames.alias(), frames.bytes(), CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) return true;
  base::warnOnce("managed not pinned",
                 "managed memory of %llu MiB can't be pinned (CUDA error %d): it moves slowly (see "
                 "ulimit -l)",
                 static_cast<unsigned long long>(frames.bytes() >> 20), static_cast<int>(result));
  return false;
}
}  // namespace

Status Managed::add(Region& region, std::shared_ptr<Frames> frames, Lock& lock) {
  const auto pages = static_cast<directory::ExtentId>(region.pages);
  auto managed = std::make_unique<ManagedRegion>();
  managed->places.resize(region.pages);
  managed->states.resize(region.pages);
  for (size_t page = 0; page < region.pages; ++page)
    managed->places[page].alias = reinterpret_cast<uint64_t>(frames->alias()) + page * kPageBytes;
  // The first run of numbers that is large enough, else new ones.
  auto free = std::find_if(free_ids_.begin(), free_ids_.end(),
                           [&](const auto& run) { return run.second >= pages; });
  if (free != free_ids_.end()) {
    managed->first = free->first;
    const auto rest = free->second - pages;
    free_ids_.erase(free);
    if (rest != 0) free_ids_.emplace(managed->first + pages, rest);
  } else {
    managed->first = static_cast<directory::ExtentId>(region_of_.size());
    region_of_.resize(region_of_.size() + pages);
    elsewhere_.resize(managed->first + pages);
  }
  std::fill_n(region_of_.begin() + managed->first, pages, &region);
  managed->frames = std::move(frames);
  region.managed = std::move(managed);
  for (auto& extent : region.extents) {
    extent->host = region.managed->placeOf(*extent);
    region.engine->setState(*extent, ExtentState::kAbsent);
  }
  exchange_.allocate(region.managed->first, pages);
  region.engine->expectPages(pages);
  pager::add(counters().managed_allocations);
  pager::add(counters().managed_bytes, region.requested_bytes);
  ManagedRegion& added = *region.managed;
  lock.unlock();
  added.pinned = pin(state_.driver, *added.frames);
  Status known = cpu_->add(added.first, *added.frames);
  lock.lock();
  return known;
}

void Managed::drop(Region& region, Lock& lock) {
  ManagedRegion& managed = *region.managed;
  const auto pages = static_cast<directory::ExtentId>(region.pages);
  managed.released = 0;
  // The CPU has asked for some that have not got to their frames: they never will.
  for (const auto& extent : region.extents)
    if (std::exchange(extent->leaving, false)) elsewhere_.quiet(idOf(*extent), false, lock);
  for (const auto& extent : region.extents) elsewhere_.unneed(idOf(*extent), lock);
  exchange_.free(managed.first, pages);
  while (managed.released < pages && !state_.stopped) {
    receive(lock);
    if (managed.released < pages) state_.changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  if (state_.stopped) return;
  region.engine->expectNot(pages);
  subtract(counters().managed_allocations, 1);
  subtract(counters().managed_bytes, region.requested_bytes);
  lock.unlock();
  cpu_->remove(managed.first);
  if (managed.pinned) {
    const InContext current(state_.driver, region.engine->context());
    state_.driver.cuMemHostUnregister(managed.frames->alias());
  }
  managed.frames.reset();
  lock.lock();
  std::fill_n(region_of_.begin() + managed.first, pages, nullptr);
  auto [run, made] = free_ids_.emplace(managed.first, pages);
  if (const auto next = std::next(run);
      next != free_ids_.end() && next->first == run->first + run->second) {
    run->second += next->second;
    free_ids_.erase(next);
  }
  if (run != free_ids_.begin()) {
    const auto before = std::prev(run);
    if (before->first + before->second == run->first) {
      before->second += run->second;
      free_ids_.erase(run);
    }
  }
}

void Managed::bringHome(uint64_t until_ns, Lock& lock) {
  std::vector<std::pair<directory::ExtentId, uint32_t>> runs;
  for (directory::ExtentId id = 0; id < region_of_.size();) {
    const Region* const region = region_of_[id];
    const uint32_t count = region == nullptr ? 1 : static_cast<uint32_t>(region->pages);
    if (region != nullptr) runs.emplace_back(id, count);
    id += count;
  }
  lock.unlock();
  for (const auto& [first, count] : runs) cpu_->want(first, count);
  lock.lock();
  // The pool has let go of a page before the CPU has heard that it is the CPU's.
  const auto isAway = [&](directory::ExtentId first, uint32_t count) {
    lock.unlock();
    const uint32_t away = cpu_->awayOf(first, count);
    lock.lock();
    return away != 0;
  };
  for (const auto& [first, count] : runs)
    while (isAway(first, count) && nowNs() < until_ns && !state_.stopped)
      state_.changed.wait_for(lock, std::chrono::milliseconds(1));
}

uint64_t Managed::callHome(Called& called, Lock& lock) {
  called.resize(region_of_.size());
  std::vector<std::pair<directory::ExtentId, uint32_t>> runs;
  uint64_t away = 0;
  for (directory::ExtentId id = 0; id < region_of_.size(); ++id) {
    if (region_of_[id] == nullptr) continue;
    const ExtentState at = extentAt(id).state;
    if (at == ExtentState::kAbsent || at == ExtentState::kFreeing) {
      called[id] = false;  // who waits may have it yet
      continue;
    }
    ++away;
    if (called[id]) continue;
    called[id] = true;
    if (!runs.empty() && runs.back().first + runs.back().second == id)
      ++runs.back().second;
    else
      runs.emplace_back(id, 1);
  }
  away += asking_;
  if (runs.empty()) return away;
  lock.unlock();
  for (const auto& [first, count] : runs) cpu_->want(first, count);
  lock.lock();
  return away;
}

// --- the pool's thread ---------------------------------------------------------------------------

void Managed::run() {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  state_.driver.cuThreadExchangeStreamCaptureMode(&mode);
  prctl(PR_SET_TIMERSLACK, 1000ul);  // the pauses below are to last microseconds
  auto pause = kShortestPoll;
  bool polls = false;
  auto told = std::chrono::steady_clock::now();
  while (!ended_) {
    if (const auto now = std::chrono::steady_clock::now(); now - told >= kLookPause) {
      told = now;
      tell();
    }
    if (!polls) {
      if (!bell_.try_acquire_for(kLookPause)) continue;
      pause = kShortestPoll;
    } else if (bell_.try_acquire_for(pause)) {
      pause = kShortestPoll;
    } else {
      pause = std::min(2 * pause, kLongestPoll);
    }
    if (ended_) return;
    Lock lock(state_.mutex);
    if (state_.forked.load()) return;
    receive(lock);
    polls = someoneWaits();
    if (!polls) continue;
    lock.unlock();
    state_.streams.poll();
    lock.lock();
    if (completeThoseOver(lock)) pause = kShortestPoll;
    polls = someoneWaits();
  }
}

// What the CPU's agent has asked for, on its own thread: that spares a touch the way through run().
// Where the mutex is taken run() does it, which was rung for as well.
void Managed::serveNow() {
  Lock lock(state_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state_.forked.load()) return;
  receive(lock);
}

// Neither the CPU's agent nor who serves on its thread says anything: whoever waits for that thread
// may hold the locks of the log.
void Managed::tell() {
  if (violated_.exchange(false))
    base::logError(
        "managed memory: the ownership protocol was violated at extent %u (message %d): this is a "
        "mistake of olpager's; paging has stopped",
        violated_extent_.load(), violated_kind_.load());
  const CpuCounters& seen = cpu_->counters();
  if (seen.violations.load() > 0)
    base::warnOnce("managed violation",
                   "managed memory: the CPU's agent got %llu messages that the ownership protocol "
                   "excludes: this is a mistake of olpager's",
                   static_cast<unsigned long long>(seen.violations.load()));
  if (seen.long_waits.load() > 0)
    base::warnOnce("managed long wait",
                   "the CPU has waited for managed memory at 0x%llx for more than a second: "
                   "launches under way reach it (docs/limits.md, Managed memory)",
                   static_cast<unsigned long long>(seen.last_long_wait.load()));
}

// The CPU wants what a launch that is under way may have claimed: nobody rings at the launch's end.
bool Managed::someoneWaits() const {
  return !submitted_.empty() &&
         (elsewhere_.agent().unsettled() > 0 || submitted_.size() > kMostSubmitted);
}

void Managed::receive(Lock& lock) {
  while (exchange_.take(kPoolAgent, inbox_)) {
    const std::vector<directory::Message> messages = std::exchange(inbox_, {});
    for (const directory::Message& message : messages) elsewhere_.receive(message, lock);
  }
  heed(exchange_.news());
}

void Managed::heed(const std::vector<directory::Action>& news) {
  for (const directory::Action& action : news) {
    if (action.kind == directory::ActionKind::kReleased) {
      if (++region_of_[action.extent]->managed->released == region_of_[action.extent]->pages)
        state_.changed.notify_all();
    } else if (action.kind == directory::ActionKind::kViolation) {
      violated(action);
    }
  }
}

// The claims of launches that are over. True: there were some.
bool Managed::completeThoseOver(Lock& lock) {
  bool any = false;
  for (size_t s = 0; s < submitted_.size();) {
    const Submitted entry = submitted_[s];
    if (!entry.launch.isOver()) {
      ++s;
      continue;
    }
    submitted_[s] = submitted_.back();
    submitted_.pop_back();
    elsewhere_.complete(entry.age, lock);
    any = true;
  }
  return any;
}

// --- what the agent asks for ---------------------------------------------------------------------

void Managed::fetch(directory::ExtentId extent, directory::AgentId, directory::Number number,
                    directory::Content, Lock& lock) {
  extentAt(extent).blank = false;
  elsewhere_.landed(extent, number, lock);  // its bytes are in the frame
}

void Managed::clear(directory::ExtentId extent, Lock&) { extentAt(extent).blank = true; }

void Managed::grant(directory::ExtentId id, directory::Mode, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state != ExtentState::kAbsent) return;  // it has it already
  Region& region = *extent.region;
  ManagedRegion& managed = *region.managed;
  if (managed.frames->written(managed.indexOf(extent)))
    region.engine->chunks().forgetKept(managed.pageOf(extent).copy);
  extent.host_valid = true;
  extent.hash_valid = false;
  region.engine->setState(extent, ExtentState::kParked);
  if (extent.blank) return;
  // The CPU may have put pointers there.
  state_.reach.noteUnknown(region, extentsAt(region, extent.address, kPageBytes));
}

void Managed::stop(directory::ExtentId id, Lock& lock) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return elsewhere_.quiet(id, false, lock);
  extent.leaving = true;
  extent.region->engine->giveAway(extent, lock);
}

void Managed::parked(Extent& extent, Lock& lock) { elsewhere_.quiet(idOf(extent), true, lock); }

void Managed::go(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (!extent.leaving) return;
  extent.leaving = false;
  extent.region->engine->keep(extent);
}

void Managed::yield(directory::ExtentId id, Lock&) {
  Extent& extent = extentAt(id);
  if (extent.state == ExtentState::kFreeing) return;
  extent.leaving = extent.blank = false;
  extent.host_valid = extent.hash_valid = false;
  ManagedRegion& managed = *extent.region->managed;
  managed.frames->forgetWrites(managed.indexOf(extent));
  extent.region->engine->setState(extent, ExtentState::kAbsent);
}

void Managed::release(directory::ExtentId, Lock&) {}
void Managed::lend(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }
void Managed::lendOver(directory::ExtentId extent, Lock&) { violated({.extent = extent}); }

void Managed::runnable(directory::Age) { state_.changed.notify_all(); }

// A region that a launch waits for is not freed (Region::wanted).
void Managed::failed(directory::Age, directory::ExtentId extent) { violated({.extent = extent}); }

void Managed::post(const directory::Message& message) { exchange_.post(message); }

void Managed::violated(const directory::Action& action) {
  violated_extent_ = action.extent;
  violated_kind_ = static_cast<int>(action.message.kind);
  violated_ = true;  // tell() says so
  state_.stopped = true;
  state_.changed.notify_all();
}

// --- claims of launches --------------------------------------------------------------------------

ManagedClaim::~ManagedClaim() {
  if (age_ == directory::kNobody || submitted_) return;
  // The mutex is held; nothing below releases it.
  Lock lock(state_.mutex, std::adopt_lock);
  cancel(lock);
  lock.release();
}

void ManagedClaim::cancel(Lock& lock) {
  if (age_ == directory::kNobody || submitted_) return;
  --state_.managed->asking_;
  state_.managed->elsewhere_.cancel(std::exchange(age_, directory::kNobody), lock);
}

void ManagedClaim::over(Lock& lock) {
  if (submitted_ && age_ != directory::kNobody)
    state_.managed->elsewhere_.complete(std::exchange(age_, directory::kNobody), lock);
  cancel(lock);
}

void ManagedClaim::again() {
  needs_.clear();
  looked_at_ = told_ = 0;
}

void ManagedClaim::ask(std::span<Extent* const> needed, Lock& lock) {
  if (state_.managed == nullptr) return;
  Managed& managed = *state_.managed;
  bool away = false;
  for (; looked_at_ < needed.size(); ++looked_at_)
    if (const Extent& extent = *needed[looked_at_]; extent.region->managed != nullptr)
      needs_.push_back({Managed::idOf(extent), directory::Mode::kOwn});
  if (age_ == directory::kNobody) {
    for (const directory::Need& need : needs_) {
      const Extent& extent = managed.extentAt(need.extent);
      away |= extent.state == ExtentState::kAbsent || extent.leaving;
    }
    if (!away) return;
    // Else the launch would wait out the time for which pages stay with who has touched them.
    managed.cpu_->passed(gettid());
    age_ = managed.exchange_.operation(kPoolAgent);
    ++managed.asking_;
    told_ = needs_.size();
    managed.elsewhere_.need(age_, needs_, managed.exchange_.oldest(), lock);
  }
  for (; told_ < needs_.size(); ++told_) managed.elsewhere_.more(age_, needs_[told_], lock);
}

bool ManagedClaim::isRunnable() const {
  return age_ == directory::kNobody || state_.managed->elsewhere_.runnable(age_);
}

bool ManagedClaim::submit() {
  if (age_ == directory::kNobody) return true;
  submitted_ = state_.managed->elsewhere_.submit(age_);
  if (submitted_) --state_.managed->asking_;
  return submitted_;
}

void ManagedClaim::begun(const StreamState& stream, uint64_t number) {
  if (!submitted_) return;
  Managed& managed = *state_.managed;
  managed.submitted_.push_back({age_, StreamPoint(stream, number)});
  if (managed.someoneWaits()) managed.bell_.release();
}

}  // namespace olpager::pager
