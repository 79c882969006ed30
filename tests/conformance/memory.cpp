// Plain allocations: sizes, alignment, errors, what free accepts.
#include <sys/mman.h>

#include <cstring>

#include "record.h"

namespace conformance {

void sectionMemory() {
  const Base base;
  constexpr size_t kMiB = size_t{1} << 20;
  CUdeviceptr p = 0, q = 0;
  record("memory.alloc_0", api.cuMemAlloc(&p, 0));
  record("memory.alloc_null", api.cuMemAlloc(nullptr, 4096));
  record("memory.alloc_1", api.cuMemAlloc(&p, 1));
  recordNumber("memory.alloc_1.misalignment_512", int64_t(p % 512));
  record("memory.alloc_1_second", api.cuMemAlloc(&q, 1));
  recordBool("memory.small_distance_512_or_more", (p > q ? p - q : q - p) >= 512);
  record("memory.free_interior", api.cuMemFree(p + 1));
  record("memory.free", api.cuMemFree(p));
  record("memory.free_again", api.cuMemFree(p));
  record("memory.free_null", api.cuMemFree(0));
  record("memory.free_garbage", api.cuMemFree(0x1234));
  int on_stack = 0;
  record("memory.free_host_address", api.cuMemFree(CUdeviceptr(&on_stack)));
  record("memory.alloc_huge", api.cuMemAlloc(&p, size_t{1} << 50));
  record("memory.alloc_size_max", api.cuMemAlloc(&p, ~size_t{0}));
  record("memory.usable_after_out_of_memory", api.cuMemAlloc(&p, 4096));
  need(api.cuMemAlloc(&p, 4 * kMiB), "cuMemAlloc");
  recordNumber("memory.alloc_4m.misalignment_512", int64_t(p % 512));
  record("memory.free_interior_4m", api.cuMemFree(p + 2 * kMiB));
  need(api.cuMemFree(p), "cuMemFree");
  size_t pitch = 0;
  record("memory.pitch_zero_width", api.cuMemAllocPitch(&p, &pitch, 0, 10, 4));
  record("memory.pitch_zero_height", api.cuMemAllocPitch(&p, &pitch, 10, 0, 4));
  record("memory.pitch_element_3", api.cuMemAllocPitch(&p, &pitch, 10, 10, 3));
  record("memory.pitch_null", api.cuMemAllocPitch(&p, nullptr, 10, 10, 4));
  for (const size_t width : {1, 100, 512, 513, 5000}) {
    const CUresult rc = api.cuMemAllocPitch(&p, &pitch, width, 10, 4);
    recordNumberOr("memory.pitch_of_width_" + std::to_string(width), rc, int64_t(pitch));
  }
  size_t free_bytes = 0, total = 0, free_after = 0, device_total = 0;
  record("memory.info", api.cuMemGetInfo(&free_bytes, &total));
  need(api.cuDeviceTotalMem(&device_total, base.device), "cuDeviceTotalMem");
  recordBool("memory.info_total_is_device_total", total == device_total);
  recordBool("memory.info_free_at_most_total", free_bytes <= total);
  need(api.cuMemAlloc(&p, 64 * kMiB), "cuMemAlloc");
  api.cuMemGetInfo(&free_after, &total);
  recordBool("memory.info_falls_by_allocation",
             free_bytes - free_after >= 64 * kMiB && free_bytes - free_after < 96 * kMiB);
  need(api.cuMemFree(p), "cuMemFree");
  api.cuMemGetInfo(&free_after, &total);
  recordBool("memory.info_rises_by_free", free_after >= free_bytes - 2 * kMiB);
  record("memory.info_null_free", api.cuMemGetInfo(nullptr, &total));
  record("memory.info_null_total", api.cuMemGetInfo(&free_bytes, nullptr));

  void* host = nullptr;
  record("memory.host_alloc_0", api.cuMemHostAlloc(&host, 0, 0));
  record("memory.host_alloc_bad_flags", api.cuMemHostAlloc(&host, 4096, 0x100));
  record("memory.host_alloc", api.cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr mapped = 0;
  record("memory.host_device_pointer", api.cuMemHostGetDevicePointer(&mapped, host, 0));
  recordBool("memory.host_device_pointer_same", mapped == CUdeviceptr(host));
  record("memory.host_device_pointer_bad_flags", api.cuMemHostGetDevicePointer(&mapped, host, 1));
  record("memory.host_device_pointer_interior",
         api.cuMemHostGetDevicePointer(&mapped, static_cast<char*>(host) + 8, 0));
  record("memory.host_free_as_device", api.cuMemFree(CUdeviceptr(host)));
  record("memory.host_free_interior", api.cuMemFreeHost(static_cast<char*>(host) + 8));
  record("memory.host_free", api.cuMemFreeHost(host));
  record("memory.host_free_again", api.cuMemFreeHost(host));
  record("memory.host_free_null", api.cuMemFreeHost(nullptr));
  need(api.cuMemAlloc(&p, 4096), "cuMemAlloc");
  record("memory.device_free_as_host", api.cuMemFreeHost(reinterpret_cast<void*>(p)));
  record("memory.register_device_memory",
         api.cuMemHostRegister(reinterpret_cast<void*>(p), 4096, 0));
  char* pages = static_cast<char*>(
      mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  record("memory.register_0", api.cuMemHostRegister(pages, 0, 0));
  record("memory.register_null", api.cuMemHostRegister(nullptr, 4096, 0));
  record("memory.register", api.cuMemHostRegister(pages, 32768, 0));
  record("memory.register_again", api.cuMemHostRegister(pages, 32768, 0));
  record("memory.register_overlap", api.cuMemHostRegister(pages + 16384, 32768, 0));
  record("memory.unregister_interior", api.cuMemHostUnregister(pages + 4096));
  record("memory.unregister", api.cuMemHostUnregister(pages));
  record("memory.unregister_again", api.cuMemHostUnregister(pages));
  record("memory.register_unmapped",
         api.cuMemHostRegister(reinterpret_cast<void*>(uintptr_t{0x10000}), 4096, 0));
}

}  // namespace conformance
