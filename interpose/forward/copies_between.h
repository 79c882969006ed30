// Copies between devices of two gpunodes. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "interpose/forward/crossings.h"

namespace olpager::forward {

/// Memory of a device, and a context that can use it; null: that which it was allocated in.
struct DeviceSide {
  CUdeviceptr address = 0;
  CUcontext context = nullptr;
};

/// True if these are device memory of two sessions.
bool ofTwoSessions(CUdeviceptr one, CUdeviceptr other);
/// After all work in the default streams of both contexts (`per_thread`: the calling thread's);
/// returns when it is over.
CUresult copyBetween(const DeviceSide& to, const DeviceSide& from, uint64_t bytes, bool per_thread);
/// In the order of a stream, whosever that is.
CUresult copyBetweenBehind(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const StreamAt& at);

}  // namespace olpager::forward
