#include "interpose/forward/reached.h"

#include <algorithm>

#include "forwarding/wire/launch_wire.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/copies_between.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"

namespace olpager::forward {

std::vector<CUdeviceptr> addressesOf(const CUstreamBatchMemOpParams* operations, size_t count) {
  std::vector<CUdeviceptr> addresses;
  for (size_t i = 0; operations != nullptr && i < std::min<size_t>(count, kMostBatchOperations);
       ++i) {
    switch (operations[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        addresses.push_back(operations[i].waitValue.address);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        addresses.push_back(operations[i].writeValue.address);
        break;
      default:
        break;  // barriers and flushes name no memory
    }
  }
  return addresses;
}

CUresult reaching(const Reaching& where, const std::function<CUresult()>& make) {
  CUdeviceptr any = 0;
  Session* const session = Route().handle(where.stream).session();
  const auto reaches = [&](CUdeviceptr address) {
    if (session == nullptr || !isExchanged(*session, address)) return;
    noteNamed(session, address);
    any = address;
  };
  for (const CUdeviceptr address : where.addresses) reaches(address);
  for (const CUdeviceptr address : where.further) reaches(address);
  if (any == 0) return make();
  // A captured call is exchanged at each launch of its graph.
  const bool captured = capturing() && captures(where.stream, where.per_thread);
  if (!captured) (void)sendPinned(session);
  const CUresult result = make();
  if (result != CUDA_SUCCESS || captured) return result;
  changesBehind(session, where.stream, where.per_thread);
  return where.async ? result : awaitMemory(hereOf(any), 1, *session);
}

namespace {

// True if two contexts are of two sessions. A copy between them whose memory is not of both names
// an address of nothing.
bool ofTwoSessions(CUcontext one, CUcontext other) {
  if (!severalSessions()) return false;
  const Session* const first = sessionOfHandle(reinterpret_cast<uint64_t>(one));
  const Session* const second = sessionOfHandle(reinterpret_cast<uint64_t>(other));
  return first != nullptr && second != nullptr && first != second;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_FILL(bits, type)                                                                        \
  CUresult ol_forward_cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {             \
    return reaching({{to}},                                                                        \
                    [&] { return ol_forward_generated_cuMemsetD##bits##_v2(to, value, count); });  \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t count) {        \
    return reaching({{to}, nullptr, true}, [&] {                                                   \
      return ol_forward_generated_cuMemsetD##bits##_v2_ptds(to, value, count);                     \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count,             \
                                             CUstream stream) {                                    \
    return reaching({{to}, stream, false, true}, [&] {                                             \
      return ol_forward_generated_cuMemsetD##bits##Async(to, value, count, stream);                \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD##bits##Async_ptsz(CUdeviceptr to, type value, size_t count,        \
                                                  CUstream stream) {                               \
    return reaching({{to}, stream, true, true}, [&] {                                              \
      return ol_forward_generated_cuMemsetD##bits##Async_ptsz(to, value, count, stream);           \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value,             \
                                             size_t width, size_t rows) {                          \
    return reaching({{to}}, [&] {                                                                  \
      return ol_forward_generated_cuMemsetD2D##bits##_v2(to, pitch, value, width, rows);           \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value,        \
                                                  size_t width, size_t rows) {                     \
    return reaching({{to}, nullptr, true}, [&] {                                                   \
      return ol_forward_generated_cuMemsetD2D##bits##_v2_ptds(to, pitch, value, width, rows);      \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value,           \
                                               size_t width, size_t rows, CUstream stream) {       \
    return reaching({{to}, stream, false, true}, [&] {                                             \
      return ol_forward_generated_cuMemsetD2D##bits##Async(to, pitch, value, width, rows, stream); \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuMemsetD2D##bits##Async_ptsz(CUdeviceptr to, size_t pitch, type value,      \
                                                    size_t width, size_t rows, CUstream stream) {  \
    return reaching({{to}, stream, true, true}, [&] {                                              \
      return ol_forward_generated_cuMemsetD2D##bits##Async_ptsz(to, pitch, value, width, rows,     \
                                                                stream);                           \
    });                                                                                            \
  }
OL_FILL(8, unsigned char)
OL_FILL(16, unsigned short)
OL_FILL(32, unsigned)
#undef OL_FILL

CUresult ol_forward_cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                 CUcontext from_context, size_t bytes) {
  if (ofTwoSessions(to, from))
    return copyBetween({to, to_context}, {from, from_context}, bytes, false);
  if (bytes != 0 && ofTwoSessions(to_context, from_context)) return CUDA_ERROR_INVALID_VALUE;
  return reaching({{to, from}}, [&] {
    return ol_forward_generated_cuMemcpyPeer(to, to_context, from, from_context, bytes);
  });
}
// The calling thread's default stream is waited for: the driver has none that says its stream.
CUresult ol_forward_cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                      CUcontext from_context, size_t bytes) {
  if (ofTwoSessions(to, from))
    return copyBetween({to, to_context}, {from, from_context}, bytes, true);
  const CUresult result = ol_forward_cuMemcpyPeerAsync_ptsz(to, to_context, from, from_context,
                                                            bytes, CU_STREAM_PER_THREAD);
  return result == CUDA_SUCCESS
             ? ol_forward_generated_cuStreamSynchronize_ptsz(CU_STREAM_PER_THREAD)
             : result;
}
CUresult ol_forward_cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return reaching({{from}},
                  [&] { return ol_forward_generated_cuMemcpyDtoA_v2(to, offset, from, bytes); });
}
CUresult ol_forward_cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return reaching({{to}},
                  [&] { return ol_forward_generated_cuMemcpyAtoD_v2(to, from, offset, bytes); });
}

#define OL_IN_STREAM(suffix, per_thread)                                                           \
  CUresult ol_forward_cuMemcpyPeerAsync##suffix(CUdeviceptr to, CUcontext to_context,              \
                                                CUdeviceptr from, CUcontext from_context,          \
                                                size_t bytes, CUstream stream) {                   \
    if (ofTwoSessions(to, from))                                                                   \
      return copyBetweenBehind(to, from, bytes, streamAt(stream, per_thread));                     \
    if (bytes != 0 && ofTwoSessions(to_context, from_context)) return CUDA_ERROR_INVALID_VALUE;    \
    return reaching({{to, from}, stream, per_thread, true}, [&] {                                  \
      return ol_forward_generated_cuMemcpyPeerAsync##suffix(to, to_context, from, from_context,    \
                                                            bytes, stream);                        \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamWriteValue32_v2##suffix(CUstream stream, CUdeviceptr to,             \
                                                      cuuint32_t value, unsigned flags) {          \
    return reaching({{to}, stream, per_thread, true}, [&] {                                        \
      return ol_forward_generated_cuStreamWriteValue32_v2##suffix(stream, to, value, flags);       \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamWriteValue64_v2##suffix(CUstream stream, CUdeviceptr to,             \
                                                      cuuint64_t value, unsigned flags) {          \
    return reaching({{to}, stream, per_thread, true}, [&] {                                        \
      return ol_forward_generated_cuStreamWriteValue64_v2##suffix(stream, to, value, flags);       \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamWriteValue32##suffix(CUstream stream, CUdeviceptr to,                \
                                                   cuuint32_t value, unsigned flags) {             \
    return reaching({{to}, stream, per_thread, true}, [&] {                                        \
      return ol_forward_generated_cuStreamWriteValue32##suffix(stream, to, value, flags);          \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamWriteValue64##suffix(CUstream stream, CUdeviceptr to,                \
                                                   cuuint64_t value, unsigned flags) {             \
    return reaching({{to}, stream, per_thread, true}, [&] {                                        \
      return ol_forward_generated_cuStreamWriteValue64##suffix(stream, to, value, flags);          \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamBatchMemOp_v2##suffix(                                               \
      CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {     \
    return reaching({{}, stream, per_thread, true, addressesOf(operations, count)}, [&] {          \
      return ol_forward_generated_cuStreamBatchMemOp_v2##suffix(stream, count, operations, flags); \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamBatchMemOp##suffix(                                                  \
      CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {     \
    return reaching({{}, stream, per_thread, true, addressesOf(operations, count)}, [&] {          \
      return ol_forward_generated_cuStreamBatchMemOp##suffix(stream, count, operations, flags);    \
    });                                                                                            \
  }
OL_IN_STREAM(, false)
OL_IN_STREAM(_ptsz, true)
#undef OL_IN_STREAM

}  // extern "C"
