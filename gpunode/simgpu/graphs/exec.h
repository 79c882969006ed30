// Instances of graphs: a fixed order of nodes that can be launched again and again.
//
// A launch is one operation of its stream that runs the nodes one after the other in topological
// order, which every schedule that the graph allows is equivalent to. If nodes record events, or
// wait for them, it is several, with the events between. The nodes that it runs are fixed at the
// call: later updates change later launches. Launches of one instance follow one another, as the
// driver has it. Thread-safety: all members from any thread; GraphExec::mutex is taken before
// Context::submit_mutex and never with graphMutex() wanted afterwards.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/copy.h"
#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

/// A node of an instance; indices are positions in the graph it was made from.
struct ExecNode {
  CUgraphNode origin = nullptr;
  CaptureNode spec;
  bool enabled = true;
  std::vector<size_t> before;
  std::vector<std::shared_ptr<GraphMemory>> memory;
  std::vector<ExecNode> children;
  std::vector<size_t> child_order;
};

/// The result of an update.
struct UpdateResult {
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  CUgraphNode node = nullptr;
  CUgraphNode from = nullptr;
};

/// True if a node of an instance may become the other, of the same type, whose operands have just
/// been looked at. A copy: where both are of one dimension and some bytes, and the operands are in
/// the same kind of memory. A memset: likewise, but of more than one dimension where only the
/// address and the value change; mapped and allocated device memory are one kind to it. Other nodes
/// always.
bool canReplace(const CaptureNode& before, const CaptureNode& spec);

class GraphExec {
 public:
  /// CUDA_ERROR_INVALID_VALUE for a graph with a circle, or with a memset of what is not mapped:
  /// `culprit`.
  static CUresult instantiate(Graph& graph, cuuint64_t flags, std::shared_ptr<GraphExec>* out,
                              CUgraphNode* culprit);

  CUgraphExec handle() const { return handle_; }
  cuuint64_t flags() const { return flags_; }

  /// Enqueues one run, or adds a child graph node to the stream's capture.
  CUresult launch(Context& context, Stream& stream);
  /// Takes over the parameters of `graph`, which must have the same shape. Only nodes that changed
  /// are looked at.
  CUresult update(Graph& graph, UpdateResult* result);
  /// Changes the node that was made from `origin`: `change(ExecNode&)` returns the call's result.
  template <typename Change>
  CUresult changeNode(CUgraphNode origin, Change change) {
    const std::lock_guard lock(mutex_);
    ExecNode* node = find(nodes_, origin);
    return node != nullptr ? change(*node) : CUDA_ERROR_INVALID_VALUE;
  }
  /// Replaces the contents of a child graph node.
  CUresult updateChild(CUgraphNode origin, Graph& child);

 private:
  static ExecNode* find(std::vector<ExecNode>& nodes, CUgraphNode origin);

  CUgraphExec handle_ = nullptr;
  cuuint64_t flags_ = 0;
  std::shared_ptr<UserObjectReferences> user_objects_ =
      std::make_shared<UserObjectReferences>();  // its runs' as well
  std::mutex mutex_;
  std::vector<ExecNode> nodes_;
  std::vector<size_t> order_;
  StreamPoint last_;
};

}  // namespace olpager::simgpu
