// The client's memory that copies touch, as far as it lies in blocks that the worker has at the
// same addresses. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include "gpunode/worker/host_memory.h"

namespace olpager::gpunode {

/// True if each host side of the box lies in one block, whole. Sides that are arrays or device
/// memory are not looked at.
bool inBlocks(HostMemory& memory, const CUDA_MEMCPY3D& box);

}  // namespace olpager::gpunode
