#include "forwarding/wire/copies.h"
// Linear copies between the client's memory and the worker's. Short ones: bytes to the GPU go with
// the call. Bytes to pageable memory, and those of synchronous copies, come in the reply;
// asynchronous copies to pinned memory are followed by Answer::kBytes in stream order. Bulk ones:
// the call names a region of this process's memory, which the worker reads or writes by itself,
// unless kernels' changes there are still to come. Memory that the worker has too (isShared) does
// not travel, whatever the length.

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/copies_between.h"
#include "interpose/forward/copy_steps.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/rows.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kPiece = 4ull << 20;  // of a long copy
constexpr size_t kUnderWay = 4;          // pieces

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

// The head for `bytes` from `at` on.
CopyHead headOf(const Where& where, const Far& far, uint64_t at, uint64_t bytes) {
  CopyHead head = headOf(where);
  head.device = far.array ? far.device : far.device + at;
  head.array = far.array ? 1 : 0;
  head.offset = far.array ? far.offset + at : 0;
  head.bytes = bytes;
  return head;
}

// The head of a copy between two addresses that the worker has.
CopyHead headBetween(const Where& where, uint64_t to, uint64_t from, uint64_t bytes) {
  CopyHead head = headOf(where);
  head.device = to;
  head.offset = from;
  head.bytes = bytes;
  return head;
}

CUresult copyAny(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const Where& where);
CUresult copyArray(const Far& array, const void* near, bool to_array, uint64_t bytes,
                   const Where& where);

CUresult captureCopy(Operation operation, const Far& far, const void* near, uint64_t bytes,
                     const Where& where) {
  CopyHead head = headOf(where, far, 0, bytes);
  if (const CUresult error =
          captureSide(where, reinterpret_cast<uint64_t>(near), bytes, &head.near);
      error != CUDA_SUCCESS)
    return error;
  Call call(operation, where.session);
  call.copy(head);
  return call.sync();
}

CUresult captureBetween(uint64_t to, uint64_t from, uint64_t bytes, const Where& where) {
  if (const CUresult error = captureSide(where, to, bytes, &to); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = captureSide(where, from, bytes, &from); error != CUDA_SUCCESS)
    return error;
  Call call(Operation::kCopyDevice, where.session);
  call.copy(headBetween(where, to, from, bytes));
  return call.oneWay();
}

CUresult copyShared(Operation operation, const Far& far, const void* near, uint64_t bytes,
                    const Where& where) {
  CopyHead head = headOf(where, far, 0, bytes);
  head.near = reinterpret_cast<uint64_t>(near);
  return copyShared(operation, head, where);
}

// True if a copy that the caller would wait for may be sent ahead of its end: its bytes are taken,
// the worker makes nothing else meanwhile, and the driver is not expected to refuse it. Only for a
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
  call.copy(head);
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
  if (later) head.number = where.session->arrivals().expectBytes(into, bytes);
  call.copy(head);
  if (later) {
    const CUresult posted = call.oneWay(true);
    if (posted != CUDA_SUCCESS) where.session->arrivals().bytesDoNotCome(head.number);
    return posted;
  }
  call.mayWait();
  return call.sync();
}

// True if the program gives an exchanged block as memory of the device: the block is the client's
// as any pinned memory is.
bool isNear(const Far& far) { return !far.array && isExchanged(far.device); }

// True if the driver would refuse the device's side, as far as it is known here.
bool isRefused(const Far& far, uint64_t bytes) {
  return !far.array && leavesKnownMemory(far.device, bytes);
}

CUresult copyIn(const Far& to, const void* from, uint64_t bytes, const Where& given) {
  if (bytes == 0) return CUDA_SUCCESS;
  // Before anything is read here: the program's memory may end where the device's does.
  if (from == nullptr || isRefused(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (isNear(to) || (!to.array && isAtWorker(from)))
    return copyAny(to.device, reinterpret_cast<CUdeviceptr>(from), bytes, given);
  if (to.array && isAtWorker(from)) return copyArray(to, from, true, bytes, given);
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
    call->copy(head);
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
  if (from.array && isAtWorker(into)) return copyArray(from, into, false, bytes, given);
  const Where where = given.in(sessionOf(from, given));
  if (where.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (isShared(*where.session, into, bytes))
    return copyShared(Operation::kCopyOut, from, into, bytes, where);
  if (isCaptured(where)) return captureCopy(Operation::kCopyOut, from, into, bytes, where);
  // If kernels before the copy changed the same memory, the copy's bytes come behind their
  // changes, so by the same link.
  if (!changesAreToCome(*where.session, into)) {
    if (const BulkSide side(where.session, into, bytes, transport::kRemoteWrite); side)
      return bulkOut(into, from, bytes, side, where);
  }
  const bool later = where.async && isPinned(into, bytes);
  // The worker has as much pinned memory in one piece: the driver waits for copies to other memory.
  const uint64_t most = later ? kLaterBoxBytes : kPiece;
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
    CUresult result = piece.call->finish();
    if (piece.call->answered()) {
      piece.call->take(piece.into, piece.bytes);
      result = piece.call->taken(result);
    }
    if (first == CUDA_SUCCESS) first = result;
  };
  for (uint64_t at = 0; at < bytes && first == CUDA_SUCCESS; at += most) {
    CopyHead head = headOf(where, from, at, std::min(most, bytes - at));
    auto* const target = static_cast<std::byte*>(into) + at;
    auto call = std::make_unique<Call>(Operation::kCopyOut, where.session);
    if (later) head.number = where.session->arrivals().expectBytes(target, head.bytes);
    call->copy(head);
    if (later) {
      first = call->oneWay();
      if (first != CUDA_SUCCESS) where.session->arrivals().bytesDoNotCome(head.number);
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
  call.copy(headBetween(where, to, from, bytes));
  if (where.async) return call.oneWay();
  call.mayWait();
  const CUresult result = call.sync();
  return result == CUDA_SUCCESS ? awaitManaged(where, to, from) : result;
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

// A copy of an array whose other side, given as the program's own memory, is the device's.
CUresult copyArray(const Far& array, const void* near, bool to_array, uint64_t bytes,
                   const Where& where) {
  CUDA_MEMCPY3D row{};
  CUarray its = nullptr;
  std::memcpy(&its, &array.device, sizeof its);
  const auto device = reinterpret_cast<CUdeviceptr>(near);
  to_array ? setSource(row, device) : setTarget(row, device);
  to_array ? setTarget(row, its, array.offset) : setSource(row, its, array.offset);
  return copyRow(row, bytes, where);
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
