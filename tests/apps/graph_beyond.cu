// Graphs that reach all of the program's memory, several times what VRAM has room for: captured and
// added, with branches, copies of all kinds, fills, host functions, child graphs, events and memory
// operations. Executable graphs are updated in each way between launches, before and after the
// first one; outlive the graphs that they were made of, and changes of these; are launched in
// several streams and inside a capture; and go while they run. The result of a launch is always
// that of the same operations one after the other.
#include <functional>
#include <vector>

#include "common.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;
constexpr unsigned kThreads = 256, kBlocks = 8;
constexpr unsigned kWords = kThreads * kBlocks;    // of each buffer that kernels work on,
constexpr unsigned kStride = kPiece / 4 / kWords;  // this far apart
constexpr size_t kCopied = size_t{4} * kStride * kWords / 2;  // bytes: the first half of the words

// Parameters of unlike sizes; what it does depends on the order of launches.
__global__ void mix(uint32_t* data, uint8_t shift, uint32_t factor, uint16_t addend) {
  uint32_t& word = data[(blockIdx.x * blockDim.x + threadIdx.x) * kStride];
  word = (word << shift) * factor + addend;
}
__global__ void fold(uint32_t* into, const uint32_t* from, uint32_t factor) {
  const unsigned at = (blockIdx.x * blockDim.x + threadIdx.x) * kStride;
  into[at] = into[at] * factor + from[at];
}

using Words = std::vector<uint32_t>;

// The device's buffers, and what they have to hold.
struct World {
  std::vector<uint32_t*> there;
  std::vector<Words> words;
  uint32_t *pinned = nullptr, *pinned_back = nullptr;  // of kPiece bytes
  cudaStream_t stream = nullptr, other = nullptr;

  size_t count() const { return there.size(); }
  void mixed(size_t b, uint8_t shift, uint32_t factor, uint16_t addend) {
    for (uint32_t& word : words[b]) word = (word << shift) * factor + addend;
  }
  void folded(size_t into, size_t from, uint32_t factor) {
    for (unsigned i = 0; i < kWords; ++i) words[into][i] = words[into][i] * factor + words[from][i];
  }
  void copied(size_t to, size_t from) {
    for (unsigned i = 0; i < kWords / 2; ++i) words[to][i] = words[from][i];
  }
  void set(size_t b, uint32_t value) {
    for (unsigned i = 0; i < kWords / 2; ++i) words[b][i] = value;
  }
  void check(const char* what) const {
    RUNTIME_OK(cudaDeviceSynchronize());
    std::vector<uint32_t> got(kPiece / 4);
    for (size_t b = 0; b < count(); ++b) {
      RUNTIME_OK(cudaMemcpy(got.data(), there[b], kPiece, cudaMemcpyDeviceToHost));
      for (unsigned i = 0; i < kWords; ++i)
        CHECK(got[i * kStride] == words[b][i], "%s: word %u of buffer %zu is %#x, expected %#x",
              what, i, b, got[i * kStride], words[b][i]);
    }
  }
};

void launchMix(World& world, size_t b, uint8_t shift, uint32_t factor, uint16_t addend,
               cudaStream_t stream) {
  mix<<<kBlocks, kThreads, 0, stream>>>(world.there[b], shift, factor, addend);
  RUNTIME_OK(cudaGetLastError());
}

cudaGraphExec_t executable(cudaGraph_t graph) {
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

cudaGraph_t captured(World& world, const std::function<void()>& operations) {
  cudaGraph_t graph;
  RUNTIME_OK(cudaStreamBeginCapture(world.stream, cudaStreamCaptureModeThreadLocal));
  operations();
  RUNTIME_OK(cudaStreamEndCapture(world.stream, &graph));
  return graph;
}

// Kernels over every buffer.
void everywhere(World& world, uint32_t factor, uint16_t addend) {
  for (size_t b = 0; b < world.count(); ++b)
    launchMix(world, b, b % 3, factor, uint16_t(addend + b), world.stream);
}
void everywhereDone(World& world, uint32_t factor, uint16_t addend) {
  for (size_t b = 0; b < world.count(); ++b) world.mixed(b, b % 3, factor, uint16_t(addend + b));
}

struct Count {
  World* world = nullptr;
  unsigned calls = 0;
  uint32_t seen = 0;
};
void CUDART_CB fillPinned(void* data) {
  auto& count = *static_cast<Count*>(data);
  ++count.calls;
  for (unsigned i = 0; i < kWords; ++i) count.world->pinned[i * kStride] = count.calls * 77 + i;
}
void CUDART_CB lookAtPinned(void* data) {
  auto& count = *static_cast<Count*>(data);
  count.seen += count.world->pinned_back[kStride];
}

// --- what a capture has: kernels, copies of each direction, fills, host functions ----------------
void capturedOperations(World& world) {
  Count count{&world};
  const cudaGraph_t graph = captured(world, [&] {
    everywhere(world, 5, 1);
    RUNTIME_OK(cudaLaunchHostFunc(world.stream, fillPinned, &count));
    RUNTIME_OK(cudaMemcpyAsync(world.there[0], world.pinned, kCopied, cudaMemcpyHostToDevice,
                               world.stream));
    RUNTIME_OK(cudaMemcpyAsync(world.there[1], world.there[0], kCopied, cudaMemcpyDeviceToDevice,
                               world.stream));
    RUNTIME_OK(cudaMemsetAsync(world.there[2], 0x21, kCopied, world.stream));
    RUNTIME_OK(cudaMemcpy2DAsync(world.there[3], 4 * kStride, world.there[4], 4 * kStride, 4,
                                 kWords / 2, cudaMemcpyDeviceToDevice, world.stream));
    RUNTIME_OK(cudaMemset2DAsync(world.there[5], 4 * kStride, 0x42, 4, kWords / 2, world.stream));
    fold<<<kBlocks, kThreads, 0, world.stream>>>(world.there[6], world.there[1], 3);
    RUNTIME_OK(cudaMemcpyAsync(world.pinned_back, world.there[6], kCopied, cudaMemcpyDeviceToHost,
                               world.stream));
    RUNTIME_OK(cudaLaunchHostFunc(world.stream, lookAtPinned, &count));
  });
  const cudaGraphExec_t exec = executable(graph);
  uint32_t seen = 0;
  for (unsigned round = 1; round <= 3; ++round) {
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    // Behind all of the graph.
    launchMix(world, 6, 1, 9, 4, world.stream);
    everywhereDone(world, 5, 1);
    for (unsigned i = 0; i < kWords / 2; ++i) world.words[0][i] = round * 77 + i;
    world.copied(1, 0);
    world.set(2, 0x21212121);
    world.copied(3, 4);
    world.set(5, 0x42424242);
    world.folded(6, 1, 3);
    seen += world.words[6][1];
    world.mixed(6, 1, 9, 4);
    if (round == 2) RUNTIME_OK(cudaGraphDestroy(graph));
  }
  world.check("captured operations");
  CHECK(count.calls == 3 && count.seen == seen, "host functions: %u calls, saw %#x, expected %#x",
        count.calls, count.seen, seen);
  RUNTIME_OK(cudaGraphExecDestroy(exec));
}

// --- several branches, from streams that join the capture ----------------------------------------
void branches(World& world) {
  constexpr unsigned kBranches = 3;
  cudaStream_t streams[kBranches];
  cudaEvent_t fork, join[kBranches];
  RUNTIME_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  for (unsigned s = 0; s < kBranches; ++s) {
    RUNTIME_OK(cudaStreamCreate(&streams[s]));
    RUNTIME_OK(cudaEventCreateWithFlags(&join[s], cudaEventDisableTiming));
  }
  const cudaGraph_t graph = captured(world, [&] {
    launchMix(world, 0, 1, 3, 3, world.stream);
    RUNTIME_OK(cudaEventRecord(fork, world.stream));
    for (cudaStream_t stream : streams) RUNTIME_OK(cudaStreamWaitEvent(stream, fork, 0));
    for (size_t b = 0; b < world.count(); ++b)
      launchMix(world, b, 1, 7, uint16_t(b), streams[b % kBranches]);
    for (unsigned s = 0; s < kBranches; ++s) {
      RUNTIME_OK(cudaEventRecord(join[s], streams[s]));
      RUNTIME_OK(cudaStreamWaitEvent(world.stream, join[s], 0));
    }
    for (size_t b = 1; b < world.count(); ++b)
      fold<<<kBlocks, kThreads, 0, world.stream>>>(world.there[0], world.there[b], 5);
  });
  const cudaGraphExec_t exec = executable(graph);
  RUNTIME_OK(cudaGraphDestroy(graph));  // before the first launch
  for (unsigned round = 0; round < 2; ++round) {
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    world.mixed(0, 1, 3, 3);
    for (size_t b = 0; b < world.count(); ++b) world.mixed(b, 1, 7, uint16_t(b));
    for (size_t b = 1; b < world.count(); ++b) world.folded(0, b, 5);
  }
  world.check("several branches");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  for (unsigned s = 0; s < kBranches; ++s) {
    RUNTIME_OK(cudaStreamDestroy(streams[s]));
    RUNTIME_OK(cudaEventDestroy(join[s]));
  }
  RUNTIME_OK(cudaEventDestroy(fork));
}

// --- nodes added by the API, and each way to update them -----------------------------------------
struct Kernel {  // its values live here
  uint32_t* data;
  uint8_t shift;
  uint32_t factor;
  uint16_t addend;
  void* values[4];
  cudaKernelNodeParams params{};

  Kernel(World& world, size_t b, uint8_t shift_, uint32_t factor_, uint16_t addend_)
      : data(world.there[b]),
        shift(shift_),
        factor(factor_),
        addend(addend_),
        values{&data, &shift, &factor, &addend} {
    params.func = reinterpret_cast<void*>(mix);
    params.gridDim = kBlocks;
    params.blockDim = kThreads;
    params.kernelParams = values;
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
};

cudaGraph_t childGraph(World& world, uint32_t factor) {
  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t before = nullptr;
  for (size_t b = 0; b < 3; ++b) {
    Kernel kernel(world, b, 1, factor, 11);
    RUNTIME_OK(cudaGraphAddKernelNode(&before, graph, before != nullptr ? &before : nullptr,
                                      before != nullptr ? 1 : 0, &kernel.params));
  }
  return graph;
}

// The operations of the graph's nodes: kernel over each buffer, then all else.
struct Values {
  std::vector<uint32_t> factors;
  std::vector<bool> disabled;
  size_t from = 1;             // of the copy to buffer 0
  uint32_t fill = 0x01010101;  // of buffer 2
  uint32_t child = 3;          // factor in the child graph
  Count* host = nullptr;
};

struct Added {
  cudaGraph_t graph;
  std::vector<cudaGraphNode_t> kernels;
  cudaGraphNode_t copy, fill, host, child;
};

cudaMemsetParams filling(World& world, uint32_t value) {
  cudaMemsetParams params{};
  params.dst = world.there[2];
  params.value = value;
  params.elementSize = 4;
  params.width = kCopied / 4;
  params.height = 1;
  return params;
}

void CUDART_CB countCall(void* data) { ++static_cast<Count*>(data)->calls; }

Added added(World& world, const Values& values) {
  Added all;
  RUNTIME_OK(cudaGraphCreate(&all.graph, 0));
  // From the last to the first: the order in which nodes are added is not that of their edges.
  cudaGraphNode_t joined;
  RUNTIME_OK(cudaGraphAddEmptyNode(&joined, all.graph, nullptr, 0));
  for (size_t b = 0; b < world.count(); ++b) {
    Kernel kernel(world, b, 2, values.factors[b], uint16_t(b));
    cudaGraphNode_t node;
    RUNTIME_OK(cudaGraphAddKernelNode(&node, all.graph, nullptr, 0, &kernel.params));
#if CUDART_VERSION >= 13000
    RUNTIME_OK(cudaGraphAddDependencies(all.graph, &node, &joined, nullptr, 1));
#else
    RUNTIME_OK(cudaGraphAddDependencies(all.graph, &node, &joined, 1));
#endif
    all.kernels.push_back(node);
  }
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&all.copy, all.graph, &joined, 1, world.there[0],
                                      world.there[values.from], kCopied, cudaMemcpyDeviceToDevice));
  const cudaMemsetParams set = filling(world, values.fill);
  RUNTIME_OK(cudaGraphAddMemsetNode(&all.fill, all.graph, &joined, 1, &set));
  const cudaGraphNode_t both[] = {all.copy, all.fill};
  const cudaGraph_t child = childGraph(world, values.child);
  RUNTIME_OK(cudaGraphAddChildGraphNode(&all.child, all.graph, both, 2, child));
  RUNTIME_OK(cudaGraphDestroy(child));
  cudaHostNodeParams host{};
  host.fn = countCall;
  host.userData = values.host;
  RUNTIME_OK(cudaGraphAddHostNode(&all.host, all.graph, &all.child, 1, &host));
  return all;
}

void addedDone(World& world, const Values& values) {
  for (size_t b = 0; b < world.count(); ++b)
    if (!values.disabled[b]) world.mixed(b, 2, values.factors[b], uint16_t(b));
  world.copied(0, values.from);
  world.set(2, values.fill);
  for (size_t b = 0; b < 3; ++b) world.mixed(b, 1, values.child, 11);
}

void updates(World& world, bool launched_before) {
  Count first{&world}, second{&world};
  Values values;
  values.factors.assign(world.count(), 3);
  values.disabled.assign(world.count(), false);
  values.host = &first;
  Added all = added(world, values);
  const cudaGraphExec_t exec = executable(all.graph);
  unsigned calls[2] = {};
  const auto launch = [&](const char* what) {
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    addedDone(world, values);
    ++calls[values.host == &second ? 1 : 0];
    world.check(what);
    CHECK(first.calls == calls[0] && second.calls == calls[1], "%s: host functions", what);
  };
  const auto launchBetween = [&](const char* what) {
    if (launched_before) launch(what);
  };
  launchBetween("as it was made");

  Kernel kernel(world, 1, 2, values.factors[1] = 21, 1);
  RUNTIME_OK(cudaGraphExecKernelNodeSetParams(exec, all.kernels[1], &kernel.params));
  kernel.factor = 0xdead;  // the values were copied
  launchBetween("a kernel set");
  RUNTIME_OK(cudaGraphExecMemcpyNodeSetParams1D(exec, all.copy, world.there[0],
                                                world.there[values.from = 3], kCopied,
                                                cudaMemcpyDeviceToDevice));
  launchBetween("a copy set");
  const cudaMemsetParams set = filling(world, values.fill = 0x23456789);
  RUNTIME_OK(cudaGraphExecMemsetNodeSetParams(exec, all.fill, &set));
  launchBetween("a fill set");
  cudaHostNodeParams host{};
  host.fn = countCall;
  host.userData = values.host = &second;
  RUNTIME_OK(cudaGraphExecHostNodeSetParams(exec, all.host, &host));
  launchBetween("a host function set");
  const cudaGraph_t child = childGraph(world, values.child = 13);
  RUNTIME_OK(cudaGraphExecChildGraphNodeSetParams(exec, all.child, child));
  RUNTIME_OK(cudaGraphDestroy(child));
  launchBetween("a child graph set");
  cudaGraphNodeParams general{};
  general.type = cudaGraphNodeTypeKernel;
  Kernel another(world, 4, 2, values.factors[4] = 27, 4);
  general.kernel.func = another.params.func;
  general.kernel.gridDim = another.params.gridDim;
  general.kernel.blockDim = another.params.blockDim;
  general.kernel.kernelParams = another.values;
  RUNTIME_OK(cudaGraphExecNodeSetParams(exec, all.kernels[4], &general));
  launchBetween("a kernel set by the general call");
  RUNTIME_OK(cudaGraphNodeSetEnabled(exec, all.kernels[5], 0));
  values.disabled[5] = true;
  launchBetween("a node disabled");

  // Values set in the graph are none of the executable graph's.
  Kernel unseen(world, 6, 2, 99, 6);
  RUNTIME_OK(cudaGraphKernelNodeSetParams(all.kernels[6], &unseen.params));
  launchBetween("a kernel set in the graph");
  unseen.factor = 101;
  RUNTIME_OK(cudaGraphKernelNodeSetParams(all.kernels[6], &unseen.params));
  cudaMemsetParams unseen_fill = filling(world, 0x55555555);
  RUNTIME_OK(cudaGraphMemsetNodeSetParams(all.fill, &unseen_fill));
  launch("more set in the graph");
  RUNTIME_OK(cudaGraphNodeSetEnabled(exec, all.kernels[5], 1));
  values.disabled[5] = false;
  launch("the node enabled again");

  // An update to another graph, all of it; then nodes again, by those that it was made of.
  RUNTIME_OK(cudaGraphNodeSetEnabled(exec, all.kernels[3], 0));
  for (unsigned round = 0; round < 2; ++round) {
    Values newer;
    newer.factors.assign(world.count(), 31 + round * 2);
    newer.disabled.assign(world.count(), false);
    newer.disabled[3] = true;
    newer.from = 5 + round;
    newer.fill = 0x77777777 + round;
    newer.child = 17;
    newer.host = &first;
    Added next = added(world, newer);
    cudaGraphExecUpdateResultInfo outcome{};
    RUNTIME_OK(cudaGraphExecUpdate(exec, next.graph, &outcome));
    values = newer;
    if (round == 0) RUNTIME_OK(cudaGraphDestroy(next.graph));
    launchBetween("updated to another graph");
    Kernel late(world, 7, 2, values.factors[7] = 35 + round * 2, 7);
    RUNTIME_OK(cudaGraphExecKernelNodeSetParams(exec, all.kernels[7], &late.params));
    launch("updated, and a kernel set");
    if (round == 1) RUNTIME_OK(cudaGraphDestroy(next.graph));
  }
  // An update to its own graph, as that is now.
  cudaGraphExecUpdateResultInfo outcome{};
  RUNTIME_OK(cudaGraphExecUpdate(exec, all.graph, &outcome));
  Values own;
  own.factors.assign(world.count(), 3);
  own.factors[6] = 101;
  own.disabled.assign(world.count(), false);
  own.disabled[3] = true;
  own.fill = 0x55555555;
  own.host = &first;
  values = own;
  // The graph's nodes and edges change; it is destroyed.
  Kernel more(world, 0, 3, 1001, 5);
  cudaGraphNode_t node;
  RUNTIME_OK(cudaGraphAddKernelNode(&node, all.graph, &all.host, 1, &more.params));
  launchBetween("updated to its own graph");
  RUNTIME_OK(cudaGraphDestroyNode(all.kernels[2]));
  RUNTIME_OK(cudaGraphDestroy(all.graph));
  launch("its graph is gone");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
}

// --- one executable graph in several streams, whole and not --------------------------------------
void severalStreams(World& world) {
  const cudaGraph_t graph = captured(world, [&] { everywhere(world, 3, 9); });
  const cudaGraphExec_t exec = executable(graph);
  cudaStream_t brief;
  RUNTIME_OK(cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking));
  const cudaStream_t streams[] = {world.stream, world.other,  world.other,
                                  brief,        world.stream, world.other};
  for (cudaStream_t stream : streams) {
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    everywhereDone(world, 3, 9);
    if (stream == brief) RUNTIME_OK(cudaStreamDestroy(brief));
  }
  world.check("several streams");
  // Inside another capture it is a child graph; the executable graph goes before the outer one.
  const cudaGraph_t outer = captured(world, [&] {
    launchMix(world, 0, 0, 5, 1, world.stream);
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    launchMix(world, 1, 0, 5, 1, world.stream);
  });
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  const cudaGraphExec_t outer_exec = executable(outer);
  for (unsigned round = 0; round < 2; ++round) {
    RUNTIME_OK(cudaGraphLaunch(outer_exec, world.stream));
    world.mixed(0, 0, 5, 1);
    everywhereDone(world, 3, 9);
    world.mixed(1, 0, 5, 1);
  }
  world.check("inside another capture");
  RUNTIME_OK(cudaGraphExecDestroy(outer_exec));
  RUNTIME_OK(cudaGraphDestroy(outer));
}

// --- memory that is not pinned, written and read by host functions of the graph ------------------
struct Pageable {
  std::vector<uint32_t> in = std::vector<uint32_t>(kPiece / 4),
                        out = std::vector<uint32_t>(kPiece / 4);
  uint32_t round = 0, seen = 0;
};
void CUDART_CB writeIn(void* data) {
  auto& all = *static_cast<Pageable*>(data);
  ++all.round;
  for (unsigned i = 0; i < kWords; ++i) all.in[i * kStride] = all.round * 1000 + i;
}
void CUDART_CB readOut(void* data) {
  auto& all = *static_cast<Pageable*>(data);
  all.seen += all.out[kStride];
}

void pageable(World& world) {
  Pageable memory;
  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t last = nullptr;
  const auto add = [&](auto function, auto... arguments) {
    cudaGraphNode_t node;
    RUNTIME_OK(function(&node, graph, last != nullptr ? &last : nullptr, last != nullptr ? 1 : 0,
                        arguments...));
    last = node;
  };
  cudaHostNodeParams host{};
  host.userData = &memory;
  host.fn = writeIn;
  add(cudaGraphAddHostNode, &host);
  add(cudaGraphAddMemcpyNode1D, static_cast<void*>(world.there[0]),
      static_cast<const void*>(memory.in.data()), kCopied, cudaMemcpyHostToDevice);
  for (size_t b = 0; b < world.count(); ++b) {
    Kernel kernel(world, b, 1, 3, 1);
    add(cudaGraphAddKernelNode, &kernel.params);
  }
  add(cudaGraphAddMemcpyNode1D, static_cast<void*>(memory.out.data()),
      static_cast<const void*>(world.there[0]), kCopied, cudaMemcpyDeviceToHost);
  host.fn = readOut;
  add(cudaGraphAddHostNode, &host);
  const cudaGraphExec_t exec = executable(graph);
  RUNTIME_OK(cudaGraphDestroy(graph));
  uint32_t seen = 0;
  for (uint32_t round = 1; round <= 3; ++round) {
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    for (unsigned i = 0; i < kWords / 2; ++i) world.words[0][i] = round * 1000 + i;
    for (size_t b = 0; b < world.count(); ++b) world.mixed(b, 1, 3, 1);
    seen += world.words[0][1];
  }
  world.check("memory that is not pinned");
  CHECK(memory.seen == seen, "memory that is not pinned: host functions saw %#x, expected %#x",
        memory.seen, seen);
  RUNTIME_OK(cudaGraphExecDestroy(exec));
}

// --- events, memory operations, and attributes of kernels ----------------------------------------
void eventsAndValues(World& world) {
  cudaEvent_t recorded, awaited;
  RUNTIME_OK(cudaEventCreateWithFlags(&recorded, cudaEventDisableTiming));
  RUNTIME_OK(cudaEventCreateWithFlags(&awaited, cudaEventDisableTiming));
  uint32_t* flags;
  RUNTIME_OK(cudaMalloc(&flags, 4096));
  RUNTIME_OK(cudaMemset(flags, 0, 4096));
  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t wait, write, record, kernel_node;
  RUNTIME_OK(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, awaited));
  std::vector<cudaGraphNode_t> kernels;
  for (size_t b = 0; b < world.count(); ++b) {
    Kernel kernel(world, b, 1, 9, 2);
    RUNTIME_OK(cudaGraphAddKernelNode(&kernel_node, graph, &wait, 1, &kernel.params));
    kernels.push_back(kernel_node);
  }
  cudaKernelNodeAttrValue value{};
  value.cooperative = 1;
  RUNTIME_OK(cudaGraphKernelNodeSetAttribute(kernels[0], cudaLaunchAttributeCooperative, &value));
  RUNTIME_OK(cudaGraphKernelNodeCopyAttributes(kernels[1], kernels[0]));
  CUstreamBatchMemOpParams operations[2]{};
  for (unsigned i = 0; i < 2; ++i) {
    operations[i].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[i].writeValue.address = reinterpret_cast<CUdeviceptr>(flags + i);
    operations[i].writeValue.value = 41 + i;
  }
  CUcontext context;
  DRIVER_OK(cuCtxGetCurrent(&context));
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  batch.ctx = context;
  batch.count = 2;
  batch.paramArray = operations;
  DRIVER_OK(cuGraphAddBatchMemOpNode(&write, graph, kernels.data(), kernels.size(), &batch));
  RUNTIME_OK(cudaGraphAddEventRecordNode(&record, graph, &write, 1, recorded));
  cudaGraphExec_t exec = executable(graph);
  for (unsigned round = 0; round < 2; ++round) {
    launchMix(world, 0, 1, 5, uint16_t(round), world.other);
    RUNTIME_OK(cudaEventRecord(awaited, world.other));
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    RUNTIME_OK(cudaStreamWaitEvent(world.other, recorded, 0));
    launchMix(world, 1, 1, 5, uint16_t(round), world.other);
    world.mixed(0, 1, 5, uint16_t(round));
    for (size_t b = 0; b < world.count(); ++b) world.mixed(b, 1, 9, 2);
    world.mixed(1, 1, 5, uint16_t(round));
  }
  world.check("events and values");
  // The event that it records is another one; attributes are changed in the graph meanwhile.
  cudaEvent_t newer;
  RUNTIME_OK(cudaEventCreateWithFlags(&newer, cudaEventDisableTiming));
  value.cooperative = 0;
  RUNTIME_OK(cudaGraphKernelNodeSetAttribute(kernels[0], cudaLaunchAttributeCooperative, &value));
  RUNTIME_OK(cudaGraphExecEventRecordNodeSetEvent(exec, record, newer));
  RUNTIME_OK(cudaGraphExecEventWaitNodeSetEvent(exec, wait, recorded));
  RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
  RUNTIME_OK(cudaStreamWaitEvent(world.other, newer, 0));
  launchMix(world, 1, 1, 5, 8, world.other);
  for (size_t b = 0; b < world.count(); ++b) world.mixed(b, 1, 9, 2);
  world.mixed(1, 1, 5, 8);
  world.check("another event");
  uint32_t got[2] = {};
  RUNTIME_OK(cudaMemcpy(got, flags, sizeof got, cudaMemcpyDeviceToHost));
  CHECK(got[0] == 41 && got[1] == 42, "values written are %u and %u", got[0], got[1]);
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaFree(flags));
  for (cudaEvent_t event : {recorded, awaited, newer}) RUNTIME_OK(cudaEventDestroy(event));
}

// --- what the program ties to a graph stays until it has run -------------------------------------
struct Tied {
  World* world = nullptr;
  std::vector<uint32_t> memory;
  unsigned gone = 0, gone_too_early = 0, calls = 0;
};
void CUDART_CB tiedGoes(void* data) { ++static_cast<Tied*>(data)->gone; }
void CUDART_CB useTied(void* data) {
  auto& tied = *static_cast<Tied*>(data);
  ++tied.calls;
  tied.gone_too_early += tied.gone;
}

void tiedObjects(World& world) {
  Tied tied{&world};
  cudaUserObject_t object;
  RUNTIME_OK(cudaUserObjectCreate(&object, &tied, tiedGoes, 1, cudaUserObjectNoDestructorSync));
  const cudaGraph_t graph = captured(world, [&] {
    everywhere(world, 3, 5);
    RUNTIME_OK(cudaLaunchHostFunc(world.stream, useTied, &tied));
  });
  RUNTIME_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  const cudaGraphExec_t exec = executable(graph);
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
  RUNTIME_OK(cudaGraphLaunch(exec, world.other));
  RUNTIME_OK(cudaGraphExecDestroy(exec));  // while it runs
  everywhereDone(world, 3, 5);
  everywhereDone(world, 3, 5);
  world.check("an executable graph that is gone");
  CHECK(tied.calls == 2 && tied.gone_too_early == 0,
        "a host function was called %u times, %u of them after its data had gone", tied.calls,
        tied.gone_too_early);
}

// --- what can't be taken apart -------------------------------------------------------------------
void memoryNodes(World& world) {
  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaMemAllocNodeParams memory{};
  memory.poolProps.allocType = cudaMemAllocationTypePinned;
  memory.poolProps.location.type = cudaMemLocationTypeDevice;
  memory.bytesize = kPiece;
  cudaGraphNode_t last, node;
  RUNTIME_OK(cudaGraphAddMemAllocNode(&last, graph, nullptr, 0, &memory));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&node, graph, &last, 1, memory.dptr, world.there[0], kPiece,
                                      cudaMemcpyDeviceToDevice));
  last = node;
  for (size_t b = 0; b < world.count(); ++b) {
    Kernel kernel(world, b, 1, 3, 7);
    RUNTIME_OK(cudaGraphAddKernelNode(&node, graph, &last, 1, &kernel.params));
    last = node;
  }
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&node, graph, &last, 1, world.there[1], memory.dptr, kCopied,
                                      cudaMemcpyDeviceToDevice));
  last = node;
  RUNTIME_OK(cudaGraphAddMemFreeNode(&node, graph, &last, 1, memory.dptr));
  const cudaGraphExec_t exec = executable(graph);
  for (unsigned round = 0; round < 2; ++round) {
    RUNTIME_OK(cudaGraphLaunch(exec, world.stream));
    const Words before = world.words[0];
    for (size_t b = 0; b < world.count(); ++b) world.mixed(b, 1, 3, 7);
    std::copy(before.begin(), before.begin() + kWords / 2, world.words[1].begin());
  }
  world.check("a graph with memory of its own");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  World world;
  RUNTIME_OK(cudaMallocHost(&world.pinned, kPiece));
  RUNTIME_OK(cudaMallocHost(&world.pinned_back, kPiece));
  RUNTIME_OK(cudaStreamCreateWithFlags(&world.stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&world.other, cudaStreamNonBlocking));
  const size_t buffers = std::max<size_t>(options.bytes / kPiece, 9);
  std::vector<uint32_t> bytes(kPiece / 4);
  for (size_t b = 0; b < buffers; ++b) {
    Words words(kWords);
    for (unsigned i = 0; i < kWords; ++i)
      bytes[i * kStride] = words[i] = apps::word(i, uint32_t(options.seed + b));
    uint32_t* there;
    RUNTIME_OK(cudaMalloc(&there, kPiece));
    RUNTIME_OK(cudaMemcpy(there, bytes.data(), kPiece, cudaMemcpyHostToDevice));
    world.there.push_back(there);
    world.words.push_back(std::move(words));
  }
  capturedOperations(world);
  branches(world);
  updates(world, false);
  updates(world, true);
  severalStreams(world);
  pageable(world);
  eventsAndValues(world);
  tiedObjects(world);
  memoryNodes(world);
  for (uint32_t* there : world.there) RUNTIME_OK(cudaFree(there));
  RUNTIME_OK(cudaFreeHost(world.pinned));
  RUNTIME_OK(cudaFreeHost(world.pinned_back));
  RUNTIME_OK(cudaStreamDestroy(world.stream));
  RUNTIME_OK(cudaStreamDestroy(world.other));
  return apps::ok("%zu buffers", buffers);
}
