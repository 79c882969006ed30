// Graphs with conditional nodes: what the bodies use is there whenever the device decides to run
// them. Each graph repeats its body on memory of its own as often as the device counts down;
// another body runs only where a word says so.
#include "common.h"

__global__ void addOne(uint32_t* words, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += 1;
}
// The last kernel of a loop's body.
__global__ void countDown(cudaGraphConditionalHandle again, uint32_t* left) {
  *left -= 1;
  cudaGraphSetConditional(again, *left != 0);
}
__global__ void decide(cudaGraphConditionalHandle taken, const uint32_t* word) {
  cudaGraphSetConditional(taken, *word);
}

namespace {

constexpr uint32_t kGraphs = 8, kRounds = 3;

struct Loop {
  uint32_t *words = nullptr, *left = nullptr, *extra = nullptr, *wanted = nullptr;
  cudaGraphExec_t exec = nullptr;
};

void add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after, void* kernel,
         uint32_t blocks, uint32_t threads, void** arguments) {
  cudaKernelNodeParams params{};
  params.func = kernel;
  params.gridDim = dim3(blocks);
  params.blockDim = dim3(threads);
  params.kernelParams = arguments;
  RUNTIME_OK(cudaGraphAddKernelNode(node, graph, after, after != nullptr ? 1 : 0, &params));
}

cudaGraph_t conditional(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                        cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = 1;
  RUNTIME_OK(cudaGraphAddNode(node, graph, after, nullptr, after != nullptr ? 1 : 0, &params));
  return params.conditional.phGraph_out[0];
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  uint32_t count = uint32_t(options.bytes / kGraphs / 2 / 4);
  Loop loops[kGraphs];
  for (uint32_t g = 0; g < kGraphs; ++g) {
    Loop& loop = loops[g];
    cudaGraph_t graph = nullptr;
    cudaGraphConditionalHandle again = 0, taken = 0;
    RUNTIME_OK(cudaGraphCreate(&graph, 0));
    const cudaError_t there =
        cudaGraphConditionalHandleCreate(&again, graph, 1, cudaGraphCondAssignDefault);
    if (there == cudaErrorNotSupported) apps::skip("this driver has no conditional nodes");
    RUNTIME_OK(there);
    RUNTIME_OK(cudaGraphConditionalHandleCreate(&taken, graph, 0, cudaGraphCondAssignDefault));
    for (uint32_t** words : {&loop.words, &loop.extra}) {
      RUNTIME_OK(cudaMalloc(words, size_t{count} * 4));
      RUNTIME_OK(cudaMemset(*words, 0, size_t{count} * 4));
    }
    RUNTIME_OK(cudaMalloc(&loop.left, 4));
    RUNTIME_OK(cudaMalloc(&loop.wanted, 4));
    const uint32_t wanted = g % 2;
    RUNTIME_OK(cudaMemcpy(loop.wanted, &wanted, 4, cudaMemcpyHostToDevice));
    cudaGraphNode_t repeat, one, last, choice, branch;
    cudaGraph_t body = conditional(&repeat, graph, nullptr, again, cudaGraphCondTypeWhile);
    void* words_arguments[] = {&loop.words, &count};
    add(&one, body, nullptr, reinterpret_cast<void*>(addOne), (count + 255) / 256, 256,
        words_arguments);
    void* left_arguments[] = {&again, &loop.left};
    add(&last, body, &one, reinterpret_cast<void*>(countDown), 1, 1, left_arguments);
    void* wanted_arguments[] = {&taken, &loop.wanted};
    add(&choice, graph, &repeat, reinterpret_cast<void*>(decide), 1, 1, wanted_arguments);
    body = conditional(&branch, graph, &choice, taken, cudaGraphCondTypeIf);
    void* extra_arguments[] = {&loop.extra, &count};
    add(&one, body, nullptr, reinterpret_cast<void*>(addOne), (count + 255) / 256, 256,
        extra_arguments);
    RUNTIME_OK(cudaGraphInstantiate(&loop.exec, graph, 0));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  uint32_t expected[kGraphs] = {};
  apps::Random random(options.seed);
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t g = 0; g < kGraphs; ++g) {
      const uint32_t times = 1 + uint32_t(random.below(5));
      RUNTIME_OK(cudaMemcpy(loops[g].left, &times, 4, cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaGraphLaunch(loops[g].exec, nullptr));
      expected[g] += times;
    }
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  std::vector<uint32_t> back(count);
  for (uint32_t g = 0; g < kGraphs; ++g) {
    RUNTIME_OK(cudaMemcpy(back.data(), loops[g].words, size_t{count} * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < count; ++i)
      CHECK(back[i] == expected[g], "graph %u, word %u is %u, expected %u", g, i, back[i],
            expected[g]);
    RUNTIME_OK(cudaMemcpy(back.data(), loops[g].extra, size_t{count} * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < count; ++i)
      CHECK(back[i] == g % 2 * kRounds, "graph %u, word %u behind the choice is %u, expected %u", g,
            i, back[i], g % 2 * kRounds);
  }
  return apps::ok("graph_conditional: %u graphs, %u launches", kGraphs, kGraphs * kRounds);
}
