// Which context, device and stream a call is about.
#pragma once

#include "interpose/local/root.h"

namespace olpager::local {

/// The calling thread's current context, or nullptr. A call of the driver that takes no lock (some 10 ns).
inline CUcontext currentContext() {
  CUcontext context = nullptr;
  return driver().cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

/// A context and its device.
struct Place {
  CUcontext context = nullptr;
  CUdevice device = 0;
};

/// Memory of `device`, as the VMM functions name it.
inline CUmemLocation memoryOf(CUdevice device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

/// Where memory that the calling thread allocates is: in the current context, or the primary one of a green context that is current.
/// CUDA_ERROR_INVALID_CONTEXT without a current context.
CUresult currentPlace(Place* place);

/// The device of `context`, asked of the driver once per thread and context.
CUresult deviceOf(CUcontext context, CUdevice* device);

/// The context of currentPlace(), or nullptr.
CUcontext memoryContext();

/// There may be streams of a context that nobody has made current: from now on each stream is asked for its own.
void thereAreSeveralContexts();

/// A context is about to go: what threads remember of contexts is asked again.
void forgetContexts();

/// A number for the calling thread, never given twice.
uint64_t threadIdentity();

}  // namespace olpager::local
