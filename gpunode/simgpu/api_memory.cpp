#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/mem_pool.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

using ContextPtr = std::shared_ptr<Context>;

Memory& memory() { return Driver::get().memory; }

/// The checks at the start of every function that a capture forbids: the context, then the rule.
CUresult unsafe(ContextPtr* context) {
  if (const CUresult result = requireContext(context)) return result;
  return unsafeInCapture();
}

/// Native frees wait for the work that may use the memory; so does this, for the owner's and the
/// caller's context.
class Drain {
 public:
  Drain(Context& context, const Allocation& allocation) : lock_(context) {
    (void)context.synchronize();
    if (auto owner = allocation.context.lock();
        owner != nullptr && owner.get() != &context && owner->active)
      (void)owner->synchronize();
  }

 private:
  const CallLock lock_;
};

CUresult allocateHost(void** out, size_t bytes, unsigned flags) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().allocateHost(*context, bytes, flags, out);
}

// True if other processes may have the memory there as well.
bool isMappedShared(const void* pointer) {
  std::ifstream maps("/proc/self/maps");
  const auto address = reinterpret_cast<uint64_t>(pointer);
  for (std::string line; std::getline(maps, line);) {
    char* next = nullptr;
    const uint64_t begin = std::strtoull(line.c_str(), &next, 16);
    const uint64_t end = std::strtoull(next + 1, &next, 16);
    constexpr size_t kShare = 4;  // the fourth letter of " rw-s"
    if (address >= begin && address < end) return next[kShare] == 's';
  }
  return false;
}

// Drivers that take no shared memory, as OL_SIM_SHARED_PINS has it.
bool takes(const void* pointer) {
  const unsigned setting = Driver::get().settings.shared_pins;
  if (setting == 1 || !isMappedShared(pointer)) return true;
  static std::atomic<unsigned> asked{0};
  return setting == 2 && asked.fetch_add(1) % 2 == 0;
}

CUresult registerHost(void* pointer, size_t bytes, unsigned flags) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!takes(pointer)) return CUDA_ERROR_NOT_SUPPORTED;
  return memory().registerHost(*context, pointer, bytes, flags);
}

CUresult freeHostKind(void* pointer, AllocationKind kind, CUresult missing) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  if (pointer == nullptr && kind == AllocationKind::kHost) return CUDA_SUCCESS;
  const auto allocation = memory().find(address);
  if (allocation == nullptr || allocation->kind != kind) return missing;
  if (allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  const Drain drain(*context, *allocation);
  if (const CUresult error = context->error()) return error;
  return memory().free(address, kind);
}

/// The range that an address belongs to, whatever made it.
struct Range {
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  std::shared_ptr<Allocation> allocation;  // null for a VMM mapping
  VmmMapping mapping;
};

bool rangeOf(uint64_t address, Range* out) {
  if ((out->allocation = memory().find(address)) != nullptr) {
    out->base = out->allocation->base;
    out->bytes = out->allocation->bytes;
    out->buffer_id = out->allocation->buffer_id;
    return true;
  }
  if (!memory().mapping(address, &out->mapping)) return false;
  out->base = out->mapping.base;
  out->bytes = out->mapping.bytes;
  out->buffer_id = out->mapping.buffer_id;
  return true;
}

bool onHost(const VmmMapping& mapping) {
  return mapping.physical->properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/// The access that the current context's device has to a VMM mapping (device 0's without a
/// context).
CUmemAccess_flags accessOf(const VmmMapping& mapping) {
  const auto context = currentContext();
  return mapping.access[context != nullptr ? context->device().ordinal : 0];
}

uint64_t pagesDown(uint64_t value) { return value / kPageBytes * kPageBytes; }
uint64_t pagesUp(uint64_t value) { return pagesDown(value + kPageBytes - 1); }

// Booleans are four bytes.
template <typename T>
CUresult answer(void* data, T value) {
  const auto bytes = std::as_bytes(std::span<T, 1>(&value, 1));
  static_assert(bytes.size() >= sizeof(int));
  std::memcpy(data, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

/// One attribute of a known range.
CUresult attributeOf(const Range& range, CUpointer_attribute attribute, uint64_t address,
                     void* data) {
  const Allocation* allocation = range.allocation.get();
  const bool host = allocation != nullptr ? allocation->kind == AllocationKind::kHost ||
                                                allocation->kind == AllocationKind::kRegistered
                                          : onHost(range.mapping);
  const bool managed = allocation != nullptr && allocation->kind == AllocationKind::kManaged;
  const bool whole_pages = allocation != nullptr && !host;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Neither pools nor VMM mappings belong to a context.
      return answer(data, allocation != nullptr && allocation->pool == nullptr
                              ? allocation->context_handle
                              : CUcontext{nullptr});
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(data, static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (allocation == nullptr && accessOf(range.mapping) == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        return CUDA_ERROR_INVALID_VALUE;
      return answer(data, static_cast<CUdeviceptr>(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: {
      const bool reachable = allocation != nullptr
                                 ? allocation->host != nullptr
                                 : range.mapping.host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
      if (!reachable) {
        (void)answer(data, static_cast<void*>(nullptr));
        return CUDA_ERROR_INVALID_VALUE;
      }
      return answer(data, reinterpret_cast<void*>(address));
    }
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return host ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      // Device memory is always told to be synchronous; host memory once it was asked for.
      return answer(
          data, static_cast<unsigned>(!host || (allocation != nullptr && allocation->sync_memops)));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return answer(data, static_cast<unsigned long long>(range.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(data, static_cast<unsigned>(managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      if (allocation != nullptr) return answer(data, static_cast<int>(allocation->device->ordinal));
      return answer(data, onHost(range.mapping)
                              ? 0
                              : static_cast<int>(range.mapping.physical->properties.location.id));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return answer(data, 0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(data, static_cast<CUdeviceptr>(range.base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(data, static_cast<size_t>(range.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return answer(data,
                    static_cast<CUdeviceptr>(whole_pages ? pagesDown(range.base) : range.base));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return answer(data, static_cast<size_t>(whole_pages ? pagesUp(range.base + range.bytes) -
                                                                pagesDown(range.base)
                                              : host ? pagesUp(range.bytes)
                                                     : range.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return answer(
          data,
          static_cast<unsigned long long>(
              allocation != nullptr ? 0 : range.mapping.physical->properties.requestedHandleTypes));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return answer(data,
                    static_cast<unsigned>(allocation != nullptr ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                : accessOf(range.mapping)));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return answer(data, allocation != nullptr ? allocation->pool : CUmemoryPool{nullptr});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

/// The value of an attribute without an answer in cuPointerGetAttributes: zeros, and for memory
/// that CUDA does not know an ordinal that is none and the address itself as the host's.
void unknownAttribute(CUpointer_attribute attribute, bool known, uint64_t address, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      (void)answer(data, known ? uint64_t{0} : address);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      (void)answer(data, 0u);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      (void)answer(data, -2);
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      (void)answer(data, 0u);
      break;
    default:
      (void)answer(data, static_cast<uint64_t>(0));
      break;
  }
}

}  // namespace

// --- device memory -------------------------------------------------------------------------------

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  if (free_bytes != nullptr) *free_bytes = context->device().vram.freeBytes();
  if (total != nullptr) *total = context->device().vram.totalBytes();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemGetInfo(unsigned int* free_bytes, unsigned int* total) {
  if (free_bytes == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t free_now = 0, all = 0;
  if (const CUresult result = cuMemGetInfo_v2(&free_now, &all)) return result;
  *free_bytes = static_cast<unsigned>(std::min<size_t>(free_now, ~0u));
  *total = static_cast<unsigned>(std::min<size_t>(all, ~0u));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = memory().allocate(*context, bytes, AllocationKind::kDevice, out);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && MemPool::releaseUnused(context->device()))
    result = memory().allocate(*context, bytes, AllocationKind::kDevice, out);
  return result;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                    unsigned element) {
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kPitchAlign = 512;
  const size_t rounded = (width + kPitchAlign - 1) / kPitchAlign * kPitchAlign;
  const CUresult result = cuMemAlloc_v2(out, rounded * height);
  if (result == CUDA_SUCCESS) *pitch = rounded;
  return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  if (address == 0) return CUDA_SUCCESS;
  const auto allocation = memory().find(address);
  if (allocation == nullptr || allocation->base != address) return CUDA_ERROR_INVALID_VALUE;
  const Drain drain(*context, *allocation);
  if (const CUresult error = context->error()) return error;
  switch (allocation->kind) {
    case AllocationKind::kDevice: {
      std::shared_ptr<GraphMemory> owner;
      const GraphMemory::Found found = GraphMemory::free(address, &owner);
      if (found == GraphMemory::Found::kIdle) return CUDA_ERROR_INVALID_VALUE;
      return found == GraphMemory::Found::kFreed ? CUDA_SUCCESS
                                                 : memory().free(address, allocation->kind);
    }
    case AllocationKind::kManaged:
      return memory().free(address, allocation->kind);
    case AllocationKind::kPool:
      return MemPool::freeNow(*allocation);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  Range range;
  if (!rangeOf(address, &range)) return CUDA_ERROR_NOT_FOUND;
  const bool vmm = range.allocation == nullptr;
  if (vmm && accessOf(range.mapping) == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr)
    *base = vmm && onHost(range.mapping) ? 0 : range.base;  // as the driver answers for host chunks
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

// --- host and managed memory ---------------------------------------------------------------------

CUresult CUDAAPI cuMemAllocHost(void** out, unsigned bytes) { return allocateHost(out, bytes, 0); }
CUresult CUDAAPI cuMemAllocHost_v2(void** out, size_t bytes) { return allocateHost(out, bytes, 0); }
CUresult CUDAAPI cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocateHost(out, bytes, flags);
}
CUresult CUDAAPI cuMemFreeHost(void* pointer) {
  return freeHostKind(pointer, AllocationKind::kHost, CUDA_ERROR_INVALID_VALUE);
}
CUresult CUDAAPI cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return registerHost(pointer, bytes, flags);
}
CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return registerHost(pointer, bytes, flags);
}
CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
  return freeHostKind(pointer, AllocationKind::kRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Range range;
  if (!rangeOf(reinterpret_cast<uint64_t>(pointer), &range)) return CUDA_ERROR_INVALID_VALUE;
  // VMM mappings that the device can reach count as mapped, wherever they are.
  const bool mapped =
      range.allocation != nullptr
          ? range.allocation->host != nullptr && range.allocation->kind != AllocationKind::kManaged
          : accessOf(range.mapping) != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (!mapped) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
  ContextPtr context;
  if (const CUresult result = requireContext(&context)) return result;
  Range range;
  if (flags == nullptr || !rangeOf(reinterpret_cast<uint64_t>(pointer), &range))
    return CUDA_ERROR_INVALID_VALUE;
  if (range.allocation == nullptr) {
    if (accessOf(range.mapping) == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  if (range.allocation->host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // With unified addressing all pinned memory is mapped.
  const bool managed = range.allocation->kind == AllocationKind::kManaged;
  *flags = (managed ? 0 : range.allocation->flags) | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  ContextPtr context;
  if (const CUresult result = unsafe(&context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().allocateManaged(*context, bytes, flags, out);
}

// --- pointers ------------------------------------------------------------------------------------

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  if (const CUresult result = requireInit()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Range range;
  if (rangeOf(address, &range)) return attributeOf(range, attribute, address, data);
  return CUDA_ERROR_INVALID_VALUE;  // reserved addresses with nothing mapped included
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr address) {
  if (const CUresult result = requireInit()) return result;
  if (attributes == nullptr || data == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Range range;
  const bool known = rangeOf(address, &range);
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
        attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE || data[i] == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    if (!known || attributeOf(range, attributes[i], address, data[i]) != CUDA_SUCCESS)
      unknownAttribute(attributes[i], known, address, data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  if (const CUresult result = requireInit()) return result;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return CUDA_ERROR_INVALID_VALUE;
  VmmMapping mapping;
  if (memory().mapping(address, &mapping)) return CUDA_ERROR_NOT_SUPPORTED;
  const auto allocation = memory().find(address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned flag = 0;
  std::memcpy(&flag, value, sizeof flag);
  allocation->sync_memops = flag != 0;
  return CUDA_SUCCESS;
}

// --- between processes ---------------------------------------------------------------------------

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (const CUresult result = requireInit()) return result;
  const auto allocation = memory().find(address);
  if (handle == nullptr || allocation == nullptr || allocation->kind != AllocationKind::kDevice)
    return CUDA_ERROR_INVALID_VALUE;
  return notSupported("cuIpcGetMemHandle");
}
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr*, CUipcMemHandle, unsigned) {
  return notSupported("cuIpcOpenMemHandle");
}
CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr*, CUipcMemHandle, unsigned) {
  return notSupported("cuIpcOpenMemHandle_v2");
}
CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr) { return notSupported("cuIpcCloseMemHandle"); }
