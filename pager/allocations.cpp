#include "pager/allocations.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/size.h"
#include "pager/clock.h"
#include "pager/pool_state.h"
#include "pager/residency/arena_streaming.h"
#include "pager/residency/eviction.h"
#include "pager/residency/fetches.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {

// A wait for deferred launches asks this often whether they still run.
constexpr uint64_t kLookNs = std::chrono::nanoseconds(kLook).count();

// At least so many extents of an arena fit VRAM.
constexpr uint64_t kArenaExtents = 32;

// How long an allocation that finds the pool full waits for memory that was freed in stream order,
// while none comes free: what is before such a free may wait for this very thread. A stream-ordered
// allocation waits as long as that takes. Natively it gets such memory in the order of the stream.
constexpr uint64_t kDevicePatienceNs = 1'000'000'000;

struct NewRegion {
  RegionKind kind;
  AllocationKind allocation_kind;
  uint64_t pages;
  uint64_t bytes;
  uint64_t at = 0;      // an address of the placed part; 0: anywhere else
  bool shared = false;  // other agents have its pages in turns
};

Region* makeRegion(PoolState& state, Engine& engine, CUcontext context, const NewRegion& wanted) {
  const auto address = state.book.take(wanted.pages, wanted.at);
  if (!address) return nullptr;
  Region* region = state.book.regions.take();
  if (region == nullptr) {
    state.book.release(*address);
    return nullptr;
  }
  region->base = *address;
  region->pages = wanted.pages;
  region->kind = wanted.kind;
  region->tiny = wanted.pages * kPageBytes * kTinyShare <= engine.chunks().vramBudget();
  region->allocation_kind = wanted.allocation_kind;
  region->requested_bytes = wanted.bytes;
  region->buffer_id = state.book.newBufferId();
  region->context = context;
  region->device = engine.device();
  region->engine = &engine;
  const uint64_t budget = engine.chunks().vramBudget();
  const bool arena = wanted.kind != RegionKind::kSlab && !wanted.shared &&
                     isArenaSize(wanted.pages * kPageBytes, budget, state.options.reach);
  // An arena is larger than a good part of VRAM: its extents are a small part.
  const uint64_t largest =
      std::bit_floor(std::max<uint64_t>(1, budget / kArenaExtents / kPageBytes));
  region->divisible = arena;
  if (arena) makeArena(state, *region);
  const auto cut = [&](uint64_t pages, const auto& visitor) {
    // A page that other agents have in turns moves by itself: it is what the CPU faults on.
    const uint32_t usual = wanted.shared ? 1
                           : arena && state.options.stream_arenas
                               ? space::kLargestArenaExtentPages
                               : space::largestExtentPages(pages);
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
  engine.addNamed(static_cast<int64_t>(wanted.pages * kPageBytes));
  return region;
}

// From here on launches can name the region. A part of it that is not in VRAM makes them take the
// slow path.
void publish(PoolState& state, Region& region) {
  region.published = true;
  state.outside += countOutside(region);
  state.updateSlow();
  state.book.publish(region);
}

// Says once why an allocation is refused.
void tellNoRoom(const PoolState& state, const Engine& engine, uint64_t bytes) {
  if (engine.named() + bytes > engine.capacity()) {
    base::warnOnce("out of memory",
                   "device %d: an allocation of %s is refused (out of memory): %s of %s are "
                   "allocated. What there is: "
                   "%s of VRAM, %s of host RAM, %s at %s (OL_VRAM, OL_HOST, OL_MEMSERVER, OL_DISK)",
                   engine.device(), base::formatSize(bytes).c_str(),
                   base::formatSize(engine.named()).c_str(),
                   base::formatSize(engine.capacity()).c_str(),
                   base::formatSize(engine.chunks().vramBudget()).c_str(),
                   base::formatSize(engine.chunks().hostLimit()).c_str(),
                   base::formatSize(lowerCapacity(state)).c_str(), lowerName(state));
    return;
  }
  if (state.stopped) return;
  if (bytes <= engine.largestRegion()) {
    base::warnOnce("out of addresses",
                   "device %d: an allocation of %s is refused: the address range of %s "
                   "(OL_VA_SIZE) has no such gap left",
                   engine.device(), base::formatSize(bytes).c_str(),
                   base::formatSize(state.book.map().size()).c_str());
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

space::SlabAllocator& slabsFor(PoolState& state, Engine& engine, CUcontext context, bool placed) {
  auto& slabs = state.book.small.slabs[{engine.device(), context, placed}];
  if (slabs == nullptr)
    slabs = std::make_unique<space::SlabAllocator>(space::SlabAllocator::Callbacks{
        [&state, &engine, context](uint64_t at) -> std::optional<uint64_t> {
          if (!engine.fits(kPageBytes)) return std::nullopt;
          Region* region =
              makeRegion(state, engine, context,
                         {RegionKind::kSlab, AllocationKind::kDevice, 1, kPageBytes, at});
          if (region == nullptr) return std::nullopt;
          state.book.small.made.push_back(region);
          return region->base;
        },
        // The mutex must not be released inside the allocator: the caller takes the slab away
        // afterwards.
        [&state](uint64_t address) {
          state.book.small.emptied.push_back(state.book.find(address));
        }});
  return *slabs;
}

// A managed region's pages in host RAM, and its agents, which the first one starts. Releases the
// mutex. CUDA_ERROR_NOT_SUPPORTED where the system does not let us see page faults.
CUresult addFrames(PoolState& state, Region& region, Lock& lock) {
  if (state.away != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const bool first = state.managed == nullptr;
  lock.unlock();
  std::unique_ptr<Managed> started;
  if (first) {
    auto made = Managed::start(state);
    if (!made) {
      base::warnOnce("managed not paged", "managed memory is left to the driver: %s",
                     made.error().message.c_str());
      lock.lock();
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    started = std::move(made.value());
  }
  auto frames = Managed::makeFrames(region.base, region.pages);
  lock.lock();
  if (state.managed == nullptr) state.managed = std::move(started);
  state.has_managed.store(true);
  if (!frames) {
    base::warnOnce("managed without room", "%s", frames.error().message.c_str());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (const Status added = state.managed->add(region, std::move(frames.value()), lock); !added) {
    base::warnOnce("managed without faults", "%s", added.error().message.c_str());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

// True when `address` is what an allocation was given out as.
bool isBase(const PoolState& state, CUdeviceptr address) {
  if (state.frees.contains(address)) return false;  // freed in stream order
  const Region* region = state.book.find(address);
  if (region == nullptr || region->dead) return false;
  if (region->kind == RegionKind::kSlab) return state.book.small.slots.contains(address);
  return region->kind == RegionKind::kAllocation && region->base == address;
}

}  // namespace

CUresult addAway(PoolState& state, CUcontext context, CUdevice device, uint64_t base,
                 uint64_t pages, directory::ExtentId first, Lock& lock) {
  Engine* engine = nullptr;
  if (const CUresult result = engineFor(state, context, device, lock, &engine);
      result != CUDA_SUCCESS)
    return result;
  if (!state.book.isPlaced(base)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = pages * kPageBytes;
  Region* const region =
      makeRegion(state, *engine, context,
                 {RegionKind::kAllocation, AllocationKind::kDevice, pages, bytes, base, true});
  if (region == nullptr) return CUDA_ERROR_INVALID_VALUE;
  region->away = std::make_unique<AwayRegion>();
  region->away->first = first;
  state.away->add(*region);
  publish(state, *region);
  add(engine->figures().allocated_bytes, bytes);
  add(engine->figures().allocations);
  return CUDA_SUCCESS;
}

// Takes a region away: it is quiet, and no launch names it any more.
void dropRegion(PoolState& state, Region* region, Lock& lock) {
  Engine& engine = *region->engine;
  const auto isReachedLater = [&] {
    return std::any_of(state.deferred.begin(), state.deferred.end(), [&](const auto& launch) {
      return std::find(launch->reached.begin(), launch->reached.end(), region) !=
             launch->reached.end();
    });
  };
  for (uint64_t looked = nowNs(); !state.stopped && isReachedLater();) {
    state.changed.wait_for(lock, kLook);
    if (nowNs() - looked < kLookNs) continue;
    lookForEnded(state, lock);
    looked = nowNs();
  }
  // First: nobody else frees it, and no launch that follows pointers comes to it. Those that wait
  // and have come to it start over (Acquisition::ready).
  region->dead = true;
  state.changed.notify_all();
  // The process ends and no thread of ours moves anything any more: its memory goes with the
  // process.
  if (state.stopped) return;
  while (region->wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  if (state.stopped) return;
  state.book.withdraw(region->base);
  // The region counts no more: else each free would turn `slow` on and off again.
  region->published = false;
  state.outside -= countOutside(*region);
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
      engine.remote().hurry(*extent);
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
      RemoteMoves::finishRemote(state);  // the engine that does so may have no thread any more
    }
    if (extent->state == ExtentState::kRetiring) engine.eviction().cancelRetiring(*extent);
    extent->left_mapped = extent->mapped();
    engine.setState(*extent, ExtentState::kFreeing);
  }
  engine.arenas().awaitStaged(*region, lock);
  engine.forget(region);
  if (region->shared() != nullptr) state.agent()->drop(*region, lock);
  if (state.stopped) return;  // other agents may know its frames still
  for (auto& extent : region->extents) engine.dismantle(*extent, lock);
  region->extents.clear();
  region->blocked.store(0);
  forgetEdges(*region);
  region->arena.reset();
  region->managed.reset();
  const std::unique_ptr<const AwayRegion> away = std::move(region->away);
  engine.addNamed(-static_cast<int64_t>(region->pages * kPageBytes));
  state.book.release(region->base);
  state.book.regions.give(region);
  if (away != nullptr) state.away->dropped(*away);
  state.changed.notify_all();
}

// Frees a slot or an allocation whose work is done. Under the mutex.
CUresult freeQuiet(PoolState& state, CUdeviceptr address, Lock& lock) {
  Region* region = state.book.find(address);
  if (region == nullptr || region->dead) return CUDA_ERROR_INVALID_VALUE;
  DeviceCounters& figures = region->engine->figures();
  if (region->kind == RegionKind::kSlab) {
    const auto it = state.book.small.slots.find(address);
    if (it == state.book.small.slots.end()) return CUDA_ERROR_INVALID_VALUE;
    subtract(figures.allocated_bytes, it->second.bytes);
    subtract(figures.allocations, 1);
    state.book.small.slots.erase(it);
    slabsFor(state, *region->engine, region->context, state.book.isPlaced(address))
        .release(address);
    while (!state.book.small.emptied.empty()) {
      Region* slab = state.book.small.emptied.back();
      state.book.small.emptied.pop_back();
      // The free releases the mutex. A caller that chose an address in the slab knows of this free
      // only when it is over.
      const uint64_t base = slab->base;
      const bool placed = state.book.isPlaced(base);
      if (placed) state.book.small.leaving.insert(base);
      dropRegion(state, slab, lock);
      if (placed) state.book.small.leaving.erase(base);
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

// Frees what was freed in stream order and whose event has come, waiting for one of those until
// `until_ns`. True when something was freed.
bool reapDeferred(PoolState& state, uint64_t until_ns, Lock& lock) {
  bool any = false;
  while (!state.frees.idle() && !state.stopped) {
    for (const CUdeviceptr address : state.frees.collect(state.driver, lock)) {
      state.frees.forget(address);
      freeQuiet(state, address, lock);
      any = true;
    }
    if (any || nowNs() >= until_ns) break;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  return any;
}

CUresult Allocations::setPlaced(uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > state.options.va_size / 2)
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  return state.book.setPlaced(bytes) ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

CUresult Allocations::allocate(CUcontext context, CUdevice device, uint64_t bytes,
                               AllocationKind kind, CUdeviceptr* out) {
  return allocateOne(context, device, bytes, kind, 0, out);
}

CUresult Allocations::allocateAt(CUcontext context, CUdevice device, CUdeviceptr address,
                                 uint64_t bytes) {
  {
    Lock lock(state_->mutex);
    if (!state_->book.isPlaced(address)) return CUDA_ERROR_INVALID_VALUE;
  }
  CUdeviceptr made = 0;
  return allocateOne(context, device, bytes, AllocationKind::kDevice, address, &made);
}

Allocations::Room Allocations::room(CUdevice device) const {
  Lock lock(state_->mutex);
  const Engine* const engine = state_->devices.engineOf(device);
  if (engine == nullptr) return {};
  const uint64_t bytes = engine->unallocated();
  return {bytes, std::min(bytes, engine->largestRegion())};
}

bool Allocations::hasEngine(CUdevice device) const {
  Lock lock(state_->mutex);
  return state_->devices.engineOf(device) != nullptr;
}

void Allocations::prepare(CUcontext context, CUdevice device) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  Lock lock(state.mutex);
  Engine* engine = nullptr;
  static_cast<void>(engineFor(state, context, device, lock, &engine));
}

CUresult Allocations::allocateOne(CUcontext context, CUdevice device, uint64_t bytes,
                                  AllocationKind kind, uint64_t at, CUdeviceptr* out) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (bytes == 0 || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Engine* engine = nullptr;
  if (const CUresult result = engineFor(state, context, device, lock, &engine);
      result != CUDA_SUCCESS)
    return result;
  reapDeferred(state, 0, lock);
  // Memory that was freed in stream order on this device is there once its stream comes to the
  // free.
  const auto mayCome = [&] {
    return kind == AllocationKind::kStreamOrdered && !state.stopped &&
           state.frees.any([&](CUdeviceptr freed) {
             const Region* const region = state.book.find(freed);
             return region != nullptr && region->engine == engine;
           });
  };
  for (uint64_t until = nowNs() + kDevicePatienceNs;;) {
    CUdeviceptr address = 0;
    // The code below releases the mutex: the context may be gone since, and the engine with it.
    if (state.devices.engineOf(device) != engine) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (bytes < kPageBytes && kind != AllocationKind::kManaged) {
      space::SlabAllocator& slabs = slabsFor(state, *engine, context, at != 0);
      if (at == 0) {
        address = slabs.allocate(bytes).value_or(0);
      } else if (slabs.allocateAt(at, bytes)) {
        address = at;
      }
      if (address != 0) {
        state.book.small.slots[address] = {bytes, state.book.newBufferId(), context, kind};
        std::vector<Region*> fresh;
        fresh.swap(state.book.small.made);
        for (Region* region : fresh)
          region->slot_bytes = static_cast<uint32_t>(space::SlabAllocator::slotBytes(bytes));
        for (Region* region : fresh) engine->fetching().mapNew(*region, lock);
        for (Region* region : fresh) publish(state, *region);
        if (!fresh.empty()) state.changed.notify_all();
        // Another thread may be mapping the slab still.
        while (state.book.find(address) == nullptr)
          state.changed.wait_for(lock, std::chrono::milliseconds(1));
      }
    } else {
      const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
      Region* region = engine->fits(pages * kPageBytes)
                           ? makeRegion(state, *engine, context,
                                        {RegionKind::kAllocation, kind, pages, bytes, at,
                                         kind == AllocationKind::kManaged})
                           : nullptr;
      if (region != nullptr && kind == AllocationKind::kManaged) {
        if (const CUresult result = addFrames(state, *region, lock); result != CUDA_SUCCESS) {
          dropRegion(state, region, lock);
          return result;
        }
        publish(state, *region);
        address = region->base;
      } else if (region != nullptr) {
        // Mapped before anybody can name it; what finds no room stays empty and is mapped at its
        // first use.
        engine->fetching().mapNew(*region, lock);
        publish(state, *region);
        address = region->base;
      }
    }
    if (address != 0) {
      add(engine->figures().allocated_bytes, bytes);
      add(engine->figures().allocations);
      *out = address;
      if (kind == AllocationKind::kManaged) {
        // From here on launches are recorded: who waits for the CPU's sake knows for whom.
        lock.unlock();
        settleFloor(state);
      }
      return CUDA_SUCCESS;
    }
    if (at != 0 && !state.stopped &&
        state.book.small.leaving.contains(at / kPageBytes * kPageBytes)) {
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    // There is room, so it is the address that is taken.
    if (at != 0 && engine->fits((bytes + kPageBytes - 1) / kPageBytes * kPageBytes))
      return CUDA_ERROR_INVALID_VALUE;
    if (bytes > engine->largestRegion() || (!reapDeferred(state, until, lock) && !mayCome())) {
      tellNoRoom(state, *engine, bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    until = nowNs() + kDevicePatienceNs;  // some has come free, or will
  }
}

CUresult Allocations::free(CUdeviceptr address) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = nullptr;
  uint64_t number = 0;
  Hazards::Snapshot launching;
  {
    Lock lock(state.mutex);
    if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
    context = state.book.find(address)->context;
    number = state.launch_number.load();
    hazards().snapshot(launching);
  }
  // As native: returns when all work of the context is done. Work that other threads are about to
  // submit is waited for first, so that every launch up to `number` is among that work.
  while (!Hazards::passed(launching)) std::this_thread::yield();
  const CUresult result = state.streams.synchronize(context, number);
  if (result != CUDA_SUCCESS && !endsContext(result)) return result;
  Lock lock(state.mutex);
  if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
  const Region* region = state.book.find(address);
  // Launches of other contexts and devices that reach it.
  while (result == CUDA_SUCCESS && !region->engine->broken() &&
         !state.streams.quiet(std::min(number, region->stamp.load()))) {
    lock.unlock();
    state.streams.poll();
    drainUnmarked(state, number);
    // Unmarked work is not known of before the capture ends, which its thread may do only after
    // this one.
    if (state.streams.capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
    if (!isBase(state, address)) return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult freed = freeQuiet(state, address, lock);
  return result != CUDA_SUCCESS ? result : freed;
}

bool Allocations::isAllocated(CUdeviceptr address) const {
  if (state_->forked.load() || !state_->book.map().contains(address)) return false;
  Lock lock(state_->mutex);
  return isBase(*state_, address);
}

namespace {

// An event behind what is in the stream. The event has to be of the stream's context, which need
// not be the caller's.
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

CUresult Allocations::freeAsync(CUdeviceptr address, const StreamKey& stream) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address)) return CUDA_ERROR_INVALID_VALUE;
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
  state.frees.add(stream, {address, event});
  reapDeferred(state, 0, lock);
  return CUDA_SUCCESS;
}

Residency Allocations::residency(uint64_t address) const {
  Residency found;
  Lock lock(state_->mutex);
  const Region* region =
      state_->book.map().contains(address) ? state_->book.find(address) : nullptr;
  if (region == nullptr || region->dead) return found;
  found.sparse = region->isSparse();
  for (const auto& extent : region->extents) {
    const bool in_vram = extent->mapped() && extent->vram != nullptr;
    (in_vram ? found.vram : extent->mapped() ? found.in_place : found.other) += extent->bytes();
  }
  return found;
}

bool Allocations::describe(uint64_t address, AllocationInfo* out) const {
  PoolState& state = *state_;
  if (!state_->book.map().contains(address) || state.forked.load()) return false;
  Lock lock(state.mutex);
  const Region* region = state.book.find(address);
  if (region == nullptr || region->dead || address >= region->end()) return false;
  out->context = region->context;
  out->device = region->device;
  if (region->kind == RegionKind::kSlab) {
    const auto slabs = state.book.small.slabs.find(
        {region->device, region->context, state.book.isPlaced(address)});
    if (slabs == state.book.small.slabs.end()) return false;
    const auto slot = slabs->second->find(address);
    if (!slot) return false;
    const auto it = state.book.small.slots.find(slot->address);
    if (it == state.book.small.slots.end() || address >= slot->address + slot->capacity)
      return false;
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
    auto it = state.programs.mappings.upper_bound(address);
    if (it == state.programs.mappings.begin()) return false;
    --it;
    if (address >= it->first + it->second.handle->bytes) return false;
    out->base = it->first;
    out->bytes = it->second.handle->bytes;
  }
  out->buffer_id = region->buffer_id;
  out->kind = region->allocation_kind;
  return true;
}

}  // namespace olpager::pager
