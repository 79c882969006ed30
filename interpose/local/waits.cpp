// Waits for work, and questions whether it is done: the driver's, but that they tell of memory
// which was lost (lost_memory.h). What is still under way is said to be so: programs take back what
// its copies use when they hear that it is over.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/held_signals.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

// What the driver answered of work in a context: that all is done is not so where some of it could
// not be made.
template <typename ContextOf>
CUresult told(CUresult result, ContextOf context) {
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && pool() != nullptr)
    pool()->answered(context(), result);
  if (result != CUDA_SUCCESS || !anyLost() || pool() == nullptr) return result;
  return lostIn(context());
}

CUresult toldOfStream(CUresult result, CUstream stream, bool per_thread) {
  return told(result, [&] { return streamKey(stream, per_thread).context; });
}

// Asks query() until the work is done, and has native() answer, which does not wait then. Signals
// are held back in the driver's calls, not between them: a thread that is stopped in one, or
// touches managed memory in a handler, may have what a page fault needs.
template <typename Query, typename Native>
CUresult wait(Query query, Native native) {
  if (pool() == nullptr || !pool()->hasManaged() || anyCapture()) return native();
  constexpr std::chrono::microseconds kAwake{200}, kLongest{100}, kMost{20'000};
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    {
      const olpager::base::HeldSignals held;
      if (query() != CUDA_ERROR_NOT_READY) return native();
    }
    const auto waited = std::chrono::steady_clock::now() - began;
    if (waited > kMost) return native();  // others may give the stream more all the time
    if (waited < kAwake)
      sched_yield();
    else
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 16, kLongest));
  }
}

// The driver does not say whose an event is, and it may be waited for in any context.
CUresult toldOfEvent(CUresult result) {
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && pool() != nullptr)
    pool()->answered(currentContext(), result);
  return result == CUDA_SUCCESS && anyLost() && pool() != nullptr ? CUDA_ERROR_ECC_UNCORRECTABLE
                                                                  : result;
}

}  // namespace

OLPAGER_HOOK(cuCtxSynchronize)() { return told(driver().cuCtxSynchronize(), currentContext); }
OLPAGER_HOOK(cuCtxSynchronize_v2)(CUcontext context) {
  return told(driver().cuCtxSynchronize_v2(context),
              [&] { return context != nullptr ? context : currentContext(); });
}

OLPAGER_HOOK(cuStreamSynchronize)(CUstream stream) {
  return toldOfStream(wait([&] { return driver().cuStreamQuery(stream); },
                           [&] { return driver().cuStreamSynchronize(stream); }),
                      stream, false);
}
OLPAGER_HOOK(cuStreamSynchronize_ptsz)(CUstream stream) {
  return toldOfStream(wait([&] { return driver().cuStreamQuery_ptsz(stream); },
                           [&] { return driver().cuStreamSynchronize_ptsz(stream); }),
                      stream, true);
}
OLPAGER_HOOK(cuStreamQuery)(CUstream stream) {
  return toldOfStream(driver().cuStreamQuery(stream), stream, false);
}
OLPAGER_HOOK(cuStreamQuery_ptsz)(CUstream stream) {
  return toldOfStream(driver().cuStreamQuery_ptsz(stream), stream, true);
}

OLPAGER_HOOK(cuEventSynchronize)(CUevent event) {
  return toldOfEvent(wait([&] { return driver().cuEventQuery(event); },
                          [&] { return driver().cuEventSynchronize(event); }));
}
OLPAGER_HOOK(cuEventQuery)(CUevent event) { return toldOfEvent(driver().cuEventQuery(event)); }
OLPAGER_HOOK(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return toldOfEvent(driver().cuEventElapsedTime(milliseconds, start, end));
}
OLPAGER_HOOK(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  return toldOfEvent(driver().cuEventElapsedTime_v2(milliseconds, start, end));
}
