// Stream capture: a stream in capture hands its operations to a graph instead of running them.
//
// States of a capture: active -> invalidated (a forbidden call, a dependency on work outside) ->
// ended (the graph is given out, or dropped when it was invalidated). Moved under
// CaptureSession::mutex; a stream joins by waiting for an event that was recorded in the capture,
// under Context::submit_mutex of its context. The graph itself is behind CaptureSink, implemented
// by graphs/.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "gpunode/simgpu/copy.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

/// A kernel launch as a graph node; derived from and understood by modules/ and graphs/ only.
class KernelLaunchBase {
 public:
  virtual ~KernelLaunchBase() = default;
};

/// A stream-ordered allocation or free in a capture.
struct AllocNode {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
};
struct FreeNode {
  CUdeviceptr address = 0;
};
struct EventNode {
  CUevent event = nullptr;
};
/// cuStreamWriteValue, WaitValue and BatchMemOp.
struct BatchNode {
  std::vector<CUstreamBatchMemOpParams> ops;
};

/// The parameters of a captured node, as the graph keeps and answers them. The active member gives
/// the type.
using NodeParams = std::variant<std::monostate /* empty node */, std::shared_ptr<KernelLaunchBase>,
                                CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUDA_HOST_NODE_PARAMS,
                                AllocNode, FreeNode, BatchNode, EventNode>;

struct CaptureNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUcontext context = nullptr;
  NodeParams params;
  OperandPlaces places;  // of a copy or memset, as they were when the node got its parameters;
                         // filled in by graphs/
};

/// A graph that is being captured. Called under CaptureSession::mutex.
class CaptureSink {
 public:
  virtual ~CaptureSink() = default;
  /// Adds a node behind `dependencies`.
  virtual CUresult addNode(const CaptureNode& node, std::span<const CUgraphNode> dependencies,
                           CUgraphNode* out) = 0;
  /// The graph's handle, for cuStreamGetCaptureInfo; owned by the sink until finish().
  virtual CUgraph graph() = 0;
  /// The capture ends: hands the graph out (`keep`) or destroys it (unless it was the caller's
  /// own).
  virtual void finish(bool keep) = 0;
};

/// Implemented by graphs/: a sink for a new graph (`existing` null), or one that adds to the
/// caller's graph. Null when `existing` is no graph.
std::unique_ptr<CaptureSink> newCaptureSink(CUgraph existing);

/// Implemented here: the operation that executes a node of the types memcpy, memset, host, batch
/// mem-op, and empty. Kernel, alloc, free, event, child and conditional nodes are made by graphs/
/// and modules/. Null for those.
std::unique_ptr<StreamOp> makeNodeOp(const CaptureNode& node);

/// One capture: its graph, its rules, and the streams in it.
class CaptureSession {
 public:
  CaptureSession(std::unique_ptr<CaptureSink> graph_sink, CUstreamCaptureMode capture_mode);
  ~CaptureSession();

  const CUstreamCaptureMode mode;
  const cuuint64_t id;
  const std::thread::id owner;

  std::mutex mutex;
  bool invalidated = false;
  bool ended = false;
  std::unique_ptr<CaptureSink> sink;
  /// Streams in the capture with the nodes that their next operation depends on. The first one
  /// began it.
  struct Member {
    std::weak_ptr<Stream> stream;
    std::vector<CUgraphNode> tail;
  };
  std::vector<Member> members;
  /// Captured nodes that nothing depends on yet: at the end all of them must be in the first
  /// stream's tail.
  std::vector<CUgraphNode> leaves;
  /// The last answer of cuStreamGetCaptureInfo; stays valid until the next call on a stream of the
  /// capture.
  std::vector<CUgraphNode> answer;
  std::vector<CUgraphEdgeData> answer_edges;

  Member* member(const Stream& stream);
  void invalidate();
};

/// True if any capture is under way in the process: the quick test before the rules are looked at.
bool anyCapture();

/// Adds a node to the stream's capture behind what the stream has there.
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED when the capture is.
CUresult captureNode(Stream& stream, const CaptureNode& node, CUgraphNode* out = nullptr);

/// To be called first by a driver function that is unsafe in a capture (cuMemAlloc, cuEventQuery,
/// cuModuleLoad, ...): CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED when this thread's mode forbids it,
/// and the captures concerned are invalidated.
CUresult unsafeInCapture();

/// For functions that no stream in capture can take (cuStreamSynchronize, cuStreamQuery, but also
/// cuStreamGetFlags and cuStreamGetId, in any mode): invalidates its capture.
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, or CUDA_SUCCESS when the stream is not in capture.
CUresult notInCapture(Stream& stream);

// Begins a capture, for cuStreamBeginCapture and its relatives; the stream is in its own context.
CUresult beginCapture(Stream& stream, std::unique_ptr<CaptureSink> sink, CUstreamCaptureMode mode,
                      std::vector<CUgraphNode> dependencies);
CUresult endCapture(Stream& stream, CUgraph* out);

}  // namespace olpager::simgpu
