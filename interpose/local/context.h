// Finds the context, device and stream of a call.
#pragma once

#include <optional>

#include "interpose/local/root.h"
#include "pager/driver_api.h"

namespace olpager::local {

/// The calling thread's current context, or nullptr. A call of the driver that takes no lock (some
/// 10 ns).
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

/// The place of memory that the calling thread allocates: in the current context, or the primary
/// one of a green context that is current. CUDA_ERROR_INVALID_CONTEXT without a current context.
CUresult currentPlace(Place* place);

/// The device of `context`, asked of the driver once per thread and context.
CUresult deviceOf(CUcontext context, CUdevice* device);

/// The context of currentPlace(), or nullptr.
CUcontext memoryContext();

/// The program has this context. With a second one streams are asked for their own from then on.
void noteContext(CUcontext context);

/// There may be streams of a context that nobody has made current: from now on each stream is asked
/// for its own.
void thereAreSeveralContexts();

/// While it lives the context is the thread's current one, which it may be already.
class Within {
 public:
  explicit Within(CUcontext context) {
    if (context != currentContext()) pushed_.emplace(driver(), context);
  }
  /// CUDA_SUCCESS where it is, else why not.
  CUresult result() const { return pushed_ ? pushed_->result() : CUDA_SUCCESS; }

 private:
  std::optional<pager::InContext<api::DriverTable>> pushed_;
};

/// A context is about to go: threads ask again for what they remember of contexts.
void forgetContexts();

/// A number for the calling thread, never given twice.
uint64_t threadIdentity();

}  // namespace olpager::local
