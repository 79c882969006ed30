// Streams in masses, each behind the one before by an event that is destroyed as soon as it is
// waited for; every other stream is destroyed with work in it. Natively neither is limited.
#include "common.h"

namespace {

constexpr uint32_t kBuffers = 16, kStreams = 240, kStep = 4096;

__global__ void chain(uint32_t* words, uint32_t* turn, size_t count, uint32_t index) {
  for (size_t i = threadIdx.x * size_t{kStep}; i < count; i += blockDim.x * size_t{kStep})
    words[i] = words[i] * 3 + index;
  if (threadIdx.x == 0 && *turn == index) *turn = index + 1;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t bytes = options.bytes / kBuffers & ~size_t{4095}, count = bytes / 4;
  uint32_t *buffers[kBuffers], expected[kBuffers] = {}, *turn;
  for (uint32_t*& buffer : buffers) {
    RUNTIME_OK(cudaMalloc(&buffer, bytes));
    RUNTIME_OK(cudaMemset(buffer, 0, bytes));
  }
  RUNTIME_OK(cudaMalloc(&turn, 4));
  RUNTIME_OK(cudaMemset(turn, 0, 4));
  RUNTIME_OK(cudaDeviceSynchronize());
  std::vector<cudaStream_t> streams(kStreams);
  for (cudaStream_t& stream : streams)
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t before = nullptr;
  for (uint32_t i = 0; i < kStreams; ++i) {
    if (before != nullptr) {
      RUNTIME_OK(cudaStreamWaitEvent(streams[i], before, 0));
      RUNTIME_OK(cudaEventDestroy(before));
    }
    const uint32_t which = i / 8 % kBuffers;
    chain<<<1, 64, 0, streams[i]>>>(buffers[which], turn, count, i);
    RUNTIME_OK(cudaGetLastError());
    expected[which] = expected[which] * 3 + i;
    RUNTIME_OK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
    RUNTIME_OK(cudaEventRecord(before, streams[i]));
    if (i % 2 == 1) RUNTIME_OK(cudaStreamDestroy(streams[i]));
  }
  RUNTIME_OK(cudaEventSynchronize(before));
  RUNTIME_OK(cudaEventDestroy(before));
  uint32_t turns = 0;
  RUNTIME_OK(cudaMemcpy(&turns, turn, 4, cudaMemcpyDeviceToHost));
  CHECK(turns == kStreams, "%u of %u kernels ran in their turn", turns, kStreams);
  std::vector<uint32_t> words(count);
  for (uint32_t which = 0; which < kBuffers; ++which) {
    RUNTIME_OK(cudaMemcpy(words.data(), buffers[which], bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i += kStep)
      CHECK(words[i] == expected[which], "word %zu of buffer %u is %u, not %u", i, which, words[i],
            expected[which]);
  }
  for (uint32_t i = 0; i < kStreams; i += 2) RUNTIME_OK(cudaStreamDestroy(streams[i]));
  return apps::ok("%u streams, one behind the other", kStreams);
}
