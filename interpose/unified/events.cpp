// Events of a view over several executors. All executors have each event; it stands for what is
// before it at the executor where it was recorded last, which is noted. Elsewhere it was never
// recorded, so a wait for it there is over at once: what is before it was complete when operations
// moved (executors.h). Only the time between two events has to know (event_clock.h).
#include <algorithm>

#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/group.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"
#include "interpose/unified/event_clock.h"
#include "interpose/unified/executors.h"

namespace olpager::unified {
namespace {

using forward::Group;
using forward::Session;
using forward::sessionOfGroup;

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

// One that was never recorded the driver refuses, wherever it is asked.
CUresult elapsed(Session* session, float* milliseconds, CUevent from, CUevent to) {
  Group& group = *session->group();
  group.awaitKept();  // records among them
  const Group::Recorded first = group.recorded(from), second = group.recorded(to);
  if (first.executor == second.executor)
    return elapsedAt(*session, first.executor, milliseconds, from, to);
  EventClock::Milliseconds time{};
  const CUresult result = static_cast<Executors&>(group).eventClock().between(
      from, first.executor, to, second.executor, &time);
  if (result != CUDA_SUCCESS) return result;
  // All before a move is over before anything behind it begins, however well the clocks are known.
  const double none = 0;
  *milliseconds = static_cast<float>(first.order < second.order ? std::max(none, time.count())
                                                                : std::min(none, time.count()));
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
