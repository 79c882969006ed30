// A device resource (CUdevResource) as a program has it: type and counts as the driver told them,
// and in place of the driver's own bytes a number that the worker knows them by. The number looks
// like a handle, so that it says whose it is.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace olpager::forward {

/// In the opaque bytes; the rest of them is zero.
inline constexpr size_t kResourceNumberAt = 4;

/// 0: none.
inline uint64_t resourceNumber(const CUdevResource* resource) {
  uint64_t number = 0;
  if (resource != nullptr)
    std::memcpy(&number, resource->_internal_padding + kResourceNumberAt, sizeof number);
  return number;
}
inline void setResourceNumber(CUdevResource& resource, uint64_t number) {
  std::memcpy(resource._internal_padding + kResourceNumberAt, &number, sizeof number);
}

}  // namespace olpager::forward
