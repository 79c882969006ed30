// Copies from and to pageable host memory in graphs, captured and added: of a source the bytes
// count that are there at the launch, a destination has them when the launch has been waited for.
// (A driver may read a source later. With OL_TEST_AT_LAUNCH in the environment the program changes
// it right behind a launch.) Lines, rectangles and boxes; changed nodes; child graphs, clones and
// updates; several launches in a row; host functions of a graph that read and write the memory;
// memory that is gone after its graph.
#include <cuda.h>

#include <memory>

#include "common.h"

namespace {

constexpr uint32_t kCount = 1 << 14;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

__global__ void addTo(uint32_t* at, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] += value;
}

void add(uint32_t* at, uint32_t value, cudaStream_t stream) {
  addTo<<<apps::blocks(kCount), 256, 0, stream>>>(at, kCount, value);
  RUNTIME_OK(cudaGetLastError());
}

void write(std::vector<uint32_t>& host, uint32_t seed) {
  for (uint32_t i = 0; i < host.size(); ++i) host[i] = apps::word(i, seed);
}

void check(const std::vector<uint32_t>& host, uint32_t seed, uint32_t added, const char* what) {
  for (uint32_t i = 0; i < host.size(); ++i) {
    const uint32_t expected = apps::word(i, seed) + added;
    CHECK(host[i] == expected, "%s: word %u is %u, expected %u", what, i, host[i], expected);
  }
}

struct Gpu {
  cudaStream_t stream = nullptr;
  uint32_t* memory = nullptr;

  Gpu() {
    RUNTIME_OK(cudaStreamCreate(&stream));
    RUNTIME_OK(cudaMalloc(&memory, kBytes));
  }
  void begin() const { RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); }
  cudaGraph_t end() const {
    cudaGraph_t graph;
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    return graph;
  }
  void run(cudaGraphExec_t exec) const {
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
};

cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

// In, +5, out.
cudaGraph_t capture(const Gpu& gpu, const void* in, void* out) {
  gpu.begin();
  RUNTIME_OK(cudaMemcpyAsync(gpu.memory, in, kBytes, cudaMemcpyHostToDevice, gpu.stream));
  add(gpu.memory, 5, gpu.stream);
  RUNTIME_OK(cudaMemcpyAsync(out, gpu.memory, kBytes, cudaMemcpyDeviceToHost, gpu.stream));
  return gpu.end();
}

void launches(const Gpu& gpu) {
  std::vector<uint32_t> in(kCount), out(kCount);
  cudaGraph_t graph = capture(gpu, in.data(), out.data());
  cudaGraphExec_t exec = instantiated(graph);
  for (uint32_t seed = 1; seed < 5; ++seed) {
    write(in, seed);
    gpu.run(exec);
    check(out, seed, 5, "captured");
    std::fill(out.begin(), out.end(),
              0u);  // the next launch writes all of it, whatever it wrote before
    gpu.run(exec);
    check(out, seed, 5, "captured, and the same once more");
  }
  // The graph is not needed any more, and other launches have nothing to do with the memory.
  RUNTIME_OK(cudaGraphDestroy(graph));
  write(in, 7);
  gpu.run(exec);
  check(out, 7, 5, "of a graph that is gone");
  write(out, 8);
  add(gpu.memory, 1, gpu.stream);
  RUNTIME_OK(cudaStreamSynchronize(gpu.stream));
  check(out, 8, 0, "after another launch");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
}

// Several launches under way, each with the bytes of its own time; the executable graph goes before
// their end.
void inARow(const Gpu& gpu) {
  constexpr uint32_t kRounds = 6;
  std::vector<uint32_t> in(kCount), out(kCount), got(kCount);
  uint32_t* all = nullptr;
  RUNTIME_OK(cudaMalloc(&all, kRounds * kBytes));
  const bool changes = std::getenv("OL_TEST_AT_LAUNCH") != nullptr;
  const auto seedOf = [&](uint32_t round) { return 20 + (changes ? round : 0); };
  cudaGraph_t graph = capture(gpu, in.data(), out.data());
  cudaGraphExec_t exec = instantiated(graph);
  for (uint32_t round = 0; round < kRounds; ++round) {
    if (round == 0 || changes) write(in, seedOf(round));
    RUNTIME_OK(cudaGraphLaunch(exec, gpu.stream));
    RUNTIME_OK(cudaMemcpyAsync(all + round * kCount, gpu.memory, kBytes, cudaMemcpyDeviceToDevice,
                               gpu.stream));
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaStreamSynchronize(gpu.stream));
  check(out, seedOf(kRounds - 1), 5, "the last of several");
  for (uint32_t round = 0; round < kRounds; ++round) {
    RUNTIME_OK(cudaMemcpy(got.data(), all + round * kCount, kBytes, cudaMemcpyDeviceToHost));
    check(got, seedOf(round), 5, "one of several in a row");
  }
  RUNTIME_OK(cudaFree(all));

  // In two streams by turns: the launches of one executable graph follow each other.
  cudaStream_t other;
  RUNTIME_OK(cudaStreamCreate(&other));
  graph = capture(gpu, in.data(), out.data());
  exec = instantiated(graph);
  for (uint32_t round = 0; round < 4; ++round) {
    if (round == 0 || changes) write(in, 10 + seedOf(round));
    RUNTIME_OK(cudaGraphLaunch(exec, round % 2 == 0 ? gpu.stream : other));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  check(out, 10 + seedOf(3), 5, "in two streams by turns");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaStreamDestroy(other));
}

// By nodes, which are changed in their graph and in the executable one.
void nodes(const Gpu& gpu) {
  std::vector<uint32_t> in(kCount), out(kCount), second(kCount), third(kCount);
  cudaGraph_t graph;
  cudaGraphNode_t up, down;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&up, graph, nullptr, 0, gpu.memory, in.data(), kBytes,
                                      cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&down, graph, &up, 1, out.data(), gpu.memory, kBytes,
                                      cudaMemcpyDeviceToHost));
  cudaGraphExec_t exec = instantiated(graph);
  write(in, 40);
  gpu.run(exec);
  check(out, 40, 0, "by nodes");
  cudaMemcpy3DParms told{};
  RUNTIME_OK(cudaGraphMemcpyNodeGetParams(up, &told));
  CHECK(told.srcPtr.ptr == in.data(), "a node tells another address than it was given");

  RUNTIME_OK(cudaGraphExecMemcpyNodeSetParams1D(exec, up, gpu.memory, second.data(), kBytes,
                                                cudaMemcpyHostToDevice));
  write(second, 41);
  gpu.run(exec);
  check(out, 41, 0, "changed in the executable graph");
  RUNTIME_OK(cudaGraphMemcpyNodeSetParams1D(down, third.data(), gpu.memory, kBytes,
                                            cudaMemcpyDeviceToHost));
  cudaGraphExec_t changed = instantiated(graph);
  write(in, 42);
  gpu.run(changed);
  check(third, 42, 0, "changed in the graph");
  check(out, 41, 0, "where the node wrote before");

  // A whole update, from a graph with memory of its own.
  std::vector<uint32_t> from(kCount), into(kCount);
  cudaGraph_t other;
  RUNTIME_OK(cudaGraphCreate(&other, 0));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&up, other, nullptr, 0, gpu.memory, from.data(), kBytes,
                                      cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&down, other, &up, 1, into.data(), gpu.memory, kBytes,
                                      cudaMemcpyDeviceToHost));
  cudaGraphExecUpdateResultInfo outcome{};
  RUNTIME_OK(cudaGraphExecUpdate(exec, other, &outcome));
  RUNTIME_OK(cudaGraphDestroy(other));
  write(from, 43);
  gpu.run(exec);
  check(into, 43, 0, "updated");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphExecDestroy(changed));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

void childrenAndClones(const Gpu& gpu) {
  auto in = std::make_unique<std::vector<uint32_t>>(kCount);
  auto out = std::make_unique<std::vector<uint32_t>>(kCount);
  cudaGraph_t child = capture(gpu, in->data(), out->data());
  cudaGraph_t parent, clone;
  cudaGraphNode_t node;
  RUNTIME_OK(cudaGraphCreate(&parent, 0));
  RUNTIME_OK(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
  RUNTIME_OK(cudaGraphClone(&clone, child));
  RUNTIME_OK(cudaGraphDestroy(child));
  cudaGraphExec_t of_parent = instantiated(parent);
  cudaGraphExec_t of_clone = instantiated(clone);
  RUNTIME_OK(cudaGraphDestroy(parent));
  RUNTIME_OK(cudaGraphDestroy(clone));
  write(*in, 50);
  gpu.run(of_parent);
  check(*out, 50, 5, "a child graph");
  write(*in, 51);
  gpu.run(of_clone);
  check(*out, 51, 5, "a clone");

  // The clone's launch becomes part of another graph.
  gpu.begin();
  RUNTIME_OK(cudaGraphLaunch(of_clone, gpu.stream));
  cudaGraph_t graph = gpu.end();
  RUNTIME_OK(cudaGraphExecDestroy(of_clone));
  cudaGraphExec_t exec = instantiated(graph);
  RUNTIME_OK(cudaGraphDestroy(graph));
  write(*in, 52);
  gpu.run(exec);
  check(*out, 52, 5, "a launch that was captured");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphExecDestroy(of_parent));
  // Nobody touches memory whose graphs are gone.
  in.reset();
  out.reset();
  add(gpu.memory, 1, gpu.stream);
  RUNTIME_OK(cudaStreamSynchronize(gpu.stream));
}

// Rectangles and boxes: what lies beside them stays.
void boxes(const Gpu& gpu) {
  constexpr size_t kWidth = 100, kPitch = 160, kRows = 20, kLayers = 3,
                   kAll = kPitch * kRows * kLayers;
  constexpr uint8_t kBeside = 0xa5;
  const auto inside = [](size_t i) { return i % kPitch < kWidth; };
  std::vector<uint8_t> in(kAll), out(kAll, kBeside);
  for (const bool flat : {true, false}) {
    const size_t layers = flat ? 1 : kLayers;
    const size_t bytes = kPitch * kRows * layers;
    void* device = nullptr;
    RUNTIME_OK(cudaMalloc(&device, bytes));
    const auto box = [&](void* to, void* from, cudaMemcpyKind kind) {
      if (flat) {
        RUNTIME_OK(cudaMemcpy2DAsync(to, kPitch, from, kPitch, kWidth, kRows, kind, gpu.stream));
        return;
      }
      cudaMemcpy3DParms params{};
      params.srcPtr = make_cudaPitchedPtr(from, kPitch, kWidth, kRows);
      params.dstPtr = make_cudaPitchedPtr(to, kPitch, kWidth, kRows);
      params.extent = make_cudaExtent(kWidth, kRows, kLayers);
      params.kind = kind;
      RUNTIME_OK(cudaMemcpy3DAsync(&params, gpu.stream));
    };
    gpu.begin();
    box(device, in.data(), cudaMemcpyHostToDevice);
    box(out.data(), device, cudaMemcpyDeviceToHost);
    cudaGraph_t graph = gpu.end();
    cudaGraphExec_t exec = instantiated(graph);
    for (uint32_t seed = 60; seed < 63; ++seed) {
      for (size_t i = 0; i < bytes; ++i) in[i] = uint8_t(apps::word(uint32_t(i), seed));
      gpu.run(exec);
      for (size_t i = 0; i < bytes; ++i) {
        const uint8_t expected = inside(i) ? in[i] : kBeside;
        CHECK(out[i] == expected, "byte %zu of a box is %u, expected %u", i, out[i], expected);
      }
    }
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
    RUNTIME_OK(cudaFree(device));
  }
}

struct Exchange {
  std::vector<uint32_t> host = std::vector<uint32_t>(kCount);
  uint32_t seen = 0;
};

void CUDART_CB change(void* data) {
  auto& exchange = *static_cast<Exchange*>(data);
  exchange.seen = exchange.host[77];
  for (uint32_t& word : exchange.host) word += 1000;
}

// A function in the midst of a graph reads what the graph has written before it, changes it, and
// the graph reads that. One behind a graph finds the result, also where it has been there before.
void functions(const Gpu& gpu) {
  Exchange exchange;
  std::vector<uint32_t> out(kCount);
  gpu.begin();
  RUNTIME_OK(cudaMemcpyAsync(gpu.memory, exchange.host.data(), kBytes, cudaMemcpyHostToDevice,
                             gpu.stream));
  add(gpu.memory, 5, gpu.stream);
  RUNTIME_OK(cudaMemcpyAsync(exchange.host.data(), gpu.memory, kBytes, cudaMemcpyDeviceToHost,
                             gpu.stream));
  RUNTIME_OK(cudaLaunchHostFunc(gpu.stream, change, &exchange));
  RUNTIME_OK(cudaMemcpyAsync(gpu.memory, exchange.host.data(), kBytes, cudaMemcpyHostToDevice,
                             gpu.stream));
  RUNTIME_OK(cudaMemcpyAsync(out.data(), gpu.memory, kBytes, cudaMemcpyDeviceToHost, gpu.stream));
  cudaGraph_t graph = gpu.end();
  cudaGraphExec_t exec = instantiated(graph);
  for (uint32_t round = 0; round < 4; ++round) {
    write(exchange.host, 70 + round / 2);
    std::fill(out.begin(), out.end(), 0u);
    gpu.run(exec);
    CHECK(exchange.seen == apps::word(77, 70 + round / 2) + 5, "a graph's function saw %u",
          exchange.seen);
    check(out, 70 + round / 2, 1005, "changed by a function in the midst of a graph");
  }
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
}

}  // namespace

int main() {
  RUNTIME_OK(cudaSetDevice(0));
  const Gpu gpu;
  launches(gpu);
  inARow(gpu);
  nodes(gpu);
  childrenAndClones(gpu);
  boxes(gpu);
  functions(gpu);
  // Graphs that come and go, each with memory of its own.
  for (uint32_t round = 0; round < 20; ++round) {
    std::vector<uint32_t> in(kCount), out(kCount);
    write(in, 80 + round);
    cudaGraph_t graph = capture(gpu, in.data(), out.data());
    cudaGraphExec_t exec = instantiated(graph);
    gpu.run(exec);
    check(out, 80 + round, 5, "of many");
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
  return apps::ok("pageable memory in graphs");
}
