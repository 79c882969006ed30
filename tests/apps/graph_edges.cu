// A node that is added with data of its edges: a kernel that may start before the one that it
// depends on has ended. The graph tells the data back, and both kernels run.
#include "common.h"

__global__ void add(uint32_t* words, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += value;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
#if CUDART_VERSION < 13000
  apps::skip("a toolkit whose runtime has other functions for it");
#else
  const auto seed = uint32_t(options.seed);
  uint32_t count = 100'000;
  uint32_t* words[2];
  for (uint32_t b = 0; b < 2; ++b) {
    RUNTIME_OK(cudaMalloc(&words[b], count * 4));
    apps::fill(words[b], count * 4, seed + b);
  }
  apps::Pressure pressure(options.bytes);
  pressure.apply();

  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t nodes[2];
  uint32_t value = seed * 3;
  for (int n = 0; n < 2; ++n) {
    void* arguments[] = {&words[n], &count, &value};
    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = reinterpret_cast<void*>(add);
    params.kernel.gridDim = dim3((count + 255) / 256);
    params.kernel.blockDim = dim3(256);
    params.kernel.kernelParams = arguments;
    cudaGraphEdgeData edge{};
    edge.from_port = cudaGraphKernelNodePortProgrammatic;
    edge.type = cudaGraphDependencyTypeProgrammatic;
    RUNTIME_OK(cudaGraphAddNode(&nodes[n], graph, nodes, &edge, size_t(n), &params));
  }
  cudaGraphNode_t before = nullptr;
  cudaGraphEdgeData told{};
  size_t edges = 1;
  RUNTIME_OK(cudaGraphNodeGetDependencies(nodes[1], &before, &told, &edges));
  CHECK(edges == 1 && before == nodes[0], "the second node depends on %zu others", edges);
  CHECK(told.from_port == cudaGraphKernelNodePortProgrammatic &&
            told.type == cudaGraphDependencyTypeProgrammatic,
        "its edge has port %d and type %d", told.from_port, told.type);

  // Data that can't be leave no node behind.
  cudaGraphNode_t bad = nullptr;
  cudaGraphEdgeData nonsense{};
  nonsense.type = 200;
  cudaGraphNodeParams empty{};
  empty.type = cudaGraphNodeTypeEmpty;
  CHECK(cudaGraphAddNode(&bad, graph, nodes, &nonsense, 1, &empty) != cudaSuccess,
        "an edge of no type is taken");
  static_cast<void>(cudaGetLastError());
  size_t all = 0;
  RUNTIME_OK(cudaGraphGetNodes(graph, nullptr, &all));
  CHECK(all == 2, "the graph has %zu nodes", all);

  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  pressure.apply();
  for (int round = 0; round < 2; ++round) RUNTIME_OK(cudaGraphLaunch(exec, nullptr));
  for (uint32_t b = 0; b < 2; ++b)
    apps::verify(words[b], count * 4, seed + b, 2 * value, "after two launches");
  pressure.check();
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  return apps::ok("graph_edges over %u words", count);
#endif
}
