// Launches that write a few words of large memory each: between two of them most of every page
// stays as it is.
#include "common.h"

// Adds to one word of each run of `stride` words, at `at`.
__global__ void addAt(uint32_t* words, uint32_t count, uint32_t stride, uint32_t at, uint32_t add) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[size_t{i} * stride + at] += add;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  const uint32_t seed = uint32_t(options.seed);
  constexpr uint32_t kStride = (uint32_t{1} << 20) / 4;  // two words of each page of 2 MiB
  const size_t bytes = (options.bytes / 2) & ~((size_t{2} << 20) - 1), words = bytes / 4;
  if (bytes == 0) apps::skip("--bytes is too few");
  const uint32_t count = uint32_t(words / kStride);
  uint32_t* data;
  RUNTIME_OK(cudaMalloc(&data, bytes));
  apps::fill(data, bytes, seed);
  std::vector<uint32_t> expected(words), got(words);
  for (size_t i = 0; i < words; ++i)
    expected[i] = apps::word(uint32_t(i / 4), seed) + uint32_t(i % 4);
  for (uint32_t round = 1; round <= 24; ++round) {
    const uint32_t at = uint32_t(random.below(kStride));
    addAt<<<apps::blocks(count), 256>>>(data, count, kStride, at, round);
    RUNTIME_OK(cudaGetLastError());
    for (uint32_t i = 0; i < count; ++i) expected[size_t{i} * kStride + at] += round;
    if (round % 8 != 0) continue;
    RUNTIME_OK(cudaMemcpy(got.data(), data, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < words; ++i)
      CHECK(got[i] == expected[i], "round %u: word %zu is %#x, expected %#x", round, i, got[i],
            expected[i]);
  }
  RUNTIME_OK(cudaFree(data));
  return apps::ok("a few words of %zu KiB a launch", bytes >> 10);
}
