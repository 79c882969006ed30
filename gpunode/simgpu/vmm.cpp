// Virtual memory management: reservations, handles, mappings, access rights.
//
// A mapping is there for a device only once access was set for it, and for the CPU only on host
// chunks; until then the range stays PROT_NONE and absent from the page tables.
#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/memory.h"
#include "gpunode/simgpu/memory_state.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace olpager::simgpu {

namespace {

bool isHost(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool isInHost(const Physical& physical) { return isHost(physical.properties.location.type); }

void mapRun(const VmmMapping& mapping, Device& device, bool writable) {
  const uint64_t pages = mapping.bytes / kPageBytes;
  for (uint64_t first = 0; first < pages;) {
    uint64_t count = 1;
    while (first + count < pages && mapping.physical->page(first + count) ==
                                        mapping.physical->page(first) + count * kPageBytes)
      ++count;
    device.pages.map(mapping.base + first * kPageBytes, count * kPageBytes,
                     mapping.physical->page(first), writable);
    first += count;
  }
}

void hideFromCpu(uint64_t address, uint64_t bytes) {
  (void)mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/// OL_SIM_MAPPING: each call that maps or unmaps takes so long, one after the other.
void takeTimeToMap() {
  const double seconds = Driver::get().settings.mapping;
  if (seconds <= 0) return;
  static std::mutex mapping;  // the driver's, for all devices
  const std::lock_guard lock(mapping);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

const VmmMapping* Memory::State::mappingAt(uint64_t address) const {
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return nullptr;
  const VmmMapping& mapping = std::prev(it)->second;
  return address - mapping.base < mapping.bytes ? &mapping : nullptr;
}

CUresult Memory::reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr* out) {
  if (bytes == 0 || bytes % kPageBytes != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max(alignment, kPageBytes);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  uint64_t base = 0;
  if (hint != 0 && hint % alignment == 0) {
    if (hint + bytes < hint || hint + bytes > (1ull << kAddressBits))
      return CUDA_ERROR_INVALID_VALUE;
    void* at =
        mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED && at != reinterpret_cast<void*>(hint)) {
      munmap(at, bytes);
    } else if (at != MAP_FAILED) {
      base = hint;
    }
  }
  if (base == 0) {  // no hint, or taken: anywhere else, as the driver does
    void* at = mmap(nullptr, bytes + alignment, PROT_NONE, kFlags, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t start = reinterpret_cast<uint64_t>(at);
    base = (start + alignment - 1) / alignment * alignment;
    if (base != start) munmap(at, base - start);
    const uint64_t tail = start + alignment - base;
    if (tail != 0) munmap(reinterpret_cast<void*>(base + bytes), tail);
  }
  std::unique_lock lock(state_->mutex);
  state_->reservations[base] = bytes;
  *out = base;
  return CUDA_SUCCESS;
}

CUresult Memory::unreserve(uint64_t address, uint64_t bytes) {
  std::unique_lock lock(state_->mutex);
  auto it = state_->reservations.find(address);
  if (it == state_->reservations.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = state_->mappings.lower_bound(address);
  if (mapping != state_->mappings.end() && mapping->first < address + bytes)
    return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), bytes);
  state_->reservations.erase(it);
  return CUDA_SUCCESS;
}

CUresult Memory::create(uint64_t bytes, const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* out) {
  if (bytes == 0 || bytes % kPageBytes != 0 || properties.type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  const auto handle_types = properties.requestedHandleTypes;
  if (handle_types != CU_MEM_HANDLE_TYPE_NONE &&
      handle_types != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  Device* device = nullptr;
  switch (properties.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      device = Driver::get().device(properties.location.id);
      if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
      break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      if (properties.location.id != 0) return CUDA_ERROR_INVALID_VALUE;
      [[fallthrough]];
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      if (!Driver::get().settings.host_numa) return CUDA_ERROR_NOT_SUPPORTED;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (const double rate = Driver::get().settings.host_making; device == nullptr && rate > 0) {
    static std::mutex making;  // the driver's, for all devices
    const std::lock_guard lock(making);
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / rate));
  }
  std::shared_ptr<Physical> physical;
  const bool dma_buf = Driver::get().settings.dma_buf && device != nullptr &&
                       properties.allocFlags.gpuDirectRDMACapable != 0;
  if (handle_types != CU_MEM_HANDLE_TYPE_NONE || dma_buf) {
    physical = Physical::shared(device, bytes, properties);
  } else {
    physical = device != nullptr ? Physical::inVram(*device, bytes) : Physical::inHost(bytes);
  }
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->properties = properties;
  physical->properties.win32HandleMetaData = nullptr;
  return adopt(std::move(physical), out);
}

CUresult Memory::adopt(std::shared_ptr<Physical> physical, CUmemGenericAllocationHandle* out) {
  const uint64_t handle = newHandleValue(HandleKind::kMemory);
  physical->handle = handle;
  std::unique_lock lock(state_->mutex);
  state_->handles[handle].physical = std::move(physical);
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult Memory::release(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<Physical> physical;  // goes after the lock
  std::unique_lock lock(state_->mutex);
  auto it = state_->handles.find(handle);
  if (it == state_->handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--it->second.references == 0) {
    physical = std::move(it->second.physical);
    state_->handles.erase(it);
  }
  lock.unlock();
  return CUDA_SUCCESS;
}

std::shared_ptr<Physical> Memory::physical(CUmemGenericAllocationHandle handle) const {
  std::shared_lock lock(state_->mutex);
  auto it = state_->handles.find(handle);
  return it == state_->handles.end() ? nullptr : it->second.physical;
}

CUresult Memory::retain(uint64_t address, CUmemGenericAllocationHandle* out) {
  std::unique_lock lock(state_->mutex);
  const VmmMapping* mapping = state_->mappingAt(address);
  if (mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = mapping->physical->handle;
  const auto [entry, released] = state_->handles.try_emplace(mapping->physical->handle);
  if (released) {  // its last handle went while it was mapped: the number comes back
    entry->second.physical = mapping->physical;
  } else {
    ++entry->second.references;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::dmaBuf(uint64_t address, uint64_t bytes, int* fd) {
  std::unique_lock lock(state_->mutex);
  const VmmMapping* mapping = state_->mappingAt(address);
  if (mapping == nullptr || mapping->base != address || mapping->bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (mapping->physical->properties.allocFlags.gpuDirectRDMACapable == 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  *fd = fcntl(mapping->physical->sharedFd(), F_DUPFD_CLOEXEC, 3);
  return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult Memory::map(uint64_t address, uint64_t bytes, uint64_t offset,
                     CUmemGenericAllocationHandle handle) {
  takeTimeToMap();
  if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (bytes == 0 || bytes % kPageBytes != 0 || address % kPageBytes != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(state_->mutex);
  auto chunk = state_->handles.find(handle);
  if (chunk == state_->handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != chunk->second.physical->bytes()) return CUDA_ERROR_NOT_SUPPORTED;
  auto reservation = state_->reservations.upper_bound(address);
  if (reservation == state_->reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reservation;
  if (address + bytes > reservation->first + reservation->second) return CUDA_ERROR_INVALID_VALUE;
  auto next = state_->mappings.lower_bound(address);
  if (next != state_->mappings.end() && next->first < address + bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (state_->mappingAt(address) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  VmmMapping mapping;
  mapping.base = address;
  mapping.bytes = bytes;
  mapping.physical = chunk->second.physical;
  mapping.access.assign(Driver::get().devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  mapping.buffer_id = newBufferId();
  state_->mappings[address] = std::move(mapping);
  return CUDA_SUCCESS;
}

CUresult Memory::unmap(uint64_t address, uint64_t bytes) {
  takeTimeToMap();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::shared_ptr<Physical>> dropped;  // go after the lock
  std::unique_lock lock(state_->mutex);
  // The range must be whole mappings, one after the other.
  uint64_t end = address;
  auto first = state_->mappings.find(address);
  auto last = first;
  for (; last != state_->mappings.end() && last->first == end && end < address + bytes; ++last)
    end += last->second.bytes;
  if (end != address + bytes) {
    // A range with nothing mapped in it is unmapped already.
    const auto next = state_->mappings.lower_bound(address);
    const bool empty = (next == state_->mappings.end() || next->first >= address + bytes) &&
                       state_->mappingAt(address) == nullptr;
    auto reservation = state_->reservations.upper_bound(address);
    const bool inside =
        reservation != state_->reservations.begin() && address % kPageBytes == 0 &&
        bytes % kPageBytes == 0 &&
        address + bytes <= std::prev(reservation)->first + std::prev(reservation)->second;
    return empty && inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  for (auto it = first; it != last; ++it) {
    VmmMapping& mapping = it->second;
    for (size_t i = 0; i < mapping.access.size(); ++i)
      if (mapping.access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        Driver::get().devices[i]->pages.unmap(mapping.base, mapping.bytes);
    if (mapping.host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      hideFromCpu(mapping.base, mapping.bytes);
    dropped.push_back(std::move(mapping.physical));
  }
  state_->mappings.erase(first, last);
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult Memory::setAccess(uint64_t address, uint64_t bytes, const CUmemAccessDesc* descriptors,
                           size_t count) {
  takeTimeToMap();
  if (bytes == 0 || descriptors == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(state_->mutex);
  uint64_t end = address;
  auto first = state_->mappings.find(address);
  auto last = first;
  for (; last != state_->mappings.end() && last->first == end && end < address + bytes; ++last)
    end += last->second.bytes;
  if (end != address + bytes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& wanted = descriptors[i];
    if (wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        wanted.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      if (Driver::get().device(wanted.location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
      for (auto it = first; it != last && !Driver::get().settings.peers; ++it) {
        const Physical& physical = *it->second.physical;
        if (!isInHost(physical) && physical.properties.location.id != wanted.location.id)
          return CUDA_ERROR_INVALID_DEVICE;
      }
    } else if (isHost(wanted.location.type)) {
      for (auto it = first; it != last; ++it)
        if (!isInHost(*it->second.physical)) return CUDA_ERROR_NOT_SUPPORTED;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (auto it = first; it != last; ++it) {
    VmmMapping& mapping = it->second;
    for (size_t i = 0; i < count; ++i) {
      const CUmemAccess_flags flags = descriptors[i].flags;
      if (isHost(descriptors[i].location.type)) {
        if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
          hideFromCpu(mapping.base, mapping.bytes);
        } else {
          const int protection =
              flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE;
          if (!mapping.physical->mapForCpu(reinterpret_cast<void*>(mapping.base), protection))
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        mapping.host_access = flags;
        continue;
      }
      Device& device = *Driver::get().device(descriptors[i].location.id);
      if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        device.pages.unmap(mapping.base, mapping.bytes);
      } else {
        mapRun(mapping, device, flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      }
      mapping.access[device.ordinal] = flags;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Memory::getAccess(uint64_t address, const CUmemLocation& location,
                           unsigned long long* flags) const {
  std::shared_lock lock(state_->mutex);
  const VmmMapping* mapping = state_->mappingAt(address);
  if (mapping == nullptr) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // other allocations have no rights to tell of
    return state_->allocationAt(address) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (isHost(location.type)) {
    *flags = mapping->host_access;
    return CUDA_SUCCESS;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (Driver::get().device(location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *flags = mapping->access[location.id];
  return CUDA_SUCCESS;
}

bool Memory::mapping(uint64_t address, VmmMapping* out) const {
  std::shared_lock lock(state_->mutex);
  const VmmMapping* found = state_->mappingAt(address);
  if (found == nullptr) return false;
  *out = *found;
  return true;
}

bool Memory::onHost(uint64_t address) const {
  std::shared_lock lock(state_->mutex);
  const VmmMapping* const found = state_->mappingAt(address);
  return found != nullptr && isInHost(*found->physical);
}

bool Memory::reservation(uint64_t address, uint64_t* base, uint64_t* bytes) const {
  std::shared_lock lock(state_->mutex);
  auto it = state_->reservations.upper_bound(address);
  if (it == state_->reservations.begin()) return false;
  --it;
  if (address - it->first >= it->second) return false;
  *base = it->first;
  *bytes = it->second;
  return true;
}

}  // namespace olpager::simgpu
