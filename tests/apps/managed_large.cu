// Managed memory of four times the VRAM: in one allocation, then in several; written by the GPU,
// read in part by the CPU, written by the CPU, walked by the GPU.
#include "common.h"

static void round(const std::vector<uint32_t*>& parts, size_t bytes, uint32_t seed) {
  for (size_t p = 0; p < parts.size(); ++p) apps::fill(parts[p], bytes, seed + uint32_t(p));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t p = 0; p < parts.size(); ++p) {
    apps::verifyHost(parts[p], bytes / 8 & ~size_t{15}, seed + uint32_t(p), 0, "read by the CPU");
    for (size_t i = 0; i < bytes / 4; i += 4096) parts[p][i] += 9;  // a word in each 16 KiB
  }
  for (uint32_t* part : parts) apps::add(part, bytes, 2);
  for (uint32_t* part : parts) apps::add(part, bytes, 3);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t i = 0; i < bytes / 4; i += 4096) parts[p][i] -= 9;
    apps::verifyHost(parts[p], bytes, seed + uint32_t(p), 5, "at the end");
  }
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  for (const size_t count : {size_t{1}, size_t{6}}) {
    const size_t bytes = options.bytes / count & ~size_t{4095};
    std::vector<uint32_t*> parts(count);
    for (uint32_t*& part : parts) RUNTIME_OK(cudaMallocManaged(&part, bytes));
    round(parts, bytes, seed);
    for (uint32_t* part : parts) RUNTIME_OK(cudaFree(part));
  }
  return apps::ok("managed memory of %zu MiB", options.bytes >> 20);
}
