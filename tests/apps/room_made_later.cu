// A launch waits for room that a kernel has which only a later launch ends, on another stream. Work
// behind the waiting launch in its stream, behind its event, behind an event that a graph there
// records, and in the default stream, is done in that order; streams beside it go on. With a second
// device, the stream waits for that one, too.
#include "common.h"

namespace {

__global__ void holdUntil(const volatile uint32_t* flag, uint32_t value, uint32_t limit,
                          uint4* held, uint32_t pieces, uint32_t* outcome) {
  uint32_t tries = 0;
  while (*flag != value && ++tries < limit) {
  }
  *outcome = *flag == value ? 1 : 2;
  for (uint32_t i = 0; i < pieces; ++i) ++held[size_t(i) * 65536].x;
}

__global__ void setFlag(volatile uint32_t* flag, uint32_t value) {
  *flag = value;
  __threadfence();
}

/// The result tells the order of steps.
__global__ void step(uint32_t* out, uint32_t count, uint32_t stride, uint32_t factor,
                     uint32_t addend) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    uint32_t& word = out[size_t(i) * stride];
    word = word * factor + addend;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr uint32_t kLimit = 300'000'000, kStride = 4096, kFleeting = 64;
  // Each is more than half of the room that there may be.
  const size_t bytes = options.bytes / 8 * 5 & ~((size_t{1} << 20) - 1);
  const auto pieces = uint32_t(bytes >> 20);
  const auto words = uint32_t(bytes / 4 / kStride);
  uint4* held;
  uint32_t *needed, *flag, *outcome, *beside;
  RUNTIME_OK(cudaMalloc(&held, bytes));
  RUNTIME_OK(cudaMalloc(&needed, bytes));
  RUNTIME_OK(cudaMalloc(&flag, 4));
  RUNTIME_OK(cudaMalloc(&outcome, 4));
  RUNTIME_OK(cudaMalloc(&beside, 4));
  cudaStream_t holds, waits, also, behind, ends;
  RUNTIME_OK(cudaStreamCreateWithFlags(&holds, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreate(&waits));
  RUNTIME_OK(cudaStreamCreate(&also));
  RUNTIME_OK(cudaStreamCreateWithFlags(&behind, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&ends, cudaStreamNonBlocking));
  cudaEvent_t event;
  RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // A graph that ends with an event.
  cudaEvent_t of_graph;
  RUNTIME_OK(cudaEventCreateWithFlags(&of_graph, cudaEventDisableTiming));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaGraphNode_t stepped, recorded;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  uint32_t count = words, stride = kStride, factor = 17, addend = 6;
  void* parameters[] = {&needed, &count, &stride, &factor, &addend};
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(step);
  node.gridDim = dim3(1), node.blockDim = dim3(256);
  node.kernelParams = parameters;
  RUNTIME_OK(cudaGraphAddKernelNode(&stepped, graph, nullptr, 0, &node));
  RUNTIME_OK(cudaGraphAddEventRecordNode(&recorded, graph, &stepped, 1, of_graph));
  RUNTIME_OK(cudaGraphInstantiate(&executable, graph, 0));
  // Loaded before somebody waits for what they do: a first use may wait for all that runs.
  apps::fill(held, bytes, uint32_t(options.seed));
  apps::fill(reinterpret_cast<uint4*>(needed), bytes, uint32_t(options.seed) + 1);
  RUNTIME_OK(cudaMemset(flag, 0, 4));
  RUNTIME_OK(cudaMemset(beside, 0, 4));
  setFlag<<<1, 1, 0, ends>>>(flag, 0);
  holdUntil<<<1, 1, 0, holds>>>(flag, 0, 1, held, 0, outcome);
  step<<<1, 32, 0, behind>>>(beside, 1, 1, 1, 0);
  RUNTIME_OK(cudaGraphLaunch(executable, waits));
  int devices = 0;
  RUNTIME_OK(cudaGetDeviceCount(&devices));
  uint32_t* there = nullptr;
  cudaStream_t stream_there = nullptr;
  cudaEvent_t event_there = nullptr;
  if (devices > 1) {
    RUNTIME_OK(cudaSetDevice(1));
    RUNTIME_OK(cudaMalloc(&there, 4));
    RUNTIME_OK(cudaStreamCreate(&stream_there));
    RUNTIME_OK(cudaEventCreateWithFlags(&event_there, cudaEventDisableTiming));
    setFlag<<<1, 1, 0, stream_there>>>(there, 0);
    RUNTIME_OK(cudaDeviceSynchronize());
    RUNTIME_OK(cudaSetDevice(0));
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  constexpr uint32_t kRounds = 3;
  std::vector<uint32_t> expected(words);
  for (uint32_t i = 0; i < words; ++i)
    expected[i] = apps::word(i * kStride / 4, uint32_t(options.seed) + 1) * factor + addend;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    RUNTIME_OK(cudaMemset(outcome, 0, 4));
    RUNTIME_OK(cudaDeviceSynchronize());
    holdUntil<<<1, 1, 0, holds>>>(flag, round, kLimit, held, pieces, outcome);
    step<<<1, 256, 0, waits>>>(needed, words, kStride, 3, round);
    step<<<1, 256, 0, waits>>>(needed, words, kStride, 5, 2);
    if (devices > 1) {
      RUNTIME_OK(cudaSetDevice(1));
      setFlag<<<1, 1, 0, stream_there>>>(there, round);
      RUNTIME_OK(cudaEventRecord(event_there, stream_there));
      RUNTIME_OK(cudaSetDevice(0));
      RUNTIME_OK(cudaStreamWaitEvent(waits, event_there, 0));
    }
    cudaEvent_t passed = event;
    if (round % 2 == 0) {
      RUNTIME_OK(cudaEventRecord(event, waits));
    } else {
      RUNTIME_OK(cudaGraphLaunch(executable, waits));
      passed = of_graph;
    }
    RUNTIME_OK(cudaStreamWaitEvent(behind, passed, 0));
    step<<<1, 256, 0, behind>>>(needed, words, kStride, 7, 3);
    const cudaError_t done = cudaEventQuery(passed);
    CHECK(done == cudaSuccess || done == cudaErrorNotReady, "the event: %d", int(done));
    // Events that are gone before what they were recorded behind.
    for (uint32_t i = 0; i < kFleeting; ++i) {
      cudaEvent_t fleeting;
      RUNTIME_OK(cudaEventCreateWithFlags(&fleeting, cudaEventDisableTiming));
      RUNTIME_OK(cudaEventRecord(fleeting, waits));
      RUNTIME_OK(cudaEventDestroy(fleeting));
    }
    // The event means something else from here on: the wait before it does not.
    if (round % 2 == 0) {
      RUNTIME_OK(cudaEventRecord(event, behind));
      RUNTIME_OK(cudaStreamWaitEvent(waits, event, 0));
      step<<<1, 256, 0>>>(needed, words, kStride, 11, 4);  // in the default stream
      step<<<1, 256, 0, also>>>(needed, words, kStride, 13, 5);
    }
    setFlag<<<1, 1, 0, ends>>>(flag, round);
    step<<<1, 32, 0, ends>>>(beside, 1, 1, 1, 1);
    if (round % 2 == 0) {
      RUNTIME_OK(cudaStreamSynchronize(also));
    } else {
      RUNTIME_OK(cudaStreamSynchronize(behind));
    }
    for (uint32_t& word : expected) {
      word = (word * 3 + round) * 5 + 2;
      if (round % 2 != 0) word = word * factor + addend;
      word = word * 7 + 3;
      if (round % 2 == 0) word = (word * 11 + 4) * 13 + 5;
    }
    RUNTIME_OK(cudaStreamSynchronize(holds));
    uint32_t how = 0;
    RUNTIME_OK(cudaMemcpy(&how, outcome, 4, cudaMemcpyDeviceToHost));
    CHECK(how == 1, "round %u: the kernel that holds room %s", round,
          how == 2 ? "gave up" : "did not run");
    std::vector<uint32_t> found(bytes / 4);
    RUNTIME_OK(cudaMemcpy(found.data(), needed, bytes, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < words; ++i)
      CHECK(found[size_t(i) * kStride] == expected[i], "round %u: word %u is %#x, expected %#x",
            round, i, found[size_t(i) * kStride], expected[i]);
  }
  RUNTIME_OK(cudaStreamSynchronize(ends));
  RUNTIME_OK(cudaMemcpy(&count, beside, 4, cudaMemcpyDeviceToHost));
  CHECK(count == kRounds, "the stream beside it did %u steps", count);
  std::vector<uint32_t> kept(bytes / 4);
  RUNTIME_OK(cudaMemcpy(kept.data(), held, bytes, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < pieces; ++i) {
    const uint32_t expect = apps::word(i * 65536, uint32_t(options.seed)) + kRounds;
    CHECK(kept[size_t(i) * 262144] == expect, "held word %u is %#x, expected %#x", i,
          kept[size_t(i) * 262144], expect);
  }
  RUNTIME_OK(cudaFree(held));
  RUNTIME_OK(cudaFree(needed));
  return apps::ok("room_made_later: %u rounds with %u MiB each", kRounds, pieces);
}
