#include "pager/managed/managed.h"

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
#include "pager/residency/fetches.h"

namespace olpager::pager {

namespace {

constexpr directory::AgentId kPoolAgent = 0, kCpuAgent = 1;

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

Managed::Managed(PoolState& state) : PoolAgent(state, kPoolAgent) {}

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
    made->startThread();
  } catch (const std::exception& error) {
    return Error{std::string("managed memory: no thread for it: ") + error.what() +
                 " (see ulimit -u and the cgroup's pids.max)"};
  }
  return made;
}

Managed::~Managed() { stopThreads(); }

void Managed::stopThreads() noexcept {
  PoolAgent::stopThreads();
  if (cpu_ != nullptr) cpu_->stop();
}

void Managed::forked() noexcept {
  PoolAgent::forked();
  if (cpu_ != nullptr) cpu_->forked();
}

// --- regions -------------------------------------------------------------------------------------

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
  managed->first = numbers_.take(pages);
  managed->frames = std::move(frames);
  region.managed = std::move(managed);
  for (auto& extent : region.extents) extent->host = region.managed->placeOf(*extent);
  PoolAgent::add(region);
  exchange_.allocate(region.managed->first, pages);
  region.engine->fetching().expectPages(pages);
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
  abandon(region, lock);
  exchange_.free(managed.first, pages);
  while (managed.released < pages && !state_.stopped) {
    turn(lock);
    if (managed.released < pages) state_.changed.wait_for(lock, std::chrono::milliseconds(1));
  }
  if (state_.stopped) return;
  region.engine->fetching().expectNot(pages);
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
  remove(region);
  numbers_.give(managed.first, pages);
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
      called[id] = false;  // the waiter may have it yet
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

// Serves the CPU agent's requests on its own thread: that spares a touch the way through the
// pool's. If the mutex is taken, its holder does it, which was rung for as well.
void Managed::serveNow() {
  Lock lock(state_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || state_.forked.load()) return;
  turn(lock);
}

// Neither the CPU's agent nor a thread that serves in its place says anything: a thread that waits
// for it may hold the locks of the log.
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

void Managed::turn(Lock& lock) {
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

// --- what the agent asks for ---------------------------------------------------------------------

void Managed::fetch(directory::ExtentId extent, directory::AgentId, directory::Number number,
                    directory::Content, Lock& lock) {
  extentAt(extent).blank = false;
  elsewhere_.landed(extent, number, lock);  // its bytes are in the frame
}

void Managed::clear(directory::ExtentId extent, Lock&) { extentAt(extent).blank = true; }

bool Managed::take(Extent& extent) {
  ManagedRegion& managed = *extent.region->managed;
  if (managed.frames->written(managed.indexOf(extent)))
    extent.region->engine->chunks().forgetKept(managed.pageOf(extent).copy);
  extent.host_valid = true;
  extent.hash_valid = false;
  return !extent.blank;
}

void Managed::give(Extent& extent) {
  extent.blank = false;
  ManagedRegion& managed = *extent.region->managed;
  managed.frames->forgetWrites(managed.indexOf(extent));
}

std::unique_ptr<ToldOperation> Managed::newOperation() {
  // Else the launch would wait out the time for which pages stay with the side that has touched
  // them.
  cpu_->passed(gettid());
  auto operation = std::make_unique<ToldOperation>();
  operation->age = exchange_.operation(kPoolAgent);
  operation->oldest = exchange_.oldest();
  return operation;
}

// A region that a launch waits for is not freed (Region::wanted).
void Managed::failed(directory::Age, directory::ExtentId extent) { violated({.extent = extent}); }

void Managed::post(const directory::Message& message) { exchange_.post(message); }

void Managed::violated(const directory::Action& action) {
  violated_extent_ = action.extent;
  violated_kind_ = static_cast<int>(action.message.kind);
  violated_ = true;  // tell() says so
  stopPaging();
}

}  // namespace olpager::pager
