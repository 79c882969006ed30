// Occupancy where the question has a structure or a function of the program's in it. The worker is
// asked which clusters fit, once for the same question; the best size of a block is found here,
// since the program's function says what shared memory each size takes.
#include <algorithm>

#include "forwarding/wire/launch_wire.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/launch.h"

namespace olpager::forward {
namespace {

CUresult clusters(ClusterQuestion question, int* answer, CUfunction function,
                  const CUlaunchConfig* config) {
  if (answer == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  LaunchHead head = headOf(*config, function);
  if (head.attributes > kMostAttributes) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kClusters, Route().handle(config->hStream).handle(function));
  call.value(question);
  call.value(head);
  for (uint32_t i = 0; i < head.attributes; ++i) {
    if (!travels(config->attrs[i]))
      return refused("occupancy with an event or a node in the attributes", false);
    call.value(config->attrs[i]);
  }
  const CUresult result = call.cached();
  if (!call.answered()) return result;
  *answer = call.reply().value<int32_t>();
  return call.taken(result);
}

// The largest block of those with the most threads on a multiprocessor, in steps of a warp from the
// top: as the CUDA runtime's header finds it
// (cudaOccupancyMaxPotentialBlockSizeVariableSMemWithFlags).
CUresult potentialBlock(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_for,
                        size_t shared, int limit, unsigned flags) {
  if (grid == nullptr || block == nullptr || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevice device = 0;
  int largest = 0, warp = 0, processors = 0, threads = 0, of_device = 0;
  CUresult result = ol_forward_cuCtxGetDevice(&device);
  const auto ask = [&](CUdevice_attribute attribute, int* into) {
    if (result == CUDA_SUCCESS)
      result = ol_forward_generated_cuDeviceGetAttribute(into, attribute, device);
  };
  ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &of_device);
  ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads);
  ask(CU_DEVICE_ATTRIBUTE_WARP_SIZE, &warp);
  ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &processors);
  if (result == CUDA_SUCCESS)
    result = ol_forward_generated_cuFuncGetAttribute(
        &largest, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
  if (result != CUDA_SUCCESS) return result;
  constexpr int kMost = 1 << 15;  // more than any device has
  for (const int figure : {warp, threads, processors, largest, of_device})
    if (figure <= 0 || figure > kMost) return CUDA_ERROR_UNKNOWN;
  largest = std::min(largest, of_device);
  if (limit != 0) largest = std::min(largest, limit);
  int most = 0;
  for (int size = (largest + warp - 1) / warp * warp; size > 0 && most < threads; size -= warp) {
    const int tried = std::min(size, largest);
    int blocks = 0;
    result = ol_forward_generated_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &blocks, function, tried, shared_for != nullptr ? shared_for(tried) : shared, flags);
    if (result != CUDA_SUCCESS) return result;
    if (blocks < 0 || blocks > kMost) return CUDA_ERROR_UNKNOWN;
    if (blocks * tried <= most) continue;
    most = blocks * tried;
    *block = tried;
    *grid = blocks * processors;
  }
  return most != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuOccupancyMaxActiveClusters(int* answer, CUfunction function,
                                                 const CUlaunchConfig* config) {
  return clusters(ClusterQuestion::kMostActive, answer, function, config);
}

CUresult ol_forward_cuOccupancyMaxPotentialClusterSize(int* answer, CUfunction function,
                                                       const CUlaunchConfig* config) {
  return clusters(ClusterQuestion::kLargest, answer, function, config);
}

CUresult ol_forward_cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                                     CUoccupancyB2DSize shared_for, size_t shared,
                                                     int limit) {
  return potentialBlock(grid, block, function, shared_for, shared, limit, CU_OCCUPANCY_DEFAULT);
}

CUresult ol_forward_cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block,
                                                              CUfunction function,
                                                              CUoccupancyB2DSize shared_for,
                                                              size_t shared, int limit,
                                                              unsigned flags) {
  return potentialBlock(grid, block, function, shared_for, shared, limit, flags);
}

}  // extern "C"
