// CUDA arrays, kept as pitched device memory without any tiling.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

namespace olpager::simgpu {

class Context;

struct Array {
  CUDA_ARRAY3D_DESCRIPTOR
  descriptor{};  // height and depth as given, 0 where the array has no such dimension
  CUdeviceptr base = 0;
  uint64_t element_bytes = 0;
  uint64_t pitch = 0;  // bytes of a row
  uint64_t rows = 1;   // of a slice
  uint64_t slices = 1;
  CUcontext context = nullptr;
  bool owned = true;  // false: a level of a mipmapped array, which owns the memory
};

/// Bytes of one element; 0 for a format that arrays can't have.
uint64_t arrayElementBytes(CUarray_format format, unsigned channels);

}  // namespace olpager::simgpu
