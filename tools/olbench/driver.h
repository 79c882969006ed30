// libcuda, opened at run time: olbench builds and starts without a driver. Only a measuring child
// opens it, so that the same program can be run with and without the pager. Not thread-safe: one
// thread measures.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <vector>

namespace olpager::tools::bench {

// cuda.h renames most of these to their newest version; the strings are made after that.
// clang-format off
#define OLBENCH_FUNCTIONS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDeviceGetName) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuGetErrorName) X(cuDriverGetVersion) X(cuMemAlloc) X(cuMemFree) \
  X(cuMemAllocManaged) X(cuMemCreate) X(cuMemAddressReserve) X(cuMemMap) X(cuMemSetAccess) \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemGetInfo) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) \
  X(cuMemcpyDtoH) X(cuMemcpyPeer) X(cuMemsetD8) X(cuMemsetD32) X(cuModuleLoadData) \
  X(cuModuleGetFunction) X(cuLaunchKernel) X(cuDeviceGetCount) X(cuStreamCreate) \
  X(cuStreamSynchronize)
// clang-format on
struct Driver {
#define OLBENCH_MEMBER(name) decltype(&::name) name = nullptr;
  OLBENCH_FUNCTIONS(OLBENCH_MEMBER)
#undef OLBENCH_MEMBER

  /// Opens `path` (as dlopen takes it) and makes device 0's primary context current. Throws
  /// std::runtime_error.
  explicit Driver(const std::string& path);

  /// Throws std::runtime_error with `what` and the error's name.
  void check(CUresult result, const char* what) const;

  /// A function of a module made from PTX text; the module stays loaded.
  CUfunction function(const std::string& ptx, const char* name) const;

  std::string deviceName() const;
};

/// A kernel named `name` with `pointers` 64-bit parameters that does nothing.
std::string emptyKernelPtx(const char* name, unsigned pointers);

/// touch(address, bytes, stride, write): reads a word each `stride` bytes, and writes it back plus
/// one when `write`. stream(out, in, bytes): copies 16 bytes a thread-step over the whole range.
extern const char* const kTouchPtx;

}  // namespace olpager::tools::bench
