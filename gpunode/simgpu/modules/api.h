// cuda.h as an implementer of the driver sees it: every version of every function has its own prototype, and a
// definition of one of them is exported. Must be included before any other header that includes cuda.h.
#pragma once

#ifdef __cuda_cuda_h__
#error "include gpunode/simgpu/modules/api.h before cuda.h"
#endif

#define __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL_ODR
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
