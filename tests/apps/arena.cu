// One huge allocation with many tensors in it, as arena allocators make: layers that walk through
// it in order, a cache with an advancing write position, and a scratch region that every layer
// uses.
#include "common.h"

__global__ void layer(const uint4* weights, uint32_t* activations, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint4 w = weights[i];
  atomicAdd(&activations[i & 1023], w.x ^ w.y);  // sums don't depend on the order between threads
}

__global__ void append(uint32_t* cache, uint32_t position, uint32_t width, uint32_t value) {
  if (threadIdx.x < width) cache[size_t(position) * width + threadIdx.x] = value + threadIdx.x;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  char* arena;
  RUNTIME_OK(cudaMalloc(&arena, options.bytes));
  RUNTIME_OK(cudaMemset(arena, 0, options.bytes));
  // Tensors of uneven sizes, 256-byte aligned, until three quarters are used; then activations and
  // the cache.
  apps::Random random(options.seed);
  struct Tensor {
    size_t offset, bytes;
  };
  std::vector<Tensor> tensors;
  size_t used = 0;
  while (used < options.bytes * 3 / 4) {
    const size_t bytes = (size_t{64} << 10) + (random.below(options.bytes / 32) & ~size_t{255});
    if (used + bytes > options.bytes * 3 / 4) break;
    tensors.push_back({used, bytes});
    used += bytes;
  }
  const size_t activations = options.bytes * 3 / 4, cache = options.bytes * 7 / 8;
  constexpr uint32_t kWidth = 64, kPasses = 3;
  for (size_t t = 0; t < tensors.size(); ++t)
    apps::fill(arena + tensors[t].offset, tensors[t].bytes, seed + uint32_t(t));
  uint32_t position = 0;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    for (const Tensor& tensor : tensors) {
      const uint32_t count = uint32_t(tensor.bytes / 16);
      const uint32_t touched = count < 16384 ? count : 16384;
      // The end of the tensor, so that interior addresses are named as well.
      layer<<<apps::blocks(touched), 256>>>(
          reinterpret_cast<uint4*>(arena + tensor.offset) + (count - touched),
          reinterpret_cast<uint32_t*>(arena + activations), touched);
      append<<<1, kWidth>>>(reinterpret_cast<uint32_t*>(arena + cache), position, kWidth,
                            (position + 1) * 3 + seed);
      ++position;
    }
  }
  RUNTIME_OK(cudaGetLastError());
  std::vector<uint32_t> sums(1024, 0), got(1024), rows(size_t(position) * kWidth);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const uint32_t count = uint32_t(tensors[t].bytes / 16), touched = count < 16384 ? count : 16384;
    for (uint32_t i = 0; i < touched; ++i) {
      const uint32_t v = apps::word(count - touched + i, seed + uint32_t(t));
      sums[i & 1023] += kPasses * (v ^ (v + 1));
    }
  }
  RUNTIME_OK(cudaMemcpy(got.data(), arena + activations, got.size() * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 1024; ++i)
    CHECK(got[i] == sums[i], "activation %zu is %#x, expected %#x", i, got[i], sums[i]);
  RUNTIME_OK(cudaMemcpy(rows.data(), arena + cache, rows.size() * 4, cudaMemcpyDeviceToHost));
  for (uint32_t p = 0; p < position; ++p) {
    for (uint32_t i = 0; i < kWidth; ++i) {
      const uint32_t expected = (p + 1) * 3 + seed + i;
      CHECK(rows[size_t(p) * kWidth + i] == expected, "cache row %u word %u is %#x, expected %#x",
            p, i, rows[size_t(p) * kWidth + i], expected);
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    apps::verify(arena + tensors[t].offset, tensors[t].bytes, seed + uint32_t(t), 0, "tensor");
  }
  return apps::ok("arena with %zu tensors, %u passes", tensors.size(), kPasses);
}
