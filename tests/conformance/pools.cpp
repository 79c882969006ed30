// Stream-ordered allocation and its pools.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionPools() {
  const Base base;
  constexpr size_t kMiB = size_t{1} << 20;
  CUmemoryPool standard = nullptr, current = nullptr, mine = nullptr;
  record("pools.default", api.cuDeviceGetDefaultMemPool(&standard, base.device));
  record("pools.current", api.cuDeviceGetMemPool(&current, base.device));
  recordBool("pools.current_is_default", current == standard);
  uint64_t value = 99;
  const struct {
    const char* name;
    CUmemPool_attribute id;
    bool number;
  } attributes[] = {
      {"follow_event_dependencies", CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, true},
      {"allow_opportunistic", CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, true},
      {"allow_internal_dependencies", CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, true},
      {"release_threshold", CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, true},
      {"reserved_current", CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, true},
      {"used_current", CU_MEMPOOL_ATTR_USED_MEM_CURRENT, true},
      {"used_high", CU_MEMPOOL_ATTR_USED_MEM_HIGH, true},
  };
  for (const auto& attribute : attributes) {
    value = 0;
    const CUresult rc = api.cuMemPoolGetAttribute(standard, attribute.id, &value);
    recordNumberOr(std::string("pools.default.") + attribute.name, rc, int64_t(value));
  }
  record("pools.attribute_99",
         api.cuMemPoolGetAttribute(standard, CUmemPool_attribute(99), &value));
  CUdeviceptr p = 0, q = 0, r = 0;
  CUstream stream = nullptr, other = nullptr;
  need(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  need(api.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  record("pools.alloc_0", api.cuMemAllocAsync(&p, 0, stream));
  record("pools.alloc_null", api.cuMemAllocAsync(nullptr, 4096, stream));
  record("pools.alloc_huge", api.cuMemAllocAsync(&p, size_t{1} << 50, stream));
  record("pools.alloc", api.cuMemAllocAsync(&p, 3 * kMiB, stream));
  recordNumber("pools.alloc.misalignment_512", int64_t(p % 512));
  api.cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
  recordNumber("pools.used_after_3m", int64_t(value));
  record("pools.use", api.cuMemsetD8Async(p, 1, 3 * kMiB, stream));
  record("pools.free_async_interior", api.cuMemFreeAsync(p + 512, stream));
  record("pools.free_async", api.cuMemFreeAsync(p, stream));
  record("pools.reuse_alloc", api.cuMemAllocAsync(&q, 3 * kMiB, stream));
  recordBool("pools.reuse_same_stream_same_address", p == q);
  record("pools.free_async_other_stream", api.cuMemFreeAsync(q, other));
  api.cuCtxSynchronize();
  record("pools.free_async_again", api.cuMemFreeAsync(q, stream));
  record("pools.free_async_null", api.cuMemFreeAsync(0, stream));
  need(api.cuMemAllocAsync(&p, kMiB, stream), "cuMemAllocAsync");
  api.cuStreamSynchronize(stream);
  record("pools.free_sync_of_async", api.cuMemFree(p));
  need(api.cuMemAlloc(&r, kMiB), "cuMemAlloc");
  record("pools.free_async_of_sync", api.cuMemFreeAsync(r, stream));
  api.cuStreamSynchronize(stream);
  api.cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
  recordNumber("pools.used_at_end", int64_t(value));
  record("pools.trim", api.cuMemPoolTrimTo(standard, 0));
  api.cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
  recordNumber("pools.reserved_after_trim", int64_t(value));
  uint64_t high = 0;
  record("pools.reset_used_high",
         api.cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
  high = 7;
  record("pools.set_used_high_7",
         api.cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high));
  record("pools.set_used_current",
         api.cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &high));
  record("pools.destroy_default", api.cuMemPoolDestroy(standard));

  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  record("pools.create", api.cuMemPoolCreate(&mine, &properties));
  CUmemPoolProps bad = properties;
  bad.location.id = 99;
  CUmemoryPool never = nullptr;
  record("pools.create_device_99", api.cuMemPoolCreate(&never, &bad));
  record("pools.alloc_from_mine", api.cuMemAllocFromPoolAsync(&p, kMiB, mine, stream));
  CUmemoryPool of = nullptr;
  record("pools.handle_of_mine",
         api.cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
  recordBool("pools.handle_of_mine.same", of == mine);
  CUmemAccess_flags flags{};
  const CUresult accessed = api.cuMemPoolGetAccess(&flags, mine, &properties.location);
  recordNumberOr("pools.access", accessed, int64_t(flags));
  record("pools.set_current", api.cuDeviceSetMemPool(base.device, mine));
  need(api.cuMemAllocAsync(&q, kMiB, stream), "cuMemAllocAsync");
  api.cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, q);
  recordBool("pools.current_used", of == mine);
  record("pools.destroy_in_use", api.cuMemPoolDestroy(mine));
  record("pools.memory_after_destroy", api.cuMemsetD8Async(p, 2, kMiB, stream));
  record("pools.free_after_destroy", api.cuMemFreeAsync(p, stream));
  api.cuDeviceGetMemPool(&current, base.device);
  recordBool("pools.current_default_after_destroy", current == standard);
  record("pools.synchronize", api.cuCtxSynchronize());
}

}  // namespace conformance
