#include "gpunode/simgpu/copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/host_callbacks.h"

namespace olpager::simgpu {

namespace {

constexpr uint64_t kStageLimit =
    64 << 10;  // pageable sources up to this size are taken when the call is made

/// One side of a copy with its geometry: byte (x, y, z) lies at base + ((z + oz) * rows + y + oy) *
/// pitch + x + ox.
struct Side {
  bool raw = false;     // memory that the CPU addresses as it is: pageable, pinned, managed
  bool device = false;  // neither end of it is the host's
  uint64_t start = 0;   // address of (0, 0, 0)
  uint64_t pitch = 0;
  uint64_t slice = 0;  // bytes from one z to the next
};

bool isRaw(uint64_t address) {
  Translation at;
  for (const auto& device : Driver::get().devices)
    if (device->pages.translate(address, &at))
      return at.host == reinterpret_cast<std::byte*>(address);
  return true;
}

Side describe(CUmemorytype type, const void* host, CUdeviceptr address, CUarray handle,
              size_t pitch, size_t height, size_t x, size_t y, size_t z, size_t width) {
  Side side;
  uint64_t rows = height;
  if (type == CU_MEMORYTYPE_ARRAY) {
    const auto array = Driver::get().arrays.find(handle);
    if (array != nullptr) {
      side.start = array->base;
      side.pitch = array->pitch;
      rows = array->rows;
    }
  } else {
    side.start = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : address;
    side.pitch = pitch != 0 ? pitch : width + x;
  }
  side.raw = type != CU_MEMORYTYPE_ARRAY && isRaw(side.start);
  side.device = !side.raw;
  side.slice = side.pitch * std::max<uint64_t>(rows, 1);
  side.start += z * side.slice + y * side.pitch + x;
  return side;
}

Side destination(const CUDA_MEMCPY3D& c) {
  return describe(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstPitch, c.dstHeight,
                  c.dstXInBytes, c.dstY, c.dstZ, c.WidthInBytes);
}

Side source(const CUDA_MEMCPY3D& c) {
  return describe(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcArray, c.srcPitch, c.srcHeight,
                  c.srcXInBytes, c.srcY, c.srcZ, c.WidthInBytes);
}

/// The bytes at `address` of a side; false where a device has nothing there (or nothing that it may
/// write).
bool resolve(const Device& device, bool raw, uint64_t address, uint64_t wanted, bool write,
             std::byte** host, uint64_t* bytes) {
  if (raw) {
    *host = reinterpret_cast<std::byte*>(address);
    *bytes = wanted;
    return true;
  }
  Translation at;
  if (!Driver::get().memory.translate(device, address, &at) || (write && !at.writable))
    return false;
  *host = at.host;
  *bytes = std::min(at.bytes, wanted);
  return true;
}

bool copySpan(const Device& device, const Side& dst, uint64_t to, const Side& src, uint64_t from,
              uint64_t bytes) {
  while (bytes != 0) {
    std::byte *target = nullptr, *origin = nullptr;
    uint64_t target_bytes = 0, origin_bytes = 0;
    if (!resolve(device, dst.raw, to, bytes, true, &target, &target_bytes) ||
        !resolve(device, src.raw, from, bytes, false, &origin, &origin_bytes))
      return false;
    const uint64_t piece = std::min(target_bytes, origin_bytes);
    std::memmove(target, origin, piece);
    to += piece, from += piece, bytes -= piece;
  }
  return true;
}

/// True if the device reaches that side over its link: pageable, pinned or managed memory, or a
/// host chunk that is mapped somewhere.
bool isOfHost(const Side& side) { return side.raw || Driver::get().memory.onHost(side.start); }

/// Imitates the link: the copy takes as long as its bytes do there.
void throttle(Device& device, const Side& dst, const Side& src, uint64_t bytes) {
  const double rate = Driver::get().settings.bandwidth;
  if (rate <= 0) return;
  if (isOfHost(src)) device.link_in.cross(bytes, rate);
  if (isOfHost(dst)) device.link_out.cross(bytes, rate);
}

class CopyOp final : public StreamOp {
 public:
  CopyOp(const CUDA_MEMCPY3D& copy, std::shared_ptr<std::vector<std::byte>> staged)
      : copy_(copy), staged_(std::move(staged)) {}

  CUresult execute(Context& context) override {
    const Side dst = destination(copy_);
    Side src = source(copy_);
    uint64_t width = copy_.WidthInBytes, height = copy_.Height, depth = copy_.Depth;
    if (staged_ != nullptr) {
      src.raw = true;
      src.start = reinterpret_cast<uint64_t>(staged_->data());
      src.pitch = width;
      src.slice = width * height;
    }
    const uint64_t bytes = width * height * depth;
    if (src.pitch == width && dst.pitch == width) {  // rows that follow each other are one row
      width *= height;
      height = 1;
      if (src.slice == width && dst.slice == width) {
        width *= depth;
        depth = 1;
      }
    }
    for (uint64_t z = 0; z < depth; ++z)
      for (uint64_t y = 0; y < height; ++y)
        if (!copySpan(context.device(), dst, dst.start + z * dst.slice + y * dst.pitch, src,
                      src.start + z * src.slice + y * src.pitch, width))
          return CUDA_ERROR_ILLEGAL_ADDRESS;
    throttle(context.device(), dst, src, bytes);
    return CUDA_SUCCESS;
  }
  const char* name() const override { return "copy"; }

 private:
  const CUDA_MEMCPY3D copy_;
  const std::shared_ptr<std::vector<std::byte>> staged_;
};

std::shared_ptr<std::vector<std::byte>> stage(const CUDA_MEMCPY3D& copy) {
  const Side src = source(copy);
  auto bytes =
      std::make_shared<std::vector<std::byte>>(copy.WidthInBytes * copy.Height * copy.Depth);
  std::byte* to = bytes->data();
  for (uint64_t z = 0; z < copy.Depth; ++z)
    for (uint64_t y = 0; y < copy.Height; ++y, to += copy.WidthInBytes)
      std::memcpy(to, reinterpret_cast<const void*>(src.start + z * src.slice + y * src.pitch),
                  copy.WidthInBytes);
  return bytes;
}

CUresult checkSide(CUmemorytype type, const void* host, CUdeviceptr address, CUarray handle,
                   size_t pitch, size_t height, size_t x, size_t y, size_t z,
                   const CUDA_MEMCPY3D& copy, const Device& device, bool write) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    const auto array = Driver::get().arrays.find(handle);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const bool inside = x + copy.WidthInBytes <= array->pitch && y + copy.Height <= array->rows &&
                        z + copy.Depth <= array->slices;
    return inside && x % array->element_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  if (pitch != 0 && pitch < copy.WidthInBytes + x && (copy.Height > 1 || copy.Depth > 1))
    return CUDA_ERROR_INVALID_VALUE;
  if (height != 0 && height < copy.Height + y) return CUDA_ERROR_INVALID_VALUE;
  if ((type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : address) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const Side side =
      describe(type, host, address, handle, pitch, height, x, y, z, copy.WidthInBytes);
  const Memory& memory = Driver::get().memory;
  // Memory that CUDA does not know may stand on the host's side and where addresses of either kind
  // do.
  if (type != CU_MEMORYTYPE_DEVICE && side.raw)
    return memory.ownAddress(side.start) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  const uint64_t bytes =
      (copy.Depth - 1) * side.slice + (copy.Height - 1) * side.pitch + copy.WidthInBytes;
  return memory.covers(device, side.start, bytes, write) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

OperandPlace placeOf(uint64_t address) {
  using Kind = OperandPlace::Kind;
  const Memory& memory = Driver::get().memory;
  VmmMapping mapping;
  if (memory.mapping(address, &mapping)) {
    // VRAM or host memory: what counts is who can get at it.
    OperandPlace place{Kind::kVmm};
    for (size_t device = 0; device < mapping.access.size(); ++device)
      if (mapping.access[device] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        place.devices |= uint64_t{1} << device;
    return place;
  }
  const auto allocation = memory.find(address);
  if (allocation == nullptr) return {};
  const uint64_t devices =
      allocation->device != nullptr ? uint64_t{1} << allocation->device->ordinal : 0;
  return {Kind::kAllocation, allocation->kind, devices, allocation->context_handle};
}

OperandPlace placeOf(CUmemorytype type, const void* host, CUdeviceptr address, CUarray handle) {
  if (type != CU_MEMORYTYPE_ARRAY)
    return placeOf(type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : address);
  const auto array = Driver::get().arrays.find(handle);
  return array != nullptr ? placeOf(array->base) : OperandPlace{};
}

class MemsetOp final : public StreamOp {
 public:
  explicit MemsetOp(const CUDA_MEMSET_NODE_PARAMS& set) : set_(set) {}

  CUresult execute(Context& context) override {
    const uint64_t bytes = set_.width * set_.elementSize;
    uint64_t rows = set_.height, row_bytes = bytes;
    if (rows > 1 && set_.pitch == bytes) {
      row_bytes *= rows;
      rows = 1;
    }
    for (uint64_t row = 0; row < rows; ++row) {
      uint64_t address = set_.dst + row * set_.pitch;
      for (uint64_t left = row_bytes; left != 0;) {
        Translation at;
        if (!Driver::get().memory.translate(context.device(), address, &at) || !at.writable)
          return CUDA_ERROR_ILLEGAL_ADDRESS;
        const uint64_t piece = std::min(left, at.bytes);  // pages are multiples of the element
        fill(at.host, piece);
        address += piece, left -= piece;
      }
    }
    return CUDA_SUCCESS;
  }
  const char* name() const override { return "memset"; }

 private:
  void fill(std::byte* at, uint64_t bytes) const {
    if (set_.elementSize == 1) {
      std::memset(at, static_cast<int>(set_.value & 0xff), bytes);
    } else if (set_.elementSize == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(at), bytes / 2, static_cast<uint16_t>(set_.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(at), bytes / 4, set_.value);
    }
  }
  const CUDA_MEMSET_NODE_PARAMS set_;
};

bool waitSatisfied(uint64_t value, uint64_t wanted, bool wide, unsigned flags) {
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return wide ? static_cast<int64_t>(value - wanted) >= 0
                  : static_cast<int32_t>(static_cast<uint32_t>(value) -
                                         static_cast<uint32_t>(wanted)) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & wanted) != 0;
    default:
      return wide ? ~(value | wanted) != 0 : static_cast<uint32_t>(~(value | wanted)) != 0;
  }
}

class BatchOp final : public StreamOp {
 public:
  explicit BatchOp(std::vector<CUstreamBatchMemOpParams> ops) : ops_(std::move(ops)) {}

  CUresult execute(Context& context) override {
    for (const auto& op : ops_) {
      switch (op.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: {
          const CUresult result = wait(context, op);
          if (result != CUDA_SUCCESS) return result;
          break;
        }
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: {
          const bool wide = op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
          Translation at;
          if (!Driver::get().memory.translate(context.device(), op.writeValue.address, &at) ||
              !at.writable)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
          if (wide) {
            __atomic_store_n(reinterpret_cast<uint64_t*>(at.host), op.writeValue.value64,
                             __ATOMIC_SEQ_CST);
          } else {
            __atomic_store_n(reinterpret_cast<uint32_t*>(at.host), op.writeValue.value,
                             __ATOMIC_SEQ_CST);
          }
          break;
        }
        default:  // barriers and flushes: every access here is ordered already
          break;
      }
    }
    return CUDA_SUCCESS;
  }
  const char* name() const override { return "stream memory operation"; }

 private:
  static CUresult wait(Context& context, const CUstreamBatchMemOpParams& op) {
    const bool wide = op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    auto pause = std::chrono::microseconds(1);
    for (;;) {
      Translation at;
      if (!Driver::get().memory.translate(context.device(), op.waitValue.address, &at))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      const uint64_t value =
          wide ? __atomic_load_n(reinterpret_cast<uint64_t*>(at.host), __ATOMIC_SEQ_CST)
               : __atomic_load_n(reinterpret_cast<uint32_t*>(at.host), __ATOMIC_SEQ_CST);
      if (waitSatisfied(value, wide ? op.waitValue.value64 : op.waitValue.value, wide,
                        op.waitValue.flags))
        return CUDA_SUCCESS;
      if (context.cancel) return CUDA_SUCCESS;  // the context failed: nothing that follows runs
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(200));
    }
  }
  const std::vector<CUstreamBatchMemOpParams> ops_;
};

}  // namespace

CUDA_MEMCPY3D linearCopy(CUmemorytype dst_type, CUdeviceptr dst, CUmemorytype src_type,
                         CUdeviceptr src, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = dst_type;
  copy.dstHost = reinterpret_cast<void*>(dst);
  copy.dstDevice = dst;
  copy.srcMemoryType = src_type;
  copy.srcHost = reinterpret_cast<const void*>(src);
  copy.srcDevice = src;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

CUresult checkCopy(const Device& device, const CUDA_MEMCPY3D& copy) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
  if (const CUresult result =
          checkSide(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstPitch,
                    copy.dstHeight, copy.dstXInBytes, copy.dstY, copy.dstZ, copy, device, true))
    return result;
  return checkSide(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcPitch,
                   copy.srcHeight, copy.srcXInBytes, copy.srcY, copy.srcZ, copy, device, false);
}

CUresult submitCopy(const CUDA_MEMCPY3D& copy, CUstream handle, bool per_thread, CopyWait wait) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (const CUresult result = checkCopy(context->device(), copy)) return result;
  const CaptureNode node{CU_GRAPH_NODE_TYPE_MEMCPY, context->handle(), copy};
  if (wait == CopyWait::kAsync && stream->inCapture()) return captureNode(*stream, node);
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) {
    return CUDA_SUCCESS;
  }
  const Side src = source(copy), dst = destination(copy);
  const auto pageable = [](const Side& side) {
    return side.raw && !Driver::get().memory.known(side.start);
  };
  std::shared_ptr<std::vector<std::byte>> staged;
  bool must_wait = wait == CopyWait::kSync && !(src.device && dst.device);
  if (wait == CopyWait::kAsync && !must_wait) {
    if (pageable(dst)) {
      must_wait = true;
    } else if (pageable(src)) {
      if (copy.WidthInBytes * copy.Height * copy.Depth <= kStageLimit) {
        staged = stage(copy);
      } else {
        must_wait = true;
      }
    }
  }
  StreamPoint point;
  if (const CUresult result = context->submitOrCapture(
          *stream, node, [&] { return makeCopyOp(copy, std::move(staged)); }, &point))
    return result;
  if (!must_wait) return CUDA_SUCCESS;
  const CallLock held(*context);
  return context->synchronize(point);
}

CUresult checkMemset(const Device& device, const CUDA_MEMSET_NODE_PARAMS& set) {
  if (set.elementSize != 1 && set.elementSize != 2 && set.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  if (set.dst % set.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row = set.width * set.elementSize;
  if (set.height > 1 && (set.pitch < row || set.pitch % set.elementSize != 0))
    return CUDA_ERROR_INVALID_VALUE;
  return Driver::get().memory.covers(device, set.dst, (set.height - 1) * set.pitch + row, true)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult submitMemset(const CUDA_MEMSET_NODE_PARAMS& set, CUstream handle, bool per_thread,
                      CopyWait wait) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (const CUresult result = checkMemset(context->device(), set)) return result;
  const CaptureNode node{CU_GRAPH_NODE_TYPE_MEMSET, context->handle(), set};
  if (wait == CopyWait::kAsync && stream->inCapture()) return captureNode(*stream, node);
  if (set.width == 0 || set.height == 0) return CUDA_SUCCESS;
  StreamPoint point;
  if (const CUresult result = context->submitOrCapture(
          *stream, node, [&] { return makeMemsetOp(set); }, &point))
    return result;
  // Pinned and managed memory is filled when the call returns; device memory in stream order.
  return wait == CopyWait::kSync && isRaw(set.dst) ? context->synchronize(point) : CUDA_SUCCESS;
}

OperandPlaces placesOf(const CUDA_MEMCPY3D& copy) {
  return {placeOf(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray),
          placeOf(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray)};
}

OperandPlaces placesOf(const CUDA_MEMSET_NODE_PARAMS& set) { return {placeOf(set.dst), {}}; }

std::unique_ptr<StreamOp> makeCopyOp(const CUDA_MEMCPY3D& copy,
                                     std::shared_ptr<std::vector<std::byte>> staged) {
  return std::make_unique<CopyOp>(copy, std::move(staged));
}

std::unique_ptr<StreamOp> makeMemsetOp(const CUDA_MEMSET_NODE_PARAMS& set) {
  return std::make_unique<MemsetOp>(set);
}

std::unique_ptr<StreamOp> makeHostOp(const CUDA_HOST_NODE_PARAMS& host) {
  return makeOp("host function", [host](Context&) {
    HostCallbacks::get().run([&] { host.fn(host.userData); });
    return CUDA_SUCCESS;
  });
}

std::unique_ptr<StreamOp> makeBatchOp(std::vector<CUstreamBatchMemOpParams> ops) {
  return std::make_unique<BatchOp>(std::move(ops));
}

std::unique_ptr<StreamOp> makeNodeOp(const CaptureNode& node) {
  if (const auto* copy = std::get_if<CUDA_MEMCPY3D>(&node.params)) return makeCopyOp(*copy);
  if (const auto* set = std::get_if<CUDA_MEMSET_NODE_PARAMS>(&node.params))
    return makeMemsetOp(*set);
  if (const auto* host = std::get_if<CUDA_HOST_NODE_PARAMS>(&node.params)) return makeHostOp(*host);
  if (const auto* batch = std::get_if<BatchNode>(&node.params)) return makeBatchOp(batch->ops);
  if (node.type == CU_GRAPH_NODE_TYPE_EMPTY)
    return makeOp("empty node", [](Context&) { return CUDA_SUCCESS; });
  return nullptr;
}

}  // namespace olpager::simgpu
