// Batches of copies, one after the other in their stream; boxes between two contexts.
#include <algorithm>
#include <vector>

#include "forwarding/wire/copies.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

struct Batch {
  CUdeviceptr* to;
  CUdeviceptr* from;
  size_t* sizes;
  size_t count;
  CUmemcpyAttributes* attributes;
  size_t* starts;  // of the copies that each attribute holds for
  size_t attribute_count;
  size_t* failed;
  CUstream stream;
};

bool isOrder(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

CUresult refuse(size_t* failed, CUresult why) {
  if (failed != nullptr) *failed = SIZE_MAX;  // none of them: the call itself
  return why;
}

bool isSharedAnywhere(CUdeviceptr address) {
  const auto all = existingSessions();
  return std::any_of(all.begin(), all.end(), [&](const Session* one) {
    return isShared(*one, reinterpret_cast<const void*>(address), 1);
  });
}

// Shared memory is read in stream order (host_blocks.h). Memory that has to be read during the call
// is waited for.
bool readsLate(CUmemcpySrcAccessOrder order, CUdeviceptr from) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL && isSharedAnywhere(from);
}

// All of the batch is looked at before the first of it is copied. Sources are read no later than
// the driver would: each order allows it.
CUresult copyBatch(const Batch& batch, bool per_thread) {
  if (batch.count == 0 || batch.to == nullptr || batch.from == nullptr || batch.sizes == nullptr ||
      batch.attributes == nullptr || batch.starts == nullptr || batch.attribute_count == 0 ||
      batch.attribute_count > batch.count || batch.starts[0] != 0 ||
      isLegacy(batch.stream, per_thread))
    return refuse(batch.failed, CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    if (!isOrder(batch.attributes[i].srcAccessOrder) || batch.starts[i] >= batch.count ||
        (i > 0 && batch.starts[i] <= batch.starts[i - 1]))
      return refuse(batch.failed, CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < batch.count; ++i) {
    if (batch.to[i] != 0 && batch.from[i] != 0 && batch.sizes[i] != 0) continue;
    if (batch.failed != nullptr) *batch.failed = i;
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool late = false;
  for (size_t i = 0, attribute = 0; i < batch.count; ++i) {
    if (attribute + 1 < batch.attribute_count && batch.starts[attribute + 1] == i) ++attribute;
    late = late || readsLate(batch.attributes[attribute].srcAccessOrder, batch.from[i]);
    const CUresult result = per_thread ? ol_forward_cuMemcpyAsync_ptsz(batch.to[i], batch.from[i],
                                                                       batch.sizes[i], batch.stream)
                                       : ol_forward_cuMemcpyAsync(batch.to[i], batch.from[i],
                                                                  batch.sizes[i], batch.stream);
    if (result == CUDA_SUCCESS) continue;
    if (batch.failed != nullptr) *batch.failed = i;
    return result;
  }
  return late ? finishStream(batch.stream, per_thread) : CUDA_SUCCESS;
}

CUresult elementBytes(const CUmemcpy3DOperand& operand, uint64_t* bytes) {
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_SUCCESS;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  const CUresult result =
      ol_forward_generated_cuArray3DGetDescriptor_v2(&descriptor, operand.op.array.array);
  if (result == CUDA_SUCCESS)
    *bytes =
        api::extract::arrayFormatBytes(descriptor.Format) * std::max(descriptor.NumChannels, 1u);
  return result;
}

// One side of a box.
struct Side {
  CUmemorytype type{};
  CUarray array = nullptr;
  size_t x = 0, y = 0, z = 0;
  CUdeviceptr address = 0;
  size_t pitch = 0, height = 0;
};

// Lengths of operands are in elements, those of boxes in bytes. Unified: memory of either side.
Side sideOf(const CUmemcpy3DOperand& operand, const CUextent3D& extent, uint64_t element) {
  Side side{};
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const auto& array = operand.op.array;
    side.type = CU_MEMORYTYPE_ARRAY;
    side.array = array.array;
    side.x = array.offset.x * element, side.y = array.offset.y, side.z = array.offset.z;
    return side;
  }
  const auto& memory = operand.op.ptr;
  side.type = CU_MEMORYTYPE_UNIFIED;
  side.address = memory.ptr;
  side.pitch = (memory.rowLength != 0 ? memory.rowLength : extent.width) * element;
  side.height = memory.layerHeight != 0 ? memory.layerHeight : extent.height;
  return side;
}

CUresult toBox(const CUDA_MEMCPY3D_BATCH_OP& op, CUDA_MEMCPY3D* box) {
  const auto known = [](CUmemcpy3DOperandType type) {
    return type == CU_MEMCPY_OPERAND_TYPE_POINTER || type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  };
  if (!known(op.src.type) || !known(op.dst.type) || !isOrder(op.srcAccessOrder) ||
      op.extent.width == 0 || op.extent.height == 0 || op.extent.depth == 0)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t element = 1;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (const CUresult error = elementBytes(*operand, &element); error != CUDA_SUCCESS)
      return error;
  }
  *box = {};
  box->WidthInBytes = op.extent.width * element;
  box->Height = op.extent.height;
  box->Depth = op.extent.depth;
  const Side from = sideOf(op.src, op.extent, element), to = sideOf(op.dst, op.extent, element);
  box->srcMemoryType = from.type, box->dstMemoryType = to.type;
  box->srcArray = from.array, box->dstArray = to.array;
  box->srcXInBytes = from.x, box->dstXInBytes = to.x;
  box->srcY = from.y, box->dstY = to.y;
  box->srcZ = from.z, box->dstZ = to.z;
  box->srcDevice = from.address, box->dstDevice = to.address;
  box->srcPitch = from.pitch, box->dstPitch = to.pitch;
  box->srcHeight = from.height, box->dstHeight = to.height;
  return CUDA_SUCCESS;
}

CUresult copyBoxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops, size_t* failed,
                   unsigned long long flags, CUstream stream, bool per_thread) {
  if (count == 0 || ops == nullptr || flags != 0 || isLegacy(stream, per_thread))
    return refuse(failed, CUDA_ERROR_INVALID_VALUE);
  std::vector<CUDA_MEMCPY3D> boxes(count);
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = toBox(ops[i], &boxes[i]);
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  bool late = false;
  for (size_t i = 0; i < count; ++i) {
    late = late || (boxes[i].srcMemoryType == CU_MEMORYTYPE_UNIFIED &&
                    readsLate(ops[i].srcAccessOrder, boxes[i].srcDevice));
    const CUresult result = per_thread ? ol_forward_cuMemcpy3DAsync_v2_ptsz(&boxes[i], stream)
                                       : ol_forward_cuMemcpy3DAsync_v2(&boxes[i], stream);
    if (result == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return result;
  }
  return late ? finishStream(stream, per_thread) : CUDA_SUCCESS;
}

// One side's memory is the program's: addresses are the same in all contexts, so it is a copy like
// any other.
CUDA_MEMCPY3D withoutContexts(const CUDA_MEMCPY3D_PEER& copy) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = copy.srcXInBytes, box.srcY = copy.srcY, box.srcZ = copy.srcZ;
  box.srcMemoryType = copy.srcMemoryType;
  box.srcHost = copy.srcHost, box.srcDevice = copy.srcDevice, box.srcArray = copy.srcArray;
  box.srcPitch = copy.srcPitch, box.srcHeight = copy.srcHeight;
  box.dstXInBytes = copy.dstXInBytes, box.dstY = copy.dstY, box.dstZ = copy.dstZ;
  box.dstMemoryType = copy.dstMemoryType;
  box.dstHost = copy.dstHost, box.dstDevice = copy.dstDevice, box.dstArray = copy.dstArray;
  box.dstPitch = copy.dstPitch, box.dstHeight = copy.dstHeight;
  box.WidthInBytes = copy.WidthInBytes, box.Height = copy.Height, box.Depth = copy.Depth;
  return box;
}

bool isHost(CUmemorytype type, CUdeviceptr address) {
  return type == CU_MEMORYTYPE_HOST ||
         (type == CU_MEMORYTYPE_UNIFIED && !isDeviceMemory(address)) ||
         (type == CU_MEMORYTYPE_DEVICE && isExchanged(address));
}

CUresult copyPeer(const CUDA_MEMCPY3D_PEER* given, CUstream stream, bool per_thread, bool async) {
  if (given == nullptr || given->srcLOD != 0 || given->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (given->WidthInBytes == 0 || given->Height == 0 || given->Depth == 0) return CUDA_SUCCESS;
  const CUDA_MEMCPY3D box = withoutContexts(*given);
  if (isHost(box.srcMemoryType, box.srcDevice) || isHost(box.dstMemoryType, box.dstDevice)) {
    if (async)
      return per_thread ? ol_forward_cuMemcpy3DAsync_v2_ptsz(&box, stream)
                        : ol_forward_cuMemcpy3DAsync_v2(&box, stream);
    return per_thread ? ol_forward_cuMemcpy3D_v2_ptds(&box) : ol_forward_cuMemcpy3D_v2(&box);
  }
  Session* const session =
      Route().handle(stream).handle(given->dstContext).handle(given->srcContext).session();
  for (const CUcontext context : {given->srcContext, given->dstContext}) {
    Session* const its = sessionOfHandle(reinterpret_cast<uint64_t>(context));
    if (its != nullptr && its != session)
      return refused("a 3D copy between devices of two gpunodes", false);
  }
  CopyHead head;
  head.stream = reinterpret_cast<uint64_t>(stream);
  head.per_thread = per_thread ? 1 : 0;
  head.in_order = async ? 1 : 0;
  head.shape = CopyShape::kBox3d;
  head.box = box;
  head.box.srcHost = nullptr;
  head.box.dstHost = nullptr;
  Call call(Operation::kCopyPeer, session);
  call.value(head);
  call.sides(head.box);
  call.value(reinterpret_cast<uint64_t>(given->srcContext));
  call.value(reinterpret_cast<uint64_t>(given->dstContext));
  if (async) return call.oneWay();
  call.mayWait();
  return call.sync();
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_BATCH(suffix, per_thread)                                                               \
  CUresult ol_forward_cuMemcpyBatchAsync_v2##suffix(                                               \
      CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,                             \
      CUmemcpyAttributes* attributes, size_t* starts, size_t attribute_count, CUstream stream) {   \
    return copyBatch(                                                                              \
        {to, from, sizes, count, attributes, starts, attribute_count, nullptr, stream},            \
        per_thread);                                                                               \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyBatchAsync##suffix(                                                  \
      CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,                             \
      CUmemcpyAttributes* attributes, size_t* starts, size_t attribute_count, size_t* failed,      \
      CUstream stream) {                                                                           \
    return copyBatch(                                                                              \
        {to, from, sizes, count, attributes, starts, attribute_count, failed, stream},             \
        per_thread);                                                                               \
  }                                                                                                \
  CUresult ol_forward_cuMemcpy3DBatchAsync_v2##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops,   \
                                                      unsigned long long flags, CUstream stream) { \
    return copyBoxes(count, ops, nullptr, flags, stream, per_thread);                              \
  }                                                                                                \
  CUresult ol_forward_cuMemcpy3DBatchAsync##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP* ops,      \
                                                   size_t* failed, unsigned long long flags,       \
                                                   CUstream stream) {                              \
    return copyBoxes(count, ops, failed, flags, stream, per_thread);                               \
  }                                                                                                \
  CUresult ol_forward_cuMemcpy3DPeerAsync##suffix(const CUDA_MEMCPY3D_PEER* copy,                  \
                                                  CUstream stream) {                               \
    return copyPeer(copy, stream, per_thread, true);                                               \
  }
OL_BATCH(, false)
OL_BATCH(_ptsz, true)
#undef OL_BATCH

CUresult ol_forward_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  return copyPeer(copy, nullptr, false, false);
}
CUresult ol_forward_cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* copy) {
  return copyPeer(copy, nullptr, true, false);
}

}  // extern "C"
