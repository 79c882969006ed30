// Managed allocations. Thread-safety: any thread.
#pragma once

#include <cuda.h>

namespace olpager::forward {

bool isManaged(CUdeviceptr address);
/// What cuMemFree does with a managed allocation.
CUresult freeManaged(CUdeviceptr address);

}  // namespace olpager::forward
