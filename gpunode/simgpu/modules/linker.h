// cuLink*: PTX goes in, something that cuModuleLoadData takes comes out: the PTX itself, checked.
// Several inputs, and inputs of other kinds, would need a real linker and are refused by name.
// States: open -> complete (its image can be loaded until it is destroyed). Moved under
// Linker::mutex.
#pragma once

#include <cuda.h>

#include <mutex>
#include <string>

#include "gpunode/simgpu/modules/image.h"
#include "gpunode/simgpu/modules/jit_options.h"

namespace olpager::simgpu {

class Device;

class Linker {
 public:
  Linker(Device& device, JitOptions options) : device_(device), options_(options) {}

  CUresult add(CUjitInputType type, const void* data, size_t size, const char* name);
  /// The image and its size in bytes; stays valid until the linker is destroyed.
  CUresult complete(void** image, size_t* size);

 private:
  CUresult refuse(CUresult error, const std::string& line);

  Device& device_;
  std::mutex mutex_;
  JitOptions options_;
  Code code_;
  bool has_code_ = false;
  bool complete_ = false;
};

}  // namespace olpager::simgpu
