#include "interpose/api/range_extractors.h"

namespace olpager::api::extract {
namespace {

/// One side of a copy in memory: where it starts, and its rows and layers.
struct Side {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  uint64_t x, y, z;
  uint64_t pitch;   // bytes between rows; 0: packed
  uint64_t height;  // rows of a layer
};

struct Box {
  uint64_t width, height, depth;  // bytes, rows, layers
};

void addBox(RangeSink& sink, uint64_t base, const Side& side, const Box& box, bool written) {
  if (base == 0 || box.width == 0 || box.height == 0 || box.depth == 0) return;
  const uint64_t pitch = side.pitch != 0 ? side.pitch : box.width;
  const uint64_t layer_rows = side.height != 0 ? side.height : box.height;
  const uint64_t first_row = saturatingSum(saturatingProduct(side.z, layer_rows), side.y);
  const uint64_t rows = saturatingSum(saturatingProduct(box.depth - 1, layer_rows), box.height);
  const uint64_t start = base + saturatingSum(saturatingProduct(first_row, pitch), side.x);
  const bool whole = pitch == box.width && (box.depth == 1 || layer_rows == box.height);
  sink.add(start, span2d(pitch, box.width, rows),
           !written ? Use::kRead
           : whole  ? Use::kWrite
                    : Use::kReadWrite);
}

void addSide(RangeSink& sink, const Side& side, const Box& box, bool written) {
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      addBox(sink, reinterpret_cast<uint64_t>(side.host), side, box, written);
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      addBox(sink, side.device, side, box, written);
      break;
    default:
      break;  // arrays are no part of the range
  }
}

template <typename Copy>
void addCopy3d(RangeSink& sink, const Copy& copy) {
  const Box box = {copy.WidthInBytes, copy.Height, copy.Depth};
  addSide(sink,
          {copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcZ,
           copy.srcPitch, copy.srcHeight},
          box, false);
  addSide(sink,
          {copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstZ,
           copy.dstPitch, copy.dstHeight},
          box, true);
}

}  // namespace

uint64_t arrayFormatBytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 1;
  }
}

void fill2d(RangeSink& sink, CUdeviceptr destination, uint64_t pitch, uint64_t width,
            uint64_t height) {
  // Rows that do not touch leave bytes between them as they were.
  sink.add(destination, span2d(pitch, width, height),
           pitch == width || height == 1 ? Use::kWrite : Use::kReadWrite);
}

void copy2d(RangeSink& sink, const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return;
  const Box box = {copy->WidthInBytes, copy->Height, 1};
  addSide(sink,
          {copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, 0,
           copy->srcPitch, 0},
          box, false);
  addSide(sink,
          {copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, 0,
           copy->dstPitch, 0},
          box, true);
}

void copy3d(RangeSink& sink, const CUDA_MEMCPY3D* copy) {
  if (copy != nullptr) addCopy3d(sink, *copy);
}

void copy3dPeer(RangeSink& sink, const CUDA_MEMCPY3D_PEER* copy) {
  if (copy != nullptr) addCopy3d(sink, *copy);
}

void copyBatch(RangeSink& sink, const CUdeviceptr* destinations, const CUdeviceptr* sources,
               const size_t* sizes, size_t count) {
  if (destinations == nullptr || sources == nullptr || sizes == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    sink.add(sources[i], sizes[i], Use::kRead);
    sink.add(destinations[i], sizes[i], Use::kWrite);
  }
}

void copy3dBatch(RangeSink& sink, const CUDA_MEMCPY3D_BATCH_OP* operations, size_t count) {
  if (operations == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& op = operations[i];
    // Lengths are in elements: of the array when one side is one, else bytes.
    uint64_t element = 1;
    if (op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
      element = sink.arrayElementBytes(op.src.op.array.array);
    if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
      element = sink.arrayElementBytes(op.dst.op.array.array);
    const Box box = {saturatingProduct(op.extent.width, element), op.extent.height,
                     op.extent.depth};
    const auto add = [&](const CUmemcpy3DOperand& operand, bool written) {
      if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return;
      const auto& memory = operand.op.ptr;
      addBox(sink, memory.ptr,
             {CU_MEMORYTYPE_UNIFIED, nullptr, memory.ptr, 0, 0, 0,
              saturatingProduct(memory.rowLength, element), memory.layerHeight},
             box, written);
    };
    add(op.src, false);
    add(op.dst, true);
  }
}

void decompressBatch(RangeSink& sink, const CUmemDecompressParams* parameters, size_t count) {
  if (parameters == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    const CUmemDecompressParams& p = parameters[i];
    sink.add(reinterpret_cast<uint64_t>(p.src), p.srcNumBytes, Use::kRead);
    // How much is written is known only afterwards; dstNumBytes is a hint.
    sink.addFrom(reinterpret_cast<uint64_t>(p.dst));
    sink.add(reinterpret_cast<uint64_t>(p.dstActBytes), sizeof *p.dstActBytes, Use::kWrite);
  }
}

void memOps(RangeSink& sink, const CUstreamBatchMemOpParams* operations, unsigned count) {
  if (operations == nullptr) return;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& op = operations[i];
    switch (op.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        sink.add(op.waitValue.address, 4, Use::kRead);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        sink.add(op.waitValue.address, 8, Use::kRead);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        sink.add(op.writeValue.address, 4, Use::kWrite);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        sink.add(reinterpret_cast<uint64_t>(&op.writeValue.value64), 8,
                 Use::kRead);  // may be an address
        sink.add(op.writeValue.address, 8, Use::kWrite);
        break;
      default:
        break;  // barriers and flushes name no memory
    }
  }
}

}  // namespace olpager::api::extract
