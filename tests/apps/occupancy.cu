// Occupancy as the driver is asked it: the best size of a block with and without a function for its shared memory, beside the same
// search by the runtime's header; how many clusters a launch may have.
#include <cuda.h>

#include "common.h"

__global__ void plain(uint32_t* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }
__global__ void __launch_bounds__(192) bounded(uint32_t* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
}
__global__ void shared(uint32_t* out) {
  extern __shared__ uint32_t room[];
  room[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

size_t roomFor(int threads) { return size_t(threads) * 64 + 512; }

void check(const char* name, void (*kernel)(uint32_t*), bool grows, size_t fixed, int limit) {
  int grid = 0, block = 0, runtime_grid = 0, runtime_block = 0;
  cudaFunction_t handle = nullptr;
  RUNTIME_OK(cudaGetFuncBySymbol(&handle, reinterpret_cast<const void*>(kernel)));
  const CUresult result =
      cuOccupancyMaxPotentialBlockSize(&grid, &block, reinterpret_cast<CUfunction>(handle),
                                       grows ? static_cast<CUoccupancyB2DSize>(roomFor) : nullptr, fixed, limit);
  CHECK(result == CUDA_SUCCESS, "%s: cuOccupancyMaxPotentialBlockSize: %d", name, int(result));
  if (grows) {
    RUNTIME_OK(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&runtime_grid, &runtime_block, kernel, roomFor, limit));
  } else {
    RUNTIME_OK(cudaOccupancyMaxPotentialBlockSize(&runtime_grid, &runtime_block, kernel, fixed, limit));
  }
  CHECK(grid == runtime_grid && block == runtime_block, "%s: %d blocks of %d, the runtime says %d of %d", name, grid,
        block, runtime_grid, runtime_block);
  CHECK(block > 0 && (limit == 0 || block <= limit), "%s: a block of %d, at most %d", name, block, limit);
}

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  for (const int limit : {0, 100, 256}) {
    check("plain", plain, false, 0, limit);
    check("bounded", bounded, false, 0, limit);
    check("shared, fixed", shared, false, 20000, limit);
    check("shared, by size", shared, true, 0, limit);
  }
  int major = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major >= 9) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = 16;
    config.blockDim = 128;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0, size = 0;
    RUNTIME_OK(cudaOccupancyMaxActiveClusters(&clusters, plain, &config));
    CHECK(clusters > 0, "%d clusters of two blocks", clusters);
    config.numAttrs = 0;
    RUNTIME_OK(cudaOccupancyMaxPotentialClusterSize(&size, plain, &config));
    CHECK(size >= 2 && (size & (size - 1)) == 0, "clusters of up to %d blocks", size);
  }
  return apps::ok("occupancy");
}
