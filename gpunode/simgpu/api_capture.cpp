// Stream capture as the driver API gives it.
#include "gpunode/simgpu/api.h"

#include <algorithm>

#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

CUresult begin(CUstream handle, bool per_thread, CUgraph graph, const CUgraphNode* dependencies,
               size_t count, CUstreamCaptureMode mode) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED ||
      (count != 0 && dependencies == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  auto sink = newCaptureSink(graph);
  if (sink == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return beginCapture(*stream, std::move(sink), mode,
                      std::vector<CUgraphNode>(dependencies, dependencies + count));
}

CUresult end(CUstream handle, bool per_thread, CUgraph* graph) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return endCapture(*stream, graph);
}

struct Info {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

CUresult info(CUstream handle, bool per_thread, const Info& out) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (stream->handle() == CU_STREAM_LEGACY)  // asking does not end the capture of a blocking stream
    if (const CUresult result = context->checkLegacyCapture(false)) return result;
  auto session = stream->captureSession();
  if (session == nullptr) {
    *out.status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  std::scoped_lock lock(session->mutex);
  if (session->invalidated) {
    *out.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  *out.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (out.id != nullptr) *out.id = session->id;
  if (out.graph != nullptr) *out.graph = session->sink->graph();
  CaptureSession::Member* member = session->member(*stream);
  if (member != nullptr) session->answer = member->tail;
  session->answer_edges.assign(session->answer.size(), CUgraphEdgeData{});
  if (out.dependencies != nullptr) *out.dependencies = session->answer.data();
  if (out.edges != nullptr) *out.edges = session->answer_edges.data();
  if (out.count != nullptr) *out.count = session->answer.size();
  return CUDA_SUCCESS;
}

CUresult update(CUstream handle, bool per_thread, const CUgraphNode* dependencies, size_t count,
                unsigned flags) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  auto session = stream->captureSession();
  if (session == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  std::scoped_lock lock(session->mutex);
  if (session->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CaptureSession::Member* member = session->member(*stream);
  if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    // Nodes that the stream no longer depends on need not be joined at the end: that is the
    // caller's choice.
    for (CUgraphNode node : member->tail) std::erase(session->leaves, node);
    member->tail.clear();
  }
  for (size_t i = 0; i < count; ++i)
    if (std::find(member->tail.begin(), member->tail.end(), dependencies[i]) == member->tail.end())
      member->tail.push_back(dependencies[i]);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (const CUresult result = requireInit()) return result;
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, ThreadState::get().capture_mode);
  return CUDA_SUCCESS;
}

OLSIM_STREAM_FUNCTION(cuStreamBeginCapture, _ptsz, (CUstream stream),
                      return begin(stream, kPerThread, nullptr, nullptr, 0,
                                   CU_STREAM_CAPTURE_MODE_GLOBAL);)
OLSIM_STREAM_FUNCTION(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode),
                      return begin(stream, kPerThread, nullptr, nullptr, 0, mode);)
OLSIM_STREAM_FUNCTION(cuStreamBeginCaptureToGraph, _ptsz,
                      (CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                       const CUgraphEdgeData*, size_t count, CUstreamCaptureMode mode),
                      return graph == nullptr
                                 ? CUDA_ERROR_INVALID_VALUE
                                 : begin(stream, kPerThread, graph, dependencies, count, mode);)
OLSIM_STREAM_FUNCTION(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph* graph),
                      return end(stream, kPerThread, graph);)
OLSIM_STREAM_FUNCTION(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus* status),
                      return info(stream, kPerThread, {status});)
OLSIM_STREAM_FUNCTION(cuStreamGetCaptureInfo, _ptsz,
                      (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
                      return info(stream, kPerThread, {status, id});)
OLSIM_STREAM_FUNCTION(cuStreamGetCaptureInfo_v2, _ptsz,
                      (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                       CUgraph* graph, const CUgraphNode** dependencies, size_t* count),
                      return info(stream, kPerThread,
                                  {status, id, graph, dependencies, nullptr, count});)
OLSIM_STREAM_FUNCTION(cuStreamGetCaptureInfo_v3, _ptsz,
                      (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                       CUgraph* graph, const CUgraphNode** dependencies,
                       const CUgraphEdgeData** edges, size_t* count),
                      return info(stream, kPerThread,
                                  {status, id, graph, dependencies, edges, count});)
OLSIM_STREAM_FUNCTION(cuStreamUpdateCaptureDependencies, _ptsz,
                      (CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags),
                      return update(stream, kPerThread, dependencies, count, flags);)
OLSIM_STREAM_FUNCTION(cuStreamUpdateCaptureDependencies_v2, _ptsz,
                      (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData*,
                       size_t count, unsigned flags),
                      return update(stream, kPerThread, dependencies, count, flags);)
