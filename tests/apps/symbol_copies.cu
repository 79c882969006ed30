// A pointer is copied into a variable while what it points to has left VRAM, and the kernel right
// behind the copy names the variable alone. Each way in which bytes get into a variable: from
// pageable and pinned memory, in and out of order with the CPU, from an array in device memory,
// from another variable. The first copies come before any kernel of the program has run.
#include "common.h"

constexpr int kTargets = 12;
__device__ uint32_t* g_target;
__device__ uint32_t* g_other[4];
__constant__ uint32_t* c_target;

__global__ void throughVariable(uint32_t count, uint32_t value) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) g_target[i] += value;
}
__global__ void throughConstant(uint32_t count, uint32_t value) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) c_target[i] += value;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  const size_t piece = (options.bytes / 2 / kTargets) & ~size_t{255};
  constexpr uint32_t kCount = 1024;
  uint32_t* targets[kTargets];
  std::vector<std::vector<uint32_t>> expected(kTargets);
  for (int k = 0; k < kTargets; ++k) {
    RUNTIME_OK(cudaMalloc(&targets[k], piece));
    expected[k].resize(kCount);
    for (uint32_t i = 0; i < kCount; ++i)
      expected[k][i] = apps::word(i, uint32_t(options.seed) + uint32_t(k));
    RUNTIME_OK(cudaMemcpy(targets[k], expected[k].data(), kCount * 4, cudaMemcpyHostToDevice));
  }
  // No kernel has run by now.
  RUNTIME_OK(cudaMemcpyToSymbol(g_target, &targets[kTargets - 1], sizeof(void*)));
  uint32_t** table;  // of device memory, with all the pointers
  RUNTIME_OK(cudaMalloc(&table, size_t{4} << 20));
  RUNTIME_OK(cudaMemcpy(table, targets, sizeof targets, cudaMemcpyHostToDevice));
  uint32_t** pinned;
  RUNTIME_OK(cudaMallocHost(&pinned, sizeof targets));
  void* variable;
  RUNTIME_OK(cudaGetSymbolAddress(&variable, g_target));
  apps::Pressure pressure(options.bytes / 2);
  const auto add = [&](int k, uint32_t value) {
    for (uint32_t& word : expected[k]) word += value;
  };
  throughVariable<<<1, 128>>>(kCount, 17);
  RUNTIME_OK(cudaGetLastError());
  add(kTargets - 1, 17);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  for (int round = 0; round < 24; ++round) {
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    const int k = int(random.below(kTargets));
    uint32_t* target = targets[k];
    const uint32_t value = uint32_t(random.next());
    switch (round % 6) {
      case 0:
        RUNTIME_OK(cudaMemcpyToSymbol(g_target, &target, sizeof target));
        throughVariable<<<1, 128>>>(kCount, value);
        break;
      case 1:
        pinned[k] = target;
        RUNTIME_OK(cudaMemcpyToSymbolAsync(g_target, &pinned[k], sizeof target, 0,
                                           cudaMemcpyHostToDevice, stream));
        throughVariable<<<1, 128, 0, stream>>>(kCount, value);
        RUNTIME_OK(cudaStreamSynchronize(stream));
        break;
      case 2:
        RUNTIME_OK(cudaMemcpyToSymbolAsync(c_target, table + k, sizeof target, 0,
                                           cudaMemcpyDeviceToDevice, stream));
        throughConstant<<<1, 128, 0, stream>>>(kCount, value);
        break;
      case 3:
        RUNTIME_OK(cudaMemcpyToSymbol(g_other, &target, sizeof target, 2 * sizeof target));
        void* other;
        RUNTIME_OK(cudaGetSymbolAddress(&other, g_other));
        RUNTIME_OK(cudaMemcpy(variable, static_cast<uint32_t**>(other) + 2, sizeof target,
                              cudaMemcpyDeviceToDevice));
        throughVariable<<<1, 128>>>(kCount, value);
        break;
      case 4:
        RUNTIME_OK(
            cudaMemcpyAsync(variable, &target, sizeof target, cudaMemcpyHostToDevice, stream));
        throughVariable<<<1, 128, 0, stream>>>(kCount, value);
        break;
      default:
        // A row of a pitched copy, over bytes that were set.
        pinned[1] = target;
        RUNTIME_OK(cudaMemset(variable, 0, sizeof target));
        RUNTIME_OK(
            cudaMemcpy2DAsync(variable, 8, &pinned[1], 64, 8, 1, cudaMemcpyHostToDevice, stream));
        throughVariable<<<1, 128, 0, stream>>>(kCount, value);
        RUNTIME_OK(cudaStreamSynchronize(stream));
    }
    RUNTIME_OK(cudaGetLastError());
    add(k, value);
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  std::vector<uint32_t> got(kCount);
  for (int k = 0; k < kTargets; ++k) {
    RUNTIME_OK(cudaMemcpy(got.data(), targets[k], kCount * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < kCount; ++i)
      CHECK(got[i] == expected[k][i], "target %d word %u is %#x, expected %#x", k, i, got[i],
            expected[k][i]);
  }
  pressure.check();
  return apps::ok("symbol_copies with %d targets", kTargets);
}
