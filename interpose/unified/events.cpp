// Events of a view over several executors. All executors have each event; it stands for what is
// before it at the executor where it was recorded last, which is noted. Elsewhere it was never
// recorded, so who waits for it there waits for nothing: what is before it was complete when
// operations moved (executors.h). Only the time between two events has to know.
#include <algorithm>
#include <chrono>

#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/crossings.h"
#include "interpose/forward/group.h"

namespace olpager::unified {
namespace {

using forward::Call;
using forward::Session;
using forward::sessionOfGroup;
using Milliseconds = std::chrono::duration<double, std::milli>;

// A record goes to the active executor, whatever moves meanwhile is ordered before it or behind it:
// who records and moves at the same time has no order between the two.
CUresult noted(CUresult result, CUevent event) {
  const Session* const session = sessionOfGroup();
  if (result != CUDA_SUCCESS || session == nullptr) return result;
  session->group()->noteRecord(event);
  return result;
}

CUresult forgotten(CUresult result, CUevent event) {
  const Session* const session = sessionOfGroup();
  if (result == CUDA_SUCCESS && session != nullptr) session->group()->dropRecord(event);
  return result;
}

CUresult elapsedAt(Session* session, unsigned executor, float* milliseconds, CUevent from,
                   CUevent to) {
  Call call(api::Symbol::kCuEventElapsedTime_v2, session);
  call.only(executor);
  call.handle(from);
  call.handle(to);
  call.wants(milliseconds);
  const CUresult result = call.sync();
  if (call.answered()) call.take(milliseconds, 1);
  return result;
}

// When the executor came to the event, on this process's clock: before an event that is recorded
// there now, and has been come to when it is synchronised with.
CUresult timeOf(Session* session, unsigned executor, CUevent event, CUevent clock,
                Milliseconds* time) {
  const forward::OwnStream stream(session);
  if (stream.stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  session->group()->awaitKept();  // the stream and the event may be made there only now
  Call record(api::Symbol::kCuEventRecord, session);
  record.only(executor);
  record.handle(clock);
  record.handle(stream.stream());
  if (const CUresult result = record.oneWay(); result != CUDA_SUCCESS) return result;
  Call wait(api::Symbol::kCuEventSynchronize, session);
  wait.only(executor);
  wait.handle(clock);
  wait.mayWait();
  if (const CUresult result = wait.sync(); result != CUDA_SUCCESS) return result;
  const Milliseconds now = std::chrono::steady_clock::now().time_since_epoch();
  float since = 0;
  const CUresult result = elapsedAt(session, executor, &since, event, clock);
  *time = now - Milliseconds(since);
  return result;
}

CUresult elapsed(Session* session, float* milliseconds, CUevent from, CUevent to) {
  session->group()->awaitKept();  // records among them
  // One that was never recorded the driver refuses, wherever it is asked.
  const unsigned first = session->group()->recordedAt(from);
  const unsigned second = session->group()->recordedAt(to);
  if (first == second) return elapsedAt(session, first, milliseconds, from, to);
  CUevent clock = nullptr;
  CUresult result = ol_forward_cuEventCreate(&clock, CU_EVENT_DEFAULT);
  if (result != CUDA_SUCCESS) return result;
  Milliseconds began{}, ended{};
  result = timeOf(session, first, from, clock, &began);
  if (result == CUDA_SUCCESS) result = timeOf(session, second, to, clock, &ended);
  (void)ol_forward_generated_cuEventDestroy_v2(clock);
  // Two clocks, each as exact as a round trip.
  if (result == CUDA_SUCCESS)
    *milliseconds = static_cast<float>(std::max(0.0, (ended - began).count()));
  return result;
}

}  // namespace
}  // namespace olpager::unified

using namespace olpager::unified;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions
using olpager::forward::Session;
using olpager::forward::sessionOfGroup;

extern "C" {

#define OL_RECORD(suffix)                                                                   \
  CUresult ol_unified_cuEventRecord##suffix(CUevent event, CUstream stream) {               \
    return noted(ol_forward_generated_cuEventRecord##suffix(event, stream), event);         \
  }                                                                                         \
  CUresult ol_unified_cuEventRecordWithFlags##suffix(CUevent event, CUstream stream,        \
                                                     unsigned flags) {                      \
    return noted(ol_forward_generated_cuEventRecordWithFlags##suffix(event, stream, flags), \
                 event);                                                                    \
  }
OL_RECORD()
OL_RECORD(_ptsz)
#undef OL_RECORD

CUresult ol_unified_cuEventDestroy_v2(CUevent event) {
  return forgotten(ol_forward_generated_cuEventDestroy_v2(event), event);
}
CUresult ol_unified_cuEventDestroy(CUevent event) { return ol_unified_cuEventDestroy_v2(event); }

CUresult ol_unified_cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  Session* const session = sessionOfGroup();
  return session != nullptr && milliseconds != nullptr
             ? elapsed(session, milliseconds, from, to)
             : ol_forward_generated_cuEventElapsedTime(milliseconds, from, to);
}
CUresult ol_unified_cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
  Session* const session = sessionOfGroup();
  return session != nullptr && milliseconds != nullptr
             ? elapsed(session, milliseconds, from, to)
             : ol_forward_generated_cuEventElapsedTime_v2(milliseconds, from, to);
}

}  // extern "C"
