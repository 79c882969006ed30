// One clock for the events of a view over several executors: this process's. Each executor's driver
// tells times between its own events alone. So each executor has a mark, an event whose time on
// this process's clock is known as well as a round trip allows. The time of any other event follows
// from the time between the mark and it. Such times add up, since all are of the same marks; a mark
// that is older than kRenewed is made anew, as clocks drift.
//
// Marks are made in the calling thread's context, and end with it.
// Thread-safety: any thread. Lock: mutex_ (interpose/forward/locks.h), held while executors are
// asked.
#pragma once

#include <cuda.h>

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "base/held_signals.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

class EventClock {
 public:
  using Milliseconds = std::chrono::duration<double, std::milli>;

  explicit EventClock(forward::Session& session) : session_(session) {}

  /// The time from one event to another, each with the executor where it was recorded last.
  CUresult between(CUevent from, unsigned first, CUevent to, unsigned second, Milliseconds* time);
  void contextGone(uint64_t context);

 private:
  using Clock = std::chrono::steady_clock;
  struct Mark {
    CUevent event = nullptr;
    bool made = false;     // it was recorded, and its time is known:
    Clock::time_point at;  // when the executor came to it
  };
  CUresult markAt(unsigned executor, const Mark** out);
  CUresult make(unsigned executor, Mark& mark);
  CUresult timeOf(CUevent event, unsigned executor, Milliseconds* time);

  forward::Session& session_;
  base::HoldingMutex mutex_;
  std::map<std::pair<uint64_t, unsigned>, Mark> marks_;  // by context and executor
};

/// The time between two events of one executor, by its driver.
CUresult elapsedAt(forward::Session& session, unsigned executor, float* milliseconds, CUevent from,
                   CUevent to);

}  // namespace olpager::unified
