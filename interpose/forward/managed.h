// Managed allocations. Thread-safety: any thread.
#pragma once

#include <cuda.h>

namespace olpager::forward {

bool isManaged(CUdeviceptr address);
/// Forgets the advice for the managed allocation that began there, which is freed.
void forgetAdvice(CUdeviceptr address);
/// Frees a managed allocation for cuMemFree.
CUresult freeManaged(CUdeviceptr address);

}  // namespace olpager::forward
