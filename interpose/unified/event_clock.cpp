#include "interpose/unified/event_clock.h"

#include <algorithm>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/crossings.h"
#include "interpose/forward/group.h"

namespace olpager::unified {

using forward::Call;

namespace {

constexpr auto kRenewed = std::chrono::seconds(10);
// Rounds that make a mark: so many at least, and until one is about as short as the shortest.
constexpr int kRounds = 4, kMostRounds = 12;

}  // namespace

CUresult elapsedAt(forward::Session& session, unsigned executor, float* milliseconds, CUevent from,
                   CUevent to) {
  Call call(api::Symbol::kCuEventElapsedTime_v2, &session);
  call.only(executor);
  call.handle(from);
  call.handle(to);
  call.wants(milliseconds);
  const CUresult result = call.sync();
  if (call.answered()) call.take(milliseconds, 1);
  return result;
}

// One round: the event is recorded in a stream of the library's own that has nothing else to do,
// and waited for. Any wait for the GPU came before the event; from then on the answer took about
// half of the shortest round.
CUresult EventClock::make(unsigned executor, Mark& mark) {
  const forward::OwnStream stream(&session_);
  if (stream.stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  session_.group()->awaitKept();  // the stream and the event may be made there only now
  Clock::duration shortest = Clock::duration::max();
  for (int round = 1; round <= kMostRounds; ++round) {
    const auto begun = Clock::now();
    Call record(api::Symbol::kCuEventRecord, &session_);
    record.only(executor);
    record.handle(mark.event);
    record.handle(stream.stream());
    if (const CUresult result = record.oneWay(); result != CUDA_SUCCESS) return result;
    Call wait(api::Symbol::kCuEventSynchronize, &session_);
    wait.only(executor);
    wait.handle(mark.event);
    wait.mayWait();
    if (const CUresult result = wait.sync(); result != CUDA_SUCCESS) return result;
    const auto ended = Clock::now();
    const auto took = ended - begun;
    shortest = std::min(shortest, took);
    mark.at = ended - shortest / 2;
    if (round >= kRounds && took <= shortest + shortest / 4) break;
  }
  return CUDA_SUCCESS;
}

// Under the mutex.
CUresult EventClock::markAt(unsigned executor, const Mark** out) {
  Mark& mark = marks_[{forward::currentContext(), executor}];
  *out = &mark;
  if (mark.made && Clock::now() - mark.at < kRenewed) return CUDA_SUCCESS;
  if (mark.event == nullptr) {
    if (const CUresult result = ol_forward_cuEventCreate(&mark.event, CU_EVENT_DEFAULT);
        result != CUDA_SUCCESS)
      return result;
  }
  const CUresult result = make(executor, mark);
  mark.made = result == CUDA_SUCCESS;
  return result;
}

CUresult EventClock::timeOf(CUevent event, unsigned executor, Milliseconds* time) {
  const Mark* mark = nullptr;
  if (const CUresult result = markAt(executor, &mark); result != CUDA_SUCCESS) return result;
  float since = 0;
  const CUresult result = elapsedAt(session_, executor, &since, event, mark->event);
  *time = Milliseconds(mark->at.time_since_epoch()) - Milliseconds(since);
  return result;
}

CUresult EventClock::between(CUevent from, unsigned first, CUevent to, unsigned second,
                             Milliseconds* time) {
  Milliseconds began{}, ended{};
  const std::lock_guard lock(mutex_);
  CUresult result = timeOf(from, first, &began);
  if (result == CUDA_SUCCESS) result = timeOf(to, second, &ended);
  *time = ended - began;
  return result;
}

void EventClock::contextGone(uint64_t context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(marks_, [&](const auto& one) { return one.first.first == context; });
}

}  // namespace olpager::unified
