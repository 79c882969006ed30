// Captures and launches of graphs. Pinned memory that captured work names is exchanged at each launch of a graph: what the program
// changed goes before it, what the graph changed comes back behind it.
#include "interpose/forward/captures.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/memory.h"

namespace olpager::forward {
namespace {

struct Capture {
  CUstream stream;
  bool per_thread;  // the default stream of its thread
  std::thread::id thread;
  CUstreamCaptureMode mode;
};
// Whether the stream is the thread's own default stream.
bool isOwn(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_PER_THREAD || (per_thread && stream == nullptr);
}
struct Captures {
  std::mutex mutex;
  std::vector<Capture> all;

  auto find(CUstream stream, bool per_thread) {
    const bool own = isOwn(stream, per_thread);
    return std::find_if(all.begin(), all.end(), [&](const Capture& one) {
      return own ? one.per_thread && one.thread == std::this_thread::get_id() : !one.per_thread && one.stream == stream;
    });
  }
};
Captures& captureList() {
  static auto* instance = new Captures;
  return *instance;
}
std::atomic<size_t> g_capturing{0};
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// The worker's threads are nobody's: what is the thread's own matter there is decided here.
CUstreamCaptureMode modeThere(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? CU_STREAM_CAPTURE_MODE_GLOBAL : mode;
}

CUresult begun(CUresult result, CUstream stream, bool per_thread, CUstreamCaptureMode mode) {
  if (result != CUDA_SUCCESS) return result;
  Captures& known = captureList();
  std::lock_guard lock(known.mutex);
  known.all.push_back({stream, isOwn(stream, per_thread), std::this_thread::get_id(), mode});
  g_capturing.store(known.all.size());
  return result;
}

// Whether this thread may end the capture.
bool mayEnd(CUstream stream, bool per_thread) {
  Captures& known = captureList();
  std::lock_guard lock(known.mutex);
  const auto found = known.find(stream, per_thread);
  return found == known.all.end() || found->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
         found->thread == std::this_thread::get_id();
}

// Also one that failed has ended.
CUresult ended(CUresult result, CUstream stream, bool per_thread) {
  Captures& known = captureList();
  std::lock_guard lock(known.mutex);
  if (const auto found = known.find(stream, per_thread); found != known.all.end()) known.all.erase(found);
  g_capturing.store(known.all.size());
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
  if (call.oneWay() != CUDA_SUCCESS) session->changesDoNotCome();
}

bool capturing() { return g_capturing.load(std::memory_order_relaxed) > 0; }

bool captureForbids() {
  if (!capturing() || t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  Captures& known = captureList();
  std::lock_guard lock(known.mutex);
  return std::any_of(known.all.begin(), known.all.end(), [](const Capture& one) {
    if (one.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (one.thread == std::this_thread::get_id()) return true;
    return one.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  });
}

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
    return begun(ol_forward_generated_cuStreamBeginCapture##suffix(stream), stream, per_thread,                        \
                 CU_STREAM_CAPTURE_MODE_GLOBAL);                                                                       \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) {                     \
    return begun(ol_forward_generated_cuStreamBeginCapture_v2##suffix(stream, modeThere(mode)), stream, per_thread,    \
                 mode);                                                                                                \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode* nodes,    \
                                                          const CUgraphEdgeData* edges, size_t count,                  \
                                                          CUstreamCaptureMode mode) {                                  \
    return begun(                                                                                                      \
        ol_forward_generated_cuStreamBeginCaptureToGraph##suffix(stream, graph, nodes, edges, count, modeThere(mode)), \
        stream, per_thread, mode);                                                                                     \
  }                                                                                                                    \
  CUresult ol_forward_cuStreamEndCapture##suffix(CUstream stream, CUgraph* graph) {                                    \
    if (!mayEnd(stream, per_thread)) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;                                    \
    return ended(ol_forward_generated_cuStreamEndCapture##suffix(stream, graph), stream, per_thread);                  \
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

CUresult ol_forward_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}

}  // extern "C"
