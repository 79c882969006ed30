// Devices, contexts, and plain allocations: sizes, alignment, errors, what free accepts.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "record.h"

namespace conformance {

void sectionDevice() {
  // Before cuInit.
  int count = -1;
  record("device.count_before_init", api.cuDeviceGetCount(&count));
  CUdeviceptr p = 0;
  record("device.alloc_before_init", api.cuMemAlloc(&p, 4096));
  CUcontext context = nullptr;
  record("device.current_before_init", api.cuCtxGetCurrent(&context));
  int version = 0;
  const CUresult versioned = api.cuDriverGetVersion(&version);
  record("device.version_before_init", versioned);
  recordBool("device.version_13000_or_newer", version >= 13000);
  record("device.init_flags_1", api.cuInit(1));
  record("device.init", api.cuInit(0));
  record("device.init_again", api.cuInit(0));
  record("device.count", api.cuDeviceGetCount(&count));
  CUdevice device = -1;
  record("device.get_0", api.cuDeviceGet(&device, 0));
  recordNumber("device.get_0.value", device);
  record("device.get_minus_1", api.cuDeviceGet(&device, -1));
  record("device.get_1000", api.cuDeviceGet(&device, 1000));
  record("device.get_null", api.cuDeviceGet(nullptr, 0));
  // Attributes that programs and the pager decide by.
  const struct {
    const char* name;
    CUdevice_attribute id;
  } decided[] = {
      {"unified_addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
      {"managed_memory", CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
      {"concurrent_managed_access", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
      {"vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"posix_fd", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"memory_pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
      {"map_host_memory", CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
      {"host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"host_pointer_for_registered", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
      {"warp_size", CU_DEVICE_ATTRIBUTE_WARP_SIZE},
      {"max_threads_per_block", CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {"max_shared_memory_per_block", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
      {"cooperative_launch", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
      {"stream_priorities", CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
  };
  for (const auto& attribute : decided) {
    int value = -1;
    const CUresult rc = api.cuDeviceGetAttribute(&value, attribute.id, 0);
    recordNumberOr(std::string("device.attribute.") + attribute.name, rc, value);
  }
  int value = -1;
  // Every id that a start of the runtime library asks for has to be answered.
  for (int id = 1; id <= 143; ++id) {
    const CUresult rc = api.cuDeviceGetAttribute(&value, CUdevice_attribute(id), 0);
    if (rc != CUDA_SUCCESS) record("device.attribute_id." + std::to_string(id), rc);
  }
  record("device.attribute_id_0", api.cuDeviceGetAttribute(&value, CUdevice_attribute(0), 0));
  record("device.attribute_id_100000", api.cuDeviceGetAttribute(&value, CUdevice_attribute(100000), 0));
  record("device.attribute_null", api.cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  record("device.attribute_device_99", api.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
  size_t total = 0;
  record("device.total_memory", api.cuDeviceTotalMem(&total, 0));
  record("device.total_memory_device_99", api.cuDeviceTotalMem(&total, 99));
  char name[64];
  record("device.name_zero_length", api.cuDeviceGetName(name, 0, 0));
  record("device.name", api.cuDeviceGetName(name, sizeof name, 0));
  const char* described = nullptr;
  record("device.error_name", api.cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &described));
  record("device.error_name.value", described == nullptr ? "null" : described);
  record("device.error_name_unknown", api.cuGetErrorName(CUresult(12345), &described));
  recordBool("device.error_name_unknown.null", described == nullptr);
  // Now that it is initialised, without any context.
  record("device.alloc_without_context", api.cuMemAlloc(&p, 4096));
  size_t free_bytes = 0;
  record("device.memory_info_without_context", api.cuMemGetInfo(&free_bytes, &total));
  record("device.synchronize_without_context", api.cuCtxSynchronize());
  CUstream stream = nullptr;
  record("device.stream_without_context", api.cuStreamCreate(&stream, 0));
  record("device.host_alloc_without_context", api.cuMemHostAlloc(reinterpret_cast<void**>(&p), 4096, 0));
}

void sectionContext() {
  const Base base;
  CUcontext current = nullptr, popped = nullptr, second = nullptr;
  api.cuCtxGetCurrent(&current);
  recordBool("context.current_is_primary", current == base.context);
  unsigned flags = 0;
  int active = -1;
  record("context.primary_state", api.cuDevicePrimaryCtxGetState(base.device, &flags, &active));
  recordNumber("context.primary_state.active", active);
  record("context.create", api.cuCtxCreate(&second, nullptr, 0, base.device));
  api.cuCtxGetCurrent(&current);
  recordBool("context.create_makes_current", current == second);
  CUdeviceptr p = 0, q = 0;
  record("context.alloc_in_second", api.cuMemAlloc(&p, 4096));
  record("context.pop", api.cuCtxPopCurrent(&popped));
  recordBool("context.pop_returns_second", popped == second);
  api.cuCtxGetCurrent(&current);
  recordBool("context.pop_restores_primary", current == base.context);
  // Memory of one context, used and freed from the other.
  record("context.memset_of_other_contexts_memory", api.cuMemsetD8(p, 1, 4096));
  CUcontext owner = nullptr;
  record("context.attribute_of_other_contexts_memory",
         api.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  recordBool("context.attribute_of_other_contexts_memory.second", owner == second);
  record("context.free_from_other_context", api.cuMemFree(p));
  record("context.push", api.cuCtxPushCurrent(second));
  record("context.alloc_before_destroy", api.cuMemAlloc(&q, 4096));
  record("context.destroy_current", api.cuCtxDestroy(second));
  api.cuCtxGetCurrent(&current);
  recordBool("context.destroy_current_pops", current != second);
  record("context.free_after_destroy", api.cuMemFree(q));
  CUmemorytype type{};
  record("context.attribute_after_destroy", api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
  record("context.set_current_null", api.cuCtxSetCurrent(nullptr));
  record("context.pop_empty", api.cuCtxPopCurrent(&popped));
  record("context.synchronize_none", api.cuCtxSynchronize());
  record("context.set_current_primary", api.cuCtxSetCurrent(base.context));
  record("context.push_null", api.cuCtxPushCurrent(nullptr));
  // Another thread starts without one.
  std::thread([&] {
    CUcontext other = reinterpret_cast<CUcontext>(uintptr_t{1});
    record("context.thread_current", api.cuCtxGetCurrent(&other));
    recordBool("context.thread_current_null", other == nullptr);
  }).join();
  // Reset drops what was allocated.
  need(api.cuMemAlloc(&p, 4096), "cuMemAlloc");
  record("context.primary_reset", api.cuDevicePrimaryCtxReset(base.device));
  api.cuDevicePrimaryCtxGetState(base.device, &flags, &active);
  recordNumber("context.primary_active_after_reset", active);
  api.cuCtxGetCurrent(&current);
  recordBool("context.primary_current_after_reset", current == base.context);
  record("context.alloc_after_reset", api.cuMemAlloc(&q, 4096));
  CUcontext again = nullptr;
  record("context.primary_retain_after_reset", api.cuDevicePrimaryCtxRetain(&again, base.device));
  recordBool("context.primary_same_after_reset", again == base.context);
  api.cuCtxSetCurrent(again);
  record("context.alloc_after_retain", api.cuMemAlloc(&q, 4096));
  record("context.free_old_after_reset", p != q ? text(api.cuMemFree(p)) : "same address");
}

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
  record("memory.register_device_memory", api.cuMemHostRegister(reinterpret_cast<void*>(p), 4096, 0));
  char* pages = static_cast<char*>(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  record("memory.register_0", api.cuMemHostRegister(pages, 0, 0));
  record("memory.register_null", api.cuMemHostRegister(nullptr, 4096, 0));
  record("memory.register", api.cuMemHostRegister(pages, 32768, 0));
  record("memory.register_again", api.cuMemHostRegister(pages, 32768, 0));
  record("memory.register_overlap", api.cuMemHostRegister(pages + 16384, 32768, 0));
  record("memory.unregister_interior", api.cuMemHostUnregister(pages + 4096));
  record("memory.unregister", api.cuMemHostUnregister(pages));
  record("memory.unregister_again", api.cuMemHostUnregister(pages));
  record("memory.register_unmapped", api.cuMemHostRegister(reinterpret_cast<void*>(uintptr_t{0x10000}), 4096, 0));
}

}  // namespace conformance
