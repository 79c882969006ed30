// Occupancy as the driver is asked it: the best size of a block with and without a function for its
// shared memory, beside the same search by the runtime's header; how many clusters a launch may
// have; attributes of kernels, and the state of the context.
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
  const CUresult result = cuOccupancyMaxPotentialBlockSize(
      &grid, &block, reinterpret_cast<CUfunction>(handle),
      grows ? static_cast<CUoccupancyB2DSize>(roomFor) : nullptr, fixed, limit);
  CHECK(result == CUDA_SUCCESS, "%s: cuOccupancyMaxPotentialBlockSize: %d", name, int(result));
  if (grows) {
    RUNTIME_OK(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&runtime_grid, &runtime_block, kernel,
                                                              roomFor, limit));
  } else {
    RUNTIME_OK(
        cudaOccupancyMaxPotentialBlockSize(&runtime_grid, &runtime_block, kernel, fixed, limit));
  }
  CHECK(grid == runtime_grid && block == runtime_block,
        "%s: %d blocks of %d, the runtime says %d of %d", name, grid, block, runtime_grid,
        runtime_block);
  CHECK(block > 0 && (limit == 0 || block <= limit), "%s: a block of %d, at most %d", name, block,
        limit);
}

// A kernel's attribute is read as it was set, however often, by the function as by the kernel that
// it is of.
void setAndRead(int bytes, int twice) {
  cudaFunction_t function = nullptr;
  cudaKernel_t kernel = nullptr;
  RUNTIME_OK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(shared)));
  RUNTIME_OK(cudaGetKernel(&kernel, reinterpret_cast<const void*>(shared)));
  for (int i = 0; i < twice; ++i) {
    const CUresult result = cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                 bytes, reinterpret_cast<CUkernel>(kernel), 0);
    CHECK(result == CUDA_SUCCESS, "cuKernelSetAttribute: %d", int(result));
  }
  int of_kernel = 0, of_function = 0;
  CHECK(cuKernelGetAttribute(&of_kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                             reinterpret_cast<CUkernel>(kernel), 0) == CUDA_SUCCESS &&
            of_kernel == bytes,
        "set to %d, the kernel says %d", bytes, of_kernel);
  cudaFuncAttributes all{};
  RUNTIME_OK(cudaFuncGetAttributes(&all, shared));
  CHECK(all.maxDynamicSharedSizeBytes == bytes, "set to %d, the runtime says %d", bytes,
        all.maxDynamicSharedSizeBytes);
  for (int i = 0; i < twice; ++i) {
    const CUresult result =
        cuFuncSetAttribute(reinterpret_cast<CUfunction>(function),
                           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes / 2);
    CHECK(result == CUDA_SUCCESS, "cuFuncSetAttribute: %d", int(result));
  }
  CHECK(cuFuncGetAttribute(&of_function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                           reinterpret_cast<CUfunction>(function)) == CUDA_SUCCESS &&
            of_function == bytes / 2,
        "set to %d, the function says %d", bytes / 2, of_function);
}

// A launch is taken or refused by what is allowed at that moment, whatever was allowed when it was
// taken before; other kernels' launches and occupancy stay as they are.
void launchAsAllowed(int rounds) {
  constexpr int kThreads = 64, kLess = 40000, kMore = 60000;
  uint32_t* out = nullptr;
  RUNTIME_OK(cudaMalloc(&out, kThreads * sizeof *out));
  cudaKernel_t kernel = nullptr;
  RUNTIME_OK(cudaGetKernel(&kernel, reinterpret_cast<const void*>(shared)));
  for (int round = 0; round < rounds; ++round) {
    for (const int bytes : {64000, 50000}) {
      CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes,
                                 reinterpret_cast<CUkernel>(kernel), 0) == CUDA_SUCCESS,
            "%d bytes can't be allowed", bytes);
      plain<<<1, kThreads>>>(out);
      bounded<<<1, kThreads>>>(out);
      shared<<<1, kThreads, kLess>>>(out);
      RUNTIME_OK(cudaGetLastError());
      shared<<<1, kThreads, kMore>>>(out);
      const cudaError_t result = cudaGetLastError();
      CHECK(result == (bytes < kMore ? cudaErrorInvalidValue : cudaSuccess), "%d bytes of %d: %d",
            kMore, bytes, int(result));
      int blocks = 0;
      RUNTIME_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain, kThreads, 0));
      CHECK(blocks > 0, "%d blocks", blocks);
    }
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaFree(out));
}

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  launchAsAllowed(50);
  for (const int limit : {0, 100, 256}) {
    check("plain", plain, false, 0, limit);
    check("bounded", bounded, false, 0, limit);
    check("shared, fixed", shared, false, 20000, limit);
    check("shared, by size", shared, true, 0, limit);
  }
  for (const int bytes : {40000, 20000, 40000}) setAndRead(bytes, bytes / 20000);
  unsigned flags = 0;
  int active = 0;
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS && active == 1,
        "the context is not active");
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
  RUNTIME_OK(cudaDeviceReset());
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS && active == 0,
        "the context is still active");
  RUNTIME_OK(cudaFree(nullptr));
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS && active == 1,
        "the context is not active again");
  return apps::ok("occupancy");
}
