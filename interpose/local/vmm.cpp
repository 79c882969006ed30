// The program's own virtual memory management. Plain device memory is the pager's. Memory that the
// program may export by a file descriptor is the driver's as long as there is VRAM for it, and then
// the pager's, which can't be exported: PyTorch's expandable segments are all created so, and never
// exported. OL_EXPORTABLE=pager makes all of it the pager's. Compressed, fabric and multicast
// memory, and everything as long as the pager does not serve it, is the driver's.
#include <algorithm>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/contexts.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::Pool;
using olpager::pager::RootKind;

namespace {

// The pager answers this to what it does not serve; the driver then does.
constexpr CUresult kNotServed = CUDA_ERROR_NOT_SUPPORTED;

// Memory that a NIC could reach (gpuDirectRDMACapable) is served too: PyTorch asks for that
// wherever the device can. A program that registers it comes by cuMemGetHandleForAddressRange,
// which keeps it in VRAM.
bool servable(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
          properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
         properties->allocFlags.compressionType == 0 && properties->allocFlags.usage == 0;
}

bool ourHandle(const Pool* running, CUmemGenericAllocationHandle handle) {
  return running != nullptr && running->ownsHandle(handle);
}

bool ourAddress(const Pool* running, CUdeviceptr address) {
  return running != nullptr && running->contains(address);
}

// Physical memory belongs to no context, but the pager works in one: the thread's own, else the
// device's primary.
CUcontext contextFor(CUdevice device) {
  Place place;
  if (currentPlace(&place) == CUDA_SUCCESS && place.device == device) return place.context;
  return retainedPrimary(device);
}

CUresult createPaged(Pool& running, CUmemGenericAllocationHandle* out, size_t bytes,
                     const CUmemAllocationProp& properties) {
  const CUcontext context = contextFor(properties.location.id);
  if (context == nullptr) return kNotServed;
  RelaxedCapture relaxed;
  return running.createHandle(context, properties.location.id, bytes, properties, out);
}

// [address, + bytes), part after part: `foreign` for the driver's own mappings, several at once
// where one follows the other, `ours` for what lies between. Each gets an address and bytes; the
// first error ends it.
template <typename Foreign, typename Ours>
CUresult inParts(CUdeviceptr address, size_t bytes, Foreign foreign, Ours ours) {
  const CUdeviceptr end = address + bytes;
  CUresult result = CUDA_SUCCESS;
  const auto make = [&](auto call, CUdeviceptr until) {
    if (result == CUDA_SUCCESS && until > address) result = call(address, until - address);
    address = std::max(address, until);
  };
  CUdeviceptr foreign_until = address;
  for (const auto& [first, size] : foreignMapsAt(address, bytes)) {
    if (first > foreign_until) {
      make(foreign, foreign_until);
      make(ours, first);
    }
    foreign_until = std::min(end, first + size);
  }
  make(foreign, foreign_until);
  make(ours, end);
  return result;
}

CUresult refuse(const char* what) {
  olpager::base::warnOnce(what, "%s is not available for memory that olpager manages", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

bool hasAccess(CUdevice device, CUdeviceptr address) {
  const CUmemLocation location = memoryOf(device);
  unsigned long long flags = 0;
  return driver().cuMemGetAccess(&flags, &location, address) == CUDA_SUCCESS &&
         flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// Memory of the driver's own that kernels of a device can use from now on, or no more. A device
// that can't use it does not look through it either.
void noteForeignAccess(Pool& running, CUdeviceptr address, size_t bytes,
                       const CUmemAccessDesc* descriptors, size_t count) {
  bool of_host = false, taken = false;
  for (size_t i = 0; i < count; ++i) {
    const bool none = descriptors[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    of_host |= !none && descriptors[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    taken |= none;
  }
  int devices = 0;
  (void)driver().cuDeviceGetCount(&devices);
  for (const auto& [first, size] : foreignMapsAt(address, bytes)) {
    if (taken) running.removeRoot(first);
    for (CUdevice device = 0; device < devices; ++device)
      if (hasAccess(device, first))
        running.addRoot(contextFor(device), first, size,
                        of_host ? RootKind::kHost : RootKind::kDevice);
  }
}

}  // namespace

OLPAGER_HOOK(cuMemAddressReserve)
(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  Pool* running = pool();
  if (running != nullptr && out != nullptr && flags == 0) {
    const CUresult result = running->reserveAddress(bytes, alignment, hint, out);
    if (result != kNotServed) return result;
    // A hint into the range can't be had from the driver: the range is ours.
    if (running->contains(hint)) hint = 0;
  }
  return driver().cuMemAddressReserve(out, bytes, alignment, hint, flags);
}

OLPAGER_HOOK(cuMemAddressFree)(CUdeviceptr address, size_t bytes) {
  Pool* running = pool();
  if (ourAddress(running, address)) return running->releaseAddress(address, bytes);
  return driver().cuMemAddressFree(address, bytes);
}

OLPAGER_HOOK(cuMemCreate)
(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* properties,
 unsigned long long flags) {
  Pool* running = pool();
  const bool can_page = running != nullptr && out != nullptr && flags == 0 && servable(properties);
  const bool drivers_first = can_page &&
                             properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
                             exportableIsDrivers();
  if (can_page && !drivers_first) {
    const CUresult result = createPaged(*running, out, bytes, *properties);
    if (result != kNotServed) return result;
  }
  if (out == nullptr || properties == nullptr ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return driver().cuMemCreate(out, bytes, properties, flags);
  const CUresult result = withRelief(
      properties->location.id, {bytes},
      [&] { return driver().cuMemCreate(out, bytes, properties, flags); }, [&] { return *out; });
  if (!drivers_first || result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (createPaged(*running, out, bytes, *properties) != CUDA_SUCCESS) return result;
  olpager::base::warnOnce(
      "exportable memory is paged",
      "cuMemCreate: VRAM has no room for more exportable memory: from here on such memory is paged "
      "and can't be exported; where none is (PyTorch's expandable segments), OL_EXPORTABLE=pager "
      "(olrun --exportable pager) pages all of it");
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuMemRelease)(CUmemGenericAllocationHandle handle) {
  Pool* running = pool();
  if (ourHandle(running, handle)) return running->releaseHandle(handle);
  const CUresult result = driver().cuMemRelease(handle);
  if (result == CUDA_SUCCESS) loanGone(handle);
  return result;
}

OLPAGER_HOOK(cuMemMap)
(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
 unsigned long long flags) {
  Pool* running = pool();
  if (ourHandle(running, handle)) {
    if (flags != 0 || !running->contains(address)) return CUDA_ERROR_INVALID_VALUE;
    RelaxedCapture relaxed;
    return running->map(address, bytes, offset, handle);
  }
  const CUresult result = driver().cuMemMap(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS && ourAddress(running, address)) foreignMap(address, bytes);
  return result;
}

OLPAGER_HOOK(cuMemUnmap)(CUdeviceptr address, size_t bytes) {
  Pool* running = pool();
  if (!ourAddress(running, address)) return driver().cuMemUnmap(address, bytes);
  return inParts(
      address, bytes,
      [&](CUdeviceptr part, size_t size) {
        for (const auto& [first, mapped] : foreignMapsAt(part, size)) running->removeRoot(first);
        const CUresult result = driver().cuMemUnmap(part, size);
        if (result == CUDA_SUCCESS) (void)foreignUnmap(part, size);
        return result;
      },
      [&](CUdeviceptr part, size_t size) {
        RelaxedCapture relaxed;
        return running->unmap(part, size);
      });
}

OLPAGER_HOOK(cuMemSetAccess)
(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptors, size_t count) {
  Pool* running = pool();
  const auto drivers = [&](CUdeviceptr part, size_t size) {
    const CUresult result = driver().cuMemSetAccess(part, size, descriptors, count);
    if (result == CUDA_SUCCESS && running != nullptr)
      noteForeignAccess(*running, part, size, descriptors, count);
    return result;
  };
  if (!ourAddress(running, address)) return drivers(address, bytes);
  return inParts(address, bytes, drivers, [&](CUdeviceptr part, size_t size) {
    RelaxedCapture relaxed;
    return running->setAccess(part, size, descriptors, count);
  });
}

OLPAGER_HOOK(cuMemGetAccess)
(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  Pool* running = pool();
  if (!ourAddress(running, address) || foreignMapped(address))
    return driver().cuMemGetAccess(flags, location, address);
  olpager::pager::AllocationInfo info;
  if (flags == nullptr || location == nullptr || !running->describe(address, &info))
    return CUDA_ERROR_INVALID_VALUE;
  // Native CUDA says so of memory that the program did not map itself.
  if (info.kind != olpager::pager::AllocationKind::kVmm) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  return running->getAccess(address, *location, flags);
}

OLPAGER_HOOK(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle* out, void* address) {
  Pool* running = pool();
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  if (!ourAddress(running, at) || foreignMapped(at))
    return driver().cuMemRetainAllocationHandle(out, address);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return running->retainHandle(at, out);
}

OLPAGER_HOOK(cuMemGetAllocationPropertiesFromHandle)
(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  Pool* running = pool();
  if (!ourHandle(running, handle))
    return driver().cuMemGetAllocationPropertiesFromHandle(out, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return running->handleProperties(handle, out);
}

// Memory that can leave VRAM can't be shown to others. Without a type of shareable handle native
// refuses to export it too.
OLPAGER_HOOK(cuMemExportToShareableHandle)
(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
 unsigned long long flags) {
  const Pool* running = pool();
  if (ourHandle(running, handle)) {
    CUmemAllocationProp properties{};
    if (out == nullptr || flags != 0 ||
        running->handleProperties(handle, &properties) != CUDA_SUCCESS ||
        type == CU_MEM_HANDLE_TYPE_NONE || (properties.requestedHandleTypes & type) == 0)
      return CUDA_ERROR_INVALID_VALUE;
    olpager::base::warnOnce(
        "cuMemExportToShareableHandle",
        exportableIsDrivers()
            ? "cuMemExportToShareableHandle: this memory came when VRAM had no room for exportable "
              "memory: it is paged "
              "and can't be exported; have less exportable memory, or export what is made earlier"
            : "cuMemExportToShareableHandle: memory that olpager moves can't be exported; without "
              "OL_EXPORTABLE=pager "
              "exportable memory is the driver's, in VRAM");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return driver().cuMemExportToShareableHandle(out, handle, type, flags);
}

OLPAGER_HOOK(cuMulticastBindMem)
(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
 CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags) {
  if (ourHandle(pool(), handle)) return refuse("cuMulticastBindMem");
  return driver().cuMulticastBindMem(multicast, multicast_offset, handle, offset, bytes, flags);
}

OLPAGER_HOOK(cuMulticastBindAddr)
(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t bytes,
 unsigned long long flags) {
  if (ourAddress(pool(), address) && !foreignMapped(address)) return refuse("cuMulticastBindAddr");
  return driver().cuMulticastBindAddr(multicast, offset, address, bytes, flags);
}

namespace {

template <typename Native>
CUresult mapArray(const CUarrayMapInfo* list, unsigned count, Native native) {
  const Pool* running = pool();
  for (unsigned i = 0; running != nullptr && list != nullptr && i < count; ++i) {
    if (list[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC &&
        ourHandle(running, list[i].memHandle.memHandle)) {
      return refuse("cuMemMapArrayAsync");
    }
  }
  return native();
}

}  // namespace

OLPAGER_HOOK(cuMemMapArrayAsync)(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return mapArray(list, count, [&] { return driver().cuMemMapArrayAsync(list, count, stream); });
}
OLPAGER_HOOK(cuMemMapArrayAsync_ptsz)(CUarrayMapInfo* list, unsigned int count, CUstream stream) {
  return mapArray(list, count,
                  [&] { return driver().cuMemMapArrayAsync_ptsz(list, count, stream); });
}
