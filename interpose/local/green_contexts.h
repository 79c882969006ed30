// Green contexts: parts of a device that kernels are confined to. Each has a context that stands
// for it; memory that is allocated there is the primary context's, and outlives it. Thread-safety:
// any thread. Lock: Greens::mutex (green_contexts.cpp).
#pragma once

#include <cuda.h>

namespace olpager::local {

/// The owner of memory that is allocated in `context`: the primary one where it stands for a green
/// context, else itself.
CUcontext memoryOwner(CUcontext context);

/// Green contexts of `device` that there are: each keeps the primary context active, as a retain
/// does.
unsigned greenContextsOf(CUdevice device);

}  // namespace olpager::local
