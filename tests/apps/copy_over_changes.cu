// A kernel changes pinned memory, and a copy from the device in the same stream goes over it. The
// kernel changes much, so over a network its changes take longer to come than the copy's first
// bytes. The memory has what the copy brought, whether the program waits for the copy or for the
// stream.
#include "common.h"

namespace {

__global__ void change(uint32_t* words, size_t count, uint32_t round) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] = uint32_t(i) * 2654435761u + round;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t bytes = options.bytes / 4, words = bytes / 4;
  constexpr uint32_t kRounds = 12;
  uint32_t *pinned = nullptr, *device = nullptr;
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));  // copies of the default stream come behind it
  RUNTIME_OK(cudaHostAlloc(&pinned, bytes, cudaHostAllocMapped));
  RUNTIME_OK(cudaMalloc(&device, bytes));
  for (uint32_t round = 0; round < kRounds; ++round) {
    RUNTIME_OK(cudaMemsetAsync(device, int(round + 1), bytes, stream));
    change<<<64, 256, 0, stream>>>(pinned, words, round);
    RUNTIME_OK(cudaGetLastError());
    if (round % 2 == 0) {
      RUNTIME_OK(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
    } else {
      RUNTIME_OK(cudaMemcpy(pinned, device, bytes, cudaMemcpyDeviceToHost));
    }
    const uint32_t right = (round + 1) * 0x01010101u;
    for (size_t i = 0; i < words; ++i)
      CHECK(pinned[i] == right, "round %u: word %zu is %#x, not %#x", round, i, pinned[i], right);
  }
  RUNTIME_OK(cudaFreeHost(pinned));
  RUNTIME_OK(cudaFree(device));
  return apps::ok("%u rounds of %zu bytes", kRounds, bytes);
}
