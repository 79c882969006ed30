// What comes back for pinned memory, and sizes of pointer attributes that both ends need.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "interpose/forward/runs.h"

namespace olpager::forward {

/// Bytes of a block that a kernel changed, from the worker of the session in `slot`. What names no block is dropped.
void takePinned(unsigned slot, const Run& run);

/// Bytes that the driver writes for an attribute.
constexpr uint64_t attributeBytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    default:
      return 8;
  }
}

}  // namespace olpager::forward
