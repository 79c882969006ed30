// Host memory that the driver keeps for the program. Thread-safety: any thread. Lock:
// HostRanges::mutex.
#pragma once

#include <cuda.h>

namespace olpager::local {

/// Managed memory at `address`, which is about to be freed. Nothing for any other address.
void forgetManaged(CUdeviceptr address);

/// The driver is about to free what was allocated, and to unpin what was registered, in the
/// context.
void hostMemoryOfContextGone(CUcontext context);

}  // namespace olpager::local
