// Streams: their end, captures, and the host functions in them.
#include <memory>

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
  launchStreamGone(key);
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
  Pool* const running = pool();
  if (running != nullptr && running->heedsHostFunctions())
    running->streamWaits(streamKey(stream, per_thread));
  if (running == nullptr || !anyCapture()) return native();
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

// A host function of the program's, on its way through a stream, and its listener for the end.
struct Function {
  Pool* pool;
  uint64_t number;  // Pool::hostFunctionBegins()
  CUhostFn function = nullptr;
  CUstreamCallback callback = nullptr;
  void* data = nullptr;
};

// A host function is not called behind a kernel's fault, and nobody would tell. So the driver has a
// callback in its place, which it calls in any case.
void CUDA_CB callFunction(CUstream /*stream*/, CUresult status, void* data) {
  const std::unique_ptr<Function> made(static_cast<Function*>(data));
  if (status == CUDA_SUCCESS) made->function(made->data);
  made->pool->hostFunctionEnded(made->number, status);
}

void CUDA_CB callCallback(CUstream stream, CUresult status, void* data) {
  const std::unique_ptr<Function> made(static_cast<Function*>(data));
  made->callback(stream, status, made->data);
  made->pool->hostFunctionEnded(made->number, status);
}

// `native(wrapped)`: with a Function in place of the program's, or nullptr: with the program's own.
template <typename Native>
CUresult putFunction(CUstream stream, bool per_thread, const Function& function, Native native) {
  Pool* const running = pool();
  if (running == nullptr || !running->heedsHostFunctions() ||
      (function.function == nullptr && function.callback == nullptr))
    return native(nullptr);
  const StreamKey key = streamKey(stream, per_thread);
  // In a graph it runs as often as the graph does.
  if (key.context == nullptr || captureOf(key) != 0) return native(nullptr);
  unsigned flags = CU_STREAM_DEFAULT;
  static_cast<void>(driver().cuStreamGetFlags(key.stream, &flags));
  const uint64_t number = running->hostFunctionBegins(key, (flags & CU_STREAM_NON_BLOCKING) == 0);
  if (number == 0) return native(nullptr);
  auto made = std::make_unique<Function>(function);
  made->pool = running;
  made->number = number;
  const CUresult result = native(made.get());
  // The driver calls a function that it has taken once: a callback also where the stream's work
  // failed.
  if (result == CUDA_SUCCESS)
    static_cast<void>(made.release());
  else
    running->hostFunctionEnded(number, CUDA_SUCCESS);
  return result;
}

}  // namespace

#define OLPAGER_HOST_FUNCTIONS(suffix, per_thread)                                              \
  OLPAGER_HOOK(cuLaunchHostFunc##suffix)(CUstream stream, CUhostFn function, void* data) {      \
    return putFunction(                                                                         \
        stream, per_thread, {nullptr, 0, function, nullptr, data}, [&](Function* made) {        \
          return made == nullptr                                                                \
                     ? driver().cuLaunchHostFunc##suffix(stream, function, data)                \
                     : driver().cuStreamAddCallback##suffix(stream, callFunction, made, 0);     \
        });                                                                                     \
  }                                                                                             \
  OLPAGER_HOOK(cuStreamAddCallback##suffix)                                                     \
  (CUstream stream, CUstreamCallback callback, void* data, unsigned int flags) {                \
    return putFunction(                                                                         \
        stream, per_thread, {nullptr, 0, nullptr, callback, data}, [&](Function* made) {        \
          return made == nullptr                                                                \
                     ? driver().cuStreamAddCallback##suffix(stream, callback, data, flags)      \
                     : driver().cuStreamAddCallback##suffix(stream, callCallback, made, flags); \
        });                                                                                     \
  }
OLPAGER_HOST_FUNCTIONS(, false)
OLPAGER_HOST_FUNCTIONS(_ptsz, true)

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
  graphWillChange(graph);
  return begin(stream, false, [&] {
    return driver().cuStreamBeginCaptureToGraph(stream, graph, from, edges, count, mode);
  });
}
OLPAGER_HOOK(cuStreamBeginCaptureToGraph_ptsz)
(CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
 size_t count, CUstreamCaptureMode mode) {
  graphWillChange(graph);
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
