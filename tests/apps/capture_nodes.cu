// Nodes that a capture has made are nodes as any: a library that is called in the midst of a
// capture looks up its tail, adds nodes of its own behind it and makes these the tail (as NCCL,
// Warp and llama.cpp do); later the parameters of captured nodes are read, and set again in the
// graph and in what was made of it. Several graphs, so that handles come again, and child graphs
// and clones.
#include <atomic>

#include "common.h"

namespace {

constexpr int kGraphs = 3, kForks = 3, kBuffers = 8, kLaunches = 2;

__global__ void add(uint32_t* words, uint32_t count, uint32_t value) {
  for (uint32_t i = threadIdx.x; i * 1024 < count; i += blockDim.x) words[i * 1024] += value;
}

std::atomic<int> g_called{0};
void CUDART_CB call(void* data) { g_called += int(reinterpret_cast<size_t>(data)); }

std::vector<cudaGraphNode_t> tailOf(cudaStream_t stream, cudaGraph_t* graph) {
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  RUNTIME_OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, graph, &nodes, nullptr, &count));
#else
  RUNTIME_OK(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, graph, &nodes, &count));
#endif
  CHECK(status == cudaStreamCaptureStatusActive, "the stream does not capture: %d", int(status));
  return {nodes, nodes + count};
}

void setTail(cudaStream_t stream, std::vector<cudaGraphNode_t> nodes) {
#if CUDART_VERSION >= 13000
  RUNTIME_OK(cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nullptr, nodes.size(),
                                                 cudaStreamSetCaptureDependencies));
#else
  RUNTIME_OK(cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nodes.size(),
                                                 cudaStreamSetCaptureDependencies));
#endif
}

// The kernel's last parameter.
void setValue(cudaGraphNode_t node, cudaGraphExec_t exec, uint32_t expected, uint32_t value) {
  cudaKernelNodeParams params{};
  RUNTIME_OK(cudaGraphKernelNodeGetParams(node, &params));
  CHECK(*static_cast<uint32_t*>(params.kernelParams[2]) == expected, "the node adds %u, not %u",
        *static_cast<uint32_t*>(params.kernelParams[2]), expected);
  void* arguments[] = {params.kernelParams[0], params.kernelParams[1], &value};
  params.kernelParams = arguments;
  params.extra = nullptr;
  if (exec != nullptr) {
    RUNTIME_OK(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  } else {
    RUNTIME_OK(cudaGraphKernelNodeSetParams(node, &params));
  }
}

struct Program {
  uint32_t* buffers[kBuffers];
  uint32_t want[kBuffers] = {};
  uint32_t count = 0;
  cudaStream_t stream, forks[kForks];
  cudaEvent_t events[kForks + 1];

  void launch(int buffer, uint32_t value, cudaStream_t in) {
    add<<<1, 128, 0, in>>>(buffers[buffer], count, value);
    RUNTIME_OK(cudaGetLastError());
  }
  void check(int graph) {
    for (int i = 0; i < kBuffers; ++i) {
      uint32_t got = 0;
      RUNTIME_OK(cudaMemcpy(&got, buffers[i], 4, cudaMemcpyDeviceToHost));
      CHECK(got == want[i], "graph %d: buffer %d has %u, not %u", graph, i, got, want[i]);
    }
  }
  void run(int number);
};

void Program::run(int number) {
  cudaGraph_t graph, told;
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  launch(0, 1, stream);
  RUNTIME_OK(cudaEventRecord(events[kForks], stream));
  for (int i = 0; i < kForks; ++i) {
    RUNTIME_OK(cudaStreamWaitEvent(forks[i], events[kForks], 0));
    launch(1 + i, 10, forks[i]);
    RUNTIME_OK(cudaEventRecord(events[i], forks[i]));
    RUNTIME_OK(cudaStreamWaitEvent(stream, events[i], 0));
  }
  const std::vector<cudaGraphNode_t> tail = tailOf(stream, &told);
  CHECK(tail.size() >= kForks, "graph %d: %zu nodes at the tail", number, tail.size());
  // Kernel -> copy and host function; a fill beside them.
  cudaGraphNode_t kernel, copy, host, fill;
  uint32_t value = 5;
  void* arguments[] = {&buffers[4], &count, &value};
  cudaKernelNodeParams kernel_params{};
  kernel_params.func = reinterpret_cast<void*>(add);
  kernel_params.gridDim = 1, kernel_params.blockDim = 128;
  kernel_params.kernelParams = arguments;
  RUNTIME_OK(cudaGraphAddKernelNode(&kernel, told, tail.data(), tail.size(), &kernel_params));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&copy, told, &kernel, 1, buffers[5], buffers[4], 4 * count,
                                      cudaMemcpyDeviceToDevice));
  cudaHostNodeParams host_params{call, reinterpret_cast<void*>(size_t(number) + 1)};
  RUNTIME_OK(cudaGraphAddHostNode(&host, told, &kernel, 1, &host_params));
  cudaMemsetParams fill_params{};
  fill_params.dst = buffers[6], fill_params.value = 7, fill_params.elementSize = 4;
  fill_params.width = fill_params.height = 1;
  RUNTIME_OK(cudaGraphAddMemsetNode(&fill, told, tail.data(), 1, &fill_params));
  setTail(stream, {copy, host, fill});
  launch(6, 1000, stream);
  const std::vector<cudaGraphNode_t> last = tailOf(stream, &told);
  CHECK(last.size() == 1, "graph %d: %zu nodes at the end", number, last.size());
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  setValue(last[0], nullptr, 1000, 2000);

  // The nodes' places in a graph around it, and in a clone of that.
  cudaGraph_t around, child, clone;
  cudaGraphNode_t node, in_clone;
  RUNTIME_OK(cudaGraphCreate(&around, 0));
  RUNTIME_OK(cudaGraphAddChildGraphNode(&node, around, nullptr, 0, graph));
  RUNTIME_OK(cudaGraphChildGraphNodeGetGraph(node, &child));
  size_t roots = 1;
  cudaGraphNode_t root;
  RUNTIME_OK(cudaGraphGetRootNodes(child, &root, &roots));
  CHECK(roots == 1, "graph %d: %zu roots", number, roots);
  setValue(root, nullptr, 1, 3);
  RUNTIME_OK(cudaGraphClone(&clone, graph));
  RUNTIME_OK(cudaGraphNodeFindInClone(&in_clone, last[0], clone));
  setValue(in_clone, nullptr, 2000, 3000);

  for (cudaGraph_t one : {graph, around, clone}) {
    RUNTIME_OK(cudaGraphInstantiate(&exec, one, 0));
    uint32_t first = one == around ? 3 : 1, at_end = one == clone ? 3000 : 2000;
    for (int launched = 0; launched < kLaunches; ++launched) {
      if (one == graph && launched == 1) setValue(last[0], exec, 2000, at_end = 4000);
      RUNTIME_OK(cudaGraphLaunch(exec, stream));
      want[0] += first;
      for (int i = 0; i < kForks; ++i) want[1 + i] += 10;
      want[4] += 5, want[5] = want[4], want[6] = 7 + at_end;
      RUNTIME_OK(cudaStreamSynchronize(stream));
      check(number);
    }
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(one));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  Program program;
  program.count = uint32_t(options.bytes / kBuffers / 4);
  for (uint32_t*& buffer : program.buffers) {
    RUNTIME_OK(cudaMalloc(&buffer, 4 * program.count));
    RUNTIME_OK(cudaMemset(buffer, 0, 4 * program.count));
  }
  RUNTIME_OK(cudaStreamCreateWithFlags(&program.stream, cudaStreamNonBlocking));
  for (cudaStream_t& fork : program.forks)
    RUNTIME_OK(cudaStreamCreateWithFlags(&fork, cudaStreamNonBlocking));
  for (cudaEvent_t& event : program.events)
    RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  RUNTIME_OK(cudaDeviceSynchronize());
  int calls = 0;
  for (int graph = 0; graph < kGraphs; ++graph) {
    program.run(graph);
    calls += 3 * kLaunches * (graph + 1);
    CHECK(g_called == calls, "graph %d: host functions counted %d, not %d", graph, g_called.load(),
          calls);
  }
  return apps::ok("capture_nodes: %d graphs", kGraphs);
}
