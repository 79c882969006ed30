// cuBLAS in several streams, between asynchronous copies from and to pinned memory: each stream has
// products of its own, one behind the other, ordered by events across streams.
#include <cublas_v2.h>

#include <algorithm>

#include "gemm.h"

namespace {

constexpr int kStreams = 3, kRounds = 8, kSize = 192;
constexpr size_t kCount = size_t{kSize} * kSize;

struct Lane {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  cublasHandle_t handle = nullptr;
  float *in = nullptr, *out = nullptr;  // pinned: kRounds matrices each
  float *a = nullptr, *b = nullptr, *c = nullptr;
};

}  // namespace

int main() {
  toolkit::g_name = "cublas_streams";
  Lane lanes[kStreams];
  for (Lane& lane : lanes) {
    MUST(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming));
    MUST(cublasCreate(&lane.handle));
    MUST(cublasSetStream(lane.handle, lane.stream));
    MUST(cudaMallocHost(reinterpret_cast<void**>(&lane.in), kRounds * kCount * sizeof(float)));
    MUST(cudaMallocHost(reinterpret_cast<void**>(&lane.out), kRounds * kCount * sizeof(float)));
    MUST(cudaMallocAsync(reinterpret_cast<void**>(&lane.a), kCount * sizeof(float), lane.stream));
    MUST(cudaMallocAsync(reinterpret_cast<void**>(&lane.b), kCount * sizeof(float), lane.stream));
    MUST(cudaMallocAsync(reinterpret_cast<void**>(&lane.c), kCount * sizeof(float), lane.stream));
  }
  toolkit::started();
  // Whole numbers: every product is exact, in whatever order it is summed up.
  const auto whole = [](int lane, int round, size_t i) {
    return std::round(
        toolkit::number(static_cast<uint32_t>(i), static_cast<uint32_t>(lane * 100 + round + 1)) *
        8);
  };
  for (int l = 0; l < kStreams; ++l) {
    for (size_t i = 0; i < kRounds * kCount; ++i)
      lanes[l].in[i] = whole(l, static_cast<int>(i / kCount), i % kCount);
  }
  const float one = 1, zero = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int l = 0; l < kStreams; ++l) {
      Lane& lane = lanes[l];
      // b is the a of the lane before, as that one has it in this round.
      const Lane& before = lanes[(l + kStreams - 1) % kStreams];
      MUST(cudaMemcpyAsync(lane.a, lane.in + round * kCount, kCount * sizeof(float),
                           cudaMemcpyHostToDevice, lane.stream));
      MUST(cudaMemcpyAsync(lane.b, before.in + round * kCount, kCount * sizeof(float),
                           cudaMemcpyHostToDevice, lane.stream));
      if (l > 0) MUST(cudaStreamWaitEvent(lane.stream, before.done, 0));
      MUST(cublasSgemm(lane.handle, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one, lane.a,
                       kSize, lane.b, kSize, &zero, lane.c, kSize));
      MUST(cudaMemcpyAsync(lane.out + round * kCount, lane.c, kCount * sizeof(float),
                           cudaMemcpyDeviceToHost, lane.stream));
      MUST(cudaEventRecord(lane.done, lane.stream));
    }
  }
  toolkit::Hash hash;
  for (int l = 0; l < kStreams; ++l) {
    MUST(cudaStreamSynchronize(lanes[l].stream));
    const Lane& before = lanes[(l + kStreams - 1) % kStreams];
    for (int round = 0; round < kRounds; ++round) {
      const auto matrix = [&](const float* from) {
        return std::vector<float>(from + round * kCount, from + (round + 1) * kCount);
      };
      const toolkit::Shape shape{kSize, kSize, kSize, false, false};
      const auto got = matrix(lanes[l].out);
      toolkit::compare(shape, got,
                       toolkit::product(shape, matrix(lanes[l].in), matrix(before.in),
                                        [](float v) { return v; }),
                       0, "SGEMM in a stream");
      hash.add(got);
    }
  }
  for (Lane& lane : lanes) {
    MUST(cublasDestroy(lane.handle));
    MUST(cudaFreeAsync(lane.a, lane.stream));
    MUST(cudaFreeAsync(lane.b, lane.stream));
    MUST(cudaFreeAsync(lane.c, lane.stream));
    MUST(cudaStreamDestroy(lane.stream));
    MUST(cudaEventDestroy(lane.done));
    MUST(cudaFreeHost(lane.in));
    MUST(cudaFreeHost(lane.out));
  }
  toolkit::ok("%d streams, %d products each, %016llx", kStreams, kRounds, hash.value());
}
