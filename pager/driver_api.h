// The driver functions that the pager uses, as a table given to it: the pager links to no libcuda.
// Ownership: the table is copied into the Pool. Thread-safety: as the driver's. Names are the
// exported symbols.
#pragma once

#include <cuda.h>

#include "base/kernel_faults.h"

namespace olpager::pager {

// One line for each function: the symbol as libcuda exports it. cuda.h maps plain names to their
// newest version, so the types are spelled with the versioned names where cuda.h has them.
#define OLPAGER_PAGER_DRIVER_FUNCTIONS(X) \
  X(cuDeviceGetCount)                     \
  X(cuDeviceGetAttribute)                 \
  X(cuDeviceCanAccessPeer)                \
  X(cuCtxGetDevice)                       \
  X(cuCtxPushCurrent_v2)                  \
  X(cuCtxPopCurrent_v2)                   \
  X(cuCtxSynchronize)                     \
  X(cuMemGetInfo_v2)                      \
  X(cuMemAddressReserve)                  \
  X(cuMemAddressFree)                     \
  X(cuMemCreate)                          \
  X(cuMemRelease)                         \
  X(cuMemMap)                             \
  X(cuMemUnmap)                           \
  X(cuMemSetAccess)                       \
  X(cuMemAlloc_v2)                        \
  X(cuMemFree_v2)                         \
  X(cuMemHostAlloc)                       \
  X(cuMemFreeHost)                        \
  X(cuMemGetHandleForAddressRange)        \
  X(cuFlushGPUDirectRDMAWrites)           \
  X(cuMemHostRegister_v2)                 \
  X(cuMemHostUnregister)                  \
  X(cuMemcpyHtoDAsync_v2)                 \
  X(cuMemcpyDtoHAsync_v2)                 \
  X(cuMemcpyDtoDAsync_v2)                 \
  X(cuMemsetD8Async)                      \
  X(cuStreamCreateWithPriority)           \
  X(cuStreamDestroy_v2)                   \
  X(cuStreamQuery)                        \
  X(cuStreamSynchronize)                  \
  X(cuStreamWaitEvent)                    \
  X(cuStreamIsCapturing)                  \
  X(cuStreamAddCallback)                  \
  X(cuEventCreate)                        \
  X(cuEventRecord)                        \
  X(cuEventQuery)                         \
  X(cuEventSynchronize)                   \
  X(cuEventDestroy_v2)                    \
  X(cuEventElapsedTime_v2)                \
  X(cuModuleLoadData)                     \
  X(cuModuleUnload)                       \
  X(cuModuleGetFunction)                  \
  X(cuLaunchKernel)                       \
  X(cuThreadExchangeStreamCaptureMode)

/// Function pointers by symbol name. All are set before a Pool is made from it.
struct DriverApi {
#define OLPAGER_MEMBER(name) decltype(&::name) name = nullptr;
  OLPAGER_PAGER_DRIVER_FUNCTIONS(OLPAGER_MEMBER)
#undef OLPAGER_MEMBER
};

/// True if an answer of the driver means that nothing runs in the context any more. Anything else
/// (out of memory, say) is about the one call.
constexpr bool endsContext(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return base::isKernelFault(result);
  }
}

/// True if a driver's answer is about captures: the call was not made, and its results are unknown.
constexpr bool refusedByCapture(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/// While it lives `context` is the thread's current one, if it can be. `Driver`: a table with the
/// functions for that.
template <typename Driver>
class InContext {
 public:
  InContext(const Driver& driver, CUcontext context)
      : driver_(driver), result_(driver.cuCtxPushCurrent_v2(context)) {}
  ~InContext() {
    CUcontext popped = nullptr;
    if (result_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent_v2(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  /// CUDA_SUCCESS where it is, else why not.
  CUresult result() const { return result_; }

 private:
  const Driver& driver_;
  const CUresult result_;
};

/// Fills `api` by `resolve(symbol name)`; returns the first name that could not be resolved, or
/// nullptr.
template <typename Resolve>
const char* loadDriverApi(DriverApi& api, Resolve&& resolve) {
#define OLPAGER_LOAD(name)                                         \
  api.name = reinterpret_cast<decltype(api.name)>(resolve(#name)); \
  if (api.name == nullptr) return #name;
  OLPAGER_PAGER_DRIVER_FUNCTIONS(OLPAGER_LOAD)
#undef OLPAGER_LOAD
  return nullptr;
}

}  // namespace olpager::pager
