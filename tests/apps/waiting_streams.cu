// A hundred streams, each with memory of its own that kernels, fills and copies change in turns.
// If not all of it fits, most of them wait for memory most of the time.
#include "common.h"

namespace {

constexpr size_t kStreams = 100, kSmall = 8 << 10;

__global__ void add(uint32_t* words, size_t count, uint32_t value) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    words[i] += value;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t words = options.bytes / kStreams / 2 / sizeof(uint32_t);
  constexpr uint32_t kRounds = 6;
  struct Its {
    cudaStream_t stream;
    uint32_t *words, *copy;
    std::vector<uint32_t> small, model;
  };
  std::vector<Its> all(kStreams);
  for (size_t s = 0; s < kStreams; ++s) {
    Its& its = all[s];
    RUNTIME_OK(cudaStreamCreateWithFlags(&its.stream, cudaStreamNonBlocking));
    RUNTIME_OK(cudaMalloc(&its.words, words * sizeof(uint32_t)));
    RUNTIME_OK(cudaMalloc(&its.copy, words * sizeof(uint32_t)));
    its.model.assign(words, 0);
    RUNTIME_OK(cudaMemsetAsync(its.words, 0, words * sizeof(uint32_t), its.stream));
  }
  for (uint32_t round = 1; round <= kRounds; ++round) {
    for (size_t s = 0; s < kStreams; ++s) {
      Its& its = all[s];
      const uint32_t value = round * 1000 + uint32_t(s);
      add<<<8, 128, 0, its.stream>>>(its.words, words, value);
      RUNTIME_OK(cudaGetLastError());
      for (uint32_t& word : its.model) word += value;
      // The last copy from the host is of few words.
      its.small.assign(kSmall / sizeof(uint32_t), value);
      const size_t at = (s * 97 + round * 31) % (words - its.small.size());
      RUNTIME_OK(cudaMemcpyAsync(its.words + at, its.small.data(), kSmall, cudaMemcpyHostToDevice,
                                 its.stream));
      std::copy(its.small.begin(), its.small.end(), its.model.begin() + ptrdiff_t(at));
      const size_t end = words - round * 16;
      RUNTIME_OK(cudaMemsetAsync(its.words + end, int(round), 64, its.stream));
      std::memset(its.model.data() + end, int(round), 64);
      RUNTIME_OK(cudaMemcpyAsync(its.copy, its.words, words * sizeof(uint32_t),
                                 cudaMemcpyDeviceToDevice, its.stream));
    }
  }
  std::vector<uint32_t> got(words);
  for (size_t s = 0; s < kStreams; ++s) {
    RUNTIME_OK(cudaStreamSynchronize(all[s].stream));
    for (const uint32_t* from : {all[s].words, all[s].copy}) {
      RUNTIME_OK(cudaMemcpy(got.data(), from, words * sizeof(uint32_t), cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < words; ++i)
        CHECK(got[i] == all[s].model[i], "stream %zu: word %zu is %u, not %u", s, i, got[i],
              all[s].model[i]);
    }
  }
  return apps::ok("%zu streams of %zu bytes, %u rounds", kStreams, words * 2 * sizeof(uint32_t),
                  kRounds);
}
