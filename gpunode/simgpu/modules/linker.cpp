#include "gpunode/simgpu/modules/linker.h"

#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

CUresult Linker::refuse(CUresult error, const std::string& line) {
  options_.error(line);
  options_.finish(0);
  report(line);
  return error;
}

CUresult Linker::add(CUjitInputType type, const void* data, size_t size, const char* name) {
  if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (complete_) return CUDA_ERROR_INVALID_HANDLE;
  const std::string what = name != nullptr && *name != '\0' ? name : "<unnamed>";
  if (type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY) {
    return refuse(
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        "cuLinkAddData: " + what + ": the simulated GPU runs PTX; machine code can't be linked");
  }
  if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY) return CUDA_ERROR_INVALID_VALUE;
  if (has_code_) {
    return refuse(CUDA_ERROR_NOT_SUPPORTED,
                  "cuLinkAddData: " + what +
                      ": the simulated GPU does not link several inputs into one module");
  }
  Code code;
  const std::span<const uint8_t> bytes(static_cast<const uint8_t*>(data), size);
  if (const CUresult error = findCode(device_, bytes, options_, &code); error != CUDA_SUCCESS) {
    options_.finish(0);
    return error;
  }
  code.name = what;
  std::shared_ptr<ptx::Module> checked;
  const CUresult error = compileCode(device_, code, options_, &checked);
  options_.finish(0);
  if (error != CUDA_SUCCESS) return error;
  code_ = std::move(code);
  has_code_ = true;
  return CUDA_SUCCESS;
}

CUresult Linker::complete(void** image, size_t* size) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  if (!has_code_) return CUDA_ERROR_INVALID_VALUE;
  complete_ = true;
  *image = code_.ptx.data();  // ends with a NUL, as PTX text does
  if (size != nullptr) *size = code_.ptx.size() + 1;
  options_.finish(0);
  return CUDA_SUCCESS;
}

}  // namespace olpager::simgpu
