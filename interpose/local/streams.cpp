// Streams: their end, and captures.
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::Pool;
using olpager::pager::StreamKey;

namespace {

template <typename Native>
CUresult destroy(CUstream stream, Native native) {
  Pool* running = pool();
  if (running == nullptr || stream == nullptr) return native();
  const StreamKey key = streamKey(stream, false);
  const GoneCapturesPtr gone = captureStreamGone(key);
  running->streamDestroyed(key);
  return native();
}

template <typename Native>
CUresult begin(CUstream stream, bool per_thread, Native native) {
  Pool* running = pool();
  if (running == nullptr) return native();
  const StreamKey key = streamKey(stream, per_thread);
  running->captureBegins(key.context);
  const CUresult result = native();
  if (result == CUDA_SUCCESS) captureBegan(key);
  running->captureBegan(result == CUDA_SUCCESS);
  return result;
}

// A stream that waits for what another captures is in that capture from then on.
template <typename Native>
CUresult wait(CUstream stream, bool per_thread, Native native) {
  Pool* running = anyCapture() ? pool() : nullptr;
  if (running == nullptr) return native();
  running->streamMayJoin(streamKey(stream, per_thread).context);
  const CUresult result = native();
  running->streamJoined();
  return result;
}

template <typename Native>
CUresult end(CUstream stream, bool per_thread, CUgraph* graph, Native native) {
  if (pool() == nullptr) return native();
  const StreamKey key = streamKey(stream, per_thread);
  const uint64_t id = captureOf(key);
  const CUresult result = native();
  captureEnded(key, id, result == CUDA_SUCCESS && graph != nullptr ? *graph : nullptr);
  return result;
}

}  // namespace

OLPAGER_HOOK(cuStreamDestroy_v2)(CUstream stream) {
  return destroy(stream, [&] { return driver().cuStreamDestroy_v2(stream); });
}
OLPAGER_HOOK(cuStreamDestroy)(CUstream stream) {
  return destroy(stream, [&] { return driver().cuStreamDestroy(stream); });
}

OLPAGER_HOOK(cuStreamBeginCapture)(CUstream stream) {
  return begin(stream, false, [&] { return driver().cuStreamBeginCapture(stream); });
}
OLPAGER_HOOK(cuStreamBeginCapture_ptsz)(CUstream stream) {
  return begin(stream, true, [&] { return driver().cuStreamBeginCapture_ptsz(stream); });
}
OLPAGER_HOOK(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, false, [&] { return driver().cuStreamBeginCapture_v2(stream, mode); });
}
OLPAGER_HOOK(cuStreamBeginCapture_v2_ptsz)(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, true, [&] { return driver().cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
OLPAGER_HOOK(cuStreamBeginCaptureToGraph)
(CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
 size_t count, CUstreamCaptureMode mode) {
  return begin(stream, false, [&] {
    return driver().cuStreamBeginCaptureToGraph(stream, graph, from, edges, count, mode);
  });
}
OLPAGER_HOOK(cuStreamBeginCaptureToGraph_ptsz)
(CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
 size_t count, CUstreamCaptureMode mode) {
  return begin(stream, true, [&] {
    return driver().cuStreamBeginCaptureToGraph_ptsz(stream, graph, from, edges, count, mode);
  });
}

OLPAGER_HOOK(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) {
  return wait(stream, false, [&] { return driver().cuStreamWaitEvent(stream, event, flags); });
}
OLPAGER_HOOK(cuStreamWaitEvent_ptsz)(CUstream stream, CUevent event, unsigned flags) {
  return wait(stream, true, [&] { return driver().cuStreamWaitEvent_ptsz(stream, event, flags); });
}

OLPAGER_HOOK(cuStreamEndCapture)(CUstream stream, CUgraph* graph) {
  return end(stream, false, graph, [&] { return driver().cuStreamEndCapture(stream, graph); });
}
OLPAGER_HOOK(cuStreamEndCapture_ptsz)(CUstream stream, CUgraph* graph) {
  return end(stream, true, graph, [&] { return driver().cuStreamEndCapture_ptsz(stream, graph); });
}
