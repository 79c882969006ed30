// Kernel launches: what one is made of, how a call is checked, how it runs.
//
// A KernelLaunch is complete when it is made: parameters are copied then, so the caller's memory is
// free to change. A launch is immutable while an operation or a graph refers to it; changes make a
// new one.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/modules/module.h"

namespace olpager::simgpu {

class KernelLaunch final : public KernelLaunchBase {
 public:
  std::shared_ptr<Function> function;
  ptx::Dim3 grid;
  ptx::Dim3 block;
  ptx::Dim3 cluster;
  unsigned dynamic_shared = 0;  // bytes
  bool cooperative = false;
  bool as_block = false;  ///< the parameters came by `extra`
  std::vector<std::byte> parameters;
  std::vector<CUlaunchAttribute> attributes;  ///< as given
  /// Pointers into `parameters`, one for each, as cuGraphKernelNodeGetParams gives them.
  std::vector<void*> parameter_pointers;
};

/// The arguments of a launch function.
struct LaunchRequest {
  unsigned grid[3] = {};
  unsigned block[3] = {};
  unsigned dynamic_shared = 0;
  bool cooperative = false;
  void** kernel_parameters = nullptr;
  void** extra = nullptr;
  const CUlaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

/// Checks a request as the driver does and copies the parameters.
CUresult makeLaunch(const std::shared_ptr<Function>& function, const LaunchRequest& request,
                    std::shared_ptr<KernelLaunch>* out);

/// Applies one attribute to a launch under construction; CUDA_ERROR_INVALID_VALUE for one that does
/// not exist.
CUresult applyAttribute(KernelLaunch& launch, const CUlaunchAttribute& attribute);

/// The operation that runs `launch`. A fault becomes the context's sticky error, with one line on
/// stderr.
std::unique_ptr<StreamOp> makeLaunchOp(std::shared_ptr<const KernelLaunch> launch);

/// The way of all launch functions: resolves, checks, submits to the stream or its capture.
CUresult launchKernel(CUfunction function, const LaunchRequest& request, CUstream stream,
                      bool per_thread);

}  // namespace olpager::simgpu
