// Pinned memory is freed right behind a launch that reads it and that nobody has waited for, of a
// kind that has been launched before: the kernel finds what the CPU wrote there all the same.
#include <vector>

#include "common.h"

namespace {

constexpr uint32_t kWords = 4096;
constexpr uint32_t kRounds = 48;

__global__ void take(uint32_t* into, const uint32_t* from) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  into[i] = from[i] * 3 + 1;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Pressure pressure(options.bytes);
  uint32_t* into = nullptr;
  RUNTIME_OK(cudaMalloc(&into, kWords * sizeof(uint32_t)));
  std::vector<uint32_t> got(kWords);
  for (uint32_t round = 0; round < kRounds; ++round) {
    if (round % 8 == 0) pressure.apply();
    uint32_t* from = nullptr;
    RUNTIME_OK(cudaMallocHost(&from, kWords * sizeof(uint32_t)));
    for (uint32_t i = 0; i < kWords; ++i) from[i] = i + round * 7919;
    take<<<kWords / 128, 128>>>(into, from);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaFreeHost(from));
    RUNTIME_OK(cudaMemcpy(got.data(), into, kWords * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < kWords; ++i)
      CHECK(got[i] == (i + round * 7919) * 3 + 1, "round %u: word %u is %u", round, i, got[i]);
  }
  RUNTIME_OK(cudaFree(into));
  pressure.check();
  return apps::ok("pinned_freed: %u rounds", kRounds);
}
