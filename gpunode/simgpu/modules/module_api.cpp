// cuModule*.
#include "gpunode/simgpu/api.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/module.h"

using namespace olpager::simgpu;

namespace {

// Finds code by `find(device, options, &code)`, compiles and links it in the current context.
template <typename Find>
CUresult loadModule(CUmodule* out, unsigned option_count, CUjit_option* option_names,
                    void** option_values, Find find) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  JitOptions options;
  if (const CUresult error = options.read(option_count, option_names, option_values);
      error != CUDA_SUCCESS) {
    return error;
  }
  const auto start = std::chrono::steady_clock::now();
  const ContextDrain drain(*context);
  Code code;
  std::shared_ptr<olpager::simgpu::ptx::Module> compiled;
  std::shared_ptr<LoadedModule> module;
  CUresult error = find(context->device(), options, &code);
  if (error == CUDA_SUCCESS) error = compileCode(context->device(), code, options, &compiled);
  if (error == CUDA_SUCCESS)
    error = LoadedModule::load(*context, compiled, {}, nullptr, options, &module);
  options.finish(
      std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count());
  if (error == CUDA_SUCCESS) *out = module->handle();
  return error;
}

CUresult loadImage(CUmodule* out, const void* image, unsigned count, CUjit_option* names,
                   void** values) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return loadModule(out, count, names, values,
                    [image](const Device& device, JitOptions& options, Code* code) {
                      return findCode(device, image, options, code);
                    });
}

CUresult requireModule(CUmodule handle, std::shared_ptr<LoadedModule>* module) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *module = Registry::get().modules.find(handle);
  if (*module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto owner = (*module)->context();
  return owner != nullptr ? owner->error() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint8_t> bytes;
  {
    std::ifstream in(path, std::ios::binary);
    if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  return loadModule(module, 0, nullptr, nullptr,
                    [&bytes](const Device& device, JitOptions& options, Code* code) {
                      return findCode(device, bytes, options, code);
                    });
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return loadImage(module, image, 0, nullptr, nullptr);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                                    CUjit_option* options, void** values) {
  return loadImage(module, image, count, options, values);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* fatbin) {
  return loadImage(module, fatbin, 0, nullptr, nullptr);
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  const auto module = Registry::get().modules.find(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!module->functions().empty() && !module->functions()[0]->origin.expired()) {
    return CUDA_ERROR_INVALID_HANDLE;  // a library's module goes with the library
  }
  if (const auto owner = module->context()) {
    const ContextDrain drain(*owner);
    (void)owner->synchronize();
  }
  module->unload();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  const char* text = std::getenv("CUDA_MODULE_LOADING");
  *mode = text != nullptr && std::strcmp(text, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING
                                                             : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  if (function == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = requireModule(handle, &module); error != CUDA_SUCCESS) return error;
  const auto found = module->function(name);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = found->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = requireModule(handle, &module); error != CUDA_SUCCESS) return error;
  *count = static_cast<unsigned>(module->functions().size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned count,
                                            CUmodule handle) {
  if (functions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = requireModule(handle, &module); error != CUDA_SUCCESS) return error;
  for (unsigned i = 0; i < count && i < module->functions().size(); ++i)
    functions[i] = module->functions()[i]->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle,
                                      const char* name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = requireModule(handle, &module); error != CUDA_SUCCESS) return error;
  const Variable* variable = module->variable(name);
  // As recorded on hardware: a name that is a function's is not unknown, only wrong.
  if (variable == nullptr)
    return module->function(name) != nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = variable->address;
  if (bytes != nullptr) *bytes = variable->bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
