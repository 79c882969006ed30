// One node of a graph as a value: its parameters at one moment, and how it is made as an operation
// of a stream. graph_parts.h has whole graphs.
//
// A node's values are read from the driver, which gives those of the graph (not of an executable
// one), or taken from a call that changes an executable graph. Nothing is referred to that the
// program may change or free afterwards, except what a node itself refers to: memory, functions,
// events.
//
// As an operation of a stream a node is made by our own functions (ol_local_*), as if the program
// had called them: it acquires its memory, is told to the learned order and counts as any launch or
// copy. Three things are not as if the program had called them:
//   - A copy from or to memory that is not pinned reads or writes that memory when its stream comes
//     to it, as a node does; a copy of a stream reads it at once. So such a copy is made by a graph
//     of this one node.
//   - If a kernel may begin before the one before it has ended (programmatic dependencies), it
//     begins when that one has ended.
//   - An event node records, or waits for what its event means, when it is made. The moment is that
//     of the graph's launch, as natively.
//
// Some nodes can't be operations of a stream: memory, conditional and semaphore nodes, kernels that
// are updated from the device, kernels whose parameters the driver does not tell.
//
// Ownership: a Node is shared and never changes, except that a copy's own graph is made when it is
// first launched. Thread-safety: any thread; one at a time launches a Node (as an executable graph,
// by the driver's rules). No lock; the driver is asked and called.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "pager/pool.h"

namespace olpager::local {

class Node;
using NodePtr = std::shared_ptr<const Node>;

/// A kernel node's attributes are the launch's.
class Node {
 public:
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// As the driver tells it. nullptr: it can't be an operation of a stream, and `why` is the end of
  /// a sentence that says so: "a conditional node".
  static NodePtr read(CUgraphNode node, const char** why);
  /// nullptr where the driver does not tell the kernel's parameters, or `params` is null.
  static NodePtr of(const CUDA_KERNEL_NODE_PARAMS_v2* params);
  static NodePtr of(const CUDA_KERNEL_NODE_PARAMS_v1* params);
  static NodePtr of(const CUDA_MEMCPY3D* params);
  static NodePtr of(const CUDA_MEMSET_NODE_PARAMS_v1* params);
  static NodePtr of(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params);
  static NodePtr of(const CUDA_HOST_NODE_PARAMS_v1* params);
  static NodePtr of(const CUgraphNodeParams* params);
  static NodePtr ofEvent(CUgraphNodeType type, CUevent event);
  /// `node` with the attributes of `from`, where both are kernels; else `node`.
  static NodePtr withAttributesOf(const NodePtr& node, const Node& from);

  CUgraphNodeType type() const { return type_; }
  /// The context of a kernel; nullptr: that of the launch.
  CUcontext context() const;

  /// Makes it in the stream, which does not capture. `priorities`: kernels have their nodes' (the
  /// graph was instantiated so), else the stream's.
  CUresult launch(const pager::StreamKey& stream, bool priorities) const;

 private:
  struct Kernel {
    CUfunction function = nullptr;  // or a CUkernel
    CUcontext context = nullptr;
    unsigned grid[3] = {};
    unsigned block[3] = {};
    unsigned shared = 0;
    std::vector<std::byte> values;
    std::vector<size_t> offsets;  // of the parameters in `values`; none: one block
    bool as_block = false;
    std::vector<CUlaunchAttribute> attributes;
  };
  // A copy's own graph.
  struct OwnGraph {
    CUgraphExec exec = nullptr;
    CUcontext context = nullptr;
  };
  struct Copy {
    CUDA_MEMCPY3D params{};
    std::unique_ptr<OwnGraph> own;  // where a side is memory that is not pinned
  };
  struct Batch {
    std::vector<CUstreamBatchMemOpParams> operations;
    unsigned flags = 0;
  };
  using Values = std::variant<std::monostate, Kernel, Copy, CUDA_MEMSET_NODE_PARAMS_v1, Batch,
                              CUDA_HOST_NODE_PARAMS_v1, CUevent>;

  Node(CUgraphNodeType type, Values values) : type_(type), values_(std::move(values)) {}
  static NodePtr make(CUgraphNodeType type, Values values);
  static CUresult launchKernel(const Kernel& kernel, const pager::StreamKey& stream,
                               bool priorities);
  static CUresult launchCopy(const Copy& copy, const pager::StreamKey& stream);
  static CUresult launchOwn(const CUDA_MEMCPY3D& params, OwnGraph& own,
                            const pager::StreamKey& stream);

  CUgraphNodeType type_;
  Values values_;
};

}  // namespace olpager::local
