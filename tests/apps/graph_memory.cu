// Memory that graphs allocate, by captures and by nodes: it lives until it is freed, also beyond
// its graph; an executable graph whose memory is not freed can't be launched again, unless it was
// made to free it by itself; who may free it, and how often; what the driver says of all of it.
#include "common.h"

namespace {

constexpr size_t kBytes = size_t{4} << 20;

uint64_t told(cudaGraphMemAttributeType attribute) {
  uint64_t bytes = 0;
  RUNTIME_OK(cudaDeviceGetGraphMemAttribute(0, attribute, &bytes));
  return bytes;
}

void expect(cudaError_t result, cudaError_t expected, const char* what) {
  (void)cudaGetLastError();
  CHECK(result == expected, "%s: %d, expected %d", what, int(result), int(expected));
}

void check(const void* buffer, uint32_t seed, const char* what) {
  std::vector<uint32_t> got(kBytes / 4);
  RUNTIME_OK(cudaMemcpy(got.data(), buffer, kBytes, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < got.size(); ++i) {
    const uint32_t expected = apps::word(i / 4, seed) + i % 4;
    CHECK(got[i] == expected, "%s: word %u is %u, expected %u", what, i, got[i], expected);
  }
}

// Writes that would overwrite a graph's memory, were its address given out again.
void useOtherMemory(const void* unlike, cudaStream_t stream) {
  for (int i = 0; i < 4; ++i) {
    void* other = nullptr;
    RUNTIME_OK(cudaMalloc(&other, kBytes));
    CHECK(other != unlike, "memory that is not freed was given out again");
    apps::fill(other, kBytes, 99, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaFree(other));
  }
}

// A capture that allocates and fills, and frees or not.
struct Made {
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;

  Made(cudaStream_t stream, uint32_t seed, bool frees, unsigned flags = 0) {
    RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    RUNTIME_OK(cudaMallocAsync(&memory, kBytes, stream));
    apps::fill(memory, kBytes, seed, stream);
    if (frees) RUNTIME_OK(cudaFreeAsync(memory, stream));
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, flags));
  }
  void destroy() {
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphDestroy(graph));
  }
};

void outlives(cudaStream_t stream) {
  Made made(stream, 1, false);
  expect(cudaFree(made.memory), cudaErrorInvalidValue, "free of what was never allocated");
  RUNTIME_OK(cudaGraphLaunch(made.exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  made.destroy();
  useOtherMemory(made.memory, stream);
  check(made.memory, 1, "memory whose graph is gone");
  CHECK(told(cudaGraphMemAttrUsedMemCurrent) >= kBytes,
        "memory that is not freed is not said to be used");
  RUNTIME_OK(cudaFree(made.memory));
  expect(cudaFree(made.memory), cudaErrorInvalidValue, "a second free");
  CHECK(told(cudaGraphMemAttrUsedMemCurrent) == 0, "memory that was freed is said to be used");

  // The same in stream order, while the graph's work is under way.
  Made other(stream, 2, false);
  RUNTIME_OK(cudaGraphLaunch(other.exec, stream));
  other.destroy();
  void* copy = nullptr;
  RUNTIME_OK(cudaMalloc(&copy, kBytes));
  RUNTIME_OK(cudaMemcpyAsync(copy, other.memory, kBytes, cudaMemcpyDeviceToDevice, stream));
  RUNTIME_OK(cudaFreeAsync(other.memory, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  check(copy, 2, "a copy of memory that was freed behind it");
  RUNTIME_OK(cudaFree(copy));
}

void launchedAgain(cudaStream_t stream) {
  Made made(stream, 3, false);
  RUNTIME_OK(cudaGraphLaunch(made.exec, stream));
  expect(cudaGraphLaunch(made.exec, stream), cudaErrorInvalidValue,
         "a launch whose memory is not freed");
  check(made.memory, 3, "after a launch that was refused");
  for (int round = 0; round < 4; ++round) {
    if (round % 2 == 0) {
      RUNTIME_OK(cudaFreeAsync(made.memory, stream));
    } else {
      RUNTIME_OK(cudaFree(made.memory));
    }
    RUNTIME_OK(cudaGraphLaunch(made.exec, stream));
    check(made.memory, 3, "launched again");
  }
  RUNTIME_OK(cudaFree(made.memory));
  made.destroy();

  Made itself(stream, 4, false, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int round = 0; round < 3; ++round) RUNTIME_OK(cudaGraphLaunch(itself.exec, stream));
  check(itself.memory, 4, "launched three times, freed by the next launch");
  itself.destroy();
  check(itself.memory, 4, "and its graph gone");
  RUNTIME_OK(cudaFree(itself.memory));

  Made inside(stream, 5, true);
  uint64_t none = 0;
  RUNTIME_OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
  for (int round = 0; round < 8; ++round) RUNTIME_OK(cudaGraphLaunch(inside.exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(told(cudaGraphMemAttrUsedMemCurrent) == 0,
        "memory that its graph frees is said to be used");
  CHECK(told(cudaGraphMemAttrUsedMemHigh) >= kBytes,
        "the most that was used is less than what a graph allocates");
  CHECK(told(cudaGraphMemAttrReservedMemCurrent) >= kBytes,
        "a graph that is there has nothing reserved");
  CHECK(told(cudaGraphMemAttrReservedMemHigh) >= told(cudaGraphMemAttrReservedMemCurrent),
        "more than the most");
  RUNTIME_OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
  CHECK(told(cudaGraphMemAttrUsedMemHigh) == 0, "the most that was used was not reset");
  expect(cudaFree(inside.memory), cudaErrorInvalidValue, "free of what its graph has freed");
  inside.destroy();
  RUNTIME_OK(cudaDeviceGraphMemTrim(0));
  CHECK(told(cudaGraphMemAttrReservedMemCurrent) == 0,
        "memory of graphs that are gone is reserved still");
}

// One graph allocates, by a capture, and another one frees, by a capture or by a node. Then its
// graph is gone before.
void freedByAnother(cudaStream_t stream, bool by_node, bool gone_before) {
  Made made(stream, 6, false);
  void* copy = nullptr;
  RUNTIME_OK(cudaMalloc(&copy, kBytes));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  if (by_node) {
    cudaGraphNode_t copied, freed;
    RUNTIME_OK(cudaGraphCreate(&graph, 0));
    RUNTIME_OK(cudaGraphAddMemcpyNode1D(&copied, graph, nullptr, 0, copy, made.memory, kBytes,
                                        cudaMemcpyDeviceToDevice));
    RUNTIME_OK(cudaGraphAddMemFreeNode(&freed, graph, &copied, 1, made.memory));
  } else {
    RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    RUNTIME_OK(cudaMemcpyAsync(copy, made.memory, kBytes, cudaMemcpyDeviceToDevice, stream));
    RUNTIME_OK(cudaFreeAsync(made.memory, stream));
    RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  }
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  const int rounds = gone_before ? 1 : 3;
  for (int round = 0; round < rounds; ++round) {
    RUNTIME_OK(cudaMemsetAsync(copy, 0, kBytes, stream));
    RUNTIME_OK(cudaGraphLaunch(made.exec, stream));
    if (gone_before) made.destroy();
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    check(copy, 6, "copied by the graph that frees");
  }
  expect(cudaFree(made.memory), cudaErrorInvalidValue, "free of what another graph has freed");
  CHECK(told(cudaGraphMemAttrUsedMemCurrent) == 0,
        "memory that a graph has freed is said to be used");
  if (!gone_before) made.destroy();
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(graph));
  RUNTIME_OK(cudaFree(copy));
}

// All by nodes, the free in a graph of its own.
void byNodes(cudaStream_t stream) {
  cudaMemAllocNodeParams allocation{};
  allocation.poolProps.allocType = cudaMemAllocationTypePinned;
  allocation.poolProps.location.type = cudaMemLocationTypeDevice;
  allocation.bytesize = kBytes;
  cudaGraph_t made, freeing;
  cudaGraphExec_t makes, frees;
  cudaGraphNode_t allocated, filled, copied, freed;
  RUNTIME_OK(cudaGraphCreate(&made, 0));
  RUNTIME_OK(cudaGraphAddMemAllocNode(&allocated, made, nullptr, 0, &allocation));
  void* copy = nullptr;
  RUNTIME_OK(cudaMalloc(&copy, kBytes));
  apps::fill(copy, kBytes, 7, stream);
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&filled, made, &allocated, 1, allocation.dptr, copy, kBytes,
                                      cudaMemcpyDeviceToDevice));
  RUNTIME_OK(cudaGraphInstantiate(&makes, made, 0));
  RUNTIME_OK(cudaGraphCreate(&freeing, 0));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&copied, freeing, nullptr, 0, copy, allocation.dptr, kBytes,
                                      cudaMemcpyDeviceToDevice));
  RUNTIME_OK(cudaGraphAddMemFreeNode(&freed, freeing, &copied, 1, allocation.dptr));
  RUNTIME_OK(cudaGraphInstantiate(&frees, freeing, 0));
  for (int round = 0; round < 3; ++round) {
    RUNTIME_OK(cudaGraphLaunch(makes, stream));
    expect(cudaGraphLaunch(makes, stream), cudaErrorInvalidValue,
           "a launch whose node's memory is not freed");
    RUNTIME_OK(cudaGraphLaunch(frees, stream));
    check(copy, 7, "by nodes");
  }
  RUNTIME_OK(cudaGraphExecDestroy(frees));
  RUNTIME_OK(cudaGraphDestroy(freeing));
  RUNTIME_OK(cudaGraphLaunch(makes, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  RUNTIME_OK(cudaGraphExecDestroy(makes));
  RUNTIME_OK(cudaGraphDestroy(made));
  useOtherMemory(allocation.dptr, stream);
  check(allocation.dptr, 7, "memory of a node whose graph is gone");
  RUNTIME_OK(cudaFree(allocation.dptr));
  RUNTIME_OK(cudaFree(copy));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  // Beside what does not fit.
  void* ballast = nullptr;
  RUNTIME_OK(cudaMalloc(&ballast, options.bytes));
  apps::fill(ballast, options.bytes, uint32_t(options.seed), stream);
  outlives(stream);
  apps::add(ballast, options.bytes, 1, stream);
  launchedAgain(stream);
  apps::add(ballast, options.bytes, 1, stream);
  for (const bool by_node : {false, true})
    for (const bool gone_before : {false, true}) freedByAnother(stream, by_node, gone_before);
  byNodes(stream);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  return apps::ok("memory of graphs lives until it is freed");
}
