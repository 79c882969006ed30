// Nearly all the memory that the device has is allocated, and launches use it two blocks at a time,
// in an order that nobody can foresee: what they need has to come in where everything is full.
// Freed memory can be allocated again at once, in other sizes.
#include "common.h"

namespace {

// y[i] = y[i] * 3 + x[i]
__global__ void mix(uint32_t* y, const uint32_t* x, uint64_t words) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    y[i] = y[i] * 3 + x[i];
}

__global__ void start(uint32_t* y, uint32_t block, uint64_t words) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    y[i] = block * 2654435761u + uint32_t(i);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t bytes = options.bytes / 8, words = bytes / sizeof(uint32_t);
  uint32_t state = uint32_t(options.seed) * 747796405u + 1;
  const auto random = [&](size_t below) {
    state = state * 1664525u + 1013904223u;
    return size_t(state >> 8) % below;
  };
  std::vector<uint32_t*> blocks;
  for (uint32_t* block = nullptr; cudaMalloc(&block, bytes) == cudaSuccess; blocks.push_back(block))
    CHECK(blocks.size() < 4096, "memory does not run out at %zu blocks", blocks.size());
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation, "memory runs out with another error");
  CHECK(blocks.size() >= 2, "only %zu blocks fit", blocks.size());
  // The sum in a block: each word is a * its own start value, plus those of others. All words of a
  // block have the same history, so three of each are computed again.
  const size_t looked_at[] = {0, words / 2, words - 1};
  std::vector<uint32_t> expected;
  for (size_t b = 0; b < blocks.size(); ++b) {
    start<<<8, 128>>>(blocks[b], uint32_t(b), words);
    for (const size_t i : looked_at) expected.push_back(uint32_t(b) * 2654435761u + uint32_t(i));
  }
  for (int round = 0; round < 200; ++round) {
    const size_t y = random(blocks.size()), x = random(blocks.size());
    mix<<<8, 128>>>(blocks[y], blocks[x], words);
    for (int k = 0; k < 3; ++k) {
      uint32_t& value = expected[y * 3 + k];
      value = value * 3 + expected[x * 3 + k];
    }
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t b = 0; b < blocks.size(); ++b)
    for (int k = 0; k < 3; ++k) {
      uint32_t value = 0;
      RUNTIME_OK(
          cudaMemcpy(&value, blocks[b] + looked_at[k], sizeof value, cudaMemcpyDeviceToHost));
      CHECK(value == expected[b * 3 + k], "block %zu, word %zu: %u, not %u", b, looked_at[k], value,
            expected[b * 3 + k]);
    }
  for (uint32_t* block : blocks) RUNTIME_OK(cudaFree(block));
  for (int round = 0; round < 3; ++round) {
    uint32_t* whole = nullptr;
    RUNTIME_OK(cudaMalloc(&whole, bytes * blocks.size() * 3 / 4));
    RUNTIME_OK(cudaFree(whole));
    for (uint32_t*& block : blocks) {
      RUNTIME_OK(cudaMalloc(&block, bytes));
      start<<<1, 32>>>(block, uint32_t(round), 1024);
    }
    RUNTIME_OK(cudaDeviceSynchronize());
    for (uint32_t* block : blocks) RUNTIME_OK(cudaFree(block));
  }
  return apps::ok("%zu blocks of %zu KiB in turns", blocks.size(), bytes >> 10);
}
