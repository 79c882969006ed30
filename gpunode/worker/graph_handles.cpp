#include "gpunode/worker/graph_handles.h"

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

void GraphHandles::addNodes(CUgraph graph) {
  const api::DriverTable& driver = in_.driver();
  size_t count = 0;
  if (graph == nullptr || driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return;
  std::vector<CUgraphNode> nodes(count);
  if (count == 0 || driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  nodes.resize(count);
  for (const CUgraphNode node : nodes) {
    all_.emplace_back(HandleKind::kGraphNode, bitsOf(node));
    addGraphOf(node);
  }
}

void GraphHandles::addGraphOf(CUgraphNode node) {
  const api::DriverTable& driver = in_.driver();
  CUgraphNodeType type{};
  CUgraph graph = nullptr;
  if (node == nullptr || driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS ||
      type != CU_GRAPH_NODE_TYPE_GRAPH ||
      driver.cuGraphChildGraphNodeGetGraph(node, &graph) != CUDA_SUCCESS)
    return;
  all_.emplace_back(HandleKind::kGraph, bitsOf(graph));
  addNodes(graph);
}

void GraphHandles::gone() {
  for (const auto& [kind, value] : all_) in_.worker().handles().mayComeAgain(kind, value);
}

}  // namespace olpager::gpunode
