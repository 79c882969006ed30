// The handles that end with a graph, or with a node of one, beside its own: nodes, and the graphs
// of nodes that are graphs. The driver may give what it makes next the same handles, which are to
// have numbers of their own then. Thread-safety: belongs to its thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpunode/worker/handles.h"
#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

class GraphHandles {
 public:
  /// While it is there.
  GraphHandles(Invocation& in, CUgraph graph) : in_(in) { addNodes(graph); }
  GraphHandles(Invocation& in, CUgraphNode node) : in_(in) { addGraphOf(node); }
  /// The graph or the node is gone.
  void gone();

 private:
  void addNodes(CUgraph graph);
  void addGraphOf(CUgraphNode node);

  Invocation& in_;
  std::vector<std::pair<HandleKind, uint64_t>> all_;
};

}  // namespace olpager::gpunode
