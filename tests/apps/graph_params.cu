// Parameters of a graph's nodes: those of kernels, copies, fills and host functions, added and
// captured, are asked for, changed, and set again in the graph and in the executable graph, by the
// functions of each kind and by the general ones; attributes of kernel nodes.
#include "common.h"

namespace {

constexpr unsigned kCount = 4096;

__global__ void scale(uint32_t* data, unsigned count, uint32_t factor, uint64_t offset) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * factor + uint32_t(offset);
}

struct Calls {
  int first = 0, second = 0;
};
void CUDART_CB callFirst(void* data) { ++static_cast<Calls*>(data)->first; }
void CUDART_CB callSecond(void* data) { ++static_cast<Calls*>(data)->second; }

// The node of the only kind in the graph.
cudaGraphNode_t nodeOf(cudaGraph_t graph, cudaGraphNodeType type) {
  cudaGraphNode_t nodes[16];
  size_t count = 16;
  RUNTIME_OK(cudaGraphGetNodes(graph, nodes, &count));
  for (size_t i = 0; i < count; ++i) {
    cudaGraphNodeType is;
    RUNTIME_OK(cudaGraphNodeGetType(nodes[i], &is));
    if (is == type) return nodes[i];
  }
  apps::fail("no node of type %d", int(type));
}

uint32_t valueIn(const uint32_t* there, unsigned at) {
  uint32_t value = 0;
  RUNTIME_OK(cudaMemcpy(&value, there + at, 4, cudaMemcpyDeviceToHost));
  return value;
}

void checkKernel(cudaGraphNode_t node, const uint32_t* data, unsigned count, uint32_t factor,
                 uint64_t offset) {
  CUDA_KERNEL_NODE_PARAMS params{};
  DRIVER_OK(cuGraphKernelNodeGetParams(node, &params));
  CHECK(params.gridDimX == kCount / 256 && params.gridDimY == 1 && params.blockDimX == 256 &&
            params.sharedMemBytes == 0,
        "a grid of %u x %u blocks of %u threads", params.gridDimX, params.gridDimY,
        params.blockDimX);
  CHECK(params.kernelParams != nullptr && (params.func != nullptr || params.kern != nullptr),
        "no kernel or no parameters");
  CHECK(*static_cast<uint32_t**>(params.kernelParams[0]) == data,
        "the first parameter is another address");
  CHECK(*static_cast<unsigned*>(params.kernelParams[1]) == count &&
            *static_cast<uint32_t*>(params.kernelParams[2]) == factor &&
            *static_cast<uint64_t*>(params.kernelParams[3]) == offset,
        "parameters are %u, %u, %llu", *static_cast<unsigned*>(params.kernelParams[1]),
        *static_cast<uint32_t*>(params.kernelParams[2]),
        static_cast<unsigned long long>(*static_cast<uint64_t*>(params.kernelParams[3])));
}

struct Expected {
  uint32_t value;
  int first, second;
};
void launchAndCheck(cudaGraphExec_t exec, cudaStream_t stream, const uint32_t* data, Calls& calls,
                    Expected expected, const char* what) {
  calls = {};
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  const uint32_t got = valueIn(data, 7);
  CHECK(got == expected.value && calls.first == expected.first && calls.second == expected.second,
        "%s: the value is %u, expected %u; host functions were called %d and %d times", what, got,
        expected.value, calls.first, calls.second);
}

void tryGraph(cudaGraph_t graph, cudaStream_t stream, uint32_t* data, Calls& calls,
              const char* how) {
  const cudaGraphNode_t kernel = nodeOf(graph, cudaGraphNodeTypeKernel),
                        fill = nodeOf(graph, cudaGraphNodeTypeMemset),
                        host = nodeOf(graph, cudaGraphNodeTypeHost);
  checkKernel(kernel, data, kCount, 3, 5);
  cudaMemsetParams filled{};
  RUNTIME_OK(cudaGraphMemsetNodeGetParams(fill, &filled));
  CHECK(filled.dst == data && filled.value == 2 && filled.elementSize == 4 &&
            filled.width * filled.height == kCount,
        "%s: a fill of %zu x %zu with %u", how, filled.width, filled.height, filled.value);
  cudaHostNodeParams called{};
  RUNTIME_OK(cudaGraphHostNodeGetParams(host, &called));
  CHECK(called.fn == callFirst && called.userData == &calls, "%s: another host function", how);
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  launchAndCheck(exec, stream, data, calls, {2 * 3 + 5, 1, 0}, how);

  // Values that were read are changed and set: in the executable graph, then in the graph.
  CUDA_KERNEL_NODE_PARAMS params{};
  DRIVER_OK(cuGraphKernelNodeGetParams(kernel, &params));
  // The told parameters belong to the node: pointers are copied, one of them changed.
  uint32_t factor = 10;
  void* changed[4];
  std::memcpy(changed, params.kernelParams, sizeof changed);
  changed[2] = &factor;
  params.kernelParams = changed;
  DRIVER_OK(cuGraphExecKernelNodeSetParams(exec, kernel, &params));
  called.fn = callSecond;
  RUNTIME_OK(cudaGraphExecHostNodeSetParams(exec, host, &called));
  launchAndCheck(exec, stream, data, calls, {2 * 10 + 5, 0, 1}, "set in the executable graph");
  checkKernel(kernel, data, kCount, 3, 5);  // the graph itself is as it was

  cudaGraphNodeParams general{};
  general.type = cudaGraphNodeTypeMemset;
  general.memset.dst = data, general.memset.value = 7, general.memset.elementSize = 4,
  general.memset.width = kCount;
  general.memset.height = 1;
  RUNTIME_OK(cudaGraphExecNodeSetParams(exec, fill, &general));
  launchAndCheck(exec, stream, data, calls, {7 * 10 + 5, 0, 1},
                 "a fill set by the general function");
  RUNTIME_OK(cudaGraphExecDestroy(exec));

  uint64_t offset = 1000;
  DRIVER_OK(cuGraphKernelNodeGetParams(kernel, &params));
  std::memcpy(changed, params.kernelParams, sizeof changed);
  changed[3] = &offset;
  params.kernelParams = changed;
  DRIVER_OK(cuGraphKernelNodeSetParams(kernel, &params));
  checkKernel(kernel, data, kCount, 3, offset);
  RUNTIME_OK(cudaGraphHostNodeSetParams(host, &called));
  general = {};
  general.type = cudaGraphNodeTypeHost;
  general.host.fn = callFirst, general.host.userData = &calls;
  RUNTIME_OK(cudaGraphNodeSetParams(host, &general));
  RUNTIME_OK(cudaGraphHostNodeGetParams(host, &called));
  CHECK(called.fn == callFirst, "%s: the host function that was set is not the node's", how);
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  launchAndCheck(exec, stream, data, calls, {2 * 3 + 1000, 1, 0}, "set in the graph");
  RUNTIME_OK(cudaGraphExecDestroy(exec));

  cudaKernelNodeAttrValue value{};
  value.priority = 0;
  RUNTIME_OK(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributePriority, &value));
  value.priority = -77;
  RUNTIME_OK(cudaGraphKernelNodeGetAttribute(kernel, cudaLaunchAttributePriority, &value));
  CHECK(value.priority == 0, "%s: a priority of %d", how, value.priority);
  value = {};
  value.cooperative = 1;
  RUNTIME_OK(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributeCooperative, &value));
  value = {};
  RUNTIME_OK(cudaGraphKernelNodeGetAttribute(kernel, cudaLaunchAttributeCooperative, &value));
  CHECK(value.cooperative == 1, "%s: not cooperative", how);
}

void tryCopy(cudaStream_t stream, uint32_t* data) {
  cudaGraph_t graph;
  cudaGraphNode_t node;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, data + kCount / 2, data, 1024,
                                      cudaMemcpyDeviceToDevice));
  CUDA_MEMCPY3D copy{};
  DRIVER_OK(cuGraphMemcpyNodeGetParams(node, &copy));
  CHECK(copy.WidthInBytes == 1024 && copy.Height == 1 && copy.Depth == 1,
        "a copy of %zu x %zu x %zu", copy.WidthInBytes, copy.Height, copy.Depth);
  CHECK(copy.srcDevice == reinterpret_cast<CUdeviceptr>(data) &&
            copy.dstDevice == reinterpret_cast<CUdeviceptr>(data + kCount / 2),
        "a copy between other places");
  copy.srcDevice += 4;
  DRIVER_OK(cuGraphMemcpyNodeSetParams(node, &copy));
  std::vector<uint32_t> here(kCount);
  for (unsigned i = 0; i < kCount; ++i) here[i] = i;
  RUNTIME_OK(cudaMemcpy(data, here.data(), kCount * 4, cudaMemcpyHostToDevice));
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  const uint32_t got = valueIn(data, kCount / 2 + 10);
  CHECK(got == 11, "the copy brought %u", got);
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

// A kernel whose parameters came as a block (`extra`): what it computes is the same, also where
// another block is set.
void tryBlock(cudaStream_t stream, uint32_t* data, cudaGraphNode_t like) {
  struct Block {
    uint32_t* data;
    unsigned count;
    uint32_t factor;
    uint64_t offset;
  } block{data, kCount, 3, 5};
  size_t bytes = sizeof block;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS params{}, told{};
  DRIVER_OK(cuGraphKernelNodeGetParams(like, &params));
  params.kernelParams = nullptr, params.extra = extra;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUgraphNode node;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  const auto launched = [&](uint32_t expected, const char* how) {
    DRIVER_OK(cuMemsetD32(reinterpret_cast<CUdeviceptr>(data), 2, kCount));
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    const uint32_t got = valueIn(data, 7);
    CHECK(got == expected, "%s: the value is %u, expected %u", how, got, expected);
  };
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  launched(2 * 3 + 5, "a block");
  block.factor = 10;
  DRIVER_OK(cuGraphExecKernelNodeSetParams(exec, node, &params));
  launched(2 * 10 + 5, "a block set in the executable graph");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  DRIVER_OK(cuGraphKernelNodeGetParams(node, &told));
  CHECK((told.kernelParams == nullptr) != (told.extra == nullptr),
        "parameters are told in both ways, or in none");
  if (told.kernelParams != nullptr)
    CHECK(*static_cast<uint32_t*>(told.kernelParams[2]) == 3,
          "a block's third parameter is another");
  // The answer is the driver's own: where it refuses, the node is as it was.
  cudaKernelNodeAttrValue value{};
  value.cooperative = 1;
  const cudaError_t said =
      cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeCooperative, &value);
  (void)cudaGetLastError();
  std::printf("a node by block: told by %s, asked to be cooperative: error %d\n",
              told.extra != nullptr ? "block" : "pointers", int(said));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  launched(2 * 3 + 5, "a block, asked to be cooperative");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  uint32_t* data;
  cudaStream_t stream;
  Calls calls;
  RUNTIME_OK(cudaMalloc(&data, kCount * 4));
  RUNTIME_OK(cudaStreamCreate(&stream));
  unsigned count = kCount;
  uint32_t factor = 3;
  uint64_t offset = 5;

  cudaGraph_t added, captured;
  RUNTIME_OK(cudaGraphCreate(&added, 0));
  cudaGraphNode_t fill, kernel, host;
  cudaMemsetParams filled{};
  filled.dst = data, filled.value = 2, filled.elementSize = 4, filled.width = kCount,
  filled.height = 1;
  RUNTIME_OK(cudaGraphAddMemsetNode(&fill, added, nullptr, 0, &filled));
  void* parameters[] = {&data, &count, &factor, &offset};
  cudaKernelNodeParams launched{};
  launched.func = reinterpret_cast<void*>(scale);
  launched.gridDim = dim3(kCount / 256), launched.blockDim = dim3(256),
  launched.kernelParams = parameters;
  RUNTIME_OK(cudaGraphAddKernelNode(&kernel, added, &fill, 1, &launched));
  cudaHostNodeParams called{callFirst, &calls};
  RUNTIME_OK(cudaGraphAddHostNode(&host, added, &kernel, 1, &called));
  cudaKernelNodeParams again{};
  RUNTIME_OK(cudaGraphKernelNodeGetParams(kernel, &again));
  CHECK(again.func == reinterpret_cast<void*>(scale), "the node's kernel is another");
  tryGraph(added, stream, data, calls, "added");
  RUNTIME_OK(cudaGraphDestroy(added));

  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUdeviceptr there = reinterpret_cast<CUdeviceptr>(data);
  DRIVER_OK(cuMemsetD32Async(there, 2, kCount, stream));
  scale<<<kCount / 256, 256, 0, stream>>>(data, count, factor, offset);
  RUNTIME_OK(cudaLaunchHostFunc(stream, callFirst, &calls));
  RUNTIME_OK(cudaStreamEndCapture(stream, &captured));
  tryGraph(captured, stream, data, calls, "captured");
  tryBlock(stream, data, nodeOf(captured, cudaGraphNodeTypeKernel));
  RUNTIME_OK(cudaGraphDestroy(captured));
  tryCopy(stream, data);
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaFree(data));
  return apps::ok("graph_params: added and captured");
}
