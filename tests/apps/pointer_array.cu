// Arrays of pointers built on the GPU from a base, used by a later launch that names only the
// array, while the targets are what an eviction would take: batched GEMM and grouped operations do
// this. Two levels deep as well.
#include "common.h"

constexpr int kBlocks = 16;

struct Bases {
  uint32_t* base[kBlocks];
};

/// One pointer into each target, somewhere inside it.
__global__ void buildArray(uint32_t** array, Bases bases, uint32_t offset) {
  if (threadIdx.x < kBlocks) array[threadIdx.x] = bases.base[threadIdx.x] + offset + threadIdx.x;
}

/// Pointers computed from one base: the pieces of one allocation.
__global__ void buildStrided(uint32_t** array, uint32_t* base, uint32_t stride) {
  if (threadIdx.x < kBlocks) array[threadIdx.x] = base + size_t(threadIdx.x) * stride;
}

__global__ void useArray(uint32_t* const* array, uint32_t count, uint32_t value) {
  uint32_t* target = array[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) target[i] = target[i] * 3 + value;
}

__global__ void buildTable(uint32_t*** table, uint32_t** first, uint32_t** second) {
  table[0] = first;
  table[1] = second;
}

__global__ void useTable(uint32_t*** table, uint32_t count, uint32_t value) {
  uint32_t* target = table[blockIdx.x / kBlocks][blockIdx.x % kBlocks];
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) target[i] = target[i] * 5 + value;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr uint32_t kCount = 512;
  const uint32_t seed = uint32_t(options.seed);
  const size_t piece = (options.bytes / 3 / kBlocks) & ~size_t{255};
  const uint32_t offset = uint32_t(piece / 8);
  Bases bases;
  for (uint32_t*& p : bases.base) {
    RUNTIME_OK(cudaMalloc(&p, piece));
    apps::fill(p, piece, seed);
  }
  uint32_t* arena;
  RUNTIME_OK(cudaMalloc(&arena, piece * kBlocks));
  for (int k = 0; k < kBlocks; ++k) apps::fill(arena + piece / 4 * k, piece, seed);
  uint32_t **first, **second, ***table;
  RUNTIME_OK(cudaMalloc(&first, sizeof(void*) * kBlocks));
  RUNTIME_OK(cudaMalloc(&second, sizeof(void*) * kBlocks));
  RUNTIME_OK(cudaMalloc(&table, sizeof(void*) * 2));
  apps::Pressure pressure(options.bytes / 3);

  buildArray<<<1, 32>>>(first, bases, offset);
  buildStrided<<<1, 32>>>(second, arena, uint32_t(piece / 4));
  pressure.apply();  // the targets were last used before the pressure: they go first
  useArray<<<kBlocks, 64>>>(first, kCount, 1);
  useArray<<<kBlocks, 64>>>(second, kCount, 2);
  pressure.apply();
  buildTable<<<1, 1>>>(table, first, second);
  pressure.apply();
  pressure.apply();
  useTable<<<2 * kBlocks, 64>>>(table, kCount, 7);
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaDeviceSynchronize());

  std::vector<uint32_t> got(piece / 4);
  const auto compare = [&](const uint32_t* from, uint32_t begin, uint32_t value, const char* what,
                           int k) {
    RUNTIME_OK(cudaMemcpy(got.data(), from, piece, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < got.size(); ++i) {
      uint32_t expected = apps::word(i / 4, seed) + i % 4;
      if (i >= begin && i < begin + kCount) expected = (expected * 3 + value) * 5 + 7;
      CHECK(got[i] == expected, "%s %d word %u is %#x, expected %#x", what, k, i, got[i], expected);
    }
  };
  for (int k = 0; k < kBlocks; ++k) {
    compare(bases.base[k], offset + uint32_t(k), 1, "target", k);
    compare(arena + piece / 4 * k, 0, 2, "arena piece", k);
  }
  pressure.check();
  return apps::ok("pointer_array with %d targets of %zu KiB", 2 * kBlocks, piece >> 10);
}
