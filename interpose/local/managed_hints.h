// Advice on managed memory that the pager moves. Thread-safety: any thread.
#pragma once

#include <cuda.h>

namespace olpager::local {

/// The allocation, managed or not, is freed.
void forgetAdvice(CUdeviceptr address);

}  // namespace olpager::local
