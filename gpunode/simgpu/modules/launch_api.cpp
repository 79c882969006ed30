// cuLaunchKernel and its relatives.
#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/modules/launch.h"

using namespace olpager::simgpu;

namespace {

// Attributes that name an event: recorded behind the kernel, which is after the moment that they
// ask for.
CUresult recordEvents(const CUlaunchConfig& config, bool per_thread) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    CUevent event = nullptr;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
      event = attribute.value.programmaticEvent.event;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
      event = attribute.value.launchCompletionEvent.event;
    if (event == nullptr) continue;
    const CUresult error = per_thread ? cuEventRecord_ptsz(event, config.hStream)
                                      : cuEventRecord(event, config.hStream);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult launchEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                  void** extra, bool per_thread) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchRequest request{{config->gridDimX, config->gridDimY, config->gridDimZ},
                        {config->blockDimX, config->blockDimY, config->blockDimZ},
                        config->sharedMemBytes,
                        false,
                        parameters,
                        extra,
                        config->attrs,
                        config->numAttrs};
  const CUresult error = launchKernel(function, request, config->hStream, per_thread);
  return error != CUDA_SUCCESS ? error : recordEvents(*config, per_thread);
}

}  // namespace

extern "C" {

#define LAUNCH_ARGUMENTS                                                                      \
  CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
      unsigned shared, CUstream s

CUresult CUDAAPI cuLaunchKernel(LAUNCH_ARGUMENTS, void** parameters, void** extra) {
  return launchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared, false, parameters, extra}, s, false);
}

CUresult CUDAAPI cuLaunchKernel_ptsz(LAUNCH_ARGUMENTS, void** parameters, void** extra) {
  return launchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared, false, parameters, extra}, s, true);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(LAUNCH_ARGUMENTS, void** parameters) {
  return launchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared, true, parameters}, s, false);
}

CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(LAUNCH_ARGUMENTS, void** parameters) {
  return launchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared, true, parameters}, s, true);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** parameters,
                                  void** extra) {
  return launchEx(config, f, parameters, extra, false);
}

CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f,
                                       void** parameters, void** extra) {
  return launchEx(config, f, parameters, extra, true);
}

}  // extern "C"
