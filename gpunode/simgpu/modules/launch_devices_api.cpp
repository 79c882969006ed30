// cuLaunchCooperativeKernelMultiDevice, where the devices have OL_SIM_EXTRAS. The blocks of
// different devices can't wait for each other.
#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <vector>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/launch.h"
#include "gpunode/simgpu/modules/library.h"

namespace olpager::simgpu {
namespace {

struct Part {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<KernelLaunch> launch;
};

CUresult makePart(const CUDA_LAUNCH_PARAMS& given, Part* part) {
  const bool made = given.hStream != nullptr && given.hStream != CU_STREAM_LEGACY &&
                    given.hStream != CU_STREAM_PER_THREAD;
  if (!made) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireStream(given.hStream, false, &part->context, &part->stream);
      error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = notInCapture(*part->stream); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(given.function, *part->context, &function);
      error != CUDA_SUCCESS)
    return error;
  if (function->context_handle != part->context->handle()) return CUDA_ERROR_INVALID_HANDLE;
  const LaunchRequest request{{given.gridDimX, given.gridDimY, given.gridDimZ},
                              {given.blockDimX, given.blockDimY, given.blockDimZ},
                              given.sharedMemBytes,
                              true,
                              given.kernelParams};
  return makeLaunch(function, request, &part->launch);
}

// The same kernel in the same shape on another device.
bool goTogether(const Part& a, const Part& b) {
  const auto shape = [](const KernelLaunch& l) {
    return std::vector<uint64_t>{l.grid.x,  l.grid.y,  l.grid.z,        l.block.x,
                                 l.block.y, l.block.z, l.dynamic_shared};
  };
  return &a.context->device() != &b.context->device() && shape(*a.launch) == shape(*b.launch) &&
         a.launch->function->info().name == b.launch->function->info().name;
}

CUresult launchTogether(const CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
  constexpr unsigned kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
  if (list == nullptr || count == 0 || count > Driver::get().devices.size() ||
      (flags & ~kFlags) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<Part> parts(count);
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult error = makePart(list[i], &parts[i]); error != CUDA_SUCCESS) return error;
    for (unsigned j = 0; j < i; ++j) {
      if (!goTogether(parts[i], parts[j])) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::vector<StreamPoint> before, launched;
  if ((flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC) == 0) {
    for (const Part& part : parts) before.push_back(part.stream->last());
  }
  for (const Part& part : parts)
    launched.push_back(part.context->submit(*part.stream, makeLaunchOp(part.launch), before));
  if ((flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC) == 0) {
    for (const Part& part : parts)
      (void)part.context->submit(*part.stream,
                                 makeOp("launch elsewhere", [](Context&) { return CUDA_SUCCESS; }),
                                 launched);
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace olpager::simgpu

using namespace olpager::simgpu;

CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count,
                                                      unsigned flags) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  if (!Driver::get().settings.extras) return notSupported("cuLaunchCooperativeKernelMultiDevice");
  return launchTogether(list, count, flags);
}
