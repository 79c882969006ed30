// How cuMemAllocPitch lays out rows. Thread-safety: pure.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <limits>

namespace olpager::api {

/// `height` rows of `width` bytes, for elements of `element` bytes: bytes from a row to the next,
/// and of all. The result is the function's where they can't be had.
inline CUresult pitchedRows(uint64_t width, uint64_t height, unsigned element, uint64_t* row,
                            uint64_t* bytes) {
  constexpr uint64_t kAlignment = 512;
  if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  if (width > std::numeric_limits<uint64_t>::max() - kAlignment) return CUDA_ERROR_OUT_OF_MEMORY;
  *row = (width + kAlignment - 1) / kAlignment * kAlignment;
  return __builtin_mul_overflow(*row, height, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

}  // namespace olpager::api
