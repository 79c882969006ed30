// A decode as llama.cpp does it: the weights of all layers in one allocation, small and large
// tensors in turns, each filled by one copy; after them a cache and a buffer for what is computed,
// of which a token touches little and which every kernel names. Each kernel reads all of the weight
// that it names.
#include "common.h"

__global__ void multiply(const uint32_t* weight, uint32_t words, uint32_t stride,
                         const uint32_t* from, uint32_t* to) {
  const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
  if (i < words) atomicAdd(to, weight[i] * (i + 1) + *from);
}

__global__ void append(uint32_t* cache, const uint32_t* value) { *cache = *value; }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t stride = 256;
  // Shares of a layer: a norm, a bias, attention, its output, and two of a perceptron.
  const size_t layers = 12, unit = options.bytes / layers / 48 / 4;
  const size_t sizes[] = {256, 768, 12 * unit, 4 * unit, 16 * unit, 16 * unit};
  std::vector<size_t> begins, words;
  size_t total = 0;
  for (size_t layer = 0; layer < layers; ++layer)
    for (const size_t size : sizes) {
      begins.push_back(total);
      words.push_back(size);
      total += (size + 63) / 64 * 64;
    }
  uint32_t *weights, *cache, *compute;
  RUNTIME_OK(cudaMalloc(&weights, 4 * total));
  std::vector<uint32_t> host(total);
  for (size_t i = 0; i < total; ++i) host[i] = apps::word(uint32_t(i), uint32_t(options.seed));
  for (size_t t = 0; t < begins.size(); ++t)
    RUNTIME_OK(cudaMemcpy(weights + begins[t], host.data() + begins[t], 4 * words[t],
                          cudaMemcpyHostToDevice));
  const size_t tokens = 24, scratch = options.bytes / 8;
  RUNTIME_OK(cudaMalloc(&cache, options.bytes / 64));
  RUNTIME_OK(cudaMalloc(&compute, scratch));
  RUNTIME_OK(cudaMemset(cache, 0, options.bytes / 64));
  std::vector<uint32_t> expected(tokens), got(tokens);
  for (size_t token = 0; token < tokens; ++token) {
    uint32_t value = uint32_t(token);
    RUNTIME_OK(cudaMemcpy(compute, &value, 4, cudaMemcpyHostToDevice));
    for (size_t t = 0; t < begins.size(); ++t) {
      // Results lie in turns at two places of the buffer.
      uint32_t* const from = compute + (t % 2) * 1024;
      uint32_t* const to = compute + (1 - t % 2) * 1024;
      RUNTIME_OK(cudaMemsetAsync(to, 0, 4));
      multiply<<<apps::blocks(words[t] / stride + 1), 256>>>(weights + begins[t],
                                                             uint32_t(words[t]), stride, from, to);
      RUNTIME_OK(cudaGetLastError());
      uint32_t sum = 0;
      for (size_t i = 0; i < words[t]; i += stride)
        sum += host[begins[t] + i] * uint32_t(i + 1) + value;
      value = sum;
    }
    append<<<1, 1>>>(cache + token, compute + (begins.size() % 2) * 1024);
    RUNTIME_OK(cudaGetLastError());
    expected[token] = value;
  }
  RUNTIME_OK(cudaMemcpy(got.data(), cache, 4 * tokens, cudaMemcpyDeviceToHost));
  for (size_t token = 0; token < tokens; ++token)
    CHECK(got[token] == expected[token], "token %zu is %u, not %u", token, got[token],
          expected[token]);
  RUNTIME_OK(cudaFree(compute));
  RUNTIME_OK(cudaFree(cache));
  RUNTIME_OK(cudaFree(weights));
  return apps::ok("%zu tokens of %zu tensors", tokens, begins.size());
}
