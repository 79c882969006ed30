// cuda.h as an implementer of the driver sees it: every version of every function has its own
// prototype, and a definition of one of them is exported. Must be included before any other header
// that includes cuda.h.
#pragma once

#ifdef __cuda_cuda_h__
#error "include gpunode/simgpu/api.h before cuda.h"
#endif

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop

/// Defines a function that takes a stream (or implies the default stream) together with its
/// per-thread-default-stream variant. The body sees `kPerThread`.
#define OLSIM_STREAM_FUNCTION(name, suffix, parameters, ...) \
  CUresult CUDAAPI name parameters {                         \
    constexpr bool kPerThread = false;                       \
    __VA_ARGS__                                              \
  }                                                          \
  CUresult CUDAAPI name##suffix parameters {                 \
    constexpr bool kPerThread = true;                        \
    __VA_ARGS__                                              \
  }
