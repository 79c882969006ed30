// cuOccupancy*.
#include "gpunode/simgpu/api.h"

#include <algorithm>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/launch.h"
#include "gpunode/simgpu/modules/occupancy.h"

using namespace olpager::simgpu;

namespace {

// Block sizes from the largest down: the first that keeps the most threads on a multiprocessor
// wins.
CUresult potentialBlockSize(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize dynamic_of,
                            size_t dynamic, int limit, unsigned flags) {
  if (grid == nullptr || block == nullptr || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  const DeviceLimits limits(*function->device);
  int largest = std::min(limits.threads_per_block, static_cast<int>(function->info().max_threads));
  if (limit > 0) largest = std::min(largest, limit);
  constexpr int kWarp = 32;
  int best_threads = 0;
  *grid = 0;
  *block = 0;
  for (int rounded = (largest + kWarp - 1) / kWarp * kWarp; rounded > 0; rounded -= kWarp) {
    const int threads = std::min(rounded, largest);
    const size_t shared = dynamic_of != nullptr ? dynamic_of(threads) : dynamic;
    const int blocks = activeBlocks(limits, function->info(), threads, shared);
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      *block = threads;
      *grid = blocks * limits.multiprocessors;
    }
  }
  return CUDA_SUCCESS;
}

CUresult maxActiveBlocks(int* blocks, CUfunction handle, int threads, size_t dynamic,
                         unsigned flags) {
  if (blocks == nullptr || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  const DeviceLimits limits(*function->device);
  if (threads > limits.threads_per_block) return CUDA_ERROR_INVALID_VALUE;
  *blocks = activeBlocks(limits, function->info(), threads, dynamic);
  return CUDA_SUCCESS;
}

// The shape that a configuration asks for, its attributes applied.
CUresult clusterConfig(CUfunction handle, const CUlaunchConfig* config,
                       std::shared_ptr<Function>* function, KernelLaunch* launch) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = resolveFunction(handle, function); error != CUDA_SUCCESS) return error;
  launch->function = *function;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (const CUresult error = applyAttribute(*launch, config->attrs[i]); error != CUDA_SUCCESS)
      return error;
  }
  return CUDA_SUCCESS;
}

int threadsOf(const CUlaunchConfig& config) {
  return static_cast<int>(config.blockDimX * config.blockDimY * config.blockDimZ);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction f, int threads,
                                                             size_t dynamic) {
  return maxActiveBlocks(blocks, f, threads, dynamic, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction f,
                                                                      int threads, size_t dynamic,
                                                                      unsigned flags) {
  return maxActiveBlocks(blocks, f, threads, dynamic, flags);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction f,
                                                  CUoccupancyB2DSize dynamic_of, size_t dynamic,
                                                  int limit) {
  return potentialBlockSize(grid, block, f, dynamic_of, dynamic, limit, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction f,
                                                           CUoccupancyB2DSize dynamic_of,
                                                           size_t dynamic, int limit,
                                                           unsigned flags) {
  return potentialBlockSize(grid, block, f, dynamic_of, dynamic, limit, flags);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle,
                                                         int blocks, int threads) {
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  const DeviceLimits limits(*function->device);
  if (activeBlocks(limits, function->info(), threads, 0) < blocks) return CUDA_ERROR_INVALID_VALUE;
  const int64_t fixed = function->info().static_shared_bytes;
  const int64_t share =
      limits.shared_per_multiprocessor / blocks / 128 * 128 - limits.shared_reserved;
  *bytes = static_cast<size_t>(
      std::max<int64_t>(0, std::min<int64_t>(share, limits.shared_per_block) - fixed));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* blocks, CUfunction handle,
                                                    const CUlaunchConfig* config) {
  if (blocks == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  KernelLaunch launch;
  if (const CUresult error = clusterConfig(handle, config, &function, &launch);
      error != CUDA_SUCCESS)
    return error;
  const DeviceLimits limits(*function->device);
  const bool fits =
      activeBlocks(limits, function->info(), threadsOf(*config), config->sharedMemBytes) > 0;
  *blocks = !fits ? 0 : function->settings->non_portable_cluster != 0 ? 16 : 8;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle,
                                              const CUlaunchConfig* config) {
  if (clusters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  KernelLaunch launch;
  if (const CUresult error = clusterConfig(handle, config, &function, &launch);
      error != CUDA_SUCCESS)
    return error;
  const DeviceLimits limits(*function->device);
  const int active =
      activeBlocks(limits, function->info(), threadsOf(*config), config->sharedMemBytes);
  const auto size = static_cast<int>(launch.cluster.x * launch.cluster.y * launch.cluster.z);
  *clusters = size == 0 ? 0 : active * limits.multiprocessors / size;
  return CUDA_SUCCESS;
}

}  // extern "C"
