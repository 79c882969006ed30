// Graphs of the simulated GPU: by capture and by calls, updates, the rules of capture. Long: one
// file for a subject, whose cases share their set-up.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/unit/simmodules/sim_fixture.h"

namespace {

/// A context with the sample's kernels, a stream and a counter in device memory.
class GraphGpu : public Gpu {
 public:
  GraphGpu() {
    increment = function(module(), "increment");
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    sum = upload(std::vector<int>{0});
  }

  CUDA_KERNEL_NODE_PARAMS kernel(int* by) {
    pointers[0] = &sum;
    pointers[1] = by;
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = increment;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers;
    return params;
  }
  int total() { return read<int>(sum); }
  void run(CUgraphExec exec) {
    CU(cuGraphLaunch(exec, stream));
    CU(cuStreamSynchronize(stream));
  }

  CUfunction increment = nullptr;
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUdeviceptr sum = 0;
  void* pointers[2] = {};
};

std::vector<CUgraphNode> nodesOf(CUgraph graph) {
  size_t count = 0;
  CU(cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  if (count != 0) CU(cuGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

CUgraphNodeType typeOf(CUgraphNode node) {
  CUgraphNodeType type{};
  CU(cuGraphNodeGetType(node, &type));
  return type;
}

size_t edgeCount(CUgraph graph) {
  size_t count = 0;
  CU(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  return count;
}

void addOne(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

}  // namespace

TEST_CASE("a captured stream runs nothing; its graph runs it as often as it is launched") {
  GraphGpu gpu;
  std::atomic<int> calls{0};
  std::vector<int> host(4, 5);
  const CUdeviceptr copy = gpu.upload(std::vector<int>(4));
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus status{};
  CU(cuStreamIsCapturing(gpu.stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU(cuMemsetD32Async(gpu.sum, 100, 1, gpu.stream));
  CU(launch(gpu.increment, 1, 32, 0, gpu.stream, gpu.sum, 2));
  CU(cuMemcpyHtoDAsync(copy, host.data(), 16, gpu.stream));
  CU(cuLaunchHostFunc(gpu.stream, addOne, &calls));
  cuuint64_t id = 0;
  CUgraph capturing = nullptr;
  const CUgraphNode* tail = nullptr;
  size_t tail_count = 0;
  CU(cuStreamGetCaptureInfo(gpu.stream, &status, &id, &capturing, &tail, nullptr, &tail_count));
  CHECK(id != 0);
  CHECK(tail_count == 1);
  CHECK(typeOf(tail[0]) == CU_GRAPH_NODE_TYPE_HOST);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(gpu.stream, &graph));
  CHECK(graph == capturing);
  CU(cuStreamSynchronize(gpu.stream));
  CHECK(calls == 0);
  CHECK(gpu.total() == 0);

  const auto nodes = nodesOf(graph);
  REQUIRE(nodes.size() == 4);
  CHECK(typeOf(nodes[0]) == CU_GRAPH_NODE_TYPE_MEMSET);
  CHECK(typeOf(nodes[1]) == CU_GRAPH_NODE_TYPE_KERNEL);
  CHECK(typeOf(nodes[2]) == CU_GRAPH_NODE_TYPE_MEMCPY);
  CHECK(typeOf(nodes[3]) == CU_GRAPH_NODE_TYPE_HOST);
  CHECK(edgeCount(graph) == 3);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  for (int round = 1; round <= 3; ++round) {
    std::fill(host.begin(), host.end(), round);  // read when the graph runs
    gpu.run(exec);
    CHECK(calls == round);
    CHECK(gpu.total() == 164);
    CHECK(gpu.download<int>(copy, 4) == std::vector<int>(4, round));
  }
  CU(cuGraphExecDestroy(exec));
  CHECK(cuGraphLaunch(exec, gpu.stream) != CUDA_SUCCESS);
}

TEST_CASE("a capture forks and joins by events") {
  GraphGpu gpu;
  CUevent fork = nullptr;
  CUevent join = nullptr;
  CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 1));
  CU(cuEventRecord(fork, gpu.stream));
  CU(cuStreamWaitEvent(gpu.other, fork, 0));
  CU(launch(gpu.increment, 1, 1, 0, gpu.other, gpu.sum, 10));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 100));
  CU(cuEventRecord(join, gpu.other));
  CU(cuStreamWaitEvent(gpu.stream, join, 0));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 1000));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(gpu.stream, &graph));
  CHECK(nodesOf(graph).size() == 4);
  CHECK(edgeCount(graph) == 4);
  size_t roots = 0;
  CU(cuGraphGetRootNodes(graph, nullptr, &roots));
  CHECK(roots == 1);
  size_t dependencies = 0;
  CU(cuGraphNodeGetDependencies(nodesOf(graph)[3], nullptr, nullptr, &dependencies));
  CHECK(dependencies == 2);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 1111);

  // Forked work that is not joined makes the capture fail.
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 1));
  CU(cuEventRecord(fork, gpu.stream));
  CU(cuStreamWaitEvent(gpu.other, fork, 0));
  CU(launch(gpu.increment, 1, 1, 0, gpu.other, gpu.sum, 10));
  CHECK(cuStreamEndCapture(gpu.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == nullptr);
  CU(cuStreamSynchronize(gpu.other));
  CHECK(gpu.total() == 1111);
}

TEST_CASE("what a capture forbids invalidates it") {
  GraphGpu gpu;
  CUgraph graph = nullptr;
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(cuStreamSynchronize(gpu.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 1) ==
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamEndCapture(gpu.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == nullptr);

  // Loading code is allowed, as on hardware.
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, loadSample("sample.ptx").data()));
  CU(cuStreamEndCapture(gpu.stream, &graph));
  CHECK(nodesOf(graph).empty());
  CHECK(cuStreamEndCapture(gpu.stream, &graph) != CUDA_SUCCESS);
  CHECK(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("capture into a graph of the caller's") {
  GraphGpu gpu;
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  int by = 5;
  const auto params = gpu.kernel(&by);
  CUgraphNode first = nullptr;
  CU(cuGraphAddKernelNode(&first, graph, nullptr, 0, &params));
  CU(cuStreamBeginCaptureToGraph(gpu.stream, graph, &first, nullptr, 1,
                                 CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 7));
  CUgraph same = nullptr;
  CU(cuStreamEndCapture(gpu.stream, &same));
  CHECK(same == graph);
  CHECK(nodesOf(graph).size() == 2);
  CHECK(edgeCount(graph) == 1);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 12);
}

TEST_CASE("graphs by calls: all kinds of nodes in order") {
  GraphGpu gpu;
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CHECK(cuGraphCreate(&graph, 1) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS set{gpu.sum, 0, 10, 4, 1, 1};
  CUgraphNode memset_node = nullptr;
  CU(cuGraphAddMemsetNode(&memset_node, graph, nullptr, 0, &set, gpu.context));
  int by = 5;
  auto kernel = gpu.kernel(&by);
  CUgraphNode kernel_node = nullptr;
  CU(cuGraphAddKernelNode(&kernel_node, graph, &memset_node, 1, &kernel));
  by = 1000;  // copied when the node was made
  int result = 0;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = gpu.sum;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = &result;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode copy_node = nullptr;
  CU(cuGraphAddMemcpyNode(&copy_node, graph, &kernel_node, 1, &copy, gpu.context));
  std::atomic<int> calls{0};
  CUDA_HOST_NODE_PARAMS host{addOne, &calls};
  CUgraphNode host_node = nullptr;
  CU(cuGraphAddHostNode(&host_node, graph, nullptr, 0, &host));
  CUgraphNode empty = nullptr;
  const CUgraphNode both[] = {copy_node, host_node};
  CU(cuGraphAddEmptyNode(&empty, graph, both, 2));
  CHECK(cuGraphAddEmptyNode(&empty, graph, &memset_node, 0) == CUDA_SUCCESS);

  // Cyclic graphs do not instantiate.
  CU(cuGraphAddDependencies(graph, &copy_node, &memset_node, nullptr, 1));
  CUgraphExec exec = nullptr;
  CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphRemoveDependencies(graph, &copy_node, &memset_node, nullptr, 1));
  CHECK(cuGraphRemoveDependencies(graph, &copy_node, &memset_node, nullptr, 1) ==
        CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphAddDependencies(graph, &memset_node, &host_node, nullptr, 1));
  CHECK(cuGraphAddDependencies(graph, &memset_node, &host_node, nullptr, 1) ==
        CUDA_ERROR_INVALID_VALUE);

  CU(cuGraphInstantiate(&exec, graph, 0));
  gpu.run(exec);
  CHECK(result == 15);
  CHECK(calls == 1);

  CUDA_KERNEL_NODE_PARAMS read{};
  CU(cuGraphKernelNodeGetParams(kernel_node, &read));
  CHECK(read.func == gpu.increment);
  CHECK(read.gridDimX == 1);
  CHECK(*static_cast<int*>(read.kernelParams[1]) == 5);
  CUDA_MEMSET_NODE_PARAMS read_set{};
  CU(cuGraphMemsetNodeGetParams(memset_node, &read_set));
  CHECK(read_set.value == 10);
  CUDA_MEMCPY3D read_copy{};
  CU(cuGraphMemcpyNodeGetParams(copy_node, &read_copy));
  CHECK(read_copy.dstHost == &result);
  CUDA_HOST_NODE_PARAMS read_host{};
  CU(cuGraphHostNodeGetParams(host_node, &read_host));
  CHECK(read_host.userData == &calls);
  CHECK(cuGraphKernelNodeGetParams(memset_node, &read) == CUDA_ERROR_INVALID_VALUE);

  // Changing the graph's nodes changes later instances, changing the instance only that one.
  kernel = gpu.kernel(&by);
  by = 20;
  CU(cuGraphKernelNodeSetParams(kernel_node, &kernel));
  gpu.run(exec);
  CHECK(result == 15);
  by = 30;
  CU(cuGraphExecKernelNodeSetParams(exec, kernel_node, &kernel));
  set.value = 1;
  CU(cuGraphExecMemsetNodeSetParams(exec, memset_node, &set, gpu.context));
  int elsewhere = 0;
  copy.dstHost = &elsewhere;
  CU(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, gpu.context));
  std::atomic<int> more{0};
  host.userData = &more;
  CU(cuGraphExecHostNodeSetParams(exec, host_node, &host));
  gpu.run(exec);
  CHECK(elsewhere == 31);
  CHECK(result == 15);
  CHECK(more == 1);
  CUgraphExec second = nullptr;
  CU(cuGraphInstantiate(&second, graph, 0));
  gpu.run(second);
  CHECK(result == 30);
  CU(cuGraphNodeSetEnabled(second, kernel_node, 0));
  unsigned enabled = 7;
  CU(cuGraphNodeGetEnabled(second, kernel_node, &enabled));
  CHECK(enabled == 0);
  gpu.run(second);
  CHECK(result == 10);
  CU(cuGraphDestroyNode(kernel_node));
  CHECK(nodesOf(graph).size() == 5);
  CHECK(cuGraphDestroyNode(kernel_node) == CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphExecDestroy(second));
  CU(cuGraphDestroy(graph));
  CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE(
    "a copy or memset node over an address where nothing is mapped is refused when it is made") {
  GraphGpu gpu;
  CUdeviceptr nowhere = 0;
  CU(cuMemAddressReserve(&nowhere, 2 << 20, 0, 0, 0));
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS set{nowhere, 0, 9, 4, 1, 1};
  CUgraphNode node = nullptr;
  CHECK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, gpu.context) ==
        CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = nowhere;
  copy.dstDevice = gpu.sum;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CHECK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, gpu.context) ==
        CUDA_ERROR_INVALID_VALUE);
  std::swap(copy.srcDevice, copy.dstDevice);
  CHECK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, gpu.context) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(nodesOf(graph).empty());
  copy.dstDevice = gpu.sum;
  CU(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, gpu.context));
  auto beyond = copy;  // more rows than a slice has
  beyond.srcHeight = beyond.dstHeight = 1;
  beyond.Height = 2;
  CHECK(cuGraphMemcpyNodeSetParams(node, &beyond) == CUDA_ERROR_INVALID_VALUE);
  copy.dstDevice = nowhere;
  CHECK(cuGraphMemcpyNodeSetParams(node, &copy) == CUDA_ERROR_INVALID_VALUE);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CHECK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, gpu.context) == CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuMemAddressFree(nowhere, 2 << 20));
}

TEST_CASE("what an instance may change of copies and memsets, and when their memory is looked at") {
  GraphGpu gpu;
  constexpr size_t kBytes = 2 << 20;
  // One range, that a chunk of VRAM and one of host memory are mapped at in turns.
  CUdeviceptr window = 0;
  CU(cuMemAddressReserve(&window, kBytes, 0, 0, 0));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle vram = 0, host = 0;
  CU(cuMemCreate(&vram, kBytes, &properties, 0));
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CU(cuMemCreate(&host, kBytes, &properties, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  bool mapped = false;
  const auto place = [&](CUmemGenericAllocationHandle handle) {  // 0: nothing
    if (mapped) CU(cuMemUnmap(window, kBytes));
    mapped = handle != 0;
    if (!mapped) return;
    CU(cuMemMap(window, kBytes, 0, handle, 0));
    CU(cuMemSetAccess(window, kBytes, &access, 1));
  };
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = window;
  copy.dstDevice = gpu.sum;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUDA_MEMSET_NODE_PARAMS set{window, 0, 9, 4, 1, 1};

  for (const bool as_child : {false, true}) {
    place(vram);
    CUgraph inner = nullptr;
    CUgraphNode copy_node = nullptr, set_node = nullptr;
    CU(cuGraphCreate(&inner, 0));
    CU(cuGraphAddMemsetNode(&set_node, inner, nullptr, 0, &set, gpu.context));
    CU(cuGraphAddMemcpyNode(&copy_node, inner, &set_node, 1, &copy, gpu.context));
    CUgraph graph = inner;
    CUgraphNode child_node = nullptr;
    if (as_child) {
      CU(cuGraphCreate(&graph, 0));
      CU(cuGraphAddChildGraphNode(&child_node, graph, nullptr, 0, inner));
    }
    CUgraphExec exec = nullptr;
    CUgraphNode culprit = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS how{};
    place(0);
    CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphInstantiateWithParams(&exec, graph, &how) == CUDA_ERROR_INVALID_VALUE);
    CHECK(how.result_out == CUDA_GRAPH_INSTANTIATE_ERROR);
    culprit = how.hErrNode_out;
    REQUIRE(culprit != nullptr);
    CHECK(typeOf(culprit) == CU_GRAPH_NODE_TYPE_MEMSET);
    // Copies are not looked at then.
    CUgraph only_copy = nullptr;
    CUgraphNode copied = nullptr;
    CU(cuGraphClone(&only_copy, inner));
    CU(cuGraphNodeFindInClone(&copied, set_node, only_copy));
    CU(cuGraphDestroyNode(copied));
    CU(cuGraphInstantiate(&exec, only_copy, 0));
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(only_copy));
    place(vram);
    CU(cuGraphInstantiate(&exec, graph, 0));
    gpu.run(exec);
    CHECK(gpu.total() == 9);

    // The place of the memory does not matter as long as it is mapped.
    CUgraphExecUpdateResultInfo info{};
    place(host);
    CU(cuGraphExecUpdate(exec, graph, &info));
    gpu.run(exec);
    place(0);
    CU(cuGraphExecUpdate(exec, graph, &info));  // nothing changed, so nothing is looked at
    if (as_child) {
      CU(cuGraphExecChildGraphNodeSetParams(exec, child_node, inner));
    } else {
      CHECK(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CHECK(cuGraphExecMemsetNodeSetParams(exec, set_node, &set, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
    }
    place(vram);
    CU(cuGraphExecUpdate(exec, graph, &info));
    if (as_child) {
      CU(cuGraphExecChildGraphNodeSetParams(exec, child_node, inner));
    } else {
      CU(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, gpu.context));
      CU(cuGraphExecMemsetNodeSetParams(exec, set_node, &set, gpu.context));
      // Nothing can become what has more than one dimension, or no bytes.
      auto rows = copy;
      rows.Height = 2;
      rows.srcPitch = rows.dstPitch = 4;
      rows.dstDevice = window + 64;
      auto none = copy;
      none.WidthInBytes = 0;
      auto block = set;
      block.height = 2;
      block.pitch = 4;
      CHECK(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &rows, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CHECK(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &none, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CHECK(cuGraphExecMemsetNodeSetParams(exec, set_node, &block, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      const auto refused = [&](CUgraphNode node) {
        CHECK(cuGraphExecUpdate(exec, graph, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
        CHECK(info.errorNode == node);
      };
      CU(cuGraphMemcpyNodeSetParams(copy_node, &rows));
      refused(copy_node);
      CU(cuGraphMemcpyNodeSetParams(copy_node, &copy));
      CU(cuGraphMemsetNodeSetParams(set_node, &block));
      refused(set_node);
      // Mapped and allocated memory are two kinds to a copy, one to a memset.
      auto allocated = copy;
      allocated.srcDevice = gpu.sum;
      CHECK(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &allocated, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CU(cuGraphMemcpyNodeSetParams(copy_node, &allocated));
      CU(cuGraphMemsetNodeSetParams(set_node, &set));
      refused(copy_node);
      CU(cuGraphMemcpyNodeSetParams(copy_node, &copy));
      auto elsewhere = set;
      elsewhere.dst = gpu.sum;
      CU(cuGraphExecMemsetNodeSetParams(exec, set_node, &elsewhere, gpu.context));
      CU(cuGraphExecMemsetNodeSetParams(exec, set_node, &set, gpu.context));
      CU(cuGraphMemsetNodeSetParams(set_node, &elsewhere));
      CU(cuGraphExecUpdate(exec, graph, &info));

      // An operation of more than one dimension stays so: a copy as it is, a memset at other
      // addresses and with other values.
      CU(cuGraphMemcpyNodeSetParams(copy_node, &rows));
      CU(cuGraphMemsetNodeSetParams(set_node, &block));
      CU(cuGraphExecDestroy(exec));
      CU(cuGraphInstantiate(&exec, graph, 0));
      CU(cuGraphExecUpdate(exec, graph, &info));
      auto other_rows = rows;
      other_rows.srcDevice += 8;
      CHECK(cuGraphExecMemcpyNodeSetParams(exec, copy_node, &other_rows, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CU(cuGraphMemcpyNodeSetParams(copy_node, &other_rows));
      refused(copy_node);
      CU(cuGraphMemcpyNodeSetParams(copy_node, &rows));
      auto other_block = block;
      other_block.dst += 8;
      other_block.value = 5;
      CU(cuGraphExecMemsetNodeSetParams(exec, set_node, &other_block, gpu.context));
      auto taller = block;
      taller.height = 3;
      CHECK(cuGraphExecMemsetNodeSetParams(exec, set_node, &taller, gpu.context) ==
            CUDA_ERROR_INVALID_VALUE);
      CU(cuGraphMemsetNodeSetParams(set_node, &taller));
      refused(set_node);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuGraphDestroy(graph));
    if (as_child) CU(cuGraphDestroy(inner));
  }
  place(0);
  CU(cuMemRelease(vram));
  CU(cuMemRelease(host));
  CU(cuMemAddressFree(window, kBytes));
}

TEST_CASE("an instance takes over a graph of the same shape and names what differs") {
  GraphGpu gpu;
  const auto capture = [&](int by, int count) {
    CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < count; ++i) CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, by));
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(gpu.stream, &graph));
    return graph;
  };
  const CUgraph graph = capture(1, 3);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 3);
  CUgraphExecUpdateResultInfo info{};
  CU(cuGraphExecUpdate(exec, capture(10, 3), &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  gpu.run(exec);
  CHECK(gpu.total() == 33);
  CHECK(cuGraphExecUpdate(exec, capture(10, 4), &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CUgraph other = nullptr;
  CU(cuGraphCreate(&other, 0));
  std::vector<CUgraphNode> nodes(3);
  for (size_t i = 0; i < 3; ++i)
    CU(cuGraphAddEmptyNode(&nodes[i], other, i != 0 ? &nodes[i - 1] : nullptr, i != 0 ? 1 : 0));
  CHECK(cuGraphExecUpdate(exec, other, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  CHECK(info.errorNode == nodes[0]);
  gpu.run(exec);
  CHECK(gpu.total() == 63);

  // A node of the graph that the instance was made from still names its counterpart.
  int by = 100;
  const auto params = gpu.kernel(&by);
  CU(cuGraphExecKernelNodeSetParams(exec, nodesOf(graph)[0], &params));
  gpu.run(exec);
  CHECK(gpu.total() == 183);
}

TEST_CASE("child graphs and clones are copies") {
  GraphGpu gpu;
  CUgraph child = nullptr;
  CU(cuGraphCreate(&child, 0));
  int by = 1;
  auto kernel = gpu.kernel(&by);
  CUgraphNode inner = nullptr;
  CU(cuGraphAddKernelNode(&inner, child, nullptr, 0, &kernel));
  CUgraph parent = nullptr;
  CU(cuGraphCreate(&parent, 0));
  CUgraphNode child_node = nullptr;
  CU(cuGraphAddChildGraphNode(&child_node, parent, nullptr, 0, child));
  CUgraph embedded = nullptr;
  CU(cuGraphChildGraphNodeGetGraph(child_node, &embedded));
  CHECK(embedded != child);
  by = 10;
  CU(cuGraphKernelNodeSetParams(inner, &kernel));  // not seen by the copy
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, parent, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 1);
  by = 100;
  CU(cuGraphExecKernelNodeSetParams(exec, nodesOf(embedded)[0], &kernel));
  gpu.run(exec);
  CHECK(gpu.total() == 101);
  CU(cuGraphExecChildGraphNodeSetParams(exec, child_node, child));
  gpu.run(exec);
  CHECK(gpu.total() == 111);

  CUgraph clone = nullptr;
  CU(cuGraphClone(&clone, child));
  CUgraphNode found = nullptr;
  CU(cuGraphNodeFindInClone(&found, inner, clone));
  CHECK(found != inner);
  CHECK(typeOf(found) == CU_GRAPH_NODE_TYPE_KERNEL);
  CHECK(cuGraphNodeFindInClone(&found, child_node, clone) == CUDA_ERROR_INVALID_VALUE);
  CU(cuGraphDestroy(child));
  CU(cuGraphInstantiate(&exec, clone, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 121);

  // A graph that is launched into a capture becomes a child.
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU(cuGraphLaunch(exec, gpu.stream));
  CU(launch(gpu.increment, 1, 1, 0, gpu.stream, gpu.sum, 1000));
  CUgraph outer = nullptr;
  CU(cuStreamEndCapture(gpu.stream, &outer));
  CHECK(typeOf(nodesOf(outer)[0]) == CU_GRAPH_NODE_TYPE_GRAPH);
  CU(cuGraphInstantiate(&exec, outer, 0));
  gpu.run(exec);
  CHECK(gpu.total() == 1131);
}

TEST_CASE("event nodes order streams") {
  GraphGpu gpu;
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  int by = 4;
  const auto kernel = gpu.kernel(&by);
  CUgraphNode first = nullptr;
  CU(cuGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
  CUgraphNode record = nullptr;
  CU(cuGraphAddEventRecordNode(&record, graph, &first, 1, event));
  CUevent read = nullptr;
  CU(cuGraphEventRecordNodeGetEvent(record, &read));
  CHECK(read == event);
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, gpu.stream));
  CU(cuStreamSynchronize(gpu.stream));
  CU(cuEventSynchronize(event));
  CHECK(gpu.total() == 4);
  CUgraph waiting = nullptr;
  CU(cuGraphCreate(&waiting, 0));
  CUgraphNode wait = nullptr;
  CU(cuGraphAddEventWaitNode(&wait, waiting, nullptr, 0, event));
  CU(cuGraphInstantiate(&exec, waiting, 0));
  gpu.run(exec);
}

TEST_CASE("an event node means the event as it is at the launch") {
  GraphGpu gpu;
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  // Each launch waits for the one before, and not for itself.
  CUgraphNode wait = nullptr, first = nullptr, record = nullptr;
  CU(cuGraphAddEventWaitNode(&wait, graph, nullptr, 0, event));
  int by = 4;
  const auto kernel = gpu.kernel(&by);
  CU(cuGraphAddKernelNode(&first, graph, &wait, 1, &kernel));
  CU(cuGraphAddEventRecordNode(&record, graph, &first, 1, event));
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  std::atomic<bool> go{false};
  CU(cuLaunchHostFunc(
      gpu.stream,
      [](void* data) {
        while (!static_cast<std::atomic<bool>*>(data)->load()) std::this_thread::yield();
      },
      &go));
  CU(cuGraphLaunch(exec, gpu.stream));
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CU(cuGraphLaunch(exec, gpu.stream));
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  go.store(true);
  CU(cuEventSynchronize(event));
  CHECK(gpu.total() == 8);
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  CU(cuEventDestroy(event));
}

TEST_CASE("memory that a graph allocates lives as long as the graph") {
  GraphGpu gpu;
  size_t before = 0;
  size_t total = 0;
  CU(cuMemGetInfo(&before, &total));
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  alloc.poolProps.location.id = 0;
  alloc.bytesize = 8 << 20;
  CUgraphNode alloc_node = nullptr;
  CU(cuGraphAddMemAllocNode(&alloc_node, graph, nullptr, 0, &alloc));
  REQUIRE(alloc.dptr != 0);
  CUDA_MEMSET_NODE_PARAMS set{alloc.dptr, 0, 9, 4, 1, 1};
  CUgraphNode set_node = nullptr;
  CU(cuGraphAddMemsetNode(&set_node, graph, &alloc_node, 1, &set, gpu.context));
  CUDA_MEMCPY3D copy{};
  int result = 0;
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = alloc.dptr;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = &result;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode copy_node = nullptr;
  CU(cuGraphAddMemcpyNode(&copy_node, graph, &set_node, 1, &copy, gpu.context));
  CUgraphNode free_node = nullptr;
  CU(cuGraphAddMemFreeNode(&free_node, graph, &copy_node, 1, alloc.dptr));
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) {
    result = 0;
    gpu.run(exec);
    CHECK(result == 9);
  }
  cuuint64_t used = 0;
  CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used == 0);
  CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &used));
  CHECK(used == 8 << 20);
  CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  CHECK(used == 8 << 20);
  CU(cuGraphExecDestroy(exec));
  size_t after = 0;
  CU(cuMemGetInfo(&after, &total));
  CHECK(after == before);

  // By capture.
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr address = 0;
  CU(cuMemAllocAsync(&address, 1 << 20, gpu.stream));
  REQUIRE(address != 0);
  CU(cuMemsetD32Async(address, 21, 4, gpu.stream));
  CU(cuMemcpyDtoDAsync(gpu.sum, address, 4, gpu.stream));
  CU(cuMemFreeAsync(address, gpu.stream));
  CU(cuStreamEndCapture(gpu.stream, &graph));
  CHECK(nodesOf(graph).size() == 4);
  CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    CU(cuMemsetD32(gpu.sum, 0, 1));
    CU(cuCtxSynchronize());
    gpu.run(exec);
    CHECK(gpu.total() == 21);
  }
}

TEST_CASE("kernel attributes, generic parameters, user objects, what is not supported") {
  GraphGpu gpu;
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  int by = 3;
  const auto kernel = gpu.kernel(&by);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = kernel.func;
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = kernel.kernelParams;
  CUgraphNode node = nullptr;
  CU(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  CUkernelNodeAttrValue value{};
  value.priority = -1;
  CU(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  CUkernelNodeAttrValue read{};
  CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &read));
  CHECK(read.priority == -1);
  CUgraphNode second = nullptr;
  const CUgraphEdgeData programmatic{
      CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, 0, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, {}};
  CU(cuGraphAddNode(&second, graph, &node, &programmatic, 1, &params));
  CU(cuGraphKernelNodeCopyAttributes(second, node));
  CU(cuGraphKernelNodeGetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &read));
  CHECK(read.priority == -1);
  size_t count = 1;
  CUgraphNode before = nullptr;
  CUgraphEdgeData data{};
  CU(cuGraphNodeGetDependencies(second, &before, &data, &count));
  CHECK(before == node);
  CHECK(data.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  CHECK(cuGraphNodeGetDependencies(second, &before, nullptr, &count) == CUDA_ERROR_LOSSY_QUERY);

  std::atomic<int> destroyed{0};
  CUuserObject object = nullptr;
  CU(cuUserObjectCreate(&object, &destroyed, addOne, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CU(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiate{};
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiateWithParams(&exec, graph, &instantiate));
  CHECK(instantiate.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  CU(cuGraphUpload(exec, gpu.stream));
  CU(cuGraphDestroy(graph));
  CHECK(destroyed == 0);
  gpu.run(exec);
  CHECK(gpu.total() == 6);
  CU(cuGraphExecDestroy(exec));
  CHECK(destroyed == 1);

  CU(cuGraphCreate(&graph, 0));
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  CHECK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) ==
        CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a faulting node ends the graph and the context", "[.][fault]") {
  GraphGpu gpu;
  const CUfunction store = gpu.function(gpu.module(), "storeTo");
  CU(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU(launch(store, 1, 1, 0, gpu.stream, CUdeviceptr{0x1000}));
  std::atomic<int> calls{0};
  CU(cuLaunchHostFunc(gpu.stream, addOne, &calls));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(gpu.stream, &graph));
  CUgraphExec exec = nullptr;
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, gpu.stream));
  CHECK(cuStreamSynchronize(gpu.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(calls == 0);
}
