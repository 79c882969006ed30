#include "pager/pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <exception>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "base/size.h"
#include "pager/budgets.h"
#include "pager/clock.h"
#include "pager/kernels/page_pass.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

// Upper 32-bit words of addresses are 0x2A5D.. and up: no round number, so that pairs of small
// integers in a launch's parameters or in memory do not look like addresses.
constexpr uint64_t kArenaExtents = 32;  // of an arena, so many fit VRAM at least

// How long an allocation that finds the pool full waits for memory that was freed in stream order.
// What is before such a free may wait for this very thread. Native gives a stream-ordered
// allocation the memory in the order of the stream.
constexpr uint64_t kDevicePatienceNs = 1'000'000'000;
constexpr uint64_t kStreamOrderedPatienceNs = 10'000'000'000;

}  // namespace

Result<std::unique_ptr<Pool>> Pool::create(const PoolOptions& options, const DriverApi& driver) {
  std::unique_ptr<Pool> pool(new Pool);
  PoolOptions given = options;
  if (given.va_base == 0) given.va_base = kDefaultVaBase;
  if (given.va_size == 0) given.va_size = kDefaultVaSize;
  if (given.va_base % kPageBytes != 0 || given.va_size % kPageBytes != 0 ||
      given.va_size > kDefaultVaSize)
    return Error{
        "the global range (OL_VA_BASE, OL_VA_SIZE) must be multiples of 2MiB and at most 16TiB"};
  if (given.vram.bytes != 0 && given.vram.bytes < kPageBytes)
    return Error{"OL_VRAM is below one page (2MiB): " + base::formatSize(given.vram.bytes)};
  pool->base_ = given.va_base;
  pool->end_ = given.va_base + given.va_size;
  pool->asks_names_ = given.reach != Reach::kAll;
  const auto remote =
      std::exchange(given.remote, nullptr);  // it goes with the engines, before the options do
  pool->state_ = std::make_unique<PoolState>(given, driver);
  PoolState& state = *pool->state_;
  state.remote = remote;
  auto map = space::PageMap::create(given.va_base, given.va_size);
  if (!map) return map.error();
  state.map = std::move(map).value();
  if (Status status = state.regions.create(); !status) return status.error();
  state.addresses = std::make_unique<space::RegionAddresses>(*state.map);
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
  if (remote) {
    remote->setWake([&state] {
      std::lock_guard lock(state.mutex);
      for (auto& engine : state.engines) engine->wake();
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
  // What was in use when it was stopped: the driver's memory goes with its contexts, our records of
  // it here.
  const auto forget = [](std::vector<std::unique_ptr<Extent>>& extents) {
    for (auto& extent : extents) {
      delete std::exchange(extent->vram, nullptr);
      delete std::exchange(extent->host, nullptr);
    }
  };
  for (uint32_t id = 1; id < state_->regions.end(); ++id) forget(state_->regions.at(id)->extents);
  for (auto& [number, handle] : state_->vmm_handles) forget(handle->extents);
}

void Pool::stop() noexcept try {
  if (state_ == nullptr || state_->forked.load()) return;
  std::vector<std::shared_ptr<Engine>>
      engines;  // one whose context is destroyed meanwhile stays until it is stopped
  {
    std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    engines = state_->engines;
  }
  state_->changed.notify_all();
  for (const auto& engine : engines) engine->stop();
  // Memservers are told that it is over; transfers under way end first.
  std::shared_ptr<RemoteTier> going;
  {
    std::lock_guard lock(state_->mutex);
    going.swap(state_->remote);
  }
  if (going) going->setWake({});
} catch (const std::exception&) {
  // No memory for the list while the process ends: its threads end with it.
}

// Whatever another thread was doing to `engines` when the process was copied.
void Pool::forked() noexcept {
  state_->forked.store(true);
  for (const auto& place : state_->for_child) {
    if (Engine* const engine = place.load()) engine->abandon();
  }
}

// --- allocations ---------------------------------------------------------------------------------

namespace {

/// VRAM budget of a device and host limit of all together, found out once: what the program was
/// told before the first allocation is what it gets. Without the mutex; a context of the device is
/// current.
std::pair<uint64_t, uint64_t> budgetsOf(PoolState& state, CUdevice device) {
  {
    Lock lock(state.mutex);
    if (const auto known = state.vram_budgets.find(device);
        known != state.vram_budgets.end() && state.host.known)
      return {known->second, state.host.limit};
  }
  uint64_t vram = vramBudget(state.options.vram, state.driver);
  const uint64_t host = hostLimit(state.options.host);
  size_t free_bytes = 0, total_bytes = 0;
  // Without a context there is nothing to keep yet.
  const bool keep = state.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS;
  Lock lock(state.mutex);
  if (!state.host.known) {
    state.host.known = true;
    state.host.limit = state.host.most = host;
  }
  if (const auto known = state.vram_budgets.find(device); known != state.vram_budgets.end())
    vram = known->second;
  return {keep ? state.vram_budgets.try_emplace(device, vram).first->second : vram,
          state.host.limit};
}

/// By the Report option: what can be mapped on this node (of VRAM and of host memory), or this and
/// what memservers have. `used` bytes of it are not free.
MemoryInfo reported(const PoolState& state, CUdevice device, uint64_t vram, uint64_t host,
                    uint64_t used) {
  const uint64_t all =
      vram + host + (state.options.report == Report::kPool ? remoteCapacity(state) : 0);
  return {all - std::min(all, used), all, vram, state.vram_set.contains(device)};
}

}  // namespace

CUresult engineFor(PoolState& state, CUcontext context, CUdevice device, Lock& lock, Engine** out) {
  const auto beingMade = [&] {
    return std::find(state.starting.begin(), state.starting.end(), device) != state.starting.end();
  };
  while (beingMade()) state.changed.wait_for(lock, std::chrono::milliseconds(10));
  if (Engine* engine = state.engineOf(device); engine != nullptr) {
    *out = engine;
    return CUDA_SUCCESS;
  }
  if (state.refused.contains(device)) return CUDA_ERROR_NOT_SUPPORTED;
  if (state.stopped) return CUDA_ERROR_DEINITIALIZED;
  state.starting.reserve(state.starting.size() + 1);
  state.engines.reserve(state.engines.size() + state.starting.size() + 1);
  state.starting.push_back(device);
  // Its end takes the mutex: it must not go while that is held, so whatever may throw is inside,
  // and what follows does not.
  std::shared_ptr<Engine> engine;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  try {
    lock.unlock();
    int numa = 0;
    if (state.driver.cuDeviceGetAttribute(&numa, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) !=
        CUDA_SUCCESS)
      numa = 0;
    const auto [vram, host] = [&] {
      const InContext current(state.driver, context);  // the caller's may be another device's
      return budgetsOf(state, device);
    }();
    lock.lock();
    engine = std::make_shared<Engine>(state, device, context);
    result = engine->start(vram, numa, lock);
    if (result == CUDA_SUCCESS && state.stopped) result = CUDA_ERROR_DEINITIALIZED;
    const bool in_place = engine->chunks().hostMappable();
    if (result == CUDA_SUCCESS && state.options.reach == Reach::kAll && !in_place) {
      state.refused.insert(device);  // said once: the machine will not change
      result = CUDA_ERROR_NOT_SUPPORTED;
      base::logError(
          "device %d: reach = all needs host memory that the GPU can use in place, which this "
          "machine refuses (in a "
          "container it may need CAP_SYS_NICE): run with reach = traced",
          device);
    }
    if (result == CUDA_SUCCESS)
      base::logInfo("device %d: local mode, VRAM budget %s, host tier %s%s", device,
                    base::formatSize(vram).c_str(), base::formatSize(host).c_str(),
                    in_place ? ""
                             : "; host memory can't be mapped in place here: what a launch reaches "
                               "has to fit VRAM");
  } catch (const std::exception& failure) {  // no memory, no thread
    if (!lock.owns_lock()) lock.lock();
    result = CUDA_ERROR_OUT_OF_MEMORY;
    base::logError("device %d: the pager could not start: %s", device, failure.what());
  }
  std::erase(state.starting, device);
  state.changed.notify_all();
  if (result != CUDA_SUCCESS) {
    if (engine != nullptr) {
      lock.unlock();
      engine->stop();
      engine->releaseAll();
      engine.reset();
      lock.lock();
    }
    // A context that is gone is the caller's matter. It is asked for again with each call: the next
    // one may be another.
    const bool gone =
        result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!state.refused.contains(device) && !gone)
      base::logError("device %d: the pager could not start (CUDA error %d)", device,
                     static_cast<int>(result));
    return result;
  }
  for (const auto& [accessing, owner] : state.peers)
    if (owner == device) static_cast<void>(engine->chunks().addPeer(accessing));
  *out = engine.get();
  state.showToChild(nullptr, engine.get());
  state.engines.push_back(std::move(engine));
  tellRoom(state);
  return CUDA_SUCCESS;
}

namespace {

// One region's want, on its engine's list and keeping the region from eviction until the wait ends,
// however it does.
class WaitingFor {
 public:
  WaitingFor(Engine& engine, Want& want, Region& region)
      : engine_(engine), want_(want), region_(region) {
    engine.addWant(&want);
    ++region.wanted;
    for (Extent* extent : want.extents) ++extent->wanted;
  }
  ~WaitingFor() {
    engine_.removeWant(&want_);
    --region_.wanted;
    for (Extent* extent : want_.extents) --extent->wanted;
  }
  WaitingFor(const WaitingFor&) = delete;
  WaitingFor& operator=(const WaitingFor&) = delete;

 private:
  Engine& engine_;
  Want& want_;
  Region& region_;
};

}  // namespace

CUresult bringToVram(PoolState& state, Region& region, uint64_t address, uint64_t bytes,
                     Lock& lock) {
  Engine& engine = *region.engine;
  Want want;
  want.in_vram = true;
  want.since_ns = nowNs();
  const ExtentRange range = extentsAt(region, address, bytes);
  for (size_t e = range.first; e < range.last; ++e) want.extents.push_back(region.extents[e].get());
  const WaitingFor waiting(engine, want, region);
  const auto there = [&] {
    for (const Extent* extent : want.extents)
      if (extent->state != ExtentState::kVram) return false;
    return true;
  };
  // In place is no help here: who uses the address does not come by again.
  while (!there() && !want.failed && !want.lost && !want.in_place && !engine.broken() &&
         !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
  if (want.lost) return CUDA_ERROR_ECC_UNCORRECTABLE;
  return there() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

namespace {

struct NewRegion {
  RegionKind kind;
  AllocationKind allocation_kind;
  uint64_t pages;
  uint64_t bytes;
  uint64_t at = 0;  // an address of the placed part; 0: anywhere else
};

std::optional<uint64_t> takeAddresses(PoolState& state, const NewRegion& wanted) {
  if (wanted.at == 0) return state.addresses->allocate(wanted.pages);
  if (state.placed == nullptr || !state.placed->allocateAt(wanted.at, wanted.pages))
    return std::nullopt;
  return wanted.at;
}

Region* makeRegion(PoolState& state, Engine& engine, CUcontext context, const NewRegion& wanted) {
  const auto address = takeAddresses(state, wanted);
  if (!address) return nullptr;
  Region* region = state.regions.take();
  if (region == nullptr) {
    state.addressesOf(*address).release(*address);
    return nullptr;
  }
  resetRegion(*region);
  region->base = *address;
  region->pages = wanted.pages;
  region->kind = wanted.kind;
  region->tiny = wanted.pages * kPageBytes * kTinyShare <= engine.chunks().vramBudget();
  region->allocation_kind = wanted.allocation_kind;
  region->requested_bytes = wanted.bytes;
  region->buffer_id = state.next_buffer_id++;
  region->context = context;
  region->device = engine.device();
  region->engine = &engine;
  const uint64_t budget = engine.chunks().vramBudget();
  const bool arena = wanted.kind != RegionKind::kSlab &&
                     isArenaSize(wanted.pages * kPageBytes, budget, state.options.reach);
  // An arena is larger than a good part of VRAM: its extents are a small part.
  const uint64_t largest =
      std::bit_floor(std::max<uint64_t>(1, budget / kArenaExtents / kPageBytes));
  region->divisible = arena;
  if (arena) makeArena(state, *region);
  const auto cut = [&](uint64_t pages, const auto& visitor) {
    const uint32_t usual = space::largestExtentPages(pages);
    space::splitIntoExtents(
        pages, arena ? static_cast<uint32_t>(std::min<uint64_t>(usual, largest)) : usual, visitor);
  };
  cut(wanted.pages, [&](const space::Extent& piece) {
    auto extent = std::make_unique<Extent>();
    extent->region = region;
    extent->address = region->base + piece.first_page * kPageBytes;
    extent->order = static_cast<uint8_t>(std::countr_zero(piece.pages));
    region->extents.push_back(std::move(extent));
  });
  region->extents.shrink_to_fit();
  region->unusable = static_cast<uint32_t>(region->extents.size());
  region->blocked.store(region->unusable);
  state.allocated_bytes += wanted.pages * kPageBytes;
  engine.addAllocated(static_cast<int64_t>(wanted.pages * kPageBytes));
  return region;
}

/// From here on launches can name the region. What of it is not in VRAM makes them take the slow
/// path.
void publish(PoolState& state, Region& region) {
  region.published = true;
  state.outside += region.blocked.load();
  state.updateSlow();
  state.addressesOf(region.base).publish(region.base, region.id);
}

/// True when `bytes` more, all in one region, fit the pool of the engine's node.
bool fits(const Engine& engine, uint64_t bytes) {
  return engine.allocated() + bytes <= engine.capacity() && bytes <= engine.largestRegion();
}

/// Says once why an allocation is refused.
void tellNoRoom(const PoolState& state, const Engine& engine, uint64_t bytes) {
  if (engine.allocated() + bytes > engine.capacity()) {
    base::warnOnce("out of memory",
                   "device %d: an allocation of %s is refused (out of memory): %s of %s are "
                   "allocated. What there is: "
                   "%s of VRAM, %s of host RAM, %s at memservers (OL_VRAM, OL_HOST, OL_MEMSERVER)",
                   engine.device(), base::formatSize(bytes).c_str(),
                   base::formatSize(engine.allocated()).c_str(),
                   base::formatSize(engine.capacity()).c_str(),
                   base::formatSize(engine.chunks().vramBudget()).c_str(),
                   base::formatSize(engine.chunks().hostLimit()).c_str(),
                   base::formatSize(remoteCapacity(state)).c_str());
    return;
  }
  if (state.stopped) return;
  if (bytes <= engine.largestRegion()) {
    base::warnOnce("out of addresses",
                   "device %d: an allocation of %s is refused: the address range of %s "
                   "(OL_VA_SIZE) has no such gap left",
                   engine.device(), base::formatSize(bytes).c_str(),
                   base::formatSize(state.map->size()).c_str());
    return;
  }
  base::warnOnce(
      "larger than VRAM",
      "device %d: an allocation of %s is refused: what a launch reaches has to fit %s of %s%s",
      engine.device(), base::formatSize(bytes).c_str(),
      engine.chunks().hostMappable() ? "VRAM and host RAM together," : "the VRAM budget",
      base::formatSize(engine.largestRegion()).c_str(),
      engine.chunks().hostMappable() ? "" : " (host memory can't be mapped in place here)");
}

/// Takes a region away: it is quiet, and no launch names it any more.
void dropRegion(PoolState& state, Region* region, Lock& lock) {
  Engine& engine = *region->engine;
  region->dead =
      true;  // first: nobody else frees it, and no launch that follows pointers comes to it
  // The process ends and no thread of ours moves anything any more: its memory goes with the
  // process.
  if (state.stopped) return;
  while (region->wanted > 0) state.changed.wait_for(lock, std::chrono::milliseconds(1));
  state.addressesOf(region->base).withdraw(region->base);
  // It counts no more: else each free would turn `slow` on and off again.
  region->published = false;
  state.outside -= region->blocked.load();
  state.updateSlow();
  if (region->pins > 0) {
    subtract(engine.figures().pinned_extents, region->extents.size());
    subtract(engine.figures().pinned_bytes, region->pages * kPageBytes);
  }
  state.predictor.forget(unitOf(*region));
  for (auto& extent : region->extents) {
    // The engine's thread may be moving it: it ends in a stable state.
    while (moving(extent->state)) {
      if (state.stopped) return;
      engine.hurry(*extent);
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
      Engine::finishRemote(state);  // the engine that does so may have no thread any more
    }
    if (extent->state == ExtentState::kRetiring) engine.cancelRetiring(*extent);
    extent->left_mapped = extent->mapped();
    engine.setState(*extent, ExtentState::kFreeing);
  }
  engine.forget(region);
  for (auto& extent : region->extents) engine.dismantle(*extent, lock);
  region->extents.clear();
  region->blocked.store(0);
  region->edges.clear();
  region->piece_edges.clear();
  region->arena.reset();
  engine.addAllocated(-static_cast<int64_t>(region->pages * kPageBytes));
  state.allocated_bytes -= region->pages * kPageBytes;
  state.addressesOf(region->base).release(region->base);
  state.regions.give(region);
  state.changed.notify_all();
}

// A root that is in the table no more.
void dropRoot(PoolState& state, Region& region, Lock& lock) {
  region.dead = true;
  if (Region* const around = state.map->contains(region.base) ? state.find(region.base) : nullptr;
      around != nullptr)
    --around->fixed;
  while (region.wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  region.edges.clear();
  region.piece_edges.clear();
  state.regions.give(&region);
}

// Whether the CPU may look at managed memory while kernels run.
bool usedAtOnce(const DriverApi& driver) {
  CUdevice device = 0;
  int at_once = 0;
  return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         driver.cuDeviceGetAttribute(&at_once, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                     device) == CUDA_SUCCESS &&
         at_once != 0;
}

space::SlabAllocator& slabsFor(PoolState& state, Engine& engine, CUcontext context, bool placed) {
  auto& slabs = state.slabs[{engine.device(), context, placed}];
  if (slabs == nullptr)
    slabs = std::make_unique<space::SlabAllocator>(space::SlabAllocator::Callbacks{
        [&state, &engine, context](uint64_t at) -> std::optional<uint64_t> {
          if (!fits(engine, kPageBytes)) return std::nullopt;
          Region* region =
              makeRegion(state, engine, context,
                         {RegionKind::kSlab, AllocationKind::kDevice, 1, kPageBytes, at});
          if (region == nullptr) return std::nullopt;
          state.new_slabs.push_back(region);
          return region->base;
        },
        // The mutex must not be released inside the allocator: the caller takes the slab away
        // afterwards.
        [&state](uint64_t address) { state.empty_slabs.push_back(state.find(address)); }});
  return *slabs;
}

/// Frees a slot or an allocation whose work is done. Under the mutex.
CUresult freeQuiet(PoolState& state, CUdeviceptr address, Lock& lock) {
  Region* region = state.find(address);
  if (region == nullptr || region->dead) return CUDA_ERROR_INVALID_VALUE;
  DeviceCounters& figures = region->engine->figures();
  if (region->kind == RegionKind::kSlab) {
    const auto it = state.small.find(address);
    if (it == state.small.end()) return CUDA_ERROR_INVALID_VALUE;
    subtract(figures.allocated_bytes, it->second.bytes);
    subtract(figures.allocations, 1);
    state.small.erase(it);
    slabsFor(state, *region->engine, region->context, state.isPlaced(address)).release(address);
    while (!state.empty_slabs.empty()) {
      Region* slab = state.empty_slabs.back();
      state.empty_slabs.pop_back();
      // It releases the mutex. Who chose an address in the slab knows of this free only when it is
      // over.
      const uint64_t base = slab->base;
      const bool placed = state.isPlaced(base);
      if (placed) state.leaving_slabs.insert(base);
      dropRegion(state, slab, lock);
      if (placed) state.leaving_slabs.erase(base);
    }
    return CUDA_SUCCESS;
  }
  if (region->base != address || region->kind != RegionKind::kAllocation)
    return CUDA_ERROR_INVALID_VALUE;
  subtract(figures.allocated_bytes, region->requested_bytes);
  subtract(figures.allocations, 1);
  dropRegion(state, region, lock);
  return CUDA_SUCCESS;
}

/// True when `address` is what an allocation was given out as.
bool isBase(const PoolState& state, CUdeviceptr address) {
  if (state.deferred_addresses.contains(address)) return false;  // freed in stream order
  const Region* region = state.find(address);
  if (region == nullptr || region->dead) return false;
  if (region->kind == RegionKind::kSlab) return state.small.contains(address);
  return region->kind == RegionKind::kAllocation && region->base == address;
}

/// Frees what was freed in stream order and whose event has come, waiting for one of those until
/// `until_ns`. True when something was freed.
bool reapDeferred(PoolState& state, uint64_t until_ns, Lock& lock) {
  constexpr size_t kStreams = 64, kOfEach = 16;  // at a time
  bool any = false;
  while ((!state.deferred.empty() || state.looking > 0) && !state.stopped) {
    // The first ones of each stream: what is behind one that has not come has not either. Of more
    // streams others the next time.
    std::vector<std::pair<StreamKey, std::deque<DeferredFree>>> pending;
    auto at = state.deferred.upper_bound(state.deferred_last);
    for (size_t streams = std::min(kStreams, state.deferred.size()); streams != 0; --streams) {
      if (at == state.deferred.end()) at = state.deferred.begin();
      auto& all = at->second;
      const auto end = all.begin() + static_cast<ptrdiff_t>(std::min(kOfEach, all.size()));
      pending.emplace_back(at->first, std::deque(all.begin(), end));
      all.erase(all.begin(), end);
      state.deferred_last = at->first;
      at = all.empty() ? state.deferred.erase(at) : std::next(at);
    }
    std::vector<DeferredFree> come;
    ++state.looking;
    lock.unlock();
    for (auto& [stream, entries] : pending) {
      while (!entries.empty() &&
             state.driver.cuEventQuery(entries.front().event) != CUDA_ERROR_NOT_READY) {
        state.driver.cuEventDestroy_v2(entries.front().event);
        come.push_back(entries.front());
        entries.pop_front();
      }
    }
    lock.lock();
    --state.looking;
    for (const auto& [stream, entries] : pending) {
      if (entries.empty()) continue;
      auto& all = state.deferred[stream];
      all.insert(all.begin(), entries.begin(), entries.end());
    }
    for (const DeferredFree& entry : come) {
      state.deferred_addresses.erase(entry.address);
      freeQuiet(state, entry.address, lock);  // releases the mutex
      any = true;
    }
    if (any || nowNs() >= until_ns) break;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  return any;
}

}  // namespace

CUresult Pool::setPlaced(uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > (end_ - base_) / 2)
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  if (state.placed != nullptr || state.addresses->highWaterPages() != 0)
    return CUDA_ERROR_NOT_PERMITTED;
  state.placed = std::make_unique<space::RegionAddresses>(*state.map, base_, bytes);
  state.addresses =
      std::make_unique<space::RegionAddresses>(*state.map, base_ + bytes, end_ - base_ - bytes);
  return CUDA_SUCCESS;
}

CUresult Pool::allocate(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                        CUdeviceptr* out) {
  return allocateOne(context, device, bytes, kind, 0, out);
}

CUresult Pool::allocateAt(CUcontext context, CUdevice device, CUdeviceptr address, uint64_t bytes) {
  {
    Lock lock(state_->mutex);
    if (!state_->isPlaced(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  CUdeviceptr made = 0;
  return allocateOne(context, device, bytes, AllocationKind::kDevice, address, &made);
}

Pool::Room Pool::room(CUdevice device) const {
  Lock lock(state_->mutex);
  const Engine* const engine = state_->engineOf(device);
  if (engine == nullptr) return {};
  const uint64_t bytes = engine->capacity() - std::min(engine->capacity(), engine->allocated());
  return {bytes, std::min(bytes, engine->largestRegion())};
}

bool Pool::hasEngine(CUdevice device) const {
  Lock lock(state_->mutex);
  return state_->engineOf(device) != nullptr;
}

void Pool::prepare(CUcontext context, CUdevice device) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  Lock lock(state.mutex);
  Engine* engine = nullptr;
  static_cast<void>(engineFor(state, context, device, lock, &engine));
}

CUresult Pool::allocateOne(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                           uint64_t at, CUdeviceptr* out) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == 0 || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Engine* engine = nullptr;
  if (const CUresult result = engineFor(state, context, device, lock, &engine);
      result != CUDA_SUCCESS)
    return result;
  reapDeferred(state, 0, lock);
  const uint64_t until =
      nowNs() +
      (kind == AllocationKind::kStreamOrdered ? kStreamOrderedPatienceNs : kDevicePatienceNs);
  for (;;) {
    CUdeviceptr address = 0;
    // What is below releases the mutex: the context may be gone since, and the engine with it.
    if (state.engineOf(device) != engine) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (bytes < kPageBytes) {
      space::SlabAllocator& slabs = slabsFor(state, *engine, context, at != 0);
      if (at == 0) {
        address = slabs.allocate(bytes).value_or(0);
      } else if (slabs.allocateAt(at, bytes)) {
        address = at;
      }
      if (address != 0) {
        state.small[address] = {bytes, state.next_buffer_id++, context, kind};
        std::vector<Region*> fresh;
        fresh.swap(state.new_slabs);
        for (Region* region : fresh)
          region->slot_bytes = static_cast<uint32_t>(space::SlabAllocator::slotBytes(bytes));
        for (Region* region : fresh) engine->mapNew(*region, lock);
        for (Region* region : fresh) publish(state, *region);
        if (!fresh.empty()) state.changed.notify_all();
        // Another thread may be mapping the slab still.
        while (state.find(address) == nullptr)
          state.changed.wait_for(lock, std::chrono::milliseconds(1));
      }
    } else {
      const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
      Region* region = fits(*engine, pages * kPageBytes)
                           ? makeRegion(state, *engine, context,
                                        {RegionKind::kAllocation, kind, pages, bytes, at})
                           : nullptr;
      if (region != nullptr) {
        // Mapped before anybody can name it; what finds no room stays empty and is mapped at its
        // first use.
        engine->mapNew(*region, lock);
        publish(state, *region);
        address = region->base;
      }
    }
    if (address != 0) {
      add(engine->figures().allocated_bytes, bytes);
      add(engine->figures().allocations);
      *out = address;
      return CUDA_SUCCESS;
    }
    if (at != 0 && !state.stopped && state.leaving_slabs.contains(at / kPageBytes * kPageBytes)) {
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    // There is room, so it is the address that is taken.
    if (at != 0 && fits(*engine, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes))
      return CUDA_ERROR_INVALID_VALUE;
    if (bytes > engine->largestRegion() || !reapDeferred(state, until, lock)) {
      tellNoRoom(state, *engine, bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
}

CUresult Pool::free(CUdeviceptr address) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  uint64_t number = 0;
  Hazards::Snapshot launching;
  {
    Lock lock(state.mutex);
    if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
    context = state.find(address)->context;
    number = state.launch_number.load();
    hazards().snapshot(launching);
  }
  // As native: returns when all work of the context is done. What other threads are about to submit
  // is waited for first, so that every launch up to `number` is among that work.
  while (!Hazards::passed(launching)) std::this_thread::yield();
  const CUresult result = state.streams.synchronize(context, number);
  if (result != CUDA_SUCCESS && !endsContext(result)) return result;
  Lock lock(state.mutex);
  if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
  const Region* region = state.find(address);
  // Launches of other contexts and devices that reach it.
  while (result == CUDA_SUCCESS && !region->engine->broken() &&
         !state.streams.quiet(std::min(number, region->stamp.load()))) {
    lock.unlock();
    state.streams.poll();
    drainUnmarked(state, number);
    // What is not marked is not known of before the capture ends, which its thread may do only
    // after this one.
    if (state.streams.capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
    if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult freed = freeQuiet(state, address, lock);
  return result != CUDA_SUCCESS ? result : freed;
}

bool Pool::isAllocated(CUdeviceptr address) const {
  if (state_->forked.load() || !contains(address)) return false;
  Lock lock(state_->mutex);
  return isBase(*state_, address);
}

namespace {

// An event behind what is in the stream. It has to be of the stream's context, which need not be
// the caller's.
CUresult eventBehind(const DriverApi& driver, const StreamKey& stream, CUevent* event) {
  const InContext current(driver, stream.context);
  CUresult result = current.result();
  if (result == CUDA_SUCCESS) result = driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuEventRecord(*event, stream.stream);
  if (result != CUDA_SUCCESS) driver.cuEventDestroy_v2(*event);
  return result;
}

}  // namespace

CUresult Pool::freeAsync(CUdeviceptr address, const StreamKey& stream) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  {
    Lock lock(state.mutex);
    if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
  }
  CUevent event = nullptr;
  if (const CUresult result = eventBehind(state.driver, stream, &event); result != CUDA_SUCCESS)
    return result;
  Lock lock(state.mutex);
  if (!isBase(state, address)) {
    lock.unlock();
    state.driver.cuEventDestroy_v2(event);
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.deferred[stream].push_back({address, event});
  state.deferred_addresses.insert(address);
  reapDeferred(state, 0, lock);
  return CUDA_SUCCESS;
}

Residency Pool::residency(uint64_t address) const {
  Residency found;
  Lock lock(state_->mutex);
  const Region* region = contains(address) ? state_->find(address) : nullptr;
  if (region == nullptr || region->dead) return found;
  found.sparse = region->isSparse();
  for (const auto& extent : region->extents) {
    const bool in_vram = extent->mapped() && extent->vram != nullptr;
    (in_vram ? found.vram : extent->mapped() ? found.in_place : found.other) += extent->bytes();
  }
  return found;
}

bool Pool::describe(uint64_t address, AllocationInfo* out) const {
  PoolState& state = *state_;
  if (!contains(address) || state.forked.load()) return false;
  Lock lock(state.mutex);
  const Region* region = state.find(address);
  if (region == nullptr || region->dead || address >= region->end()) return false;
  out->context = region->context;
  out->device = region->device;
  if (region->kind == RegionKind::kSlab) {
    const auto slabs = state.slabs.find({region->device, region->context, state.isPlaced(address)});
    if (slabs == state.slabs.end()) return false;
    const auto slot = slabs->second->find(address);
    if (!slot) return false;
    const auto it = state.small.find(slot->address);
    if (it == state.small.end() || address >= slot->address + slot->capacity) return false;
    out->base = slot->address;
    out->bytes = it->second.bytes;
    out->buffer_id = it->second.buffer_id;
    out->kind = it->second.kind;
    return true;
  }
  out->base = region->base;
  out->bytes = region->requested_bytes;
  if (region->kind == RegionKind::kReservation) {
    // As native: the handle's mapping around the address.
    auto it = state.vmm_mappings.upper_bound(address);
    if (it == state.vmm_mappings.begin()) return false;
    --it;
    if (address >= it->first + it->second.handle->bytes) return false;
    out->base = it->first;
    out->bytes = it->second.handle->bytes;
  }
  out->buffer_id = region->buffer_id;
  out->kind = region->allocation_kind;
  return true;
}

MemoryInfo Pool::memoryInfo(CUcontext context, CUdevice device) {
  PoolState& state = *state_;
  if (state.forked.load()) return {};
  Lock lock(state.mutex);
  // What streams have come to is free. Who has no context can't ask the driver about that.
  while (context != nullptr && reapDeferred(state, 0, lock)) {
  }
  if (const Engine* engine = state.engineOf(device); engine != nullptr)
    return reported(state, device, engine->chunks().vramBudget(), engine->chunks().hostLimit(),
                    engine->allocated() + engine->usedByOthers());
  lock.unlock();
  const auto [vram, host] = budgetsOf(state, device);
  lock.lock();
  uint64_t others = 0;
  for (const auto& engine : state.engines) others += engine->beyondVram();
  return reported(state, device, vram, host, others);
}

// --- other users of addresses --------------------------------------------------------------------

CUresult Pool::pin(CUdeviceptr address, uint64_t* pinned) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.find(address);
  if (region == nullptr || region->dead) return CUDA_ERROR_INVALID_VALUE;
  ++region->pins;
  const CUresult result =
      bringToVram(state, *region, region->base, region->pages * kPageBytes, lock);
  if (pinned != nullptr) *pinned = region->buffer_id;
  if (result != CUDA_SUCCESS) {
    --region->pins;
  } else if (region->pins == 1) {
    add(region->engine->figures().pinned_extents, region->extents.size());
    add(region->engine->figures().pinned_bytes, region->pages * kPageBytes);
  }
  return result;
}

CUresult Pool::unpin(CUdeviceptr address, uint64_t pinned) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.find(address);
  if (region == nullptr || region->dead || region->pins == 0) return CUDA_ERROR_INVALID_VALUE;
  if (pinned != 0 && region->buffer_id != pinned) return CUDA_ERROR_INVALID_VALUE;
  // Launches under way may still use it, by an address that none of them has named.
  raise(region->stamp, state.launch_number.load());
  if (--region->pins == 0) {
    subtract(region->engine->figures().pinned_extents, region->extents.size());
    subtract(region->engine->figures().pinned_bytes, region->pages * kPageBytes);
  }
  return CUDA_SUCCESS;
}

void Pool::addRoot(CUcontext context, CUdeviceptr address, uint64_t bytes, RootKind kind,
                   bool registered) {
  PoolState& state = *state_;
  if (state.forked.load() || bytes == 0) return;
  const bool of_host = kind == RootKind::kHost || kind == RootKind::kManaged;
  bool scannable = kind != RootKind::kUnknown;
  if (of_host)
    scannable = bytes <= kLargestScanned && (kind == RootKind::kHost || usedAtOnce(state.driver));
  Lock lock(state.mutex);
  Root root{bytes, kind, context, nullptr};
  if (kind == RootKind::kVariable) {
    // What it holds by now nobody has looked at.
    if (state.roots.add(address, root, true))
      state.noteRootsWritten(context, state.launch_number.load());
    return;
  }
  root.region = state.regions.take();
  if (root.region == nullptr) return;
  Region& region = *root.region;
  resetRegion(region);
  if (!state.roots.add(address, root, !contains(address))) return state.regions.give(&region);
  if (Region* const around = contains(address) ? state.find(address) : nullptr; around != nullptr)
    ++around->fixed;
  region.kind = RegionKind::kRoot;
  region.base = address;
  region.pages = 0;
  region.requested_bytes = bytes;
  region.buffer_id = state.next_buffer_id++;
  region.tiny = true;  // no part of the learned order
  region.root = std::make_unique<RootMemory>(RootMemory{kind, context, scannable, registered, 0});
  state.markDirty(&region);
}

void Pool::removeRoot(CUdeviceptr address) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  Lock lock(state.mutex);
  const Root root = state.roots.remove(address);
  if (root.bytes == 0) return;
  if (root.region != nullptr) dropRoot(state, *root.region, lock);
  // A pass may be reading it: the program takes it away next.
  while (state.root_scans > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
}

bool Pool::paging() const { return state_->slow.load(std::memory_order_relaxed); }

bool Pool::mayHoldRoot(uint64_t address, uint64_t bytes) const {
  return state_->roots.span().overlaps(address, bytes);
}

// --- streams and contexts ------------------------------------------------------------------------

void Pool::streamDestroyed(const StreamKey& stream) {
  if (!state_->forked.load()) state_->streams.streamDestroyed(stream);
}
void Pool::captureBegins(CUcontext context) { state_->streams.captureBegins(context); }
void Pool::captureBegan(bool begun) { state_->streams.captureBegan(begun); }
void Pool::captureEnded() { state_->streams.captureEnded(); }
bool Pool::capturing() const { return state_->streams.capturing(); }
void Pool::streamMayJoin(CUcontext context) { state_->streams.holdMarks(context); }
void Pool::streamJoined() { state_->streams.releaseMarks(); }

namespace {

// Waits for the work of a context that is about to go, and forgets its streams. `events_stay`: as
// StreamTable::contextGone().
void endStreams(PoolState& state, CUcontext context, bool events_stay = false) {
  if (const InContext current(state.driver, context); current.result() == CUDA_SUCCESS) {
    const RelaxedThread relaxed(state.driver);
    // Beside a capture the driver may refuse to wait for all of a context.
    if (const CUresult result = state.driver.cuCtxSynchronize();
        result != CUDA_SUCCESS && !endsContext(result))
      state.streams.synchronizeEach(context);
  }
  state.streams.contextGone(context, events_stay);
}

}  // namespace

void Pool::greenContextGone(CUcontext context) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  endStreams(state, context, true);
  Lock lock(state.mutex);
  if (state.stopped) return;
  while (state.looking > 0) state.changed.wait_for(lock, std::chrono::milliseconds(1));
  // What frees on its streams waited for is over.
  std::vector<DeferredFree> freed;
  std::erase_if(state.deferred, [&](const auto& of_stream) {
    if (of_stream.first.context != context) return false;
    freed.insert(freed.end(), of_stream.second.begin(), of_stream.second.end());
    return true;
  });
  lock.unlock();
  for (const DeferredFree& entry : freed) state.driver.cuEventDestroy_v2(entry.event);
  lock.lock();
  for (const DeferredFree& entry : freed) {
    state.deferred_addresses.erase(entry.address);
    freeQuiet(state, entry.address, lock);  // releases the mutex
  }
}

void Pool::illegalAccess(CUcontext context) {
  if (state_->forked.load()) return;
  Lock lock(state_->mutex);
  static_cast<void>(tellUnmapped(*state_, context));
}

void Pool::contextGone(CUcontext context) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  {
    Lock lock(state.mutex);
    if (state.stopped) return;
  }
  // Nothing may be unmapped under a running kernel, not even now: that would be an error of the
  // program's.
  endStreams(state, context);
  Lock lock(state.mutex);
  state.told_unmapped.erase(context);
  while (state.looking > 0) state.changed.wait_for(lock, std::chrono::milliseconds(1));
  std::vector<CUevent> events;  // of streams of other contexts
  for (auto of_stream = state.deferred.begin(); of_stream != state.deferred.end();) {
    std::erase_if(of_stream->second, [&](const DeferredFree& entry) {
      const Region* region = state.find(entry.address);
      if (region == nullptr || region->context != context) return false;
      if (of_stream->first.context != context) events.push_back(entry.event);
      state.deferred_addresses.erase(entry.address);
      return true;
    });
    of_stream = of_stream->second.empty() ? state.deferred.erase(of_stream) : std::next(of_stream);
  }
  lock.unlock();
  for (const CUevent event : events) state.driver.cuEventDestroy_v2(event);
  lock.lock();
  for (const auto& [address, small] : state.small) {
    const Region* slab = small.context == context ? state.find(address) : nullptr;
    if (slab == nullptr || slab->engine == nullptr) continue;
    subtract(slab->engine->figures().allocated_bytes, small.bytes);
    subtract(slab->engine->figures().allocations, 1);
  }
  for (uint32_t id = 1; id < state.regions.end(); ++id) {
    Region* region = state.regions.at(id);
    if (region->dead || region->context != context) continue;
    if (region->kind == RegionKind::kReservation) continue;  // addresses outlive contexts
    if (region->kind == RegionKind::kAllocation) {
      subtract(region->engine->figures().allocated_bytes, region->requested_bytes);
      subtract(region->engine->figures().allocations, 1);
    }
    dropRegion(state, region, lock);
  }
  for (auto it = state.small.begin(); it != state.small.end();) {
    if (it->second.context == context) {
      it = state.small.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(state.slabs, [&](auto& entry) {
    if (entry.first.context != context) return false;
    entry.second->forgetAll();
    return true;
  });
  std::vector<Region*> gone;
  state.roots.dropContext(context, gone);
  for (Region* region : gone) dropRoot(state, *region, lock);
  state.roots_written.erase(context);
  // The engine that lived in the context moves to another one with memory of its device. With none
  // left it goes; the next allocation starts another.
  const auto found =
      std::find_if(state.engines.begin(), state.engines.end(),
                   [context](const auto& engine) { return engine->context() == context; });
  if (found == state.engines.end()) return;
  Engine* const engine = found->get();
  CUcontext other = nullptr;
  for (uint32_t id = 1; id < state.regions.end() && other == nullptr; ++id) {
    const Region* region = state.regions.at(id);
    if (!region->dead && region->engine == engine && region->context != context)
      other = region->context;
  }
  for (const auto& [id, handle] : state.vmm_handles)
    if (handle->engine == engine && handle->context != context) other = handle->context;
  if (other != nullptr && engine->moveTo(other, lock)) return;
  if (other != nullptr && !engine->broken() && !state.stopped)
    base::logError(
        "device %d: the context that is destroyed holds what the pager keeps in host memory, which "
        "can't be mapped in "
        "place here: memory of other contexts of the device is lost with it",
        engine->device());
  dropHandles(state, *engine, lock);
  for (uint32_t id = 1; id < state.regions.end(); ++id) {  // of an engine that could not move
    Region* region = state.regions.at(id);
    if (!region->dead && region->engine == engine && region->kind != RegionKind::kReservation)
      dropRegion(state, region, lock);
  }
  std::shared_ptr<Engine> going;  // who stops the pool may still hold it
  for (auto& candidate : state.engines)
    if (candidate.get() == engine) going = std::move(candidate);
  state.showToChild(going.get(), nullptr);
  std::erase(state.engines, nullptr);
  std::erase_if(state.root_edges, [&](const RootEdge& edge) { return edge.keeper == going.get(); });
  lock.unlock();
  going->stop();
  going->releaseAll();
}

uint64_t Pool::regionSteps() const {
  Lock lock(state_->mutex);
  return state_->regions.steps();
}

CUresult Pool::peerEnabled(CUdevice accessing, CUdevice owner) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state.mutex);
  const std::pair pair{accessing, owner};
  if (std::find(state.peers.begin(), state.peers.end(), pair) == state.peers.end())
    state.peers.push_back(pair);
  Engine* engine = state.engineOf(owner);
  if (engine == nullptr) return CUDA_SUCCESS;  // its engine will know from the start
  return engine->addPeer(accessing, lock);
}

}  // namespace olpager::pager
