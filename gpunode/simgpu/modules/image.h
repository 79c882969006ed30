// Finds the PTX to run in what a program gives to the driver: PTX text, a fat binary, a wrapper of
// one, a cubin. Thread-safety: pure functions. Ownership: results are copies.
#pragma once

#include <cuda.h>

#include <memory>
#include <span>
#include <string>

#include "gpunode/simgpu/modules/jit_options.h"
#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu {

class Device;

/// Code that a module is made from. Each context needs a compiled copy of its own, since a copy is
/// linked to addresses.
struct Code {
  std::string name;  ///< for messages
  std::string ptx;
  int target = 0;  ///< 75 for compute_75
};

/// The PTX in the image at `image` that suits `device` best: the highest architecture that the
/// device has. CUDA_ERROR_INVALID_IMAGE for what is no code, CUDA_ERROR_NO_BINARY_FOR_GPU where
/// there is machine code alone or PTX for newer devices; the reason goes to the error log and to
/// stderr.
CUresult findCode(const Device& device, const void* image, JitOptions& options, Code* code);

/// The same for a file's bytes; PTX text need not end with a NUL.
CUresult findCode(const Device& device, std::span<const uint8_t> bytes, JitOptions& options,
                  Code* code);

/// Compiles for `device`: CUDA_ERROR_INVALID_PTX with a line number in the error log (and on
/// stderr), or CUDA_ERROR_UNSUPPORTED_PTX_VERSION's relatives as above.
CUresult compileCode(const Device& device, const Code& code, JitOptions& options,
                     std::shared_ptr<ptx::Module>* out);

/// 90 for compute capability 9.0.
int computeCapability(const Device& device);

/// One line on stderr, beginning with the library's name.
void report(const std::string& line);

}  // namespace olpager::simgpu
