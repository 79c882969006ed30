// Graphs that are built of nodes: copies from and to pageable memory around a kernel, over memory
// that another kernel has used before, of which another GPU of a unified view may have a part.
#include "common.h"

constexpr uint32_t kWords = 1024;
constexpr int kBuffers = 3;

__global__ void add(uint32_t* data, uint32_t by) {
  data[blockIdx.x * blockDim.x + threadIdx.x] += by;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t piece = options.bytes / 2 / kBuffers;
  uint32_t* buffers[kBuffers];
  for (uint32_t*& buffer : buffers) {
    RUNTIME_OK(cudaMalloc(&buffer, piece));
    RUNTIME_OK(cudaMemset(buffer, 0, piece));
  }
  for (uint32_t* const buffer : buffers) add<<<kWords / 256, 256>>>(buffer, 1);
  uint32_t* unused;  // memory that nobody has used yet
  RUNTIME_OK(cudaMalloc(&unused, piece));
  buffers[0] = unused;
  RUNTIME_OK(cudaDeviceSynchronize());

  for (int k = 0; k < kBuffers; ++k) {
    std::vector<uint32_t> from(kWords), to(kWords);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t in, kernel, out;
    RUNTIME_OK(cudaGraphCreate(&graph, 0));
    RUNTIME_OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, buffers[k], from.data(), kWords * 4,
                                        cudaMemcpyHostToDevice));
    uint32_t by = uint32_t(k) + 5;
    void* arguments[] = {&buffers[k], &by};
    cudaKernelNodeParams parameters{};
    parameters.func = reinterpret_cast<void*>(add);
    parameters.gridDim = dim3(kWords / 256);
    parameters.blockDim = dim3(256);
    parameters.kernelParams = arguments;
    RUNTIME_OK(cudaGraphAddKernelNode(&kernel, graph, &in, 1, &parameters));
    RUNTIME_OK(cudaGraphAddMemcpyNode1D(&out, graph, &kernel, 1, to.data(), buffers[k], kWords * 4,
                                        cudaMemcpyDeviceToHost));
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < kWords; ++i) from[i] = apps::word(i, round + uint32_t(options.seed));
      RUNTIME_OK(cudaGraphLaunch(exec, nullptr));
      RUNTIME_OK(cudaDeviceSynchronize());
      for (uint32_t i = 0; i < kWords; ++i)
        CHECK(to[i] == from[i] + by, "buffer %d, round %u: word %u is %#x, expected %#x", k, round,
              i, to[i], from[i] + by);
    }
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  return apps::ok("graph_elsewhere: %d graphs", kBuffers);
}
