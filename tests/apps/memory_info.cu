// cudaMemGetInfo and the device's total: consistent with each other, falling by what is allocated
// and rising by what is freed, and true: what is said to be free can be allocated, or nearly.
#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t slack = size_t{6} << 20;
  size_t free_bytes = 0, total = 0;
  RUNTIME_OK(cudaFree(nullptr));
  RUNTIME_OK(cudaMemGetInfo(&free_bytes, &total));
  cudaDeviceProp properties{};
  RUNTIME_OK(cudaGetDeviceProperties(&properties, 0));
  CHECK(free_bytes > 0 && free_bytes <= total, "%zu of %zu bytes free", free_bytes, total);
  CHECK(properties.totalGlobalMem == total, "total is %zu and the device's %zu", total,
        properties.totalGlobalMem);
  CHECK(free_bytes + slack >= options.bytes, "only %zu bytes free for a working set of %zu",
        free_bytes, options.bytes);
  std::vector<char*> blocks;
  const size_t block = options.bytes / 8 & ~((size_t{2} << 20) - 1)
                           ? options.bytes / 8 & ~((size_t{2} << 20) - 1)
                           : size_t{2} << 20;
  size_t before = free_bytes, now = 0;
  for (int i = 0; i < 6; ++i) {
    char* p;
    RUNTIME_OK(cudaMalloc(&p, block));
    apps::fill(p, block, uint32_t(options.seed));
    blocks.push_back(p);
    RUNTIME_OK(cudaDeviceSynchronize());
    RUNTIME_OK(cudaMemGetInfo(&now, &total));
    CHECK(now <= before && before - now <= block + slack,
          "free fell from %zu to %zu by an allocation of %zu", before, now, block);
    before = now;
  }
  CHECK(free_bytes - now + slack >= 6 * block, "free fell by %zu only after allocations of %zu",
        free_bytes - now, 6 * block);
  for (char* p : blocks) RUNTIME_OK(cudaFree(p));
  RUNTIME_OK(cudaMemGetInfo(&now, &total));
  CHECK(now + slack >= free_bytes, "%zu bytes free after freeing everything, %zu at the start", now,
        free_bytes);
  return apps::ok("memory_info");
}
