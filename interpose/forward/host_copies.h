// Copies between the program's memory and a device's, as cuMemcpyHtoD and cuMemcpyDtoH make them. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

/// In the stream; returns when it is over.
CUresult copyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream, bool per_thread);
CUresult copyFromDevice(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream, bool per_thread);

}  // namespace olpager::forward
