// Devices and contexts: before initialisation, without a context, several contexts, reset.
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
  record("device.attribute_id_100000",
         api.cuDeviceGetAttribute(&value, CUdevice_attribute(100000), 0));
  record("device.attribute_null",
         api.cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  record("device.attribute_device_99",
         api.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99));
  size_t total = 0;
  record("device.total_memory", api.cuDeviceTotalMem(&total, 0));
  record("device.total_memory_device_99", api.cuDeviceTotalMem(&total, 99));
  char name[64];
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
  record("device.host_alloc_without_context",
         api.cuMemHostAlloc(reinterpret_cast<void**>(&p), 4096, 0));
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
  record("context.attribute_after_destroy",
         api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
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

}  // namespace conformance
