// Copies of boxes: rows behind one another in calls, however they lie in the program's memory.
#include <cstring>
#include <utility>
#include <vector>

#include "forwarding/wire/copies.h"
#include "interpose/api/forward_functions.h"
#include "interpose/api/range_extractors.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/copy_steps.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/rows.h"

namespace olpager::forward {

Rows rowsOf(const void* base, const CUDA_MEMCPY3D& box, bool source) {
  const uint64_t given_pitch = source ? box.srcPitch : box.dstPitch;
  const uint64_t given_height = source ? box.srcHeight : box.dstHeight;
  const uint64_t pitch = given_pitch != 0 ? given_pitch : box.WidthInBytes;
  const uint64_t layer_rows = given_height != 0 ? given_height : box.Height;
  const uint64_t x = source ? box.srcXInBytes : box.dstXInBytes;
  const uint64_t y = source ? box.srcY : box.dstY;
  const uint64_t z = source ? box.srcZ : box.dstZ;
  auto* const start =
      static_cast<std::byte*>(const_cast<void*>(base)) + (z * layer_rows + y) * pitch + x;
  return {start, box.WidthInBytes, pitch, box.Height, pitch * layer_rows, box.Depth};
}

bool pitchHoldsRow(CUmemorytype type, uint64_t pitch, const CUDA_MEMCPY3D& box) {
  return type == CU_MEMORYTYPE_ARRAY || pitch == 0 || pitch >= box.WidthInBytes;
}

namespace {

// Unified addresses become host or device ones, and those of exchanged blocks always host ones.
void settle(CUmemorytype& type, const void*& host, CUdeviceptr& device) {
  if (type == CU_MEMORYTYPE_HOST && isAtWorker(host)) {
    type = CU_MEMORYTYPE_DEVICE;
    device = reinterpret_cast<CUdeviceptr>(host);
  }
  if (type != CU_MEMORYTYPE_UNIFIED && !(type == CU_MEMORYTYPE_DEVICE && isExchanged(device)))
    return;
  device = hereOf(device);
  type = isDeviceMemory(device) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  host = reinterpret_cast<const void*>(device);
}

// Finds out if all that a box touches of the client's memory is shared with the worker.
class SharedSide final : public api::extract::RangeSink {
 public:
  explicit SharedSide(const Session& session) : session_(session) {}
  void add(uint64_t address, uint64_t bytes, api::extract::Use) override {
    shared_ =
        shared_ && bytes != 0 && isShared(session_, reinterpret_cast<const void*>(address), bytes);
  }
  void addFrom(uint64_t) override { shared_ = false; }
  uint64_t arrayElementBytes(CUarray) override { return 1; }
  bool shared() const { return shared_; }

 private:
  const Session& session_;
  bool shared_ = true;
};

// The box has a side in the client's memory, and one that is not. The kind of the other one does
// not matter.
bool isSharedBox(const Session& session, CUDA_MEMCPY3D box) {
  (box.srcMemoryType == CU_MEMORYTYPE_HOST ? box.dstMemoryType : box.srcMemoryType) =
      CU_MEMORYTYPE_ARRAY;
  SharedSide side(session);
  api::extract::copy3d(side, &box);
  return side.shared();
}

// A box with sides in the client's memory, in a stream that captures. Between two such sides it is
// one between addresses that the GPU has.
CUresult captureBox(CUDA_MEMCPY3D box, CopyShape shape, const Where& where) {
  const bool from_host = box.srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = box.dstMemoryType == CU_MEMORYTYPE_HOST;
  CopyHead head = headOf(where);
  head.shape = shape;
  const auto move = [&](const void* base, bool source, uint64_t* moved) {
    const Rows rows = rowsOf(base, box, source);
    if (rows.isBeyondAddresses()) return CUDA_ERROR_INVALID_VALUE;
    const auto first = reinterpret_cast<uint64_t>(rows.first);
    uint64_t there = 0;
    const CUresult result = captureSide(where, first, rows.extent(), &there);
    *moved = reinterpret_cast<uint64_t>(base) + (there - first);
    head.near = there;
    return result;
  };
  uint64_t source = 0, destination = 0;
  if (from_host) {
    if (const CUresult error = move(box.srcHost, true, &source); error != CUDA_SUCCESS)
      return error;
    box.srcHost = reinterpret_cast<const void*>(source);
  }
  if (to_host) {
    if (const CUresult error = move(box.dstHost, false, &destination); error != CUDA_SUCCESS)
      return error;
    box.dstHost = reinterpret_cast<void*>(destination);
  }
  if (from_host && to_host) {
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = source, box.dstDevice = destination;
    box.srcHost = nullptr, box.dstHost = nullptr;
    head.near = 0;
  }
  head.box = box;
  Call call(from_host && to_host ? Operation::kCopyDevice
            : from_host          ? Operation::kCopyIn
                                 : Operation::kCopyOut,
            where.session);
  call.copy(head);
  return call.sync();
}

Session* sessionOf(CUmemorytype type, CUdeviceptr device, CUarray array) {
  if (type == CU_MEMORYTYPE_DEVICE) return sessionOfAddress(device);
  return type == CU_MEMORYTYPE_ARRAY ? sessionOfHandle(reinterpret_cast<uint64_t>(array)) : nullptr;
}

// True if the side is device memory and the box goes beyond what is known to be there.
bool leavesDevice(CUmemorytype type, CUdeviceptr device, const CUDA_MEMCPY3D& box, bool source) {
  if (type != CU_MEMORYTYPE_DEVICE) return false;
  const Rows rows = rowsOf(reinterpret_cast<const void*>(device), box, source);
  return rows.isBeyondAddresses() ||
         leavesKnownMemory(reinterpret_cast<CUdeviceptr>(rows.first), rows.extent());
}

// A box that is too large for one call, in two: of layers, rows or bytes.
CUresult copyHalves(const CUDA_MEMCPY3D& box, CopyShape shape, const Where& given) {
  CUDA_MEMCPY3D first = box, second = box;
  const auto halve = [&](size_t CUDA_MEMCPY3D::*extent, size_t CUDA_MEMCPY3D::*from,
                         size_t CUDA_MEMCPY3D::*to) {
    const size_t half = box.*extent / 2;
    first.*extent = half;
    second.*extent -= half;
    second.*from += half;
    second.*to += half;
  };
  if (box.Depth > 1) {
    halve(&CUDA_MEMCPY3D::Depth, &CUDA_MEMCPY3D::srcZ, &CUDA_MEMCPY3D::dstZ);
    // A height that is not given is a layer's of the box.
    for (CUDA_MEMCPY3D* half : {&first, &second})
      for (size_t CUDA_MEMCPY3D::*height : {&CUDA_MEMCPY3D::srcHeight, &CUDA_MEMCPY3D::dstHeight})
        if (half->*height == 0) half->*height = box.Height;
  } else if (box.Height > 1) {
    halve(&CUDA_MEMCPY3D::Height, &CUDA_MEMCPY3D::srcY, &CUDA_MEMCPY3D::dstY);
  } else {
    halve(&CUDA_MEMCPY3D::WidthInBytes, &CUDA_MEMCPY3D::srcXInBytes, &CUDA_MEMCPY3D::dstXInBytes);
  }
  const CUresult result = copyBox(first, shape, given);
  return result == CUDA_SUCCESS ? copyBox(second, shape, given) : result;
}

}  // namespace

CUresult copyBox(CUDA_MEMCPY3D box, CopyShape shape, const Where& given) {
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0) return CUDA_SUCCESS;
  if (!pitchHoldsRow(box.srcMemoryType, box.srcPitch, box) ||
      !pitchHoldsRow(box.dstMemoryType, box.dstPitch, box))
    return CUDA_ERROR_INVALID_VALUE;
  settle(box.srcMemoryType, box.srcHost, box.srcDevice);
  const void* target = box.dstHost;
  settle(box.dstMemoryType, target, box.dstDevice);
  box.dstHost = const_cast<void*>(target);
  // Before anything is read here: the program's memory may end where the device's does.
  if (leavesDevice(box.srcMemoryType, box.srcDevice, box, true) ||
      leavesDevice(box.dstMemoryType, box.dstDevice, box, false))
    return CUDA_ERROR_INVALID_VALUE;
  const bool from_host = box.srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = box.dstMemoryType == CU_MEMORYTYPE_HOST;
  Session* const source = sessionOf(box.srcMemoryType, box.srcDevice, box.srcArray);
  Session* const destination = sessionOf(box.dstMemoryType, box.dstDevice, box.dstArray);
  if (source != nullptr && destination != nullptr && source != destination)
    return refused("a 2D or 3D copy between devices of two gpunodes", false);
  const Where where = given.in(source != nullptr        ? source
                               : destination != nullptr ? destination
                                                        : Route().handle(given.stream).session());
  if (where.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CopyHead head = headOf(where);
  head.shape = shape;
  head.box = box;
  head.box.srcHost = nullptr;
  head.box.dstHost = nullptr;
  if (!from_host && !to_host) {
    Call call(Operation::kCopyDevice, where.session);
    call.copy(head);
    if (where.async) return call.oneWay();
    call.mayWait();
    const CUresult result = call.sync();
    return result == CUDA_SUCCESS ? awaitManaged(where, box.dstDevice, box.srcDevice) : result;
  }
  const void* const near = from_host ? box.srcHost : box.dstHost;
  if (near == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from_host != to_host && isSharedBox(*where.session, box)) {
    head.box = box;
    head.near = reinterpret_cast<uint64_t>(near);
    return copyShared(from_host ? Operation::kCopyIn : Operation::kCopyOut, head, where);
  }
  if (isCaptured(where)) return captureBox(box, shape, where);
  const Rows rows = rowsOf(near, box, from_host);
  // Nobody waits for what comes from the GPU to pinned memory: it is put in place when it comes.
  const bool later =
      where.async && !from_host && !rows.isBeyondAddresses() && isPinned(rows.first, rows.extent());
  if (from_host != to_host && rows.bytes() > (later ? kLaterBoxBytes : kMostBytes))
    return copyHalves(box, shape, where);
  if (from_host && to_host) {
    const Rows into = rowsOf(box.dstHost, box, false);
    if (const CUresult result = awaitStream(where); result != CUDA_SUCCESS) return result;
    uint64_t at = 0;
    std::vector<std::byte*> targets;
    into.forEach([&](std::byte* row) { targets.push_back(row); });
    rows.forEach([&](const std::byte* row) { std::memmove(targets[at++], row, rows.width); });
    return CUDA_SUCCESS;
  }
  head.bytes = rows.bytes();
  // The packed side: rows behind one another, from the start.
  auto& pitch = from_host ? head.box.srcPitch : head.box.dstPitch;
  auto& height = from_host ? head.box.srcHeight : head.box.dstHeight;
  pitch = box.WidthInBytes;
  height = box.Height;
  (from_host ? head.box.srcXInBytes : head.box.dstXInBytes) = 0;
  (from_host ? head.box.srcY : head.box.dstY) = 0;
  (from_host ? head.box.srcZ : head.box.dstZ) = 0;
  std::vector<std::byte> packed;
  if (from_host) {
    if (const CUresult error = awaitFunctions(where); error != CUDA_SUCCESS) return error;
    if (const CUresult error = awaitMemory(reinterpret_cast<uint64_t>(rows.first),
                                           rows.layer * rows.depth, *where.session);
        error != CUDA_SUCCESS)
      return error;
    packed.reserve(rows.bytes());
    rows.forEach([&](const std::byte* row) { packed.insert(packed.end(), row, row + rows.width); });
    noteAddresses(where.session, packed.data(), packed.size());
    Call call(Operation::kCopyIn, where.session);
    call.copy(head);
    call.bulk(packed);
    if (where.async) return call.oneWay();
    call.mayWait();
    return call.sync();
  }
  if (later) {
    head.number = where.session->arrivals().expectRows(rows);
    Call call(Operation::kCopyOut, where.session);
    call.copy(head);
    const CUresult posted = call.oneWay();
    if (posted != CUDA_SUCCESS) where.session->arrivals().bytesDoNotCome(head.number);
    return posted;
  }
  head.in_order = 0;  // the rows are put in place by this thread
  Call call(Operation::kCopyOut, where.session);
  call.copy(head);
  call.mayWait();
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto bytes = call.reply().raw(head.bytes);
  if (bytes.empty()) return CUDA_ERROR_UNKNOWN;
  uint64_t at = 0;
  rows.forEach([&](std::byte* row) {
    std::memcpy(row, bytes.data() + at, rows.width);
    at += rows.width;
  });
  return result;
}

}  // namespace olpager::forward
