// The program's own virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap,
// cuMemSetAccess): PyTorch's expandable segments, vLLM's sleep mode, and whoever does it by hand.
//
// A reservation is a Region; a pointer into it names all that is mapped in it. A handle owns
// extents. The first mapping that gets access is the handle's primary one: the extents belong to
// the reservation and move like any others. Without it they rest in the handle (kDetached), in
// whatever chunk they had. A handle that is mapped with access at a second address at the same time
// stays in VRAM for as long: that mapping is a fixed one.
//
// A reservation moves the memory of one device, that of its first mapping. Memory of another device
// in it (stripes over several devices) is a fixed mapping as well: the handle's primary mapping is
// then in a reservation of the pager's own.
#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

#include "base/log.h"
#include "pager/pool_state.h"
#include "pager/programs/virtual_memory.h"
#include "pager/residency/remote_moves.h"

namespace olpager::pager {

namespace {

bool wholePages(uint64_t value) { return value % kPageBytes == 0; }

// Gives the handle's extents back.
void emptyHandle(VmmHandle& handle, Lock& lock) {
  for (auto& extent : handle.extents) handle.engine->dismantle(*extent, lock);
  handle.extents.clear();
  handle.engine->addNamed(-static_cast<int64_t>(handle.bytes));
  subtract(handle.engine->figures().allocated_bytes, handle.bytes);
  subtract(handle.engine->figures().allocations, 1);
  handle.engine = nullptr;
}

// Forgets a handle with all it has, once it is neither referred to nor mapped.
void dropHandleIfUnused(PoolState& state, VmmHandle& handle, Lock& lock) {
  if (handle.references > 0 || handle.mappings > 0) return;
  if (handle.engine != nullptr) emptyHandle(handle, lock);
  state.programs.erase(handle);
}

constexpr unsigned kCaptureLooks = 1000;  // half a second

// The memory that a pointer into a reservation names.
uint64_t mappedBytes(const Region& region) {
  uint64_t bytes = 0;
  for (const auto& extent : region.extents) bytes += extent->bytes();
  return bytes;
}

// Waits until no launch in flight reaches the region. The mutex is released meanwhile.
void waitQuiet(PoolState& state, Region& region, Lock& lock) {
  Hazards::Snapshot launching;
  const uint64_t number = state.launch_number.load();
  hazards().snapshot(launching);
  while (!Hazards::passed(launching)) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  const uint64_t stamp = std::min(number, std::max(state.reach.floor.number, region.stamp.load()));
  for (unsigned looks = 0; !state.stopped && region.engine != nullptr && !region.engine->broken() &&
                           !state.streams.quiet(stamp);
       ++looks) {
    lock.unlock();
    state.streams.poll();
    if (state.streams.capturing()) {
      // On some streams nothing may be recorded, nor their context synchronised: native would not
      // have waited either.
      if (looks > kCaptureLooks) {
        lock.lock();
        return;
      }
    } else {
      drainUnmarked(state, number);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(looks < 50 ? 20 : 500));
    lock.lock();
  }
}

// The handle's extents join the reservation.
void putIn(PoolState& state, uint64_t base, VmmHandle& handle, Region& region, bool read_only,
           Lock& lock) {
  std::vector<Extent*> fresh;
  for (auto& extent : handle.extents) {
    extent->address = base + (extent->address - handle.home);
    extent->region = &region;
    extent->read_only = read_only;
    extent->scan_due = true;
    fresh.push_back(extent.get());
    // Nobody knows, for this region, the bytes that kernels and copies have put there through a
    // mapping that is gone.
    if (extent->vram == nullptr && extent->host == nullptr && extent->rests == ExtentState::kEmpty)
      continue;
    region.host_written = true;
    state.reach.markDirty(&region);
  }
  ++region.host_writes;
  const auto place = static_cast<ptrdiff_t>(extentsAt(region, base, handle.bytes).first);
  if (const size_t count = region.extents.size() + fresh.size(); count > region.extents.capacity())
    region.extents.reserve(
        count + count / 8);  // not twice as many: a place costs as much as a chunk's handle
  region.extents.insert(region.extents.begin() + place,
                        std::make_move_iterator(handle.extents.begin()),
                        std::make_move_iterator(handle.extents.end()));
  handle.extents = std::vector<std::unique_ptr<Extent>>();
  handle.primary = base;
  if (region.arena == nullptr) {
    uint64_t bytes = 0;
    for (const auto& extent : region.extents) bytes += extent->bytes();
    if (isArenaSize(bytes, handle.engine->chunks().vramBudget(), state.options.reach))
      makeArena(state, region);
  }
  region.pins += handle.fixed;
  region.blocked.fetch_add(static_cast<uint32_t>(fresh.size()), std::memory_order_seq_cst);
  state.outside += fresh.size();
  for (Extent* extent : fresh) handle.engine->attach(*extent, lock);
  state.updateSlow();
}

// The extents of a handle's primary mapping leave the reservation and rest in the handle.
void takeOut(PoolState& state, VmmHandle& handle, Region& region, Lock& lock) {
  const uint64_t base = handle.primary;
  while (region.wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  std::vector<Extent*> going;
  const ExtentRange before = extentsAt(region, base, handle.bytes);
  for (size_t e = before.first; e < before.last; ++e) going.push_back(region.extents[e].get());
  for (Extent* extent : going) {
    while (moving(extent->state) && !state.stopped) {
      handle.engine->remote().hurry(*extent);
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    handle.engine->detach(*extent, lock);
  }
  // The extents change hands in one step: the mutex is not released while the list has holes.
  const ExtentRange range = extentsAt(region, base, handle.bytes);
  const auto first = region.extents.begin() + static_cast<ptrdiff_t>(range.first);
  const auto last = region.extents.begin() + static_cast<ptrdiff_t>(range.last);
  for (auto owned = first; owned != last; ++owned) {
    (*owned)->address = handle.home + ((*owned)->address - base);
    (*owned)->stamp = 0;
    (*owned)->wanted = 0;
    (*owned)->in_host = false;
    handle.extents.push_back(std::move(*owned));
  }
  region.extents.erase(first, last);
  region.blocked.fetch_sub(static_cast<uint32_t>(going.size()), std::memory_order_seq_cst);
  state.outside -= going.size();
  state.updateSlow();
  state.changed.notify_all();
  // A launch that came meanwhile and follows pointers to here looks at them until it goes on.
  while (region.wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  // Fixed mappings, that hold the chunks in VRAM, do so through the handle from now on.
  region.pins -= std::min(region.pins, handle.fixed);
  handle.primary = 0;
}

// Changes what the device may do with the extents of a primary mapping.
CUresult protect(PoolState& state, VmmHandle& handle, Region& region, bool read_only, Lock& lock) {
  std::vector<Extent*> extents;
  const ExtentRange range = extentsAt(region, handle.primary, handle.bytes);
  for (size_t e = range.first; e < range.last; ++e) extents.push_back(region.extents[e].get());
  for (Extent* extent : extents) extent->read_only = read_only;
  ++region.wanted;  // nothing of it is evicted meanwhile
  const CUresult result = handle.engine->protect(extents, lock);
  --region.wanted;
  state.changed.notify_all();
  return result;
}

// A part of a fixed mapping, as it is used while the mutex is released: what it maps is pinned.
struct FixedPiece {
  uint64_t address;
  uint64_t bytes;
  CUmemGenericAllocationHandle chunk;
  Extent* extent;
};

std::vector<FixedPiece> piecesOf(PoolState& state, uint64_t base, VmmHandle& handle) {
  std::vector<FixedPiece> pieces;
  const auto add = [&](uint64_t at, Extent& extent) {
    pieces.push_back(
        {at, extent.bytes(), extent.vram != nullptr ? extent.vram->handle : 0, &extent});
  };
  for (auto& extent : handle.extents) add(base + (extent->address - handle.home), *extent);
  if (handle.primary == 0) return pieces;
  const Region& region = *state.programs.mappings.at(handle.primary).region;
  const ExtentRange range = extentsAt(region, handle.primary, handle.bytes);
  for (size_t e = range.first; e < range.last; ++e)
    add(base + (region.extents[e]->address - handle.primary), *region.extents[e]);
  return pieces;
}

CUresult protectPieces(const Engine& engine, const std::vector<FixedPiece>& pieces, bool read_only,
                       Lock& lock) {
  CUresult result = CUDA_SUCCESS;
  lock.unlock();
  for (const FixedPiece& piece : pieces)
    if (result == CUDA_SUCCESS)
      result = engine.chunks().protectAt(piece.address, piece.bytes, read_only);
  lock.lock();
  return result;
}

void unmapFixed(PoolState& state, uint64_t base, VmmMapping& mapping, Lock& lock) {
  VmmHandle& handle = *mapping.handle;
  mapping.fixed = false;
  --mapping.region->fixed;
  const Engine& engine = *handle.engine;
  const std::vector<FixedPiece> pieces = piecesOf(state, base, handle);
  lock.unlock();
  for (const FixedPiece& piece : pieces) engine.chunks().unmapAt(piece.address, piece.bytes);
  lock.lock();
  for (const FixedPiece& piece : pieces) --piece.extent->pins;
  --handle.fixed;
  if (handle.primary == 0) return;
  Region& region = *state.programs.mappings.at(handle.primary).region;
  if (region.pins > 0) --region.pins;
}

// A mapping of a handle beside its primary one. The extents are pinned in VRAM from now on.
CUresult mapFixed(PoolState& state, uint64_t base, VmmMapping& mapping, bool read_only,
                  Lock& lock) {
  VmmHandle& handle = *mapping.handle;
  Region& region = *state.programs.mappings.at(handle.primary).region;
  const Engine& engine = *handle.engine;
  ++region.pins;
  std::vector<FixedPiece> pieces = piecesOf(state, base, handle);
  for (const FixedPiece& piece : pieces) ++piece.extent->pins;
  CUresult result = bringToVram(state, region, handle.primary, handle.bytes, lock);
  if (result == CUDA_SUCCESS) {
    pieces = piecesOf(state, base, handle);  // with the chunks that they are in now
    lock.unlock();
    size_t mapped = 0;
    for (; mapped < pieces.size() && result == CUDA_SUCCESS; ++mapped)
      result = engine.chunks().mapAt(pieces[mapped].address, pieces[mapped].bytes,
                                     pieces[mapped].chunk, read_only);
    if (result != CUDA_SUCCESS)
      for (size_t p = 0; p + 1 < mapped; ++p)
        engine.chunks().unmapAt(pieces[p].address, pieces[p].bytes);
    lock.lock();
  }
  if (result == CUDA_SUCCESS) {
    mapping.fixed = true;
    ++mapping.region->fixed;
    ++handle.fixed;
    return CUDA_SUCCESS;
  }
  for (const FixedPiece& piece : pieces) --piece.extent->pins;
  --region.pins;
  return result;
}

// Takes a mapping's access away: nobody reaches it, and nothing is mapped there afterwards.
void withdraw(PoolState& state, uint64_t base, VmmMapping& mapping, Lock& lock) {
  if (mapping.fixed) {
    unmapFixed(state, base, mapping, lock);
  } else if (mapping.handle->primary == base) {
    takeOut(state, *mapping.handle, *mapping.region, lock);
  }
  mapping.access.clear();
}

// A range of addresses for mappings; nullptr: there is none left.
Region* reserve(PoolState& state, uint64_t bytes, uint64_t alignment, uint64_t hint) {
  const auto address = state.book.take(bytes / kPageBytes, alignment, hint);
  if (!address) return nullptr;
  Region* region = state.book.regions.take();
  if (region == nullptr) {
    state.book.release(*address);
    return nullptr;
  }
  region->base = *address;
  region->pages = bytes / kPageBytes;
  region->kind = RegionKind::kReservation;
  region->allocation_kind = AllocationKind::kVmm;
  region->requested_bytes = bytes;
  region->buffer_id = state.book.newBufferId();
  region->divisible = true;
  region->published = true;
  state.book.publish(*region);
  return region;
}

// For a reservation in which nothing is mapped.
void releaseReservation(PoolState& state, Region& region, Lock& lock) {
  region.dead = true;
  while (region.wanted > 0 && !state.stopped)
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
  region.published = false;
  state.predictor.forget(unitOf(region));
  state.book.release(region.base);
  forgetEdges(region);
  region.arena.reset();
  state.book.regions.give(&region);
}

// Lets a device's kernels use the memory of another one, as all of that device's.
CUresult letReach(PoolState& state, CUdevice device, const VmmHandle& handle, Lock& lock) {
  Engine& owner = *handle.engine;
  if (device == owner.device() || owner.chunks().hasPeer(device)) return CUDA_SUCCESS;
  int can = 0;
  if (state.driver.cuDeviceCanAccessPeer(&can, device, owner.device()) != CUDA_SUCCESS || can == 0)
    return CUDA_ERROR_INVALID_DEVICE;
  return owner.addPeer(device, lock);
}

void adoptReservation(Region& region, const VmmHandle& handle) {
  region.engine = handle.engine;
  region.device = handle.engine->device();
  region.context = handle.context;
}

// Gives the handle a primary mapping in a reservation of the pager's own.
CUresult setAside(PoolState& state, VmmHandle& handle, Lock& lock) {
  if (handle.bytes > handle.engine->largestRegion()) return CUDA_ERROR_OUT_OF_MEMORY;
  Region* const region = reserve(state, handle.bytes, kPageBytes, 0);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  adoptReservation(*region, handle);
  handle.aside = region;
  VmmMapping mapping{&handle, region, {}, false};
  mapping.access[region->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  state.programs.mappings[region->base] = std::move(mapping);
  ++handle.mappings;
  putIn(state, region->base, handle, *region, false, lock);
  return CUDA_SUCCESS;
}

// The last fixed mapping is gone.
void bringBack(PoolState& state, VmmHandle& handle, Lock& lock) {
  if (handle.aside == nullptr || handle.fixed > 0) return;
  Region& region = *std::exchange(handle.aside, nullptr);
  const uint64_t base = region.base;
  waitQuiet(state, region, lock);
  if (handle.primary == base) takeOut(state, handle, region, lock);
  if (state.programs.mappings.erase(base) > 0) --handle.mappings;
  releaseReservation(state, region, lock);
}

}  // namespace

CUresult protectFixed(PoolState& state, Engine& engine, Lock& lock) {
  std::vector<std::pair<std::vector<FixedPiece>, bool>> fixed;
  for (const auto& [base, mapping] : state.programs.mappings)
    if (mapping.fixed && mapping.handle->engine == &engine)
      fixed.emplace_back(piecesOf(state, base, *mapping.handle), mapping.isReadOnly());
  CUresult result = CUDA_SUCCESS;
  for (const auto& [pieces, read_only] : fixed)
    if (result == CUDA_SUCCESS) result = protectPieces(engine, pieces, read_only, lock);
  return result;
}

void dropHandles(PoolState& state, Engine& engine, Lock& lock) {
  for (bool again = true; again;) {
    again = false;
    for (auto& [base, mapping] : state.programs.mappings) {
      if (mapping.handle->engine != &engine) continue;
      const uint64_t at = base;
      VmmHandle& handle = *mapping.handle;
      withdraw(state, at, mapping, lock);
      if (state.programs.mappings.erase(at) > 0) --handle.mappings;
      bringBack(state, handle, lock);
      again = true;  // the list may have changed while the mutex was released
      break;
    }
  }
  std::vector<CUmemGenericAllocationHandle> ids;
  for (auto& [id, handle] : state.programs.handles)
    if (handle->engine == &engine) ids.push_back(id);
  for (const auto id : ids) {
    VmmHandle* const handle = state.programs.find(id);
    if (handle == nullptr) continue;
    // One that the program holds can be released, and nothing else.
    if (handle->engine == &engine) emptyHandle(*handle, lock);
    dropHandleIfUnused(state, *handle, lock);
  }
  for (uint32_t id = 1; id < state.book.regions.end(); ++id) {
    Region* region = state.book.regions.at(id);
    if (region->dead || region->engine != &engine || region->kind != RegionKind::kReservation)
      continue;
    while (region->wanted > 0 && !state.stopped)
      state.changed.wait_for(lock, std::chrono::milliseconds(1));
    region->engine = nullptr;
    region->context = nullptr;
  }
}

CUresult VirtualMemory::reserveAddress(uint64_t bytes, uint64_t alignment, uint64_t hint,
                                       CUdeviceptr* out) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || bytes == 0 || !wholePages(bytes) || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  const Region* const region = reserve(state, bytes, std::max(alignment, kPageBytes),
                                       state.book.map().contains(hint) ? hint : 0);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = region->base;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::releaseAddress(CUdeviceptr address, uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Region* region = state.book.find(address);
  if (region == nullptr || region->dead || region->kind != RegionKind::kReservation ||
      region->base != address || region->pages * kPageBytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = state.programs.mappings.lower_bound(address);
  if (mapped != state.programs.mappings.end() && mapped->first < region->end())
    return CUDA_ERROR_INVALID_VALUE;
  releaseReservation(state, *region, lock);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::createHandle(CUcontext context, CUdevice device, uint64_t bytes,
                                     const CUmemAllocationProp& properties,
                                     CUmemGenericAllocationHandle* out) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (out == nullptr || bytes == 0 || !wholePages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  Engine* engine = nullptr;
  if (const CUresult result = engineFor(state, context, device, lock, &engine);
      result != CUDA_SUCCESS)
    return result;
  if (!engine->fits(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::vector<std::unique_ptr<Extent>> extents;
  space::splitIntoExtents(bytes / kPageBytes, [&](const space::Extent& piece) {
    auto extent = std::make_unique<Extent>();
    extent->address = piece.first_page * kPageBytes;
    extent->order = static_cast<uint8_t>(std::countr_zero(piece.pages));
    extent->state = ExtentState::kDetached;
    extents.push_back(std::move(extent));
  });
  VmmHandle& handle = state.programs.make(bytes);
  for (auto& extent : extents) extent->address += handle.home;
  handle.extents = std::move(extents);
  handle.properties = properties;
  handle.engine = engine;
  handle.context = context;
  handle.references = 1;
  engine->adopt(handle);
  engine->addNamed(static_cast<int64_t>(bytes));
  add(engine->figures().allocated_bytes, bytes);
  add(engine->figures().allocations);
  *out = handle.id;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::releaseHandle(CUmemGenericAllocationHandle id) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state.mutex);
  VmmHandle* const handle = state.programs.find(id);
  if (handle == nullptr || handle->references == 0) return CUDA_ERROR_INVALID_VALUE;
  --handle->references;
  dropHandleIfUnused(state, *handle, lock);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::handleProperties(CUmemGenericAllocationHandle id,
                                         CUmemAllocationProp* properties) const {
  if (state_->forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state_->mutex);
  const VmmHandle* const handle = state_->programs.find(id);
  if (handle == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = handle->properties;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::retainHandle(CUdeviceptr address, CUmemGenericAllocationHandle* out) {
  if (state_->forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state_->mutex);
  const VmmMapping* mapping = state_->programs.mappingAt(address);
  if (mapping == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++mapping->handle->references;
  *out = mapping->handle->id;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
                            CUmemGenericAllocationHandle id) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address) || bytes == 0 || !wholePages(address) ||
      !wholePages(bytes))
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  VmmHandle* const handle = state.programs.find(id);
  Region* region = state.book.find(address);
  if (handle == nullptr || handle->engine == nullptr || region == nullptr || region->dead ||
      region->kind != RegionKind::kReservation || address + bytes > region->end())
    return CUDA_ERROR_INVALID_VALUE;
  // As native: a handle is mapped whole.
  if (offset != 0 || bytes != handle->bytes) return CUDA_ERROR_NOT_SUPPORTED;
  const auto next = state.programs.mappings.lower_bound(address);
  if (state.programs.mappingAt(address) != nullptr ||
      (next != state.programs.mappings.end() && next->first < address + bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const auto first = state.programs.mappings.lower_bound(region->base);
  const bool empty = first == state.programs.mappings.end() || first->first >= region->end();
  if (empty || region->engine == nullptr) adoptReservation(*region, *handle);
  state.programs.mappings[address] = {handle, region, {}, false};
  ++handle->mappings;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::setAccess(CUdeviceptr address, uint64_t bytes,
                                  const CUmemAccessDesc* descriptors, size_t count) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address) || descriptors == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  uint64_t at = address;
  while (at < address + bytes) {
    const auto it = state.programs.mappings.find(at);
    if (it == state.programs.mappings.end() || at + it->second.handle->bytes > address + bytes)
      return CUDA_ERROR_INVALID_VALUE;
    at += it->second.handle->bytes;
  }
  for (size_t i = 0; i < count; ++i)  // device memory can't be given to the CPU
    if (descriptors[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_NOT_SUPPORTED;
  for (at = address; at < address + bytes;) {
    const auto found = state.programs.mappings.find(at);
    if (found == state.programs.mappings.end())
      return CUDA_ERROR_INVALID_VALUE;  // unmapped meanwhile
    VmmMapping& mapping = found->second;
    VmmHandle& handle = *mapping.handle;
    std::map<CUdevice, CUmemAccess_flags> access = mapping.access;
    for (size_t i = 0; i < count; ++i) {
      if (descriptors[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        access.erase(descriptors[i].location.id);
      else
        access[descriptors[i].location.id] = descriptors[i].flags;
    }
    for (const auto& [device, flags] : access)
      if (const CUresult added = letReach(state, device, handle, lock); added != CUDA_SUCCESS)
        return added;
    if (const auto still = state.programs.mappings.find(at);
        still == state.programs.mappings.end() || still->second.handle != &handle)
      return CUDA_ERROR_INVALID_VALUE;
    const uint64_t base = at;
    at += handle.bytes;
    const bool was_read_only = mapping.isReadOnly();
    const bool placed = mapping.fixed || handle.primary == base;
    const std::map<CUdevice, CUmemAccess_flags> before =
        std::exchange(mapping.access, std::move(access));
    const bool read_only = mapping.isReadOnly();
    CUresult result = CUDA_SUCCESS;
    if (mapping.access.empty()) {
      if (!placed) continue;
      waitQuiet(state, *mapping.region, lock);
      withdraw(state, base, mapping, lock);
      bringBack(state, handle, lock);
    } else if (placed && read_only == was_read_only) {
      continue;
    } else if (mapping.fixed) {
      result = protectPieces(*handle.engine, piecesOf(state, base, handle), read_only, lock);
    } else if (handle.primary == base) {
      result = protect(state, handle, *mapping.region, read_only, lock);
    } else if (handle.primary == 0 && mapping.region->engine == handle.engine) {
      if (mappedBytes(*mapping.region) + handle.bytes > handle.engine->largestRegion())
        result = CUDA_ERROR_OUT_OF_MEMORY;
      else
        putIn(state, base, handle, *mapping.region, read_only, lock);
    } else {
      if (handle.primary == 0) result = setAside(state, handle, lock);
      if (result == CUDA_SUCCESS) result = mapFixed(state, base, mapping, read_only, lock);
      if (result != CUDA_SUCCESS) bringBack(state, handle, lock);
    }
    if (result != CUDA_SUCCESS) {
      mapping.access = before;
      return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!state_->book.map().contains(address) || !wholePages(address) || !wholePages(bytes))
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  std::vector<uint64_t> bases;
  for (auto it = state.programs.mappings.lower_bound(address);
       it != state.programs.mappings.end() && it->first < address + bytes; ++it) {
    if (it->first + it->second.handle->bytes > address + bytes) return CUDA_ERROR_INVALID_VALUE;
    bases.push_back(it->first);
  }
  const Region* reservation = state.book.find(address);
  if (reservation == nullptr || reservation->dead ||
      reservation->kind != RegionKind::kReservation || address + bytes > reservation->end())
    return CUDA_ERROR_INVALID_VALUE;
  // The end of a mapping that began before.
  if (state.programs.mappingAt(address) != nullptr && !state.programs.mappings.contains(address))
    return CUDA_ERROR_INVALID_VALUE;
  if (bases.empty()) return CUDA_SUCCESS;  // as native: what is reserved only
  waitQuiet(state, *state.programs.mappings[bases[0]].region, lock);
  for (const uint64_t base : bases) {
    const auto it = state.programs.mappings.find(base);
    if (it == state.programs.mappings.end()) continue;
    VmmHandle& handle = *it->second.handle;
    withdraw(state, base, it->second, lock);
    state.programs.mappings.erase(base);
    --handle.mappings;
    bringBack(state, handle, lock);
    dropHandleIfUnused(state, handle, lock);
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::getAccess(CUdeviceptr address, const CUmemLocation& location,
                                  unsigned long long* flags) const {
  if (state_->forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  Lock lock(state_->mutex);
  const VmmMapping* mapping = state_->programs.mappingAt(address);
  if (mapping == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto given = location.type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? mapping->access.find(location.id)
                         : mapping->access.end();
  *flags = given != mapping->access.end() ? given->second : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace olpager::pager
