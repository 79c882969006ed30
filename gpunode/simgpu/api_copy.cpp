// Copies and memsets of every form; all of them become CUDA_MEMCPY3D or CUDA_MEMSET_NODE_PARAMS.
#include "gpunode/simgpu/api.h"

#include <algorithm>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/copy.h"
#include "gpunode/simgpu/device.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

constexpr auto kHost = CU_MEMORYTYPE_HOST;
constexpr auto kDevice = CU_MEMORYTYPE_DEVICE;
constexpr auto kUnified = CU_MEMORYTYPE_UNIFIED;
constexpr auto kSync = CopyWait::kSync;
constexpr auto kAsync = CopyWait::kAsync;

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUDA_MEMCPY3D general(const CUDA_MEMCPY2D& c) {
  CUDA_MEMCPY3D out{};
  out.srcXInBytes = c.srcXInBytes, out.srcY = c.srcY, out.srcMemoryType = c.srcMemoryType,
  out.srcHost = c.srcHost;
  out.srcDevice = c.srcDevice, out.srcArray = c.srcArray, out.srcPitch = c.srcPitch;
  out.dstXInBytes = c.dstXInBytes, out.dstY = c.dstY, out.dstMemoryType = c.dstMemoryType,
  out.dstHost = c.dstHost;
  out.dstDevice = c.dstDevice, out.dstArray = c.dstArray, out.dstPitch = c.dstPitch;
  out.WidthInBytes = c.WidthInBytes, out.Height = c.Height, out.Depth = 1;
  return out;
}

CUDA_MEMCPY3D general(const CUDA_MEMCPY3D_PEER& c) {
  CUDA_MEMCPY3D out{};
  out.srcXInBytes = c.srcXInBytes, out.srcY = c.srcY, out.srcZ = c.srcZ, out.srcLOD = c.srcLOD;
  out.srcMemoryType = c.srcMemoryType, out.srcHost = c.srcHost, out.srcDevice = c.srcDevice,
  out.srcArray = c.srcArray;
  out.srcPitch = c.srcPitch, out.srcHeight = c.srcHeight;
  out.dstXInBytes = c.dstXInBytes, out.dstY = c.dstY, out.dstZ = c.dstZ, out.dstLOD = c.dstLOD;
  out.dstMemoryType = c.dstMemoryType, out.dstHost = c.dstHost, out.dstDevice = c.dstDevice,
  out.dstArray = c.dstArray;
  out.dstPitch = c.dstPitch, out.dstHeight = c.dstHeight;
  out.WidthInBytes = c.WidthInBytes, out.Height = c.Height, out.Depth = c.Depth;
  return out;
}

CUDA_MEMCPY3D arrayCopy(bool to_array, CUarray array, size_t offset, CUmemorytype other_type,
                        CUdeviceptr other, size_t bytes) {
  CUDA_MEMCPY3D copy = linearCopy(other_type, other, other_type, other, bytes);
  if (to_array) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array, copy.dstXInBytes = offset;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = array, copy.srcXInBytes = offset;
  }
  return copy;
}

CUresult linear(CUmemorytype dst_type, CUdeviceptr dst, CUmemorytype src_type, CUdeviceptr src,
                size_t bytes, CUstream stream, bool per_thread, CopyWait wait) {
  return submitCopy(linearCopy(dst_type, dst, src_type, src, bytes), stream, per_thread, wait);
}

template <typename Copy>
CUresult shaped(const Copy* copy, CUstream stream, bool per_thread, CopyWait wait) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if constexpr (std::is_same_v<Copy, CUDA_MEMCPY3D>) {
    return submitCopy(*copy, stream, per_thread, wait);
  } else {
    return submitCopy(general(*copy), stream, per_thread, wait);
  }
}

/// The contexts of a peer copy must exist; null means the current one.
CUresult checkPeers(CUcontext dst, CUcontext src) {
  if (const CUresult result = requireInit()) return result;
  for (CUcontext handle : {dst, src})
    if (handle != nullptr && Driver::get().contexts.find(handle) == nullptr)
      return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_SUCCESS;
}

template <typename Call>
CUresult peers(CUcontext dst, CUcontext src, Call call) {
  const CUresult result = checkPeers(dst, src);
  return result == CUDA_SUCCESS ? call() : result;
}

/// Sources that are to be read during the call have been when the stream is done.
CUresult endBatch(bool during_call, CUstream stream, bool per_thread) {
  if (!during_call) return CUDA_SUCCESS;
  return per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
}

/// One without a stream comes behind all work of both contexts, and before all that comes later
/// there.
template <typename Call>
CUresult peersBehindAll(CUcontext dst, CUcontext src, Call call) {
  return peers(dst, src, [&] {
    for (CUcontext handle : {dst, src}) {
      const auto context = Driver::get().contexts.find(handle);
      if (context == nullptr) continue;
      if (const CUresult result = context->synchronize(); result != CUDA_SUCCESS) return result;
    }
    const CUresult result = call();
    const auto here = currentContext();
    return result == CUDA_SUCCESS && here != nullptr ? here->synchronize() : result;
  });
}

CUresult batch(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
               const CUmemcpyAttributes* attributes, const size_t* indices, size_t attribute_count,
               size_t* failed, CUstream stream, bool per_thread) {
  if (failed != nullptr) *failed = SIZE_MAX;
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0 ||
      attributes == nullptr || indices == nullptr || attribute_count == 0 ||
      attribute_count > count || indices[0] != 0 || isLegacy(stream, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result =
        linear(kUnified, dsts[i], kUnified, srcs[i], sizes[i], stream, per_thread, kAsync);
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  const bool during_call =
      std::any_of(attributes, attributes + attribute_count, [](const CUmemcpyAttributes& one) {
        return one.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
      });
  return endBatch(during_call, stream, per_thread);
}

bool batchOperand(const CUmemcpy3DOperand& operand, size_t element, bool dst, CUDA_MEMCPY3D* copy) {
  CUmemorytype type = kUnified;
  CUdeviceptr pointer = 0;
  CUarray array = nullptr;
  size_t pitch = 0, height = 0, x = 0, y = 0, z = 0;
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
    pointer = operand.op.ptr.ptr;
    pitch = operand.op.ptr.rowLength * element;
    height = operand.op.ptr.layerHeight;
  } else if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    type = CU_MEMORYTYPE_ARRAY;
    array = operand.op.array.array;
    x = operand.op.array.offset.x * element, y = operand.op.array.offset.y,
    z = operand.op.array.offset.z;
  } else {
    return false;
  }
  if (dst) {
    copy->dstMemoryType = type, copy->dstDevice = pointer, copy->dstArray = array,
    copy->dstPitch = pitch;
    copy->dstHeight = height, copy->dstXInBytes = x, copy->dstY = y, copy->dstZ = z;
  } else {
    copy->srcMemoryType = type, copy->srcDevice = pointer, copy->srcArray = array,
    copy->srcPitch = pitch;
    copy->srcHeight = height, copy->srcXInBytes = x, copy->srcY = y, copy->srcZ = z;
  }
  return true;
}

CUresult batch3D(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                 unsigned long long flags, CUstream stream, bool per_thread) {
  if (failed != nullptr) *failed = SIZE_MAX;
  if (ops == nullptr || count == 0 || flags != 0 || isLegacy(stream, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    // Extents count elements of the arrays that take part, bytes where none does.
    size_t element = 1;
    for (const CUmemcpy3DOperand* operand : {&ops[i].src, &ops[i].dst})
      if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
        if (const auto array = Driver::get().arrays.find(operand->op.array.array))
          element = array->element_bytes;
    CUDA_MEMCPY3D copy{};
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (batchOperand(ops[i].src, element, false, &copy) &&
        batchOperand(ops[i].dst, element, true, &copy)) {
      copy.WidthInBytes = ops[i].extent.width * element;
      copy.Height = ops[i].extent.height;
      copy.Depth = ops[i].extent.depth;
      result = submitCopy(copy, stream, per_thread, kAsync);
    }
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  const bool during_call = std::any_of(ops, ops + count, [](const CUDA_MEMCPY3D_BATCH_OP& op) {
    return op.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  });
  return endBatch(during_call, stream, per_thread);
}

CUresult fill(CUdeviceptr dst, size_t pitch, unsigned element, unsigned value, size_t width,
              size_t height, CUstream stream, bool per_thread, CopyWait wait) {
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = dst;
  set.pitch = pitch;
  set.value = value;
  set.elementSize = element;
  set.width = width;
  set.height = height;
  return submitMemset(set, stream, per_thread, wait);
}

}  // namespace

// --- one-dimensional -----------------------------------------------------------------------------

OLSIM_STREAM_FUNCTION(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes),
                      return linear(kUnified, dst, kUnified, src, bytes, nullptr, kPerThread,
                                    kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyAsync, _ptsz,
                      (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
                      return linear(kUnified, dst, kUnified, src, bytes, stream, kPerThread,
                                    kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dst, const void* src, size_t bytes),
                      return linear(kDevice, dst, kHost, address(src), bytes, nullptr, kPerThread,
                                    kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyDtoH_v2, _ptds, (void* dst, CUdeviceptr src, size_t bytes),
                      return linear(kHost, address(dst), kDevice, src, bytes, nullptr, kPerThread,
                                    kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes),
                      return linear(kDevice, dst, kDevice, src, bytes, nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyHtoDAsync_v2, _ptsz,
                      (CUdeviceptr dst, const void* src, size_t bytes, CUstream stream),
                      return linear(kDevice, dst, kHost, address(src), bytes, stream, kPerThread,
                                    kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyDtoHAsync_v2, _ptsz,
                      (void* dst, CUdeviceptr src, size_t bytes, CUstream stream),
                      return linear(kHost, address(dst), kDevice, src, bytes, stream, kPerThread,
                                    kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyDtoDAsync_v2, _ptsz,
                      (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
                      return linear(kDevice, dst, kDevice, src, bytes, stream, kPerThread, kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyPeer, _ptds,
                      (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
                       size_t bytes),
                      return peersBehindAll(to, from, [&] {
                        return linear(kDevice, dst, kDevice, src, bytes, nullptr, kPerThread,
                                      kSync);
                      });)
OLSIM_STREAM_FUNCTION(cuMemcpyPeerAsync, _ptsz,
                      (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                       CUstream stream),
                      return peers(to, from, [&] {
                        return linear(kDevice, dst, kDevice, src, bytes, stream, kPerThread,
                                      kAsync);
                      });)

// --- arrays --------------------------------------------------------------------------------------

OLSIM_STREAM_FUNCTION(cuMemcpyDtoA_v2, _ptds,
                      (CUarray dst, size_t offset, CUdeviceptr src, size_t bytes),
                      return submitCopy(arrayCopy(true, dst, offset, kDevice, src, bytes), nullptr,
                                        kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyAtoD_v2, _ptds,
                      (CUdeviceptr dst, CUarray src, size_t offset, size_t bytes),
                      return submitCopy(arrayCopy(false, src, offset, kDevice, dst, bytes), nullptr,
                                        kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyHtoA_v2, _ptds,
                      (CUarray dst, size_t offset, const void* src, size_t bytes),
                      return submitCopy(arrayCopy(true, dst, offset, kHost, address(src), bytes),
                                        nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyAtoH_v2, _ptds, (void* dst, CUarray src, size_t offset, size_t bytes),
                      return submitCopy(arrayCopy(false, src, offset, kHost, address(dst), bytes),
                                        nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpyHtoAAsync_v2, _ptsz,
                      (CUarray dst, size_t offset, const void* src, size_t bytes, CUstream stream),
                      return submitCopy(arrayCopy(true, dst, offset, kHost, address(src), bytes),
                                        stream, kPerThread, kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyAtoHAsync_v2, _ptsz,
                      (void* dst, CUarray src, size_t offset, size_t bytes, CUstream stream),
                      return submitCopy(arrayCopy(false, src, offset, kHost, address(dst), bytes),
                                        stream, kPerThread, kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpyAtoA_v2, _ptds,
                      (CUarray dst, size_t dst_offset, CUarray src, size_t src_offset,
                       size_t bytes),
                      {
                        CUDA_MEMCPY3D copy = arrayCopy(true, dst, dst_offset, kDevice, 0, bytes);
                        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
                        copy.srcArray = src;
                        copy.srcXInBytes = src_offset;
                        return submitCopy(copy, nullptr, kPerThread, kSync);
                      })

// As CUDA 2 to 3.1 had them: 32 bits for lengths.
CUresult CUDAAPI cuMemcpyHtoA(CUarray dst, unsigned offset, const void* src, unsigned bytes) {
  return cuMemcpyHtoA_v2(dst, offset, src, bytes);
}
CUresult CUDAAPI cuMemcpyAtoH(void* dst, CUarray src, unsigned offset, unsigned bytes) {
  return cuMemcpyAtoH_v2(dst, src, offset, bytes);
}
CUresult CUDAAPI cuMemcpyHtoAAsync(CUarray dst, unsigned offset, const void* src, unsigned bytes,
                                   CUstream stream) {
  return cuMemcpyHtoAAsync_v2(dst, offset, src, bytes, stream);
}
CUresult CUDAAPI cuMemcpyAtoHAsync(void* dst, CUarray src, unsigned offset, unsigned bytes,
                                   CUstream stream) {
  return cuMemcpyAtoHAsync_v2(dst, src, offset, bytes, stream);
}
CUresult CUDAAPI cuMemcpyAtoA(CUarray dst, unsigned dst_offset, CUarray src, unsigned src_offset,
                              unsigned bytes) {
  return cuMemcpyAtoA_v2(dst, dst_offset, src, src_offset, bytes);
}

// --- two and three dimensions --------------------------------------------------------------------

OLSIM_STREAM_FUNCTION(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D* copy),
                      return shaped(copy, nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D* copy),
                      return shaped(copy, nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D* copy, CUstream stream),
                      return shaped(copy, stream, kPerThread, kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D* copy),
                      return shaped(copy, nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D* copy, CUstream stream),
                      return shaped(copy, stream, kPerThread, kAsync);)
OLSIM_STREAM_FUNCTION(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER* copy),
                      return shaped(copy, nullptr, kPerThread, kSync);)
OLSIM_STREAM_FUNCTION(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER* copy, CUstream stream),
                      return shaped(copy, stream, kPerThread, kAsync);)

// --- batches -------------------------------------------------------------------------------------

OLSIM_STREAM_FUNCTION(cuMemcpyBatchAsync, _ptsz,
                      (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                       CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                       size_t* failed, CUstream stream),
                      return batch(dsts, srcs, sizes, count, attributes, indices, attribute_count,
                                   failed, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemcpyBatchAsync_v2, _ptsz,
                      (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                       CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                       CUstream stream),
                      return batch(dsts, srcs, sizes, count, attributes, indices, attribute_count,
                                   nullptr, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemcpy3DBatchAsync, _ptsz,
                      (size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                       unsigned long long flags, CUstream stream),
                      return batch3D(count, ops, failed, flags, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemcpy3DBatchAsync_v2, _ptsz,
                      (size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, unsigned long long flags,
                       CUstream stream),
                      return batch3D(count, ops, nullptr, flags, stream, kPerThread);)

// --- memset --------------------------------------------------------------------------------------

#define OLSIM_MEMSET(bits, type, element)                                                          \
  OLSIM_STREAM_FUNCTION(                                                                           \
      cuMemsetD##bits##_v2, _ptds, (CUdeviceptr dst, type value, size_t count),                    \
      return fill(dst, 0, element, value, count, 1, nullptr, kPerThread, kSync);)                  \
  OLSIM_STREAM_FUNCTION(                                                                           \
      cuMemsetD##bits##Async, _ptsz, (CUdeviceptr dst, type value, size_t count, CUstream stream), \
      return fill(dst, 0, element, value, count, 1, stream, kPerThread, kAsync);)                  \
  OLSIM_STREAM_FUNCTION(                                                                           \
      cuMemsetD2D##bits##_v2, _ptds,                                                               \
      (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),                    \
      return fill(dst, pitch, element, value, width, height, nullptr, kPerThread, kSync);)         \
  OLSIM_STREAM_FUNCTION(                                                                           \
      cuMemsetD2D##bits##Async, _ptsz,                                                             \
      (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream),   \
      return fill(dst, pitch, element, value, width, height, stream, kPerThread, kAsync);)
OLSIM_MEMSET(8, unsigned char, 1)
OLSIM_MEMSET(16, unsigned short, 2)
OLSIM_MEMSET(32, unsigned int, 4)
#undef OLSIM_MEMSET
