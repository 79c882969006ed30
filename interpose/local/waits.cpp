// Waits for work, and questions whether it is done: the driver's, but that they tell of memory
// which was lost (lost_memory.h). Unfinished work is reported as such: programs take back what its
// copies use when they hear that it is over.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/held_signals.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/graph_parts.h"
#include "interpose/local/hook.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

// Corrects the driver's answer about work in a context: that all is done is not so where some of it
// could not be made.
template <typename ContextOf>
CUresult told(CUresult result, ContextOf context) {
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && pool() != nullptr)
    pool()->answered(context(), result);
  if (result == CUDA_SUCCESS) reapExecs();
  if (result != CUDA_SUCCESS || !anyLost() || pool() == nullptr) return result;
  return lostIn(context());
}

CUresult toldOfStream(CUresult result, CUstream stream, bool per_thread) {
  if (result == CUDA_SUCCESS && pool() != nullptr && pool()->hasManaged() && !anyCapture())
    pool()->markManaged(streamKey(stream, per_thread));
  return told(result, [&] { return streamKey(stream, per_thread).context; });
}

// Asks query() until the work is done, and has native() answer, which does not wait then. Signals
// are held back in the driver's calls, not between them: a thread that is stopped in one, or
// touches managed memory in a handler, may have what a page fault needs. Others may add for ever to
// work that is not done in kMost: `beyond` answers then.
constexpr std::chrono::microseconds kMost{20'000};
template <typename Query, typename Native, typename Beyond>
CUresult wait(Query query, Native native, Beyond beyond) {
  if (pool() == nullptr || !pool()->hasManaged() || anyCapture()) return native();
  constexpr std::chrono::microseconds kAwake{200}, kLongest{100};
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    {
      const olpager::base::HeldSignals held;
      if (query() != CUDA_ERROR_NOT_READY) return native();
    }
    const auto waited = std::chrono::steady_clock::now() - began;
    if (waited > kMost) return beyond();
    if (waited < kAwake)
      sched_yield();
    else
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 16, kLongest));
  }
}

CUresult waitFor(CUevent event, std::chrono::microseconds pause) {
  for (;;) {
    {
      const olpager::base::HeldSignals held;
      if (const CUresult result = driver().cuEventQuery(event); result != CUDA_ERROR_NOT_READY)
        return result;
    }
    std::this_thread::sleep_for(pause);
  }
}

// Waits for the stream's present work, and no more.
CUresult waitForPresent(const olpager::pager::StreamKey& key) {
  const Within within(key.context);
  CUevent event = nullptr;
  CUresult result = within.result();
  if (result == CUDA_SUCCESS) {
    const olpager::base::HeldSignals held;
    result = driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = driver().cuEventRecord(event, key.stream);
  }
  if (result == CUDA_SUCCESS) result = waitFor(event, kMost / 200);
  if (event != nullptr) static_cast<void>(driver().cuEventDestroy_v2(event));
  return result;
}

template <typename Query, typename Native>
CUresult waitForStream(CUstream stream, bool per_thread, Query query, Native native) {
  const auto beyond = [&] {
    const CUresult result = waitForPresent(streamKey(stream, per_thread));
    return result == CUDA_SUCCESS ? result : native();
  };
  return wait(query, native, beyond);
}

// The context's launches are known by their marks. If the marks do not tell, as of other threads'
// own streams, the driver waits with signals open.
template <typename Native>
CUresult waitForContext(CUcontext context, Native native) {
  CUdevice device = 0;
  if (pool() == nullptr || !pool()->hasManaged() || deviceOf(context, &device) != CUDA_SUCCESS)
    return native();
  return wait([&] { return pool()->runs(device) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }, native,
              native);
}

// The driver does not say whose an event is, and it may be waited for in any context.
CUresult toldOfEvent(CUresult result) {
  if (result == CUDA_ERROR_ILLEGAL_ADDRESS && pool() != nullptr)
    pool()->answered(currentContext(), result);
  if (result == CUDA_SUCCESS) reapExecs();
  return result == CUDA_SUCCESS && anyLost() && pool() != nullptr ? lostAnywhere() : result;
}

}  // namespace

void olpager::local::awaitStream(const olpager::pager::StreamKey& stream) {
  if (stream.context != nullptr && !anyCapture()) static_cast<void>(waitForPresent(stream));
}

OLPAGER_HOOK(cuCtxSynchronize)() {
  return told(waitForContext(currentContext(), [] { return driver().cuCtxSynchronize(); }),
              currentContext);
}
OLPAGER_HOOK(cuCtxSynchronize_v2)(CUcontext context) {
  const CUcontext of = context != nullptr ? context : currentContext();
  return told(waitForContext(of, [&] { return driver().cuCtxSynchronize_v2(context); }),
              [&] { return of; });
}

OLPAGER_HOOK(cuStreamSynchronize)(CUstream stream) {
  return toldOfStream(waitForStream(
                          stream, false, [&] { return driver().cuStreamQuery(stream); },
                          [&] { return driver().cuStreamSynchronize(stream); }),
                      stream, false);
}
OLPAGER_HOOK(cuStreamSynchronize_ptsz)(CUstream stream) {
  return toldOfStream(waitForStream(
                          stream, true, [&] { return driver().cuStreamQuery_ptsz(stream); },
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
                          [&] { return driver().cuEventSynchronize(event); },
                          [&] { return waitFor(event, kMost / 200); }));
}
OLPAGER_HOOK(cuEventQuery)(CUevent event) { return toldOfEvent(driver().cuEventQuery(event)); }
OLPAGER_HOOK(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return toldOfEvent(driver().cuEventElapsedTime(milliseconds, start, end));
}
OLPAGER_HOOK(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  return toldOfEvent(driver().cuEventElapsedTime_v2(milliseconds, start, end));
}
