// Pointers that no launch names: in __device__ variables, in __constant__ tables (rewritten between
// launches), and in a __device__ variable that a kernel sets.
#include "common.h"

constexpr int kTargets = 8;
__device__ uint32_t* g_targets[kTargets];
__constant__ const uint32_t* c_sources[kTargets];
__device__ uint32_t* g_chosen;

__global__ void copyAll(uint32_t count, uint32_t value) {
  const uint32_t* source = c_sources[blockIdx.x];
  uint32_t* target = g_targets[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i] + value;
}

__global__ void choose(int which) { g_chosen = g_targets[which] + 100; }

__global__ void writeChosen(uint32_t value) { g_chosen[threadIdx.x] = value + threadIdx.x; }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t piece = (options.bytes / 3 / kTargets) & ~size_t{255};
  constexpr uint32_t kCount = 2048;
  uint32_t* targets[kTargets];
  uint32_t* sources[kTargets];
  for (int k = 0; k < kTargets; ++k) {
    RUNTIME_OK(cudaMalloc(&targets[k], piece));
    RUNTIME_OK(cudaMalloc(&sources[k], piece));
    apps::fill(sources[k], piece, seed + uint32_t(k));
    RUNTIME_OK(cudaMemset(targets[k], 0, piece));
  }
  RUNTIME_OK(cudaMemcpyToSymbol(g_targets, targets, sizeof targets));
  apps::Pressure pressure(options.bytes / 3);
  std::vector<uint32_t> got(kCount);
  for (int round = 0; round < 3; ++round) {
    const uint32_t* rotated[kTargets];
    for (int k = 0; k < kTargets; ++k) rotated[k] = sources[(k + round) % kTargets];
    RUNTIME_OK(cudaMemcpyToSymbol(c_sources, rotated, sizeof rotated));
    pressure.apply();
    copyAll<<<kTargets, 128>>>(kCount, uint32_t(round));
    RUNTIME_OK(cudaGetLastError());
    const int which = int((seed + uint32_t(round)) % kTargets);
    choose<<<1, 1>>>(which);
    pressure.apply();
    writeChosen<<<1, 64>>>(uint32_t(round) * 1000);
    RUNTIME_OK(cudaGetLastError());
    for (int k = 0; k < kTargets; ++k) {
      RUNTIME_OK(cudaMemcpy(got.data(), targets[k], kCount * 4, cudaMemcpyDeviceToHost));
      for (uint32_t i = 0; i < kCount; ++i) {
        uint32_t expected =
            apps::word(i / 4, seed + uint32_t((k + round) % kTargets)) + i % 4 + uint32_t(round);
        if (k == which && i >= 100 && i < 164) expected = uint32_t(round) * 1000 + i - 100;
        CHECK(got[i] == expected, "round %d target %d word %u is %#x, expected %#x", round, k, i,
              got[i], expected);
      }
    }
  }
  pressure.check();
  return apps::ok("global_pointers with %d targets", kTargets);
}
