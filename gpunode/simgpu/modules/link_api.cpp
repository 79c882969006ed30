// cuLink*. The first versions differ from the second only in the types of 32-bit programs.
#include "gpunode/simgpu/api.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/linker.h"
#include "gpunode/simgpu/modules/module.h"

using namespace olpager::simgpu;

namespace {

CUresult requireLinker(CUlinkState handle, std::shared_ptr<Linker>* linker) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *linker = Registry::get().linkers.find(handle);
  return *linker != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult checkOptions(unsigned count, CUjit_option* options, void** values) {
  JitOptions ignored;
  return ignored.read(count, options, values);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values,
                                 CUlinkState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
  JitOptions jit;
  if (const CUresult error = jit.read(count, options, values); error != CUDA_SUCCESS) return error;
  *state = reinterpret_cast<CUlinkState>(
      Registry::get().linkers.add(std::make_shared<Linker>(context->device(), jit)));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkCreate(unsigned count, CUjit_option* options, void** values,
                              CUlinkState* state) {
  return cuLinkCreate_v2(count, options, values, state);
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                  const char* name, unsigned count, CUjit_option* options,
                                  void** values) {
  std::shared_ptr<Linker> linker;
  if (const CUresult error = requireLinker(state, &linker); error != CUDA_SUCCESS) return error;
  if (const CUresult error = checkOptions(count, options, values); error != CUDA_SUCCESS)
    return error;
  return linker->add(type, data, size, name);
}

CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                               const char* name, unsigned count, CUjit_option* options,
                               void** values) {
  return cuLinkAddData_v2(state, type, data, size, name, count, options, values);
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                                  unsigned count, CUjit_option* options, void** values) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Linker> linker;
  if (const CUresult error = requireLinker(state, &linker); error != CUDA_SUCCESS) return error;
  if (const CUresult error = checkOptions(count, options, values); error != CUDA_SUCCESS)
    return error;
  std::ifstream in(path, std::ios::binary);
  if (!in) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
  return linker->add(type, bytes.data(), bytes.size(), path);
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                               unsigned count, CUjit_option* options, void** values) {
  return cuLinkAddFile_v2(state, type, path, count, options, values);
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  std::shared_ptr<Linker> linker;
  if (const CUresult error = requireLinker(state, &linker); error != CUDA_SUCCESS) return error;
  return linker->complete(image, size);
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  return Registry::get().linkers.remove(state) != nullptr ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"
