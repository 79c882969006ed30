// Managed allocations. Thread-safety: any thread.
#pragma once

#include <cuda.h>

namespace olpager::forward {

bool isManaged(CUdeviceptr address);
/// What was said of the managed allocation that began there, which is freed, is forgotten.
void forgetAdvice(CUdeviceptr address);
/// What cuMemFree does with a managed allocation.
CUresult freeManaged(CUdeviceptr address);

}  // namespace olpager::forward
