// Repeated work leaves nothing behind in the library: launches, changed nodes of captured graphs
// and of graphs in graphs, kernels of many layouts that come and go with their modules. And a
// clone's nodes are its own: what its original's are changed to is none of theirs.
#include <malloc.h>

#include <memory>
#include <string>
#include <utility>

#include "common.h"

namespace {

constexpr size_t kPiece =
    size_t{512} << 10;  // all of them have room where there is little: launches move nothing

__global__ void put(uint32_t* at, uint32_t value) { *at = value; }

/// Bytes that the process has from malloc.
size_t inUse() {
  const auto all = mallinfo2();
  return all.uordblks + all.hblkhd;
}

/// `work` has been done before: what is kept for later need is there.
template <typename Work>
void leavesNothing(const char* what, size_t allowed, Work work) {
  const size_t before = inUse();
  work();
  const size_t after = inUse();
  CHECK(after < before + allowed, "%s: %zu bytes in use before, %zu after", what, before, after);
}

void launches(const std::vector<uint32_t*>& buffers) {
  constexpr uint32_t kAtOnce = 1000;
  const auto same = [&](uint32_t rounds) {
    for (uint32_t i = 0; i < rounds * kAtOnce; ++i) {
      put<<<1, 1>>>(buffers[0], 1);
      if (i % kAtOnce == 0) RUNTIME_OK(cudaDeviceSynchronize());
    }
    RUNTIME_OK(cudaDeviceSynchronize());
  };
  const auto changing = [&](uint32_t rounds) {
    for (uint32_t i = 0; i < rounds * kAtOnce; ++i) {
      put<<<1, 1>>>(buffers[i % buffers.size()] + i, i);
      if (i % kAtOnce == 0) RUNTIME_OK(cudaDeviceSynchronize());
    }
    RUNTIME_OK(cudaDeviceSynchronize());
  };
  same(5);
  changing(5);
  // Not a byte of each.
  leavesNothing("50000 launches with the same arguments", 50'000, [&] { same(50); });
  leavesNothing("50000 launches with changing arguments", 50'000, [&] { changing(50); });
}

CUgraph captured(cudaStream_t stream, uint32_t* at, uint32_t value) {
  CUgraph graph = nullptr;
  DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  put<<<1, 1, 0, stream>>>(at, value);
  DRIVER_OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

CUgraphNode nodeOf(CUgraph graph) {
  CUgraphNode node = nullptr;
  size_t count = 1;
  DRIVER_OK(cuGraphGetNodes(graph, &node, &count));
  CHECK(count == 1, "%zu nodes", count);
  return node;
}

void change(CUgraphNode node, uint32_t* at, uint32_t value) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  DRIVER_OK(cuGraphKernelNodeGetParams(node, &parameters));
  void* arguments[] = {&at, &value};
  parameters.kernelParams = arguments;
  parameters.extra = nullptr;
  DRIVER_OK(cuGraphKernelNodeSetParams(node, &parameters));
}

void graphs(cudaStream_t stream, const std::vector<uint32_t*>& buffers) {
  const auto work = [&](size_t times) {
    std::vector<CUgraph> all;
    for (size_t i = 0; i < times; ++i) {
      all.push_back(captured(stream, buffers[0], 1));
      change(nodeOf(all.back()), buffers[i % buffers.size()], 2);
      if (i % 2 == 0) continue;
      CUgraph around = nullptr, child = nullptr;
      CUgraphNode node = nullptr;
      DRIVER_OK(cuGraphCreate(&around, 0));
      DRIVER_OK(cuGraphAddChildGraphNode(&node, around, nullptr, 0, all.back()));
      DRIVER_OK(cuGraphChildGraphNodeGetGraph(node, &child));
      change(nodeOf(child), buffers[(i + 1) % buffers.size()], 3);
      all.push_back(around);
    }
    for (CUgraph graph : all) DRIVER_OK(cuGraphDestroy(graph));
  };
  work(10);
  leavesNothing("changed nodes of 2000 graphs", 100'000, [&] { work(2000); });
}

// If a driver gives handles again, clones get some below the original's: a search for its node
// finds theirs first.
void clones(cudaStream_t stream, size_t bytes, const std::vector<uint32_t*>& buffers) {
  apps::Pressure pressure(bytes);
  for (uint32_t turn = 0; turn < 4; ++turn) {
    CUgraph original = nullptr;
    CUgraphNode node = nullptr;
    uint32_t *was = buffers[0], *becomes = buffers.back(), value = 10 + turn;
    void* arguments[] = {&was, &value};
    CUDA_KERNEL_NODE_PARAMS parameters{};
    RUNTIME_OK(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(&parameters.func),
                                   reinterpret_cast<const void*>(put)));
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = arguments;
    std::vector<CUgraph> below(8);
    for (CUgraph& graph : below) DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphCreate(&original, 0));
    for (CUgraph graph : below) DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuGraphAddKernelNode(&node, original, nullptr, 0, &parameters));
    std::vector<CUgraph> made = {original};
    for (int i = 0; i < 8; ++i) {
      CUgraph clone = nullptr;
      DRIVER_OK(cuGraphClone(&clone, original));
      made.push_back(clone);
    }
    change(node, becomes, 20 + turn);
    for (CUgraph graph : made) {
      uint32_t got[2] = {0, 0};
      RUNTIME_OK(cudaMemset(was, 0, 4));
      RUNTIME_OK(cudaMemset(becomes, 0, 4));
      CUgraphExec exec = nullptr;
      DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
      pressure.apply();
      RUNTIME_OK(cudaDeviceSynchronize());
      DRIVER_OK(cuGraphLaunch(exec, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      RUNTIME_OK(cudaMemcpy(&got[0], was, 4, cudaMemcpyDeviceToHost));
      RUNTIME_OK(cudaMemcpy(&got[1], becomes, 4, cudaMemcpyDeviceToHost));
      const bool changed = graph == original;
      CHECK(got[0] == (changed ? 0 : 10 + turn) && got[1] == (changed ? 20 + turn : 0),
            "%s wrote %u, %u", changed ? "the original" : "a clone", got[0], got[1]);
      DRIVER_OK(cuGraphExecDestroy(exec));
    }
    for (CUgraph graph : made) DRIVER_OK(cuGraphDestroy(graph));
  }
  pressure.check();
}

// Kernel i has 1 + i % 50 pointers, and behind them 8 bytes for each 50 kernels.
constexpr unsigned kKernels = 5000, kPointers = 50;

std::string image() {
  std::string text = ".version 7.5\n.target sm_75\n.address_size 64\n";
  for (unsigned i = 0; i < kKernels; ++i) {
    const std::string name = "k" + std::to_string(i);
    text += ".visible .entry " + name + "(";
    for (unsigned p = 0; p <= i % kPointers; ++p)
      text += ".param .u64 " + name + "_" + std::to_string(p) + ", ";
    text += ".param .align 8 .b8 " + name + "_x[" + std::to_string(8 + i / kPointers * 8) +
            "])\n{\n\tret;\n}\n";
  }
  return text;
}

void layouts(const std::string& text) {
  const auto work = [&] {
    CUmodule module = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, text.c_str()));
    static const uint64_t zeros[2 + kKernels / kPointers] = {};
    std::vector<void*> arguments(kPointers + 1, const_cast<uint64_t*>(zeros));
    for (unsigned i = 0; i < kKernels; ++i) {
      CUfunction function = nullptr;
      DRIVER_OK(cuModuleGetFunction(&function, module, ("k" + std::to_string(i)).c_str()));
      DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments.data(), nullptr));
    }
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuModuleUnload(module));
  };
  for (int i = 0; i < 2; ++i) work();
  // The simulated driver keeps 40 bytes of each.
  leavesNothing("a module of 5000 kernels, twice", 800'000, [&] {
    for (int i = 0; i < 2; ++i) work();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  std::vector<uint32_t*> buffers(8);
  for (uint32_t*& buffer : buffers) RUNTIME_OK(cudaMalloc(&buffer, kPiece));
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreate(&stream));
  launches(buffers);
  graphs(stream, buffers);
  clones(stream, options.bytes, buffers);
  layouts(image());
  return apps::ok("leaves_nothing");
}
