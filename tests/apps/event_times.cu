// Times between events around kernels of known length, on memory that may lie at several GPUs: each
// is that of the work between, none is negative, and they add up.
#include <cmath>

#include "common.h"

namespace {

constexpr int kKernels = 10, kRounds = 3;
constexpr float kLength = 10;  // of a kernel, in milliseconds
constexpr float kExact = 0.5f;

__global__ void spin(uint32_t* words, uint32_t count, uint64_t nanoseconds) {
  uint64_t begun, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  for (uint32_t i = threadIdx.x; i * 4096 < count; i += blockDim.x) words[i * 4096] += 1;
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begun < nanoseconds);
}

float between(cudaEvent_t from, cudaEvent_t to) {
  float milliseconds = -1;
  RUNTIME_OK(cudaEventElapsedTime(&milliseconds, from, to));
  return milliseconds;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t piece = options.bytes / kKernels / 4096 * 4096;
  uint32_t* memory[kKernels];
  for (uint32_t*& one : memory) {
    RUNTIME_OK(cudaMalloc(&one, piece));
    RUNTIME_OK(cudaMemset(one, 0, piece));
  }
  cudaStream_t stream;
  cudaEvent_t events[kKernels + 1], untimed;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (cudaEvent_t& event : events) RUNTIME_OK(cudaEventCreate(&event));
  RUNTIME_OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int round = 0; round < kRounds; ++round) {
    RUNTIME_OK(cudaEventRecord(events[0], stream));
    for (int i = 0; i < kKernels; ++i) {
      spin<<<1, 32, 0, stream>>>(memory[i], uint32_t(piece / 4), uint64_t(kLength * 1e6));
      RUNTIME_OK(cudaGetLastError());
      RUNTIME_OK(cudaEventRecord(events[i + 1], stream));
    }
    RUNTIME_OK(cudaEventSynchronize(events[kKernels]));
    double sum = 0;
    for (int i = 0; i < kKernels; ++i) {
      const float one = between(events[i], events[i + 1]);
      CHECK(one >= 0 && between(events[i + 1], events[i]) <= 0,
            "round %d: kernel %d ends before it begins (%.3f ms)", round, i, one);
      sum += one;
    }
    const float all = between(events[0], events[kKernels]);
    CHECK(std::fabs(all - sum) < kExact, "round %d: %.3f ms in all, %.3f in parts", round, all,
          sum);
    CHECK(all > kKernels * kLength - kExact, "round %d: %.3f ms for %d kernels of %.0f", round, all,
          kKernels, kLength);
  }
  float none = 0;
  CHECK(cudaEventElapsedTime(&none, events[0], untimed) == cudaErrorInvalidResourceHandle,
        "an event without times has one");
  (void)cudaGetLastError();
  return apps::ok("event_times: %d rounds of %d kernels", kRounds, kKernels);
}
