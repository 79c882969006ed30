// Calls after an illegal access: those that report it, and those that still answer. Each in a
// process of its own, as nothing brings the context back.
#include <cstring>

#include "record.h"

namespace conformance {
namespace {

/// Every kind of call after the error, twice where the first could differ.
void aftermath(const std::string& prefix, const Base& base, const Kernels& kernels,
               CUdeviceptr mine, CUdeviceptr bad) {
  CUstream stream = nullptr, made = nullptr;
  CUevent event = nullptr, made_event = nullptr;
  need(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  need(api.cuEventCreate(&event, 0), "cuEventCreate");
  need(api.cuEventRecord(event, stream), "cuEventRecord");
  void* host = nullptr;
  need(api.cuMemHostAlloc(&host, 4096, 0), "cuMemHostAlloc");
  std::memset(host, 6, 4096);
  uint32_t value = 1;
  record(prefix + "launch", launchOne(kernels.store, {&bad, &value}, stream));
  record(prefix + "synchronize", api.cuStreamSynchronize(stream));
  record(prefix + "synchronize_again", api.cuStreamSynchronize(stream));
  record(prefix + "context_synchronize", api.cuCtxSynchronize());
  record(prefix + "stream_query", api.cuStreamQuery(stream));
  record(prefix + "event_query", api.cuEventQuery(event));
  record(prefix + "event_record", api.cuEventRecord(event, stream));
  record(prefix + "next_launch", launchOne(kernels.nothing, {}, stream));
  CUdeviceptr p = 0;
  record(prefix + "alloc", api.cuMemAlloc(&p, 4096));
  record(prefix + "copy", api.cuMemcpyDtoH(host, mine, 16));
  record(prefix + "copy_async", api.cuMemcpyDtoHAsync(host, mine, 16, stream));
  record(prefix + "memset", api.cuMemsetD8(mine, 0, 16));
  record(prefix + "free", api.cuMemFree(mine));
  record(prefix + "host_alloc", api.cuMemHostAlloc(reinterpret_cast<void**>(&p), 4096, 0));
  record(prefix + "host_free", api.cuMemFreeHost(host));
  record(prefix + "stream_create", api.cuStreamCreate(&made, 0));
  record(prefix + "event_create", api.cuEventCreate(&made_event, 0));
  CUmodule module = nullptr;
  record(prefix + "module_load", api.cuModuleLoadData(&module, kPtx));
  size_t free_bytes = 0, total = 0;
  record(prefix + "memory_info", api.cuMemGetInfo(&free_bytes, &total));
  CUmemorytype type{};
  record(prefix + "pointer_attribute",
         api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mine));
  CUdevice device = -1;
  record(prefix + "context_device", api.cuCtxGetDevice(&device));
  CUcontext current = nullptr;
  record(prefix + "current", api.cuCtxGetCurrent(&current));
  int count = 0;
  record(prefix + "device_count", api.cuDeviceGetCount(&count));
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  record(prefix + "vmm_create", api.cuMemCreate(&handle, 2 << 20, &prop, 0));
  record(prefix + "stream_destroy", api.cuStreamDestroy(stream));
  record(prefix + "event_destroy", api.cuEventDestroy(event));
  CUcontext second = nullptr;
  record(prefix + "new_context", api.cuCtxCreate(&second, nullptr, 0, base.device));
  if (second != nullptr) record(prefix + "new_context_alloc", api.cuMemAlloc(&p, 4096));
  record(prefix + "set_current_back", api.cuCtxSetCurrent(base.context));
  record(prefix + "primary_reset", api.cuDevicePrimaryCtxReset(base.device));
  CUcontext again = nullptr;
  record(prefix + "primary_retain", api.cuDevicePrimaryCtxRetain(&again, base.device));
  record(prefix + "set_current", api.cuCtxSetCurrent(again));
  record(prefix + "alloc_after_reset", api.cuMemAlloc(&p, 4096));
}

}  // namespace

void sectionStickyUnmapped() {
  const Base base;
  const Kernels kernels;
  CUdeviceptr mine = 0, reserved = 0;
  need(api.cuMemAlloc(&mine, 1 << 20), "cuMemAlloc");
  need(api.cuMemAddressReserve(&reserved, 2 << 20, 0, 0, 0), "cuMemAddressReserve");
  aftermath("sticky.unmapped.", base, kernels, mine, reserved);
}

void sectionStickyReadOnly() {
  const Base base;
  const Kernels kernels;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0, mine = 0;
  need(api.cuMemAlloc(&mine, 1 << 20), "cuMemAlloc");
  need(api.cuMemCreate(&handle, 2 << 20, &prop, 0), "cuMemCreate");
  need(api.cuMemAddressReserve(&address, 2 << 20, 0, 0, 0), "cuMemAddressReserve");
  need(api.cuMemMap(address, 2 << 20, 0, handle, 0), "cuMemMap");
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
  need(api.cuMemSetAccess(address, 2 << 20, &access, 1), "cuMemSetAccess");
  CUdeviceptr out = mine;
  record("sticky.read_only.load", launchOne(kernels.load, {&out, &address}));
  record("sticky.read_only.load_synchronize", api.cuCtxSynchronize());
  aftermath("sticky.read_only.", base, kernels, mine, address);
}

void sectionStickyFreed() {
  const Base base;
  const Kernels kernels;
  CUdeviceptr mine = 0, freed = 0;
  need(api.cuMemAlloc(&mine, 1 << 20), "cuMemAlloc");
  need(api.cuMemAlloc(&freed, 64 << 20), "cuMemAlloc");
  need(api.cuMemFree(freed), "cuMemFree");
  aftermath("sticky.freed.", base, kernels, mine, freed);
}

}  // namespace conformance
