// Captures and launches of graphs. Pinned memory that captured work names is exchanged at each launch of a graph: what the program
// changed goes before it, what the graph changed comes back behind it.
#include "interpose/forward/captures.h"

#include <atomic>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/memory.h"

namespace olpager::forward {
namespace {

std::atomic<int> g_capturing{0};

CUresult begun(CUresult result) {
  if (result == CUDA_SUCCESS) g_capturing.fetch_add(1);
  return result;
}

// Also one that failed has ended.
CUresult ended(CUresult result) {
  int now = g_capturing.load();
  while (now > 0 && !g_capturing.compare_exchange_weak(now, now - 1)) {
  }
  return result;
}

}  // namespace

void changesBehind(Session* session, CUstream stream, bool per_thread) {
  const auto blocks = namedBlocks(session);
  if (blocks.empty()) return;
  Call call(Operation::kHostChanges, session);
  call.value(reinterpret_cast<uint64_t>(stream));
  call.value(static_cast<uint8_t>(per_thread));
  session->expectChanges();
  call.value(static_cast<uint32_t>(blocks.size()));
  for (const uint64_t block : blocks) call.value(block);
  (void)call.oneWay();
}

bool capturing() { return g_capturing.load(std::memory_order_relaxed) > 0; }

bool captures(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = per_thread ? ol_forward_generated_cuStreamIsCapturing_ptsz(stream, &status)
                                     : ol_forward_generated_cuStreamIsCapturing(stream, &status);
  return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

#define OL_CAPTURE(suffix, per_thread)                                                                                 \
  CUresult ol_forward_cuStreamBeginCapture##suffix(CUstream stream) {                                                  \
    return begun(ol_forward_generated_cuStreamBeginCapture##suffix(stream));                                           \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) {                     \
    return begun(ol_forward_generated_cuStreamBeginCapture_v2##suffix(stream, mode));                                  \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode* nodes,    \
                                                          const CUgraphEdgeData* edges, size_t count,                  \
                                                          CUstreamCaptureMode mode) {                                  \
    return begun(ol_forward_generated_cuStreamBeginCaptureToGraph##suffix(stream, graph, nodes, edges, count, mode));  \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamEndCapture##suffix(CUstream stream, CUgraph* graph) {                                    \
    return ended(ol_forward_generated_cuStreamEndCapture##suffix(stream, graph));                                      \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamIsCapturing##suffix(CUstream stream, CUstreamCaptureStatus* status) {                    \
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;                                                            \
    if (capturing() || currentContext() == 0) return ol_forward_generated_cuStreamIsCapturing##suffix(stream, status); \
    *status = CU_STREAM_CAPTURE_STATUS_NONE;                                                                           \
    return CUDA_SUCCESS;                                                                                               \
  }                                                                                                                    \
  CUresult ol_forward_cuGraphLaunch##suffix(CUgraphExec graph, CUstream stream) {                                      \
    Session* const session = Route().handle(graph).session();                                                          \
    if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;                                                         \
    if (const CUresult result = awaitNamed(*session); result != CUDA_SUCCESS) return result;                           \
    sendPinnedNow(session);                                                                                            \
    const CUresult result = ol_forward_generated_cuGraphLaunch##suffix(graph, stream);                                 \
    session->graphLaunched();                                                                                          \
    if (result == CUDA_SUCCESS) changesBehind(session, stream, per_thread);                                            \
    return result;                                                                                                     \
  }
OL_CAPTURE(, false)
OL_CAPTURE(_ptsz, true)
#undef OL_CAPTURE

}  // extern "C"
