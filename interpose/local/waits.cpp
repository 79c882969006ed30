// Waits for work, and questions whether it is done: the driver's, but that they tell of memory which was lost (lost_memory.h).
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C functions

namespace {

// What the driver answered of work in `context`, unless the work was not all made. `result` first: what an error of the driver's own
// says is older than a loss that another thread meets meanwhile.
template <typename ContextOf>
CUresult told(CUresult result, ContextOf context) {
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) return result;
  if (!g_any_lost.load(std::memory_order_acquire)) [[likely]]
    return result;
  if (pool() == nullptr) return result;
  const CUresult lost = lostIn(context());
  return lost != CUDA_SUCCESS ? lost : result;
}

CUresult toldOfStream(CUresult result, CUstream stream, bool per_thread) {
  return told(result, [&] { return streamKey(stream, per_thread).context; });
}

}  // namespace

OLPAGER_HOOK(cuCtxSynchronize)() { return told(driver().cuCtxSynchronize(), currentContext); }
OLPAGER_HOOK(cuCtxSynchronize_v2)(CUcontext context) {
  return told(driver().cuCtxSynchronize_v2(context), [&] { return context != nullptr ? context : currentContext(); });
}

OLPAGER_HOOK(cuStreamSynchronize)(CUstream stream) {
  return toldOfStream(driver().cuStreamSynchronize(stream), stream, false);
}
OLPAGER_HOOK(cuStreamSynchronize_ptsz)(CUstream stream) {
  return toldOfStream(driver().cuStreamSynchronize_ptsz(stream), stream, true);
}
OLPAGER_HOOK(cuStreamQuery)(CUstream stream) { return toldOfStream(driver().cuStreamQuery(stream), stream, false); }
OLPAGER_HOOK(cuStreamQuery_ptsz)(CUstream stream) {
  return toldOfStream(driver().cuStreamQuery_ptsz(stream), stream, true);
}

// The driver does not say which context an event belongs to: a program looks at one where it is current.
OLPAGER_HOOK(cuEventSynchronize)(CUevent event) { return told(driver().cuEventSynchronize(event), currentContext); }
OLPAGER_HOOK(cuEventQuery)(CUevent event) { return told(driver().cuEventQuery(event), currentContext); }
OLPAGER_HOOK(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return told(driver().cuEventElapsedTime(milliseconds, start, end), currentContext);
}
OLPAGER_HOOK(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  return told(driver().cuEventElapsedTime_v2(milliseconds, start, end), currentContext);
}
