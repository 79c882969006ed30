// Managed memory: allocation, advice, prefetching, and the same asked of memory that is not
// managed.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionManaged() {
  const Base base;
  constexpr size_t kMiB = size_t{1} << 20;
  CUdeviceptr p = 0;
  record("managed.alloc_0", api.cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
  record("managed.alloc_no_flags", api.cuMemAllocManaged(&p, kMiB, 0));
  record("managed.alloc", api.cuMemAllocManaged(&p, 4 * kMiB, CU_MEM_ATTACH_GLOBAL));
  std::memset(reinterpret_cast<void*>(p), 3, 4 * kMiB);
  const Kernels kernels;
  CUdeviceptr address = p + 4096;
  uint32_t value = 0x12345678;
  record("managed.launch", launchOne(kernels.store, {&address, &value}));
  record("managed.synchronize", api.cuCtxSynchronize());
  uint32_t got = 0;
  std::memcpy(&got, reinterpret_cast<const void*>(p + 4096), 4);
  recordBool("managed.cpu_sees_kernel", got == value);
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  record("managed.prefetch_device", api.cuMemPrefetchAsync(p, 4 * kMiB, device, 0, nullptr));
  record("managed.prefetch_host", api.cuMemPrefetchAsync(p, 4 * kMiB, host, 0, nullptr));
  record("managed.prefetch_beyond", api.cuMemPrefetchAsync(p, 64 * kMiB, device, 0, nullptr));
  record("managed.advise_read_mostly",
         api.cuMemAdvise(p, 4 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  record("managed.advise_bad", api.cuMemAdvise(p, 4 * kMiB, CUmem_advise(99), device));
  int mostly = -1;
  const CUresult rc =
      api.cuMemRangeGetAttribute(&mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * kMiB);
  recordNumberOr("managed.range_read_mostly", rc, mostly);
  record("managed.free_as_host", api.cuMemFreeHost(reinterpret_cast<void*>(p)));
  record("managed.free", api.cuMemFree(p));
  // Advice and prefetch on memory that is not managed.
  CUdeviceptr d = 0;
  need(api.cuMemAlloc(&d, kMiB), "cuMemAlloc");
  record("managed.prefetch_device_memory", api.cuMemPrefetchAsync(d, kMiB, device, 0, nullptr));
  record("managed.advise_device_memory",
         api.cuMemAdvise(d, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  record("managed.range_device_memory",
         api.cuMemRangeGetAttribute(&mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, d, kMiB));
  record("managed.prefetch_null", api.cuMemPrefetchAsync(0, kMiB, device, 0, nullptr));
}

}  // namespace conformance
