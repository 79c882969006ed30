#include "gpunode/simgpu/graphs/graph_access.h"

#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/copy.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/launch.h"

namespace olpager::simgpu {
namespace {

CUresult contextOf(CUcontext handle, std::shared_ptr<Context>* out) {
  if (handle == nullptr) return requireContext(out);
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *out = Driver::get().contexts.find(handle);
  if (*out == nullptr || !(*out)->active) return CUDA_ERROR_INVALID_CONTEXT;
  return (*out)->error();
}

}  // namespace

CUresult kernelSpec(const CUDA_KERNEL_NODE_PARAMS_v2& params, const CaptureNode* before,
                    CaptureNode* out) {
  const CUfunction handle =
      params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  std::shared_ptr<Function> function;
  if (params.ctx != nullptr) {
    std::shared_ptr<Context> context;
    if (const CUresult error = contextOf(params.ctx, &context); error != CUDA_SUCCESS) return error;
    if (const CUresult error = resolveFunction(handle, *context, &function); error != CUDA_SUCCESS)
      return error;
    if (function->context_handle != params.ctx) return CUDA_ERROR_INVALID_VALUE;
  } else if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS) {
    return error;
  }
  LaunchRequest request{{params.gridDimX, params.gridDimY, params.gridDimZ},
                        {params.blockDimX, params.blockDimY, params.blockDimZ},
                        params.sharedMemBytes,
                        false,
                        params.kernelParams,
                        params.extra};
  if (before != nullptr) {
    const auto& old = static_cast<const KernelLaunch&>(
        *std::get<std::shared_ptr<KernelLaunchBase>>(before->params));
    request.attributes = old.attributes.data();
    request.attribute_count = static_cast<unsigned>(old.attributes.size());
    request.cooperative = old.cooperative;
  }
  std::shared_ptr<KernelLaunch> launch;
  if (const CUresult error = makeLaunch(function, request, &launch); error != CUDA_SUCCESS)
    return error;
  *out = {CU_GRAPH_NODE_TYPE_KERNEL, function->context_handle,
          std::shared_ptr<KernelLaunchBase>(std::move(launch))};
  return CUDA_SUCCESS;
}

CUresult kernelSpec(const CUDA_KERNEL_NODE_PARAMS_v1& params, const CaptureNode* before,
                    CaptureNode* out) {
  CUDA_KERNEL_NODE_PARAMS_v2 newer{};
  std::memcpy(&newer, &params, sizeof(params));  // version 2 adds members at the end
  return kernelSpec(newer, before, out);
}

CUresult memcpySpec(const CUDA_MEMCPY3D* params, CUcontext handle, CaptureNode* out) {
  if (params == nullptr || params->reserved0 != nullptr || params->reserved1 != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult error = contextOf(handle, &context); error != CUDA_SUCCESS) return error;
  *out = {CU_GRAPH_NODE_TYPE_MEMCPY, context->handle(), *params};
  return lookUp(out);
}

CUresult memsetSpec(const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext handle, CaptureNode* out) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult error = contextOf(handle, &context); error != CUDA_SUCCESS) return error;
  *out = {CU_GRAPH_NODE_TYPE_MEMSET, context->handle(), *params};
  return lookUp(out);
}

CUresult lookUp(CaptureNode* spec) {
  const auto* copy = std::get_if<CUDA_MEMCPY3D>(&spec->params);
  const auto* set = std::get_if<CUDA_MEMSET_NODE_PARAMS>(&spec->params);
  if (copy == nullptr && set == nullptr) return CUDA_SUCCESS;
  const auto context = Driver::get().contexts.find(spec->context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult error =
      copy != nullptr ? checkCopy(context->device(), *copy) : checkMemset(context->device(), *set);
  if (error == CUDA_SUCCESS) spec->places = copy != nullptr ? placesOf(*copy) : placesOf(*set);
  return error;
}

CUresult hostSpec(const CUDA_HOST_NODE_PARAMS_v1* params, CaptureNode* out) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = {CU_GRAPH_NODE_TYPE_HOST, nullptr, *params};
  return CUDA_SUCCESS;
}

CUresult batchSpec(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params, CaptureNode* out) {
  if (params == nullptr || params->paramArray == nullptr || params->count == 0 ||
      params->count > 256) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Context> context;
  if (const CUresult error = contextOf(params->ctx, &context); error != CUDA_SUCCESS) return error;
  *out = {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, context->handle(),
          BatchNode{{params->paramArray, params->paramArray + params->count}}};
  return CUDA_SUCCESS;
}

CUresult eventSpec(CUgraphNodeType type, CUevent event, CaptureNode* out) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = {type, nullptr, EventNode{event}};
  return CUDA_SUCCESS;
}

CUresult specOf(const CUgraphNodeParams& params, const CaptureNode* before, CaptureNode* out) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto& kernel = params.kernel;
      return kernelSpec(
          CUDA_KERNEL_NODE_PARAMS_v2{kernel.func, kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ,
                                     kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ,
                                     kernel.sharedMemBytes, kernel.kernelParams, kernel.extra,
                                     kernel.kern, kernel.ctx},
          before, out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return memcpySpec(&params.memcpy.copyParams, params.memcpy.copyCtx, out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& memset = params.memset;
      const CUDA_MEMSET_NODE_PARAMS_v1 older{memset.dst,         memset.pitch, memset.value,
                                             memset.elementSize, memset.width, memset.height};
      return memsetSpec(&older, memset.ctx, out);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS_v1 older{params.host.fn, params.host.userData};
      return hostSpec(&older, out);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      *out = {CU_GRAPH_NODE_TYPE_EMPTY, nullptr, {}};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return eventSpec(params.type, params.eventWait.event, out);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return eventSpec(params.type, params.eventRecord.event, out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 older{params.memOp.ctx, params.memOp.count,
                                                   params.memOp.paramArray, params.memOp.flags};
      return batchSpec(&older, out);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return notSupported("conditional graph nodes");
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return notSupported("external semaphore graph nodes");
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace olpager::simgpu
