// Memory runs out and comes back: allocation fails with the right error, harms nothing, and works
// again after a free.
#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t block = options.bytes / 8;
  std::vector<char*> blocks;
  for (int round = 0; round < 2; ++round) {
    cudaError_t rc = cudaSuccess;
    while (blocks.size() * block < (size_t{1} << 40)) {
      char* p = nullptr;
      rc = cudaMalloc(&p, block);
      if (rc != cudaSuccess) break;
      apps::fill(p, 4096, seed + uint32_t(blocks.size()));
      apps::fill(p + block - 4096, 4096, seed + uint32_t(blocks.size()));
      blocks.push_back(p);
      CHECK(blocks.size() < 4096, "memory does not run out at %zu blocks", blocks.size());
    }
    CHECK(rc == cudaErrorMemoryAllocation, "out of memory is reported as %d %s", int(rc),
          cudaGetErrorString(rc));
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess,
          "the error stuck");
    CHECK(!blocks.empty(), "nothing could be allocated");
    // Existing memory is untouched and usable.
    RUNTIME_OK(cudaDeviceSynchronize());
    for (size_t b = 0; b < blocks.size(); ++b) {
      apps::verify(blocks[b], 4096, seed + uint32_t(b), 0, "first page of a block");
      apps::verify(blocks[b] + block - 4096, 4096, seed + uint32_t(b), 0, "last page of a block");
    }
    for (const size_t huge : {size_t{1} << 50, ~size_t{0} - 4096}) {
      char* p = nullptr;
      CHECK(cudaMalloc(&p, huge) == cudaErrorMemoryAllocation,
            "an allocation of 2^50 bytes did not fail");
    }
    (void)cudaGetLastError();
    // Two freed, one of their sizes fits again.
    CHECK(blocks.size() >= 2, "only %zu blocks fit", blocks.size());
    for (int k = 0; k < 2; ++k) {
      RUNTIME_OK(cudaFree(blocks.back()));
      blocks.pop_back();
    }
    char* again = nullptr;
    RUNTIME_OK(cudaMalloc(&again, block));
    apps::fill(again, block, seed + 4000);
    apps::verify(again, block, seed + 4000, 0, "block after recovery");
    RUNTIME_OK(cudaFree(again));
  }
  const size_t count = blocks.size();
  for (char* p : blocks) RUNTIME_OK(cudaFree(p));
  return apps::ok("exhaustion after %zu blocks of %zu KiB", count, block >> 10);
}
