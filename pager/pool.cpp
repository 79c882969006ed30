#include "pager/pool.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/size.h"
#include "pager/clock.h"
#include "pager/pool_state.h"

namespace olpager::pager {

Pool::Pool(std::unique_ptr<PoolState> state)
    : Allocations(*state),
      VirtualMemory(*state),
      Streams(*state),
      ExecutorMemory(*state),
      base_(state->options.va_base),
      end_(state->options.va_base + state->options.va_size),
      asks_names_(state->options.reach != Reach::kAll),
      state_(std::move(state)) {}

Result<std::unique_ptr<Pool>> Pool::create(const PoolOptions& options, const DriverApi& driver) {
  PoolOptions given = options;
  if (given.va_base == 0) given.va_base = kDefaultVaBase;
  if (given.va_size == 0) given.va_size = kDefaultVaSize;
  if (given.va_base % kPageBytes != 0 || given.va_size % kPageBytes != 0 ||
      given.va_size > kDefaultVaSize)
    return Error{
        "the global range (OL_VA_BASE, OL_VA_SIZE) must be multiples of 2MiB and at most 16TiB"};
  if (given.vram.bytes != 0 && given.vram.bytes < kPageBytes)
    return Error{"OL_VRAM is below one page (2MiB): " + base::formatSize(given.vram.bytes)};
  // The tier goes with the engines, before the options do.
  const std::shared_ptr<LowerTier> lower = std::exchange(given.lower, nullptr);
  std::unique_ptr<Pool> pool(new Pool(std::make_unique<PoolState>(given, driver)));
  PoolState& state = *pool->state_;
  state.lower.tier = state.devices.host.lower = lower;
  if (Status status = state.book.create(given.va_base, given.va_size); !status)
    return status.error();
  CUdeviceptr reserved = 0;
  const CUresult result = driver.cuMemAddressReserve(&reserved, given.va_size, 0, given.va_base, 0);
  if (result != CUDA_SUCCESS || reserved != given.va_base) {
    if (result == CUDA_SUCCESS) driver.cuMemAddressFree(reserved, given.va_size);
    char text[200];
    rlimit limit{};
    const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
                         limit.rlim_cur < given.va_size;
    if (limited) {
      std::snprintf(text, sizeof(text),
                    "the address space is limited to %s (ulimit -v), and the range takes %s: raise "
                    "the limit, or set "
                    "OL_VA_SIZE to less",
                    base::formatSize(limit.rlim_cur).c_str(),
                    base::formatSize(given.va_size).c_str());
      return Error{text};
    }
    std::snprintf(text, sizeof(text),
                  "the address range 0x%llx + %s is taken in this process (CUDA error %d); set "
                  "OL_VA_BASE to a free one",
                  static_cast<unsigned long long>(given.va_base),
                  base::formatSize(given.va_size).c_str(), static_cast<int>(result));
    return Error{text};
  }
  if (given.reach == Reach::kAll) state.slow.store(true);
  if (given.reach == Reach::kLearned)
    base::logWarn(
        "reach = learned: of an allocation larger than 1/%llu of VRAM a launch is taken to use the "
        "pieces that it "
        "names, as "
        "earlier launches showed them; one that goes beyond them may find memory being moved, "
        "which ends the context. "
        "OL_REACH=traced is safe",
        static_cast<unsigned long long>(kLearnedArenaShare));
  if (lower) {
    lower->setWake([&state] {
      std::lock_guard lock(state.mutex);
      for (auto& engine : state.devices.engines) engine->wake();
    });
  }
  return pool;
}

Pool::~Pool() {
  if (state_ == nullptr) return;
  if (state_->forked.load()) {
    // The mutex may be held, and conditions waited for, by threads that are the parent's.
    static_cast<void>(state_.release());
    return;
  }
  stop();
  while (state_->draining.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // Chunks in use when it was stopped: the driver's memory goes with its contexts, our records of
  // it here.
  const auto forget = [](std::vector<std::unique_ptr<Extent>>& extents) {
    for (auto& extent : extents) {
      delete std::exchange(extent->vram, nullptr);
      const Region* const region = extent->region;  // nullptr: of a handle that is mapped nowhere
      if (region != nullptr && region->managed != nullptr && region->managed->isPlace(extent->host))
        continue;
      delete std::exchange(extent->host, nullptr);
    }
  };
  for (uint32_t id = 1; id < state_->book.regions.end(); ++id)
    forget(state_->book.regions.at(id)->extents);
  for (auto& [number, handle] : state_->programs.handles) forget(handle->extents);
}

void Pool::stop() noexcept try {
  if (state_ == nullptr || state_->forked.load()) return;
  std::vector<std::shared_ptr<Engine>>
      engines;  // one whose context is destroyed meanwhile stays until it is stopped
  {
    Lock lock(state_->mutex);
    // Objects of the program that are destroyed after this may look at managed memory still.
    constexpr uint64_t kHomePatienceNs = 2'000'000'000;
    if (state_->managed != nullptr && !state_->stopped)
      state_->managed->bringHome(nowNs() + kHomePatienceNs, lock);
    state_->stopped = true;
    engines = state_->devices.engines;
  }
  state_->changed.notify_all();
  for (const auto& engine : engines) engine->stop();
  if (PoolAgent* const agent = state_->agent(); agent != nullptr) agent->stopThreads();
  state_->suspended.stopThread();
  // Memservers are told that it is over; transfers under way end first.
  std::shared_ptr<LowerTier> going;
  {
    std::lock_guard lock(state_->mutex);
    going.swap(state_->lower.tier);
    state_->devices.host.lower.reset();
  }
  if (going) going->setWake({});
} catch (const std::exception&) {
  // No memory for the list while the process ends: its threads end with it.
}

// Another thread may have been changing `engines` when the process was copied.
void Pool::forked() noexcept {
  state_->forked.store(true);
  state_->devices.abandonEngines();
  if (PoolAgent* const agent = state_->agent(); agent != nullptr) agent->forked();
  state_->suspended.forked();
}

void Pool::startSuspending() { state_->suspended.start(); }
void Pool::giveUp(ExternalOperation& operation) { state_->suspended.giveUp(operation); }

bool Pool::paging() const { return state_->slow.load(std::memory_order_relaxed); }

bool Pool::hasManaged() const { return state_->has_managed.load(std::memory_order_relaxed); }
bool Pool::heedsHostFunctions() const { return state_->heedsHostFunctions(); }

void Pool::wantOnCpu(uint64_t address, uint64_t bytes) {
  if (state_->forked.load() || !contains(address)) return;
  Lock lock(state_->mutex);
  const Region* const region = state_->book.find(address);
  if (region == nullptr || region->dead || region->managed == nullptr ||
      !holds(*region, address, bytes))
    return;
  const uint64_t first = (address - region->base) / kPageBytes;
  const uint64_t last = (address + bytes - 1 - region->base) / kPageBytes;
  const directory::ExtentId id = region->managed->first;
  lock.unlock();
  state_->managed->wantOnCpu(id + static_cast<directory::ExtentId>(first),
                             static_cast<uint32_t>(last - first + 1));
}

bool Pool::mayHoldRoot(uint64_t address, uint64_t bytes) const {
  return state_->reach.roots.span().overlaps(address, bytes);
}

uint64_t Pool::regionSteps() const {
  Lock lock(state_->mutex);
  return state_->book.regions.steps();
}

void Pool::illegalAccess(CUcontext context) {
  if (state_->forked.load()) return;
  Lock lock(state_->mutex);
  static_cast<void>(tellUnmapped(*state_, context));
}

}  // namespace olpager::pager
