// Virtual memory management: what may be reserved, created, mapped, unmapped and released when, and
// what is true after.
#include <cstring>

#include "record.h"

namespace conformance {
namespace {

CUmemAllocationProp properties(CUmemLocationType type, int id = 0) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  prop.location.id = id;
  return prop;
}

CUmemAccessDesc access(CUmemAccess_flags flags,
                       CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
  CUmemAccessDesc descriptor{};
  descriptor.location.type = type;
  descriptor.flags = flags;
  return descriptor;
}

}  // namespace

void sectionVmm() {
  const Base base;
  const CUmemAllocationProp device = properties(CU_MEM_LOCATION_TYPE_DEVICE);
  const CUmemAccessDesc read_write = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  size_t g = 0, recommended = 0;
  record("vmm.granularity",
         api.cuMemGetAllocationGranularity(&g, &device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  recordNumber("vmm.granularity.minimum", int64_t(g));
  record("vmm.granularity_recommended",
         api.cuMemGetAllocationGranularity(&recommended, &device,
                                           CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  recordNumber("vmm.granularity.recommended", int64_t(recommended));
  CUmemAllocationProp wrong = device;
  wrong.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  size_t unused = 0;
  record("vmm.granularity_bad_type",
         api.cuMemGetAllocationGranularity(&unused, &wrong, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const CUmemAllocationProp numa = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  const CUmemAllocationProp host = properties(CU_MEM_LOCATION_TYPE_HOST);
  const CUresult numa_granularity =
      api.cuMemGetAllocationGranularity(&unused, &numa, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  recordNumberOr("vmm.granularity_host_numa", numa_granularity, int64_t(unused));

  CUdeviceptr a = 0, b = 0, c = 0;
  record("vmm.reserve_0", api.cuMemAddressReserve(&a, 0, 0, 0, 0));
  record("vmm.reserve_odd_size", api.cuMemAddressReserve(&a, g + 1, 0, 0, 0));
  record("vmm.reserve_odd_alignment", api.cuMemAddressReserve(&a, g, 3, 0, 0));
  record("vmm.reserve_flags", api.cuMemAddressReserve(&a, g, 0, 0, 1));
  record("vmm.reserve", api.cuMemAddressReserve(&a, 8 * g, 0, 0, 0));
  recordNumber("vmm.reserve.misalignment", int64_t(a % g));
  record("vmm.reserve_aligned_1g", api.cuMemAddressReserve(&c, g, size_t{1} << 30, 0, 0));
  recordNumber("vmm.reserve_aligned_1g.misalignment", int64_t(c % (size_t{1} << 30)));
  const CUdeviceptr hint = 0x2f0000000000ull;
  record("vmm.reserve_hint", api.cuMemAddressReserve(&b, 8 * g, 0, hint, 0));
  recordBool("vmm.reserve_hint.honoured", b == hint);
  CUdeviceptr taken = 0;
  const CUresult again = api.cuMemAddressReserve(&taken, 8 * g, 0, hint, 0);
  record("vmm.reserve_hint_taken", again);
  recordBool("vmm.reserve_hint_taken.elsewhere", again == CUDA_SUCCESS && taken != hint);
  record("vmm.free_part", api.cuMemAddressFree(a, 4 * g));
  record("vmm.free_interior", api.cuMemAddressFree(a + g, g));
  record("vmm.free_wrong_size", api.cuMemAddressFree(b, 9 * g));

  CUmemGenericAllocationHandle h = 0, k = 0, s = 0;
  record("vmm.create_0", api.cuMemCreate(&h, 0, &device, 0));
  record("vmm.create_odd_size", api.cuMemCreate(&h, g + 4096, &device, 0));
  record("vmm.create_flags", api.cuMemCreate(&h, g, &device, 1));
  record("vmm.create_bad_type", api.cuMemCreate(&h, g, &wrong, 0));
  const CUmemAllocationProp far = properties(CU_MEM_LOCATION_TYPE_DEVICE, 99);
  record("vmm.create_device_99", api.cuMemCreate(&h, g, &far, 0));
  record("vmm.create_huge", api.cuMemCreate(&h, size_t{1} << 50, &device, 0));
  record("vmm.create", api.cuMemCreate(&h, 4 * g, &device, 0));
  record("vmm.create_second", api.cuMemCreate(&k, 2 * g, &device, 0));
  CUmemAllocationProp asked{};
  record("vmm.properties", api.cuMemGetAllocationPropertiesFromHandle(&asked, h));
  recordBool("vmm.properties.same", asked.type == device.type &&
                                        asked.location.type == device.location.type &&
                                        asked.location.id == 0 && asked.requestedHandleTypes == 0);

  record("vmm.map_offset_nonzero", api.cuMemMap(a, g, g, h, 0));
  record("vmm.map_part", api.cuMemMap(a, g, 0, h, 0));
  record("vmm.map_larger", api.cuMemMap(a, 6 * g, 0, h, 0));
  record("vmm.map_flags", api.cuMemMap(a, 4 * g, 0, h, 1));
  record("vmm.map_odd_address", api.cuMemMap(a + 4096, 4 * g, 0, h, 0));
  record("vmm.map_unreserved", api.cuMemMap(0x2e0000000000ull, 4 * g, 0, h, 0));
  record("vmm.set_access_unmapped", api.cuMemSetAccess(a, 4 * g, &read_write, 1));
  record("vmm.map", api.cuMemMap(a, 4 * g, 0, h, 0));
  record("vmm.map_over_mapped", api.cuMemMap(a, 2 * g, 0, k, 0));
  record("vmm.map_overlap", api.cuMemMap(a + 3 * g, 2 * g, 0, k, 0));
  record("vmm.copy_without_access", api.cuMemsetD8(a, 1, 16));
  unsigned long long flags = 99;
  CUmemLocation here = device.location;
  const CUresult before = api.cuMemGetAccess(&flags, &here, a);
  recordNumberOr("vmm.get_access_before", before, int64_t(flags));
  record("vmm.set_access_none_listed", api.cuMemSetAccess(a, 4 * g, &read_write, 0));
  record("vmm.set_access_null", api.cuMemSetAccess(a, 4 * g, nullptr, 1));
  record("vmm.set_access_part", api.cuMemSetAccess(a, g, &read_write, 1));
  const CUresult part = api.cuMemGetAccess(&flags, &here, a);
  recordNumberOr("vmm.get_access_after_part", part, int64_t(flags));
  const CUresult rest = api.cuMemGetAccess(&flags, &here, a + 2 * g);
  recordNumberOr("vmm.get_access_beside_part", rest, int64_t(flags));
  record("vmm.set_access", api.cuMemSetAccess(a, 4 * g, &read_write, 1));
  const CUresult after = api.cuMemGetAccess(&flags, &here, a + g);
  recordNumberOr("vmm.get_access_after", after, int64_t(flags));
  record("vmm.set_access_beyond_mapping", api.cuMemSetAccess(a, 6 * g, &read_write, 1));
  record("vmm.memset", api.cuMemsetD8(a, 7, 4 * g));
  // A second mapping of the same memory.
  record("vmm.map_alias", api.cuMemMap(b, 4 * g, 0, h, 0));
  record("vmm.set_access_alias", api.cuMemSetAccess(b, 4 * g, &read_write, 1));
  uint32_t word = 0;
  record("vmm.write_through_alias", api.cuMemsetD32(b + 2 * g, 0xabcdef01, 1));
  record("vmm.read_original", api.cuMemcpyDtoH(&word, a + 2 * g, 4));
  recordBool("vmm.alias_seen", word == 0xabcdef01);
  record("vmm.unmap_part", api.cuMemUnmap(b, g));
  record("vmm.unmap_middle", api.cuMemUnmap(b + g, 2 * g));
  record("vmm.unmap_alias", api.cuMemUnmap(b, 4 * g));
  record("vmm.unmap_again", api.cuMemUnmap(b, 4 * g));
  record("vmm.read_unmapped", api.cuMemcpyDtoH(&word, b, 4));
  record("vmm.read_original_after_unmap", api.cuMemcpyDtoH(&word, a + 2 * g, 4));
  recordBool("vmm.original_kept", word == 0xabcdef01);
  // Two mappings side by side, unmapped by one call.
  record("vmm.map_beside", api.cuMemMap(a + 4 * g, 2 * g, 0, k, 0));
  record("vmm.set_access_both", api.cuMemSetAccess(a, 6 * g, &read_write, 1));
  record("vmm.memset_across", api.cuMemsetD8(a + 3 * g, 9, 2 * g));
  CUdeviceptr start = 0;
  size_t bytes = 0;
  const CUresult ranged = api.cuMemGetAddressRange(&start, &bytes, a + 5 * g);
  record("vmm.range_of_second", ranged == CUDA_SUCCESS
                                    ? std::to_string((start - a) / g) + " granules in, " +
                                          std::to_string(bytes / g) + " granules"
                                    : text(ranged));
  record("vmm.free_mapped_reservation", api.cuMemAddressFree(a, 8 * g));
  // Released while mapped: the memory lives until it is unmapped.
  record("vmm.release_mapped", api.cuMemRelease(h));
  record("vmm.read_after_release", api.cuMemcpyDtoH(&word, a + 2 * g, 4));
  recordBool("vmm.kept_after_release", word == 0xabcdef01);
  CUmemGenericAllocationHandle retained = 0;
  record("vmm.retain_after_release",
         api.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(a + g)));
  recordBool("vmm.retain_same_handle", retained == h);
  record("vmm.release_retained", api.cuMemRelease(retained));
  record("vmm.unmap_both", api.cuMemUnmap(a, 6 * g));
  record("vmm.retain_unmapped",
         api.cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(a)));
  // Unmapped and mapped anew at the same address: the data of the handle is back.
  need(api.cuMemMap(a, 2 * g, 0, k, 0), "cuMemMap");
  record("vmm.access_forgotten_by_unmap", [&] {
    const CUresult rc = api.cuMemGetAccess(&flags, &here, a);
    return rc == CUDA_SUCCESS ? std::to_string(flags) : text(rc);
  }());
  need(api.cuMemSetAccess(a, 2 * g, &read_write, 1), "cuMemSetAccess");
  record("vmm.remap_read", api.cuMemcpyDtoH(&word, a, 4));
  recordBool("vmm.remap_keeps_data", word == 0x09090909);
  const CUmemAccessDesc read_only = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  record("vmm.set_access_read_only", api.cuMemSetAccess(a, 2 * g, &read_only, 1));
  const CUresult ro = api.cuMemGetAccess(&flags, &here, a);
  recordNumberOr("vmm.get_access_read_only", ro, int64_t(flags));
  record("vmm.copy_from_read_only", api.cuMemcpyDtoH(&word, a, 4));
  record("vmm.memset_read_only", api.cuMemsetD8(a, 1, 16));
  const CUmemAccessDesc none = access(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  record("vmm.set_access_none", api.cuMemSetAccess(a, 2 * g, &none, 1));
  record("vmm.unmap", api.cuMemUnmap(a, 2 * g));
  record("vmm.free_as_allocation", api.cuMemFree(a));
  record("vmm.address_free", api.cuMemAddressFree(a, 8 * g));
  record("vmm.address_free_again", api.cuMemAddressFree(a, 8 * g));
  record("vmm.release_last", api.cuMemRelease(k));

  // Export and import.
  CUmemAllocationProp exportable = device;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  need(api.cuMemCreate(&s, g, &exportable, 0), "cuMemCreate exportable");
  int fd = -1;
  record("vmm.export",
         api.cuMemExportToShareableHandle(&fd, s, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  const CUresult import = api.cuMemImportFromShareableHandle(
      &imported, reinterpret_cast<void*>(intptr_t{fd}), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  record("vmm.import", import);
  recordBool("vmm.import_same_handle", imported == s);
  if (import == CUDA_SUCCESS) record("vmm.release_imported", api.cuMemRelease(imported));
  CUmemGenericAllocationHandle plain = 0;
  need(api.cuMemCreate(&plain, g, &device, 0), "cuMemCreate");
  record("vmm.export_plain",
         api.cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  record("vmm.release_plain", api.cuMemRelease(plain));

  // Host memory by VMM: mapped for both sides, and in place for kernels.
  record("vmm.create_host", api.cuMemCreate(&h, g, &host, 0));
  const CUresult created = api.cuMemCreate(&h, 2 * g, &numa, 0);
  record("vmm.create_host_numa", created);
  if (created != CUDA_SUCCESS) return;
  CUdeviceptr x = 0, y = 0;
  need(api.cuMemAddressReserve(&x, 2 * g, 0, 0, 0), "cuMemAddressReserve");
  need(api.cuMemAddressReserve(&y, 2 * g, 0, 0, 0), "cuMemAddressReserve");
  record("vmm.host_map", api.cuMemMap(x, 2 * g, 0, h, 0));
  record("vmm.host_map_alias", api.cuMemMap(y, 2 * g, 0, h, 0));
  record("vmm.host_access_device", api.cuMemSetAccess(x, 2 * g, &read_write, 1));
  const CUmemAccessDesc cpu = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_HOST);
  record("vmm.host_access_cpu", api.cuMemSetAccess(y, 2 * g, &cpu, 1));
  CUmemAccessDesc cpu_numa = cpu;
  cpu_numa.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  const CUresult cpu_rc = api.cuMemSetAccess(y, 2 * g, &cpu_numa, 1);
  record("vmm.host_access_cpu_numa", cpu_rc);
  record("vmm.host_memset", api.cuMemsetD32(x, 0x51525354, 16));
  api.cuCtxSynchronize();
  if (cpu_rc == CUDA_SUCCESS) {
    std::memcpy(&word, reinterpret_cast<const void*>(y), 4);
    recordBool("vmm.host_cpu_sees_device_write", word == 0x51525354);
    const uint32_t mine = 0x61626364;
    std::memcpy(reinterpret_cast<void*>(y + g), &mine, 4);
    record("vmm.host_copy_back", api.cuMemcpyDtoH(&word, x + g, 4));
    recordBool("vmm.host_device_sees_cpu_write", word == mine);
  }
  record("vmm.host_unmap", api.cuMemUnmap(x, 2 * g));
  record("vmm.host_release", api.cuMemRelease(h));
  record("vmm.host_unmap_alias", api.cuMemUnmap(y, 2 * g));
  // The device side of device memory can't be given to the CPU.
  need(api.cuMemCreate(&h, g, &device, 0), "cuMemCreate");
  need(api.cuMemMap(x, g, 0, h, 0), "cuMemMap");
  record("vmm.device_access_cpu", api.cuMemSetAccess(x, g, &cpu, 1));
}

void sectionBadHandles() {
  const Base base;
  const CUmemAllocationProp device = properties(CU_MEM_LOCATION_TYPE_DEVICE);
  constexpr size_t g = size_t{2} << 20;
  CUdeviceptr a = 0, b = 0;
  CUmemGenericAllocationHandle h = 0;
  need(api.cuMemAddressReserve(&a, g, 0, 0, 0), "cuMemAddressReserve");
  need(api.cuMemAddressReserve(&b, g, 0, 0, 0), "cuMemAddressReserve");
  need(api.cuMemCreate(&h, g, &device, 0), "cuMemCreate");
  need(api.cuMemMap(a, g, 0, h, 0), "cuMemMap");
  need(api.cuMemRelease(h), "cuMemRelease");
  record("bad_handles.map_zero", api.cuMemMap(b, g, 0, 0, 0));
  record("bad_handles.release_zero", api.cuMemRelease(0));
  record("bad_handles.synchronize", api.cuCtxSynchronize());
}

}  // namespace conformance
