// Structures of cuda.h with handles in them: the client's numbers become handles (settle), and back
// (unsettle). A handle that means nothing fails the call. Null pointers are left alone.
#pragma once

#include <cstring>

#include "gpunode/worker/invocation.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

/// The value that a peer sent for an enumerator may be none.
inline int kindOf(const CUDA_RESOURCE_DESC& about) {
  int kind = 0;
  std::memcpy(&kind, &about.resType, sizeof kind);
  return kind;
}

inline void settle(Invocation& in, CUDA_RESOURCE_DESC* about) {
  if (about == nullptr) return;
  if (kindOf(*about) == CU_RESOURCE_TYPE_ARRAY)
    about->res.array.hArray = in.translated<CUarray>(bitsOf(about->res.array.hArray));
  if (kindOf(*about) == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    about->res.mipmap.hMipmappedArray =
        in.translated<CUmipmappedArray>(bitsOf(about->res.mipmap.hMipmappedArray));
}
inline void unsettle(Invocation& in, CUDA_RESOURCE_DESC* about) {
  if (about == nullptr) return;
  if (about->resType == CU_RESOURCE_TYPE_ARRAY)
    about->res.array.hArray = handleFrom<CUarray>(in.numberFor(about->res.array.hArray));
  if (about->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    about->res.mipmap.hMipmappedArray =
        handleFrom<CUmipmappedArray>(in.numberFor(about->res.mipmap.hMipmappedArray));
}

/// One side of a box: its array, where it has one. False: that means nothing, or the memory is
/// neither device memory nor `other`.
inline bool settleSide(Invocation& in, CUmemorytype type, CUmemorytype other, CUarray& array) {
  array = type == CU_MEMORYTYPE_ARRAY ? in.translated<CUarray>(bitsOf(array)) : nullptr;
  return array != nullptr || type == CU_MEMORYTYPE_DEVICE || type == other;
}

inline void settle(Invocation& in, CUDA_GRAPH_INSTANTIATE_PARAMS* about) {
  if (about == nullptr) return;
  about->hUploadStream = in.streamOf(bitsOf(about->hUploadStream), false);
  about->hErrNode_out = nullptr;
}
inline void unsettle(Invocation& in, CUDA_GRAPH_INSTANTIATE_PARAMS* about) {
  if (about != nullptr)
    about->hErrNode_out = handleFrom<CUgraphNode>(in.numberFor(about->hErrNode_out));
}

inline void settle(Invocation& /*in*/, CUgraphExecUpdateResultInfo* /*about*/) {}
inline void unsettle(Invocation& in, CUgraphExecUpdateResultInfo* about) {
  if (about == nullptr) return;
  about->errorNode = handleFrom<CUgraphNode>(in.numberFor(about->errorNode));
  about->errorFromNode = handleFrom<CUgraphNode>(in.numberFor(about->errorFromNode));
}

/// A tile of a sparse array, and the memory that it gets. A value not known to be a handle never
/// goes to the driver.
inline void settle(Invocation& in, CUarrayMapInfo* about) {
  if (about == nullptr) return;
  int resource = 0, operation = 0, memory = 0;  // what a peer sent for an enumerator may be none
  std::memcpy(&resource, &about->resourceType, sizeof resource);
  std::memcpy(&operation, &about->memOperationType, sizeof operation);
  std::memcpy(&memory, &about->memHandleType, sizeof memory);
  if (resource == CU_RESOURCE_TYPE_ARRAY) {
    about->resource.array = in.translated<CUarray>(bitsOf(about->resource.array));
  } else if (resource == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
    about->resource.mipmap = in.translated<CUmipmappedArray>(bitsOf(about->resource.mipmap));
  } else {
    in.refuseValue();
  }
  if (operation == CU_MEM_OPERATION_TYPE_UNMAP) {
    about->memHandle.memHandle = 0;
  } else if (operation == CU_MEM_OPERATION_TYPE_MAP && memory == CU_MEM_HANDLE_TYPE_GENERIC) {
    about->memHandle.memHandle =
        in.translated<CUmemGenericAllocationHandle>(about->memHandle.memHandle);
  } else {
    in.refuseValue();
  }
}

/// The driver's opaque bytes of a device resource stay here: the client has a number in their place
/// (device_resources.h).
inline void settle(Invocation& in, CUdevResource* about) {
  if (about != nullptr && !in.worker().resources().restore(about)) in.refuseValue();
}
inline void unsettle(Invocation& in, CUdevResource* about) {
  if (about != nullptr) in.worker().resources().hide(about);
}

template <typename T>
void settleEach(Invocation& in, T* all, uint64_t count) {
  for (uint64_t i = 0; all != nullptr && i < count; ++i) settle(in, &all[i]);
}
template <typename T>
void unsettleEach(Invocation& in, T* all, uint64_t count) {
  for (uint64_t i = 0; all != nullptr && i < count; ++i) unsettle(in, &all[i]);
}

}  // namespace olpager::gpunode
