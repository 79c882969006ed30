// cuFunc*.
#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/module.h"

using namespace olpager::simgpu;

extern "C" {

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  return getFunctionAttribute(function->info(), *function->settings, *function->device,
                              function->code->target(), attribute, value);
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  return setFunctionAttribute(function->info(), *function->settings, *function->device, attribute,
                              value);
}

// Hints about caches that are not simulated: checked, then dropped.
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  return config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  return config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE &&
                 config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction handle) {
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  *module = function->module;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  *name = function->info().name.c_str();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  if (!Driver::get().settings.param_info) return CUDA_ERROR_NOT_SUPPORTED;
  if (offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Here, unlike elsewhere, hardware takes no kernel for a function.
  if (static_cast<HandleKind>(reinterpret_cast<uint64_t>(handle) >> 40) == HandleKind::kKernel)
    return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  const auto& params = function->info().params;
  if (index >= params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = params[index].offset;
  if (size != nullptr) *size = params[index].size;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, &function); error != CUDA_SUCCESS)
    return error;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncLoad(CUfunction handle) {
  std::shared_ptr<Function> function;
  return resolveFunction(handle, &function);
}

}  // extern "C"
