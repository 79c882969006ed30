// All weights in one allocation, as llama.cpp has them: each tensor is filled by one copy, then
// rounds read them in order. In between a tensor is written by its name, by a copy and by a memset,
// and a kernel reads beyond the tensor that it names.
#include "common.h"

// Sums of words do not depend on the order between threads.
__global__ void sum(const uint32_t* words, uint32_t count, uint32_t stride, uint32_t* into) {
  const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
  if (i < count) atomicAdd(into, words[i]);
}

__global__ void addTo(uint32_t* words, uint32_t count, uint32_t stride, uint32_t value) {
  const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
  if (i < count) words[i] += value;
}

constexpr uint32_t kStride = 256;  // words between two that are looked at

struct Buffer {
  size_t words;
  std::vector<uint32_t> host;
  uint32_t* device;
  uint32_t* result;

  void upload(size_t at, size_t count) {
    RUNTIME_OK(cudaMemcpy(device + at, host.data() + at, 4 * count, cudaMemcpyHostToDevice));
  }
  // The kernel is given where the tensor begins, and reads `count` words.
  void check(size_t at, size_t count) {
    uint32_t expected = 0, got = 0;
    for (size_t i = 0; i < count; i += kStride) expected += host[at + i];
    RUNTIME_OK(cudaMemset(result, 0, 4));
    sum<<<apps::blocks(count / kStride + 1), 256>>>(device + at, uint32_t(count), kStride, result);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaMemcpy(&got, result, 4, cudaMemcpyDeviceToHost));
    CHECK(got == expected, "the sum of %zu words at %zu is %u, not %u", count, at, got, expected);
  }
};

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  Buffer buffer{options.bytes / 4, std::vector<uint32_t>(options.bytes / 4), nullptr, nullptr};
  for (size_t i = 0; i < buffer.words; ++i)
    buffer.host[i] = apps::word(uint32_t(i), uint32_t(options.seed));
  RUNTIME_OK(cudaMalloc(&buffer.device, options.bytes));
  RUNTIME_OK(cudaMalloc(&buffer.result, 4));
  apps::Random random(options.seed);
  std::vector<size_t> tensors;  // where each begins; the last is the end
  for (size_t at = 0; at < buffer.words;) {
    tensors.push_back(at);
    at += (size_t{1} << 17) + random.below(buffer.words / 24) / 64 * 64;
  }
  tensors.push_back(buffer.words);
  const size_t count = tensors.size() - 1;
  const auto bytesOf = [&](size_t t) { return tensors[t + 1] - tensors[t]; };
  for (size_t t = 0; t < count; ++t) buffer.upload(tensors[t], bytesOf(t));
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t t = 0; t < count; ++t) buffer.check(tensors[t], bytesOf(t));
    const size_t t = random.below(uint32_t(count));
    const size_t at = tensors[t], length = bytesOf(t);
    buffer.check(at, buffer.words - at);  // beyond its end
    switch (round % 4) {
      case 0:
        for (size_t i = 0; i < length; ++i) buffer.host[at + i] += 7;
        buffer.upload(at, length);
        break;
      case 1:
        for (size_t i = 0; i < length; ++i) buffer.host[at + i] = 0;
        RUNTIME_OK(cudaMemset(buffer.device + at, 0, 4 * length));
        break;
      case 2:
        for (size_t i = 0; i < length; i += kStride) buffer.host[at + i] += 9;
        addTo<<<apps::blocks(length / kStride + 1), 256>>>(buffer.device + at, uint32_t(length),
                                                           kStride, 9u);
        RUNTIME_OK(cudaGetLastError());
        break;
      default:
        break;
    }
  }
  std::vector<uint32_t> all(buffer.words);
  RUNTIME_OK(cudaMemcpy(all.data(), buffer.device, options.bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < buffer.words; ++i)
    CHECK(all[i] == buffer.host[i], "word %zu is %u, not %u", i, all[i], buffer.host[i]);
  RUNTIME_OK(cudaFree(buffer.device));
  return apps::ok("one buffer of %zu tensors, %d rounds", count, kRounds);
}
