// Answers cuPointerGetAttribute(s) for an address of the range: what native CUDA says of
// cuMemAlloc, stream-ordered and VMM memory, from the pager's tables. The driver would describe
// what happens to be mapped there now.
#include <cstring>
#include <span>

#include "base/log.h"
#include "interpose/local/context.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::AllocationInfo;
using olpager::pager::AllocationKind;
using olpager::pager::Pool;

namespace {

// The driver writes booleans as four bytes.
template <typename T>
CUresult give(void* data, T value) {
  const auto bytes = std::as_bytes(std::span<T, 1>(&value, 1));
  memcpy(data, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

// The answer of the plural form for an attribute that does not apply. `known`: `address` lies in an
// allocation. For any other address native CUDA says that it may be host memory.
void giveNothing(void* data, CUpointer_attribute attribute, bool known, CUdeviceptr address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      (void)give<int>(data, CU_DEVICE_INVALID);
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      (void)give<CUdeviceptr>(data, known ? 0 : address);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      (void)give<int>(data, 0);
      break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      memset(data, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
      break;
    default:
      (void)give<uint64_t>(data, 0);
      break;
  }
}

constexpr bool isAttribute(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
         attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

int deviceAttribute(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver().cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

// Reading the attribute is what programs do before they register the memory for peer access by a
// NIC: from then on it must not move.
CUresult giveRdmaCapable(void* data, CUdeviceptr address, const AllocationInfo& info) {
  int capable =
      deviceAttribute(info.device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0 ? 1 : 0;
  if (capable != 0 && pinForLife(address) != CUDA_SUCCESS) capable = 0;
  return give<int>(data, capable);
}

// Memory is mapped by whole pages.
constexpr uint64_t mappedBytes(uint64_t bytes) {
  return (bytes + olpager::pager::kPageBytes - 1) / olpager::pager::kPageBytes *
         olpager::pager::kPageBytes;
}

// The device's access to the program's own mapping; allocations are always readable and writable.
unsigned accessFlags(const AllocationInfo& info, CUdeviceptr address) {
  if (info.kind != AllocationKind::kVmm) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
  const CUmemLocation location = memoryOf(info.device);
  unsigned long long flags = 0;
  const Pool* running = pool();
  if (running == nullptr || running->getAccess(address, location, &flags) != CUDA_SUCCESS) return 0;
  return static_cast<unsigned>(flags);
}

CUresult giveDevicePointer(void* data, CUdeviceptr address, const AllocationInfo& info) {
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (accessFlags(info, address) == 0) return CUDA_ERROR_INVALID_VALUE;
  return give<CUdeviceptr>(data, address);
}

// Tokens are a handle for kernel modules that no longer exist; they only have to differ between
// allocations.
CUresult giveTokens(void* data, const AllocationInfo& info) {
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens{};
  tokens.p2pToken = info.buffer_id;
  tokens.vaSpaceToken = static_cast<unsigned>(info.device) + 1;
  return give(data, tokens);
}

CUresult attributeOf(const AllocationInfo& info, CUpointer_attribute attribute, CUdeviceptr address,
                     void* data) {
  const bool managed = info.kind == AllocationKind::kManaged;
  const bool plain = info.kind == AllocationKind::kDevice;
  const bool stream_ordered = info.kind == AllocationKind::kStreamOrdered;
  switch (attribute) {
    // Memory that a program mapped itself, or took from a pool, belongs to no context.
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give<CUcontext>(data, plain || managed ? info.context : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give<unsigned>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return giveDevicePointer(data, address, info);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return managed ? give<CUdeviceptr>(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return giveTokens(data, info);
    // Synchronous operations always are.
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give<uint64_t>(data, info.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give<int>(data, managed ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give<int>(data, info.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give<int>(data, info.kind == AllocationKind::kDevice ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give<CUdeviceptr>(data, info.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give<size_t>(data, info.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give<int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give<uint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return plain ? giveRdmaCapable(data, address, info) : give<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give<unsigned>(data, accessFlags(info, address));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give<CUmemoryPool>(data, stream_ordered ? poolOf(info.base, info.device) : nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return give<size_t>(data, mappedBytes(info.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return give<CUdeviceptr>(data, info.base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return give<uint64_t>(data, info.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return give<int>(data, plain ? 1 : 0);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// True when the question is ours to answer.
bool ours(const Pool* running, CUdeviceptr address) {
  return running != nullptr && running->contains(address) && !foreignMapped(address);
}

}  // namespace

OLPAGER_HOOK(cuPointerGetAttribute)
(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Pool* running = pool();
  if (!ours(running, address)) return driver().cuPointerGetAttribute(data, attribute, address);
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  AllocationInfo info;
  if (!running->describe(address, &info)) return CUDA_ERROR_INVALID_VALUE;
  return attributeOf(info, attribute, address, data);
}

// The plural form never fails for an address: what does not apply is zero.
OLPAGER_HOOK(cuPointerGetAttributes)
(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  Pool* running = pool();
  if (!ours(running, address))
    return driver().cuPointerGetAttributes(count, attributes, data, address);
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr || !isAttribute(attributes[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  AllocationInfo info;
  const bool known = running->describe(address, &info);
  for (unsigned i = 0; i < count; ++i) {
    if (!known || attributeOf(info, attributes[i], address, data[i]) != CUDA_SUCCESS) {
      giveNothing(data[i], attributes[i], known, address);
    }
  }
  return CUDA_SUCCESS;
}

// SYNC_MEMOPS is set before memory is given to a NIC or another device's driver: it stays where it
// is from then on.
OLPAGER_HOOK(cuPointerSetAttribute)
(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Pool* running = pool();
  if (!ours(running, address)) return driver().cuPointerSetAttribute(value, attribute, address);
  AllocationInfo info;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      !running->describe(address, &info)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (info.kind == AllocationKind::kVmm) return CUDA_ERROR_NOT_SUPPORTED;
  // No other device's driver gets at managed memory.
  if (info.kind == AllocationKind::kManaged) return CUDA_SUCCESS;
  int on = 0;
  memcpy(&on, value, sizeof(on));
  return on != 0 ? pinForLife(info.base) : CUDA_SUCCESS;
}
