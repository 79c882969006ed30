// Copies between the program's memory and a device's, as cuMemcpyHtoD and cuMemcpyDtoH make them.
// Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "interpose/forward/rows.h"

namespace olpager::forward {

class Session;

/// In the stream; returns when it is over.
CUresult copyToDevice(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream,
                      bool per_thread);
CUresult copyFromDevice(void* to, CUdeviceptr from, uint64_t bytes, CUstream stream,
                        bool per_thread);

/// One side of a box in the program's memory, that begins at `base`.
Rows rowsOf(const void* base, const CUDA_MEMCPY3D& box, bool source);
bool pitchHoldsRow(CUmemorytype type, uint64_t pitch, const CUDA_MEMCPY3D& box);
/// The program's memory is read now, where the driver would read it in stream order: host functions
/// before that may still write it.
CUresult awaitFunctions(Session* session, CUstream stream, bool per_thread);

}  // namespace olpager::forward
