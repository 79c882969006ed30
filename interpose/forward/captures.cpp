// Captures and launches of graphs. Pinned memory that captured work names is exchanged at each
// launch of a graph: what the program changed goes before it, what the graph changed comes back
// behind it.
#include "interpose/forward/captures.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/none_begins.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/stand_ins.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/threads.h"

namespace olpager::forward {
namespace {

// True for the thread's own default stream.
bool isOwn(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_PER_THREAD || (per_thread && stream == nullptr);
}
using Capture = Captures::Capture;

// The state of the stream's session; null: there is none.
std::shared_ptr<WhileThere> whileThere(CUstream stream) {
  const Session* const session = Route().handle(stream).session();
  return session != nullptr ? session->parts().whileThere() : nullptr;
}

thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// The worker's threads are nobody's: what is the thread's own matter there is decided here.
CUstreamCaptureMode modeThere(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? CU_STREAM_CAPTURE_MODE_GLOBAL : mode;
}

// The context whose end is the stream's.
uint64_t contextOf(CUstream stream, bool per_thread) {
  CUcontext context = nullptr;
  if (stream == nullptr || isOwn(stream, per_thread) ||
      ol_forward_generated_cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == nullptr)
    return currentContext();
  return reinterpret_cast<uint64_t>(context);
}

std::shared_mutex& beginning() {
  static std::shared_mutex mutex;
  return mutex;
}

// A stream is about to capture, and counts as one that does: what another thread sends meanwhile
// may be made behind the call that begins it.
class Beginning {
 public:
  Beginning() {
    const std::lock_guard lock(beginning());
    program().capturing.fetch_add(1);
  }
  Beginning(const Beginning&) = delete;
  Beginning& operator=(const Beginning&) = delete;
  ~Beginning() { program().capturing.fetch_sub(1); }
};

template <typename Begin>
CUresult begin(CUstream stream, bool per_thread, CUstreamCaptureMode mode, Begin begins) {
  const Session* const session = Route().handle(stream).session();
  if (session == nullptr) return begins();
  const uint64_t context = contextOf(stream, per_thread);
  const Beginning about_to;
  const CUresult result = begins();
  if (result != CUDA_SUCCESS) return result;
  session->parts().contexts->know(context);  // with which the capture ends
  session->parts().whileThere()->captures.add(
      {stream, isOwn(stream, per_thread), thisThread(), context, mode});
  return result;
}

bool mayEnd(CUstream stream, bool per_thread) {
  const auto there = whileThere(stream);
  return there == nullptr || there->captures.mayEnd(stream, per_thread);
}

// A stream that is destroyed takes its capture with it.
CUresult destroyed(CUresult result, CUstream stream) {
  if (result != CUDA_SUCCESS) return result;
  if (const auto there = whileThere(stream); there != nullptr)
    there->captures.endIf([&](const Capture& one) { return !one.own && one.stream == stream; });
  return result;
}

// The notice that the launch of a graph is over whose host functions are outstanding until then;
// made before it, asked for behind it. One that is captured calls none: the graph does that it
// becomes part of.
class GraphEnd {
 public:
  GraphEnd(Session* session, CUstream stream, bool per_thread)
      : session_(session),
        stream_(stream),
        per_thread_(per_thread),
        notice_(session->functions().expectGraphEnd()) {
    if (notice_ != 0 && capturing() && captures(stream, per_thread)) drop();
  }
  GraphEnd(const GraphEnd&) = delete;
  GraphEnd& operator=(const GraphEnd&) = delete;
  ~GraphEnd() { drop(); }

  void ask() {
    if (notice_ == 0) return;
    Call call(Operation::kGate, session_);
    call.ofOurOwn();
    call.value(reinterpret_cast<uint64_t>(stream_));
    call.value(static_cast<uint8_t>(per_thread_));
    call.value(notice_);
    call.value(uint32_t{0});  // nothing waits for it
    if (call.oneWay() == CUDA_SUCCESS) notice_ = 0;
  }

 private:
  void drop() {
    if (notice_ != 0) session_->functions().graphDoesNotEnd(notice_);
    notice_ = 0;
  }

  Session* const session_;
  const CUstream stream_;
  const bool per_thread_;
  uint32_t notice_;
};

// The graphs of the session of a graph or of an executable one; null: it has none that allocates.
template <typename Graph>
AllocatingGraphs* allocating(Graph graph) {
  const Session* const session = Route().handle(graph).session();
  if (session == nullptr || !session->parts().allocating_graphs->any) return nullptr;
  return session->parts().allocating_graphs.get();
}
bool allocates(const Session& session, CUgraphExec exec) {
  AllocatingGraphs& all = *session.parts().allocating_graphs;
  if (!all.any.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(all.mutex);
  return all.execs.contains(exec);
}

CUresult launchNow(CUgraphExec exec, CUstream stream, bool per_thread) {
  Call call(per_thread ? api::Symbol::kCuGraphLaunch_ptsz : api::Symbol::kCuGraphLaunch,
            Route().handle(exec).handle(stream));
  call.handle(exec);
  call.handle(stream);
  return call.sync();
}

// A captured launch becomes part of another graph, which needs what this one does.
CUresult captureLaunch(Session* session, const StandIns& needed, CUstream stream, bool per_thread) {
  return needed.empty() ? CUDA_SUCCESS
                        : graphNeeds(session, capturedGraph(stream, per_thread), needed);
}

template <typename Launch>
CUresult launchGraph(CUgraphExec graph, CUstream stream, bool per_thread, Launch launch) {
  Session* const session = Route().handle(graph).session();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (const CUresult result = awaitNamed(*session); result != CUDA_SUCCESS) return result;
  sendPinnedNow(session);
  const StandIns needed = standInsOf(graph);
  const bool captured = !needed.empty() && capturing() && captures(stream, per_thread);
  if (captured) {
    if (const CUresult result = captureLaunch(session, needed, stream, per_thread);
        result != CUDA_SUCCESS)
      return result;
  } else if (!needed.empty() || !capturing()) {
    if (const CUresult result = sendStandIns(session, needed, stream, per_thread);
        result != CUDA_SUCCESS)
      return result;
  }
  GraphEnd end(session, stream, per_thread);
  const CUresult result =
      allocates(*session, graph) ? launchNow(graph, stream, per_thread) : launch();
  if (result != CUDA_SUCCESS) return result;
  changesBehind(session, stream, per_thread,
                captured ? std::vector<uint64_t>{} : launchedStandIns(session, needed));
  end.ask();
  return launchTaken(stream, per_thread);
}

// An executable graph that was made of a graph, or updated to it.
CUresult made(CUresult result, const CUgraphExec* exec, CUgraph graph) {
  if (result != CUDA_SUCCESS) return result;
  execMade(*exec, graph);
  AllocatingGraphs* const all = allocating(graph);
  if (all == nullptr) return result;
  std::lock_guard lock(all->mutex);
  if (all->graphs.contains(graph)) all->execs.insert(*exec);
  return result;
}

// Also one that failed has ended.
CUresult ended(CUresult result, CUstream stream, bool per_thread) {
  if (const auto there = whileThere(stream); there != nullptr)
    there->captures.end(stream, per_thread);
  return result;
}

}  // namespace

NoneBegins::NoneBegins() { beginning().lock_shared(); }
NoneBegins::~NoneBegins() { beginning().unlock_shared(); }

Captures::~Captures() { program().capturing.fetch_sub(all_.size()); }

// Under the mutex.
std::vector<Capture>::const_iterator Captures::find(CUstream stream, bool per_thread) const {
  const bool own = isOwn(stream, per_thread);
  return std::find_if(all_.begin(), all_.end(), [&](const Capture& one) {
    return own ? one.own && one.thread == thisThread() && one.context == currentContext()
               : !one.own && one.stream == stream;
  });
}

void Captures::add(const Capture& capture) {
  std::lock_guard lock(mutex_);
  all_.push_back(capture);
  program().capturing.fetch_add(1);
}

bool Captures::mayEnd(CUstream stream, bool per_thread) const {
  std::lock_guard lock(mutex_);
  const auto found = find(stream, per_thread);
  return found == all_.end() || found->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
         found->thread == thisThread();
}

void Captures::end(CUstream stream, bool per_thread) {
  std::lock_guard lock(mutex_);
  const auto found = find(stream, per_thread);
  if (found == all_.end()) return;
  all_.erase(found);
  program().capturing.fetch_sub(1);
}

bool Captures::forbids(uint32_t thread, CUstreamCaptureMode mode) const {
  std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(), [&](const Capture& one) {
    if (one.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (one.thread == thread) return true;
    return one.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  });
}

CapturesOfContext::~CapturesOfContext() {
  session_.whileThere()->captures.endIf(
      [&](const Capture& one) { return one.context == context_; });
}

void changesBehind(Session* session, CUstream stream, bool per_thread,
                   std::span<const uint64_t> own) {
  const auto blocks = namedBlocks(session);
  if (blocks.empty() && own.empty()) return;
  Call call(Operation::kHostChanges, session);
  call.inStream(stream, per_thread);
  call.ofOurOwn();
  call.value(reinterpret_cast<uint64_t>(stream));
  call.value(static_cast<uint8_t>(per_thread));
  session->arrivals().expectChanges();
  call.value(static_cast<uint32_t>(blocks.size()));
  for (const uint64_t block : blocks) call.value(block);
  call.value(static_cast<uint32_t>(own.size()));
  for (const uint64_t block : own) call.value(block);
  if (call.oneWay() != CUDA_SUCCESS) session->arrivals().changesDoNotCome();
}

bool captureForbids() {
  if (!capturing() || t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  const auto all = existingSessions();
  return std::any_of(all.begin(), all.end(), [](const Session* session) {
    return session->parts().whileThere()->captures.forbids(thisThread(), t_mode);
  });
}

bool captures(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = per_thread
                              ? ol_forward_generated_cuStreamIsCapturing_ptsz(stream, &status)
                              : ol_forward_generated_cuStreamIsCapturing(stream, &status);
  return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void noteAllocates(const Session& session, CUgraph graph) {
  AllocatingGraphs& all = *session.parts().allocating_graphs;
  std::lock_guard lock(all.mutex);
  all.graphs.insert(graph);
  all.any.store(true);
}

CUgraph capturedGraph(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  const auto offers = [&](api::Symbol symbol) {
    const Session* const session = Route().handle(stream).session();
    return session != nullptr && session->executor().offers(static_cast<size_t>(symbol));
  };
  if (offers(api::Symbol::kCuStreamGetCaptureInfo_v2)) {
    (void)(per_thread ? ol_forward_generated_cuStreamGetCaptureInfo_v2_ptsz(
                            stream, &status, nullptr, &graph, nullptr, nullptr)
                      : ol_forward_generated_cuStreamGetCaptureInfo_v2(stream, &status, nullptr,
                                                                       &graph, nullptr, nullptr));
  } else {
    (void)(per_thread ? ol_forward_generated_cuStreamGetCaptureInfo_v3_ptsz(
                            stream, &status, nullptr, &graph, nullptr, nullptr, nullptr)
                      : ol_forward_generated_cuStreamGetCaptureInfo_v3(
                            stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  }
  return graph;
}

void endCapturesOfThread() {
  if (!capturing()) return;
  std::vector<uint64_t> contexts;
  for (const Session* const session : existingSessions())
    session->parts().whileThere()->captures.endIf([&, thread = thisThread()](const Capture& one) {
      const bool ends = one.own && one.thread == thread;
      if (ends) contexts.push_back(one.context);
      return ends;
    });
  // At the worker nothing says that the thread is gone, and the stream captures until then.
  for (const uint64_t context : contexts) {
    const WithContext in(context);
    CUgraph graph = nullptr;
    if (ol_forward_generated_cuStreamEndCapture_ptsz(CU_STREAM_PER_THREAD, &graph) ==
            CUDA_SUCCESS &&
        graph != nullptr)
      (void)ol_forward_generated_cuGraphDestroy(graph);
  }
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_CAPTURE(suffix, per_thread)                                                             \
  CUresult ol_forward_cuStreamBeginCapture##suffix(CUstream stream) {                              \
    return begin(stream, per_thread, CU_STREAM_CAPTURE_MODE_GLOBAL,                                \
                 [&] { return ol_forward_generated_cuStreamBeginCapture##suffix(stream); });       \
  }                                                                                                \
  CUresult ol_forward_cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) { \
    return begin(stream, per_thread, mode, [&] {                                                   \
      return ol_forward_generated_cuStreamBeginCapture_v2##suffix(stream, modeThere(mode));        \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamBeginCaptureToGraph##suffix(                                         \
      CUstream stream, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData* edges,      \
      size_t count, CUstreamCaptureMode mode) {                                                    \
    return begin(stream, per_thread, mode, [&] {                                                   \
      return ol_forward_generated_cuStreamBeginCaptureToGraph##suffix(stream, graph, nodes, edges, \
                                                                      count, modeThere(mode));     \
    });                                                                                            \
  }                                                                                                \
  CUresult ol_forward_cuStreamEndCapture##suffix(CUstream stream, CUgraph* graph) {                \
    if (!mayEnd(stream, per_thread)) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;                \
    return ended(ol_forward_generated_cuStreamEndCapture##suffix(stream, graph), stream,           \
                 per_thread);                                                                      \
  }                                                                                                \
  CUresult ol_forward_cuStreamIsCapturing##suffix(CUstream stream,                                 \
                                                  CUstreamCaptureStatus* status) {                 \
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;                                        \
    if (capturing() || currentContext() == 0)                                                      \
      return ol_forward_generated_cuStreamIsCapturing##suffix(stream, status);                     \
    *status = CU_STREAM_CAPTURE_STATUS_NONE;                                                       \
    return CUDA_SUCCESS;                                                                           \
  }                                                                                                \
  CUresult ol_forward_cuGraphLaunch##suffix(CUgraphExec graph, CUstream stream) {                  \
    return launchGraph(graph, stream, per_thread,                                                  \
                       [&] { return ol_forward_generated_cuGraphLaunch##suffix(graph, stream); }); \
  }
OL_CAPTURE(, false)
OL_CAPTURE(_ptsz, true)
#undef OL_CAPTURE

CUresult ol_forward_cuStreamDestroy(CUstream stream) {
  return destroyed(ol_forward_generated_cuStreamDestroy(stream), stream);
}
CUresult ol_forward_cuStreamDestroy_v2(CUstream stream) {
  return destroyed(ol_forward_generated_cuStreamDestroy_v2(stream), stream);
}

CUresult ol_forward_cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* node,
                                       char* log, size_t bytes) {
  return made(ol_forward_generated_cuGraphInstantiate(exec, graph, node, log, bytes), exec, graph);
}
CUresult ol_forward_cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* node,
                                          char* log, size_t bytes) {
  return made(ol_forward_generated_cuGraphInstantiate_v2(exec, graph, node, log, bytes), exec,
              graph);
}
CUresult ol_forward_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                                unsigned long long flags) {
  return made(ol_forward_generated_cuGraphInstantiateWithFlags(exec, graph, flags), exec, graph);
}
CUresult ol_forward_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return made(ol_forward_generated_cuGraphInstantiateWithParams(exec, graph, params), exec, graph);
}
CUresult ol_forward_cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return made(ol_forward_generated_cuGraphInstantiateWithParams_ptsz(exec, graph, params), exec,
              graph);
}
CUresult ol_forward_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* node,
                                      CUgraphExecUpdateResult* outcome) {
  return made(ol_forward_generated_cuGraphExecUpdate(exec, graph, node, outcome), &exec, graph);
}
CUresult ol_forward_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                         CUgraphExecUpdateResultInfo* outcome) {
  return made(ol_forward_generated_cuGraphExecUpdate_v2(exec, graph, outcome), &exec, graph);
}
CUresult ol_forward_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                       CUgraph child) {
  const CUresult result =
      ol_forward_generated_cuGraphExecChildGraphNodeSetParams(exec, node, child);
  if (result == CUDA_SUCCESS) execChildMade(exec, node, child);
  return result;
}
CUresult ol_forward_cuGraphExecDestroy(CUgraphExec exec) {
  const CUresult result = ol_forward_generated_cuGraphExecDestroy(exec);
  if (result != CUDA_SUCCESS) return result;
  standInsOfExecGone(exec);
  AllocatingGraphs* const all = allocating(exec);
  if (all == nullptr) return result;
  std::lock_guard lock(all->mutex);
  all->execs.erase(exec);
  return result;
}
CUresult ol_forward_cuGraphDestroy(CUgraph graph) {
  standInsOfGraphGone(graph);
  const CUresult result = ol_forward_generated_cuGraphDestroy(graph);
  AllocatingGraphs* const all = allocating(graph);
  if (result != CUDA_SUCCESS || all == nullptr) return result;
  std::lock_guard lock(all->mutex);
  all->graphs.erase(graph);
  return result;
}
CUresult ol_forward_cuGraphDestroyNode(CUgraphNode node) {
  const CUresult result = ol_forward_generated_cuGraphDestroyNode(node);
  if (result == CUDA_SUCCESS) standInsOfNodeGone(node);
  return result;
}

CUresult ol_forward_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}

}  // extern "C"
