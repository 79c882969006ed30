// Copies between the client's memory and the worker's. Short ones: bytes to the GPU go with the
// call. Bytes to pageable memory, and those of synchronous copies, come in the reply; asynchronous
// copies to pinned memory are followed by Answer::kBytes in stream order. Bulk ones: the call names
// a region of this process's memory, which the worker reads or writes by itself. Of memory that the
// worker has too (isShared) nothing travels, whatever the length.
#include "forwarding/wire/copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/api/range_extractors.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/copies_between.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/memory.h"
#include "interpose/forward/rows.h"
#include "interpose/forward/stand_ins.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kPiece = 4ull << 20;  // of a long copy
constexpr size_t kUnderWay = 4;          // pieces

struct Where {
  CUstream stream = nullptr;
  bool per_thread = false;
  bool async = false;
  Session* session = nullptr;  // found out when the device's side is known

  Where in(Session* found) const { return {stream, per_thread, async, found}; }
};

CopyHead headOf(const Where& where) {
  CopyHead head;
  head.stream = reinterpret_cast<uint64_t>(where.stream);
  head.per_thread = where.per_thread ? 1 : 0;
  head.in_order = where.async ? 1 : 0;
  return head;
}

// One end of a linear copy at the worker.
struct Far {
  uint64_t device;
  bool array = false;
  uint64_t offset = 0;
};

Session* sessionOf(const Far& far, const Where& where) {
  return far.array ? Route().handle(far.device).handle(where.stream).session()
                   : Route().address(far.device).handle(where.stream).session();
}

// Of `bytes` from `at` on.
CopyHead headOf(const Where& where, const Far& far, uint64_t at, uint64_t bytes) {
  CopyHead head = headOf(where);
  head.device = far.array ? far.device : far.device + at;
  head.array = far.array ? 1 : 0;
  head.offset = far.array ? far.offset + at : 0;
  head.bytes = bytes;
  return head;
}

// Of one between two addresses that the worker has.
CopyHead headBetween(const Where& where, uint64_t to, uint64_t from, uint64_t bytes) {
  CopyHead head = headOf(where);
  head.device = to;
  head.offset = from;
  head.bytes = bytes;
  return head;
}

CUresult copyAny(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const Where& where);
CUresult copyBox(CUDA_MEMCPY3D box, CopyShape shape, const Where& given);

// A copy in a stream that captures: with memory that the worker has as well.
bool isCaptured(const Where& where) {
  return where.async && capturing() && captures(where.stream, where.per_thread);
}

// Where the worker has what a captured copy reads or writes here. It is exchanged at each launch of
// the graph.
CUresult captureSide(const Where& where, uint64_t near, uint64_t bytes, uint64_t* there) {
  if (const CUresult error = pinnedThere(near, bytes, there); error != CUDA_SUCCESS) return error;
  if (*there != 0) {
    noteNamed(where.session, *there);
    return CUDA_SUCCESS;
  }
  StandIns needed;
  if (const CUresult error = standIn(where.session, near, bytes, needed, there);
      error != CUDA_SUCCESS)
    return error;
  return graphNeeds(where.session, capturedGraph(where.stream, where.per_thread), needed);
}

CUresult captureCopy(Operation operation, const Far& far, const void* near, uint64_t bytes,
                     const Where& where) {
  CopyHead head = headOf(where, far, 0, bytes);
  if (const CUresult error =
          captureSide(where, reinterpret_cast<uint64_t>(near), bytes, &head.near);
      error != CUDA_SUCCESS)
    return error;
  Call call(operation, where.session);
  call.value(head);
  return call.sync();
}

CUresult captureBetween(uint64_t to, uint64_t from, uint64_t bytes, const Where& where) {
  if (const CUresult error = captureSide(where, to, bytes, &to); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = captureSide(where, from, bytes, &from); error != CUDA_SUCCESS)
    return error;
  Call call(Operation::kCopyDevice, where.session);
  call.value(headBetween(where, to, from, bytes));
  return call.oneWay();
}

// The client's side is memory that the worker has too: the GPU comes to it in stream order.
CUresult copyShared(Operation operation, const CopyHead& head, const Where& where) {
  Call call(operation, where.session);
  call.value(head);
  if (where.async) return call.oneWay(head.bytes >= kBulkBytes);
  call.mayWait();
  return call.sync();
}

CUresult copyShared(Operation operation, const Far& far, const void* near, uint64_t bytes,
                    const Where& where) {
  CopyHead head = headOf(where, far, 0, bytes);
  head.near = reinterpret_cast<uint64_t>(near);
  return copyShared(operation, head, where);
}

CUresult awaitStream(const Where& where) {
  Call wait(Operation::kSynchronizeDefault, where.session);
  wait.value(headOf(where));
  wait.mayWait();
  wait.ofOurOwn();
  return wait.sync();
}

CUresult awaitFunctions(const Where& where) {
  return olpager::forward::awaitFunctions(where.session, where.stream, where.per_thread);
}

// Whether a copy that the caller would wait for may be sent ahead of its end: its bytes are taken,
// the worker makes nothing else meanwhile, and the driver is not expected to refuse it. Only of a
// program that calls from one thread and has no host functions: no other call of it could end what
// the copy waits for.
bool goesAhead(const Far& to, uint64_t bytes, const Where& where) {
  return !where.async && !to.array && bytes <= kPiece && where.session != nullptr &&
         !where.session->othersCall() && isKnownMemory(to.device, bytes);
}

// The client's side of a bulk copy. Pageable memory is registered for the copy alone, whose caller
// then waits until it is over.
class BulkSide {
 public:
  BulkSide(const Session* session, const void* memory, uint64_t bytes, uint32_t access) {
    if (bytes < kBulkBytes || session == nullptr) return;
    if (pinnedRegion(*session, memory, bytes, &key_, &offset_)) {
      pinned_ = true;
      return;
    }
    auto region = transport::registerMemory(session->domain(),
                                            {const_cast<void*>(memory), bytes, -1, 0}, access);
    if (!region.ok()) return;
    region_ = std::move(region).value();
    key_ = region_->key();
  }
  /// False: the bytes have to travel in the call.
  explicit operator bool() const { return key_.key != 0; }
  bool pinned() const { return pinned_; }
  void name(CopyHead& head) const {
    head.region = key_;
    head.region_offset = offset_;
  }

 private:
  transport::RegionPtr region_;
  transport::RemoteKey key_;
  uint64_t offset_ = 0;
  bool pinned_ = false;
};

// All waits that end the use of the program's memory have been waited for.
CUresult bulkIn(const Far& to, const void* from, uint64_t bytes, const BulkSide& side,
                const Where& where) {
  CopyHead head = headOf(where, to, 0, bytes);
  side.name(head);
  Call call(Operation::kCopyIn, where.session);
  call.value(head);
  if (where.async && side.pinned()) {
    const CUresult result = call.oneWay(true);
    noteAddresses(where.session, from, bytes);  // for launches that come later
    return result;
  }
  if (!where.async) call.mayWait();
  if (const CUresult begun = call.begin(true); begun != CUDA_SUCCESS) return begun;
  noteAddresses(where.session, from, bytes);
  return call.finish();
}

CUresult bulkOut(void* into, const Far& from, uint64_t bytes, const BulkSide& side,
                 const Where& where) {
  CopyHead head = headOf(where, from, 0, bytes);
  side.name(head);
  const bool later = where.async && side.pinned();
  Call call(Operation::kCopyOut, where.session);
  if (later) head.number = where.session->expectBytes(into, bytes);
  call.value(head);
  if (later) {
    const CUresult posted = call.oneWay(true);
    if (posted != CUDA_SUCCESS) where.session->bytesDoNotCome(head.number);
    return posted;
  }
  call.mayWait();
  return call.sync();
}

// Whether what the program gives as memory of the device is an exchanged block: it is the client's
// as any pinned memory is.
bool isNear(const Far& far) { return !far.array && isExchanged(far.device); }

// What the program gives as memory of the host may be the device's: a driver takes any address for
// either. So is a mapping of the program's own there, and what was freed.
bool isAtWorker(const void* near) {
  return sessionOfRange(reinterpret_cast<uint64_t>(near)) != nullptr;
}

// Whether the driver would refuse the device's side, as far as it is known here.
bool isRefused(const Far& far, uint64_t bytes) {
  return !far.array && leavesKnownMemory(far.device, bytes);
}

CUresult copyIn(const Far& to, const void* from, uint64_t bytes, const Where& given) {
  if (bytes == 0) return CUDA_SUCCESS;
  // Before anything is read here: the program's memory may end where the device's does.
  if (from == nullptr || isRefused(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (isNear(to) || (!to.array && isAtWorker(from)))
    return copyAny(to.device, reinterpret_cast<CUdeviceptr>(from), bytes, given);
  const Where where = given.in(sessionOf(to, given));
  if (where.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (isShared(*where.session, from, bytes))
    return copyShared(Operation::kCopyIn, to, from, bytes, where);
  if (isCaptured(where)) return captureCopy(Operation::kCopyIn, to, from, bytes, where);
  if (const CUresult error = awaitFunctions(where); error != CUDA_SUCCESS) return error;
  if (const CUresult error = awaitMemory(reinterpret_cast<uint64_t>(from), bytes, *where.session);
      error != CUDA_SUCCESS)
    return error;
  if (const BulkSide side(where.session, from, bytes, transport::kRemoteRead); side)
    return bulkIn(to, from, bytes, side, where);
  noteAddresses(where.session, from, bytes);
  const bool one_way = where.async || goesAhead(to, bytes, where);
  std::deque<std::unique_ptr<Call>> under_way;
  CUresult first = CUDA_SUCCESS;
  const auto finish = [&] {
    const CUresult result = under_way.front()->finish();
    under_way.pop_front();
    if (first == CUDA_SUCCESS) first = result;
  };
  for (uint64_t at = 0; at < bytes && first == CUDA_SUCCESS; at += kPiece) {
    const CopyHead head = headOf(where, to, at, std::min(kPiece, bytes - at));
    auto call = std::make_unique<Call>(Operation::kCopyIn, where.session);
    call->value(head);
    call->bulk({static_cast<const std::byte*>(from) + at, head.bytes});
    if (one_way) {
      first = call->oneWay();
      continue;
    }
    call->mayWait();
    if (under_way.size() == kUnderWay) finish();
    if (first == CUDA_SUCCESS) first = call->begin(true);
    if (first == CUDA_SUCCESS) under_way.push_back(std::move(call));
  }
  while (!under_way.empty()) finish();
  return first;
}

CUresult copyOut(void* into, const Far& from, uint64_t bytes, const Where& given) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (into == nullptr || isRefused(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (isNear(from) || (!from.array && isAtWorker(into)))
    return copyAny(reinterpret_cast<CUdeviceptr>(into), from.device, bytes, given);
  const Where where = given.in(sessionOf(from, given));
  if (where.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (isShared(*where.session, into, bytes))
    return copyShared(Operation::kCopyOut, from, into, bytes, where);
  if (isCaptured(where)) return captureCopy(Operation::kCopyOut, from, into, bytes, where);
  if (const BulkSide side(where.session, into, bytes, transport::kRemoteWrite); side)
    return bulkOut(into, from, bytes, side, where);
  const bool later = where.async && isPinned(into, bytes);
  struct Piece {
    std::unique_ptr<Call> call;
    std::byte* into;
    uint64_t bytes;
  };
  std::deque<Piece> under_way;
  CUresult first = CUDA_SUCCESS;
  const auto finish = [&] {
    Piece piece = std::move(under_way.front());
    under_way.pop_front();
    const CUresult result = piece.call->finish();
    if (piece.call->answered()) piece.call->take(piece.into, piece.bytes);
    if (first == CUDA_SUCCESS) first = result;
  };
  for (uint64_t at = 0; at < bytes && first == CUDA_SUCCESS; at += kPiece) {
    CopyHead head = headOf(where, from, at, std::min(kPiece, bytes - at));
    auto* const target = static_cast<std::byte*>(into) + at;
    auto call = std::make_unique<Call>(Operation::kCopyOut, where.session);
    if (later) head.number = where.session->expectBytes(target, head.bytes);
    call->value(head);
    if (later) {
      first = call->oneWay();
      if (first != CUDA_SUCCESS) where.session->bytesDoNotCome(head.number);
      continue;
    }
    call->mayWait();
    if (under_way.size() == kUnderWay) finish();
    if (first == CUDA_SUCCESS) first = call->begin(true);
    if (first == CUDA_SUCCESS) under_way.push_back({std::move(call), target, head.bytes});
  }
  while (!under_way.empty()) finish();
  return first;
}

CUresult copyDevice(uint64_t to, uint64_t from, uint64_t bytes, const Where& given) {
  if (isNear({to}) || isNear({from})) return copyAny(to, from, bytes, given);
  if (ofTwoSessions(to, from))
    return given.async
               ? copyBetweenBehind(to, from, bytes, streamAt(given.stream, given.per_thread))
               : copyBetween({to}, {from}, bytes, given.per_thread);
  const Where where = given.in(Route().address(to).address(from).handle(given.stream).session());
  Call call(Operation::kCopyDevice, where.session);
  call.value(headBetween(where, to, from, bytes));
  if (where.async) return call.oneWay();
  call.mayWait();
  return call.sync();
}

// Both sides may be either.
CUresult copyAny(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const Where& where) {
  to = hereOf(to);
  from = hereOf(from);
  const bool to_device = isDeviceMemory(to);
  const bool from_device = isDeviceMemory(from);
  // Between blocks that both sides have it can be captured: what their graph changes comes back.
  if (!to_device && !from_device && isCaptured(where))
    return captureBetween(to, from, bytes,
                          where.in(streamAt(where.stream, where.per_thread).session));
  if (to_device && from_device) return copyDevice(to, from, bytes, where);
  if (to_device) return copyIn({to}, reinterpret_cast<const void*>(from), bytes, where);
  if (from_device) return copyOut(reinterpret_cast<void*>(to), {from}, bytes, where);
  // Host to host: after what is before it in the stream. The caller waits, as CUDA says of all
  // copies between host memory.
  const CUresult result = awaitStream(where.in(Route().handle(where.stream).session()));
  if (result == CUDA_SUCCESS)
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return result;
}

// --- boxes ---------------------------------------------------------------------------------------

}  // namespace

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

CUresult awaitFunctions(Session* session, CUstream stream, bool per_thread) {
  const auto all = existingSessions();
  if (std::none_of(all.begin(), all.end(),
                   [](const Session* one) { return one->functionsOutstanding(); }))
    return CUDA_SUCCESS;
  return awaitStream({stream, per_thread, true, session});
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

// Whether all that a box touches of the client's memory is shared with the worker.
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

// The box has a side in the client's memory, and one that is not. What the other one is does not
// matter.
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
  call.value(head);
  return call.sync();
}

Session* sessionOf(CUmemorytype type, CUdeviceptr device, CUarray array) {
  if (type == CU_MEMORYTYPE_DEVICE) return sessionOfAddress(device);
  return type == CU_MEMORYTYPE_ARRAY ? sessionOfHandle(reinterpret_cast<uint64_t>(array)) : nullptr;
}

// Whether the side is device memory and the box goes beyond what is known to be there.
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
    // What is not given is a layer's of the box.
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
    call.value(head);
    if (where.async) return call.oneWay();
    call.mayWait();
    return call.sync();
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
    call.value(head);
    call.bulk(packed);
    if (where.async) return call.oneWay();
    call.mayWait();
    return call.sync();
  }
  if (later) {
    head.number = where.session->expectRows(rows);
    Call call(Operation::kCopyOut, where.session);
    call.value(head);
    const CUresult posted = call.oneWay();
    if (posted != CUDA_SUCCESS) where.session->bytesDoNotCome(head.number);
    return posted;
  }
  head.in_order = 0;  // the rows are put in place by this thread
  Call call(Operation::kCopyOut, where.session);
  call.value(head);
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

CUDA_MEMCPY3D boxOf(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = copy.srcXInBytes;
  box.srcY = copy.srcY;
  box.srcMemoryType = copy.srcMemoryType;
  box.srcHost = copy.srcHost;
  box.srcDevice = copy.srcDevice;
  box.srcArray = copy.srcArray;
  box.srcPitch = copy.srcPitch;
  box.dstXInBytes = copy.dstXInBytes;
  box.dstY = copy.dstY;
  box.dstMemoryType = copy.dstMemoryType;
  box.dstHost = copy.dstHost;
  box.dstDevice = copy.dstDevice;
  box.dstArray = copy.dstArray;
  box.dstPitch = copy.dstPitch;
  box.WidthInBytes = copy.WidthInBytes;
  box.Height = copy.Height;
  box.Depth = 1;
  return box;
}

CUresult copy2d(const CUDA_MEMCPY2D* copy, const Where& where) {
  return copy != nullptr ? copyBox(boxOf(*copy), CopyShape::kBox2d, where)
                         : CUDA_ERROR_INVALID_VALUE;
}
CUresult copy3d(const CUDA_MEMCPY3D* copy, const Where& where) {
  return copy != nullptr ? copyBox(*copy, CopyShape::kBox3d, where) : CUDA_ERROR_INVALID_VALUE;
}

// One row. The driver has no copies of rows between arrays and device memory that say their stream,
// but of boxes.
CUresult copyRow(CUDA_MEMCPY3D row, uint64_t bytes, const Where& where) {
  row.WidthInBytes = bytes;
  row.Height = row.Depth = 1;
  return bytes != 0 ? copyBox(row, CopyShape::kBox2d, where) : CUDA_SUCCESS;
}
void setSource(CUDA_MEMCPY3D& row, CUdeviceptr from) {
  row.srcMemoryType = CU_MEMORYTYPE_DEVICE, row.srcDevice = from;
}
void setSource(CUDA_MEMCPY3D& row, CUarray from, size_t offset) {
  row.srcMemoryType = CU_MEMORYTYPE_ARRAY, row.srcArray = from, row.srcXInBytes = offset;
}
void setTarget(CUDA_MEMCPY3D& row, CUdeviceptr to) {
  row.dstMemoryType = CU_MEMORYTYPE_DEVICE, row.dstDevice = to;
}
void setTarget(CUDA_MEMCPY3D& row, CUarray to, size_t offset) {
  row.dstMemoryType = CU_MEMORYTYPE_ARRAY, row.dstArray = to, row.dstXInBytes = offset;
}

Far arrayAt(CUarray array, size_t offset) {
  return {reinterpret_cast<uint64_t>(array), true, offset};
}

}  // namespace

CUresult copyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream,
                      bool per_thread) {
  return copyIn({to}, from, bytes, {stream, per_thread, false});
}
CUresult copyFromDevice(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream,
                        bool per_thread) {
  return copyOut(to, {from}, bytes, {stream, per_thread, false});
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_COPY(suffix, per_thread)                                                             \
  CUresult ol_forward_cuMemcpy##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes) {        \
    return copyAny(to, from, bytes, {nullptr, per_thread, false});                              \
  }                                                                                             \
  CUresult ol_forward_cuMemcpyHtoD_v2##suffix(CUdeviceptr to, const void* from, size_t bytes) { \
    return copyIn({to}, from, bytes, {nullptr, per_thread, false});                             \
  }                                                                                             \
  CUresult ol_forward_cuMemcpyDtoH_v2##suffix(void* to, CUdeviceptr from, size_t bytes) {       \
    return copyOut(to, {from}, bytes, {nullptr, per_thread, false});                            \
  }                                                                                             \
  CUresult ol_forward_cuMemcpyDtoD_v2##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes) { \
    return copyDevice(to, from, bytes, {nullptr, per_thread, false});                           \
  }                                                                                             \
  CUresult ol_forward_cuMemcpyHtoA_v2##suffix(CUarray to, size_t offset, const void* from,      \
                                              size_t bytes) {                                   \
    return copyIn(arrayAt(to, offset), from, bytes, {nullptr, per_thread, false});              \
  }                                                                                             \
  CUresult ol_forward_cuMemcpyAtoH_v2##suffix(void* to, CUarray from, size_t offset,            \
                                              size_t bytes) {                                   \
    return copyOut(to, arrayAt(from, offset), bytes, {nullptr, per_thread, false});             \
  }                                                                                             \
  CUresult ol_forward_cuMemcpy2D_v2##suffix(const CUDA_MEMCPY2D* copy) {                        \
    return copy2d(copy, {nullptr, per_thread, false});                                          \
  }                                                                                             \
  CUresult ol_forward_cuMemcpy2DUnaligned_v2##suffix(const CUDA_MEMCPY2D* copy) {               \
    return copy2d(copy, {nullptr, per_thread, false});                                          \
  }                                                                                             \
  CUresult ol_forward_cuMemcpy3D_v2##suffix(const CUDA_MEMCPY3D* copy) {                        \
    return copy3d(copy, {nullptr, per_thread, false});                                          \
  }
OL_COPY(, false)
OL_COPY(_ptds, true)
#undef OL_COPY

CUresult ol_forward_cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from,
                                         size_t from_offset, size_t bytes) {
  CUDA_MEMCPY3D row{};
  setSource(row, from, from_offset);
  setTarget(row, to, to_offset);
  return copyRow(row, bytes, {nullptr, true, false});
}
CUresult ol_forward_cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset,
                                         size_t bytes) {
  CUDA_MEMCPY3D row{};
  setSource(row, from, offset);
  setTarget(row, to);
  return copyRow(row, bytes, {nullptr, true, false});
}
CUresult ol_forward_cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from,
                                         size_t bytes) {
  CUDA_MEMCPY3D row{};
  setSource(row, from);
  setTarget(row, to, offset);
  return copyRow(row, bytes, {nullptr, true, false});
}

// As CUDA 2 to 3.1 had them: 32 bits for lengths.
CUresult ol_forward_cuMemcpyHtoA(CUarray to, unsigned offset, const void* from, unsigned bytes) {
  return ol_forward_cuMemcpyHtoA_v2(to, offset, from, bytes);
}
CUresult ol_forward_cuMemcpyAtoH(void* to, CUarray from, unsigned offset, unsigned bytes) {
  return ol_forward_cuMemcpyAtoH_v2(to, from, offset, bytes);
}
CUresult ol_forward_cuMemcpyHtoAAsync(CUarray to, unsigned offset, const void* from, unsigned bytes,
                                      CUstream stream) {
  return ol_forward_cuMemcpyHtoAAsync_v2(to, offset, from, bytes, stream);
}
CUresult ol_forward_cuMemcpyAtoHAsync(void* to, CUarray from, unsigned offset, unsigned bytes,
                                      CUstream stream) {
  return ol_forward_cuMemcpyAtoHAsync_v2(to, from, offset, bytes, stream);
}

#define OL_COPY(suffix, per_thread)                                                                \
  CUresult ol_forward_cuMemcpyAsync##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes,        \
                                            CUstream stream) {                                     \
    return copyAny(to, from, bytes, {stream, per_thread, true});                                   \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyDtoDAsync_v2##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes, \
                                                   CUstream stream) {                              \
    if (!ofTwoSessions(to, from) && !isNear({to}) && !isNear({from}))                              \
      return ol_forward_generated_cuMemcpyDtoDAsync_v2##suffix(to, from, bytes, stream);           \
    return copyDevice(to, from, bytes, {stream, per_thread, true});                                \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyHtoDAsync_v2##suffix(CUdeviceptr to, const void* from, size_t bytes, \
                                                   CUstream stream) {                              \
    return copyIn({to}, from, bytes, {stream, per_thread, true});                                  \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyDtoHAsync_v2##suffix(void* to, CUdeviceptr from, size_t bytes,       \
                                                   CUstream stream) {                              \
    return copyOut(to, {from}, bytes, {stream, per_thread, true});                                 \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyHtoAAsync_v2##suffix(CUarray to, size_t offset, const void* from,    \
                                                   size_t bytes, CUstream stream) {                \
    return copyIn(arrayAt(to, offset), from, bytes, {stream, per_thread, true});                   \
  }                                                                                                \
  CUresult ol_forward_cuMemcpyAtoHAsync_v2##suffix(void* to, CUarray from, size_t offset,          \
                                                   size_t bytes, CUstream stream) {                \
    return copyOut(to, arrayAt(from, offset), bytes, {stream, per_thread, true});                  \
  }                                                                                                \
  CUresult ol_forward_cuMemcpy2DAsync_v2##suffix(const CUDA_MEMCPY2D* copy, CUstream stream) {     \
    return copy2d(copy, {stream, per_thread, true});                                               \
  }                                                                                                \
  CUresult ol_forward_cuMemcpy3DAsync_v2##suffix(const CUDA_MEMCPY3D* copy, CUstream stream) {     \
    return copy3d(copy, {stream, per_thread, true});                                               \
  }
OL_COPY(, false)
OL_COPY(_ptsz, true)
#undef OL_COPY

}  // extern "C"
