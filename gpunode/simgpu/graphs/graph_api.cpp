// cuGraph* functions about the structure of graphs.
#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/graphs/graph_access.h"
#include "gpunode/simgpu/modules/launch.h"

namespace olpager::simgpu {

CUresult requireGraph(CUgraph handle, std::shared_ptr<Graph>* graph) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *graph = GraphRegistry::get().graphs.find(handle);
  return *graph != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult requireNode(CUgraphNode handle, std::shared_ptr<GraphNode>* node) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *node = GraphRegistry::get().nodes.find(handle);
  return *node != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace {

bool isDefault(const CUgraphEdgeData& data) {
  constexpr CUgraphEdgeData kDefault{};
  return std::memcmp(&data, &kDefault, sizeof(data)) == 0;
}

// One row of an answer about edges.
struct Row {
  CUgraphNode from;
  CUgraphNode to;
  CUgraphEdgeData data;
};

// Fills the caller's arrays (those that are not null) with as many rows as fit, nulls behind them,
// and the count: the number of rows when nothing is to be filled. Without a place for edge data,
// edges that have some can't be told.
CUresult answer(const std::vector<Row>& rows, CUgraphNode* from, CUgraphNode* to,
                CUgraphEdgeData* data, size_t* count, bool can_hold_data) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr && to == nullptr) {
    if (data != nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = rows.size();
    return CUDA_SUCCESS;
  }
  const size_t room = *count;
  for (size_t i = 0; i < room; ++i) {
    const bool there = i < rows.size();
    if (there && data == nullptr && !isDefault(rows[i].data)) return CUDA_ERROR_LOSSY_QUERY;
    if (from != nullptr) from[i] = there ? rows[i].from : nullptr;
    if (to != nullptr) to[i] = there ? rows[i].to : nullptr;
    if (data != nullptr && can_hold_data) data[i] = there ? rows[i].data : CUgraphEdgeData{};
  }
  *count = std::min(room, rows.size());
  return CUDA_SUCCESS;
}

CUresult answerNodes(const std::vector<CUgraphNode>& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

CUresult edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
               size_t* count) {
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(graphMutex());
  std::vector<Row> rows;
  for (const auto& node : graph->nodes()) {
    for (const Edge& edge : node->after)
      rows.push_back({node->handle, edge.node->handle, edge.data});
  }
  return answer(rows, from, to, data, count, true);
}

CUresult neighbours(CUgraphNode handle, bool before, CUgraphNode* out, CUgraphEdgeData* data,
                    size_t* count) {
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  std::vector<Row> rows;
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): requireNode() has found it
  for (const Edge& edge : before ? node->before : node->after)
    rows.push_back({edge.node->handle, nullptr, edge.data});
  return answer(rows, out, nullptr, data, count, true);
}

template <typename Change>
CUresult changeEdges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                     const CUgraphEdgeData* data, size_t count, Change change) {
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  if (count == 0) return CUDA_SUCCESS;
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(graphMutex());
  for (size_t i = 0; i < count; ++i) {
    const auto a = GraphRegistry::get().nodes.find(from[i]);
    const auto b = GraphRegistry::get().nodes.find(to[i]);
    if (a == nullptr || b == nullptr || a->graph.lock() != graph || b->graph.lock() != graph) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUgraphEdgeData edge = data != nullptr ? data[i] : CUgraphEdgeData{};
    if (const CUresult error = change(*graph, *a, *b, edge); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult addEdge(Graph& graph, GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  return graph.addEdge(from, to, data);
}

CUresult removeEdge(Graph& graph, GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  return graph.removeEdge(from, to, data);
}

const char* typeName(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "BATCH_MEM_OP";
    default:
      return "NODE";
  }
}

}  // namespace
}  // namespace olpager::simgpu

using namespace olpager::simgpu;

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* out, unsigned flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *out = Graph::create()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  if (graph->moved()) return CUDA_ERROR_INVALID_VALUE;
  return GraphRegistry::get().graphs.remove(handle) != nullptr ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphClone(CUgraph* out, CUgraph handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  *out = graph->clone()->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  const auto node = graph->cloneOf(original);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = node->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  *type = node->spec.type;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  std::vector<CUgraphNode> all;
  for (const auto& node : graph->nodes()) all.push_back(node->handle);
  return answerNodes(all, nodes, count);
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  std::vector<CUgraphNode> roots;
  for (const auto& node : graph->nodes()) {
    if (node->before.empty()) roots.push_back(node->handle);
  }
  return answerNodes(roots, nodes, count);
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return edges(graph, from, to, nullptr, count);
}

CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                    CUgraphEdgeData* data, size_t* count) {
  return edges(graph, from, to, data, count);
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return neighbours(node, true, nodes, nullptr, count);
}

CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes,
                                               CUgraphEdgeData* data, size_t* count) {
  return neighbours(node, true, nodes, data, count);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return neighbours(node, false, nodes, nullptr, count);
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes,
                                                 CUgraphEdgeData* data, size_t* count) {
  return neighbours(node, false, nodes, data, count);
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                        const CUgraphNode* to, size_t count) {
  return changeEdges(graph, from, to, nullptr, count, addEdge);
}

CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                           const CUgraphNode* to, const CUgraphEdgeData* data,
                                           size_t count) {
  return changeEdges(graph, from, to, data, count, addEdge);
}

CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from,
                                           const CUgraphNode* to, size_t count) {
  return changeEdges(graph, from, to, nullptr, count, removeEdge);
}

CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                              const CUgraphNode* to, const CUgraphEdgeData* data,
                                              size_t count) {
  return changeEdges(graph, from, to, data, count, removeEdge);
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode handle) {
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  const auto graph = node->graph.lock();
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (node->spec.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
      node->spec.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return CUDA_ERROR_NOT_SUPPORTED;  // as the driver has it
  }
  const std::lock_guard lock(graphMutex());
  graph->removeNode(*node);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  std::string text = "digraph dot {\n";
  {
    const std::lock_guard lock(graphMutex());
    const auto id = [](const GraphNode& node) {
      return "node_" + std::to_string(reinterpret_cast<uint64_t>(node.handle) & 0xffffffffffu);
    };
    for (const auto& node : graph->nodes()) {
      std::string label = typeName(node->spec.type);
      if (node->spec.type == CU_GRAPH_NODE_TYPE_KERNEL) {
        const auto& launch = std::get<std::shared_ptr<KernelLaunchBase>>(node->spec.params);
        label += "\\n" + static_cast<const KernelLaunch&>(*launch).function->info().name;
      }
      text += "  " + id(*node) + " [label=\"" + label + "\"];\n";
      for (const Edge& edge : node->after)
        text += "  " + id(*node) + " -> " + id(*edge.node) + ";\n";
    }
  }
  text += "}\n";
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  return std::fclose(out) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// Nothing is kept for graphs that are gone.
CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice ordinal) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  return Driver::get().device(ordinal) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  if (Driver::get().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const GraphMemory::Usage usage = GraphMemory::usage(ordinal);
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = usage.used;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = usage.used_high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = usage.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = usage.reserved_high;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                              void* value) {
  if (value == nullptr ||
      (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
       attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) ||
      *static_cast<cuuint64_t*>(value) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  if (Driver::get().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ? GraphMemory::resetUsedHigh(ordinal)
                                               : GraphMemory::resetReservedHigh(ordinal);
  return CUDA_SUCCESS;
}

}  // extern "C"
