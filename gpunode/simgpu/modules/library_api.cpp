// cuLibrary* and cuKernel*.
#include "gpunode/simgpu/api.h"

#include <chrono>
#include <fstream>
#include <iterator>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/library.h"

using namespace olpager::simgpu;

namespace {

CUresult checkLibraryOptions(unsigned count, const CUlibraryOption* options) {
  if (count != 0 && options == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (static_cast<unsigned>(options[i]) >= static_cast<unsigned>(CU_LIBRARY_NUM_OPTIONS)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

// Needs no context: the code is compiled now (an error belongs to this call), memory for variables
// comes later.
template <typename Find>
CUresult loadLibrary(CUlibrary* out, unsigned jit_count, CUjit_option* jit_names, void** jit_values,
                     Find find) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  JitOptions options;
  if (const CUresult error = options.read(jit_count, jit_names, jit_values); error != CUDA_SUCCESS)
    return error;
  const auto start = std::chrono::steady_clock::now();
  Device& device = *Driver::get().devices.front();
  Code code;
  std::shared_ptr<Library> library;
  CUresult error = find(device, options, &code);
  if (error == CUDA_SUCCESS) error = Library::load(device, std::move(code), options, &library);
  options.finish(
      std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count());
  if (error == CUDA_SUCCESS) *out = library->handle();
  return error;
}

CUresult requireLibrary(CUlibrary handle, std::shared_ptr<Library>* library) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *library = Registry::get().libraries.find(handle);
  return *library != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult requireKernel(CUkernel handle, std::shared_ptr<LibraryKernel>* kernel) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *kernel = Registry::get().kernels.find(handle);
  return *kernel != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* jit_options,
                                   void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                   void**, unsigned option_count) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = checkLibraryOptions(option_count, options); error != CUDA_SUCCESS)
    return error;
  return loadLibrary(library, jit_count, jit_options, jit_values,
                     [image](const Device& device, JitOptions& jit, Code* code) {
                       return findCode(device, image, jit, code);
                     });
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                       CUjit_option* jit_options, void** jit_values,
                                       unsigned jit_count, CUlibraryOption* options, void**,
                                       unsigned option_count) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = checkLibraryOptions(option_count, options); error != CUDA_SUCCESS)
    return error;
  std::vector<uint8_t> bytes;
  {
    std::ifstream in(path, std::ios::binary);
    if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  return loadLibrary(library, jit_count, jit_options, jit_values,
                     [&bytes](const Device& device, JitOptions& jit, Code* code) {
                       return findCode(device, bytes, jit, code);
                     });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle) {
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  library->unload();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  const auto found = library->kernel(name);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *kernel = found->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  *count = static_cast<unsigned>(library->kernels().size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary handle) {
  if (kernels == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  for (unsigned i = 0; i < count && i < library->kernels().size(); ++i)
    kernels[i] = library->kernels()[i]->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary handle) {
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  std::shared_ptr<LoadedModule> instance;
  if (const CUresult error = library->instance(*context, &instance); error != CUDA_SUCCESS)
    return error;
  *module = instance->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary handle,
                                    const char* name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  std::shared_ptr<LoadedModule> instance;
  if (const CUresult error = library->instance(*context, &instance); error != CUDA_SUCCESS)
    return error;
  const Variable* variable = instance->variable(name);
  if (variable == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (address != nullptr) *address = variable->address;
  if (bytes != nullptr) *bytes = variable->bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary handle,
                                     const char* name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  Variable variable;
  if (const CUresult error = library->managed(name, &variable); error != CUDA_SUCCESS) return error;
  if (address != nullptr) *address = variable.address;
  if (bytes != nullptr) *bytes = variable.bytes;
  return CUDA_SUCCESS;
}

// A unified function is one that the host program offers in a table at load; nothing that is loaded
// here has any.
CUresult CUDAAPI cuLibraryGetUnifiedFunction(void** function, CUlibrary handle, const char* name) {
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Library> library;
  if (const CUresult error = requireLibrary(handle, &library); error != CUDA_SUCCESS) return error;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Function> function;
  if (const CUresult error = kernel->function(*context, &function); error != CUDA_SUCCESS)
    return error;
  *out = function->handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  *library = kernel->library_handle;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                                      CUdevice ordinal) {
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  const Device* device = Driver::get().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return getFunctionAttribute(kernel->info, *kernel->settings(*device), *device,
                              kernel->ptx_version, attribute, value);
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                      CUdevice ordinal) {
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  const Device* device = Driver::get().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return setFunctionAttribute(kernel->info, *kernel->settings(*device), *device, attribute, value);
}

CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice ordinal) {
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  if (Driver::get().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  *name = kernel->info.name.c_str();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  if (!Driver::get().settings.param_info) return CUDA_ERROR_NOT_SUPPORTED;
  if (offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<LibraryKernel> kernel;
  if (const CUresult error = requireKernel(handle, &kernel); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  if (Driver::get().settings.context_lock && requireContext(&context) == CUDA_SUCCESS) {
    std::shared_ptr<Function> loaded;
    if (const CUresult error = kernel->function(*context, &loaded); error != CUDA_SUCCESS)
      return error;
  }
  if (index >= kernel->info.params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->info.params[index].offset;
  if (size != nullptr) *size = kernel->info.params[index].size;
  return CUDA_SUCCESS;
}

}  // extern "C"
