// The pager's instrumentation: changes of place, and events for a tracing reader. The one place of
// the pager's instrumentation; the layout is in details.h.
//
// Cost: notePlace() (in the engine's setState) a few stores; a launch one relaxed load of a cache
// line that it writes anyway, as long as nobody traces; a step of the engine's one relaxed load.
#pragma once

#include "pager/clock.h"
#include "pager/counters/details.h"

namespace olpager::pager {

/// The time when something begins that is to be traced; 0: nobody traces `figures`' device. A
/// reader that traces asks for some seconds at a time, so that one that was killed is soon
/// forgotten.
inline uint64_t traceBegins(DeviceCounters& figures) noexcept {
  const uint64_t until = valueOf(figures.trace_until_ns);
  if (until == 0) [[likely]]
    return 0;
  const uint64_t now = nowNs();
  if (now < until) return now;
  set(figures.trace_until_ns, 0);
  return 0;
}

/// The event went on until `ended` (nowNs()). `began`: not 0.
inline void traced(TraceKind kind, unsigned device, uint64_t began, uint64_t ended,
                   uint64_t address, uint64_t bytes, uint64_t value) noexcept {
  putEvent(countersFile().trace, kind, device, began, ended, address, bytes, value);
}

/// A step of a thread of the pager's, from here to the end of the scope; one that is over within a
/// microsecond is left out. Any thread; `figures` are those of the device with this ordinal.
class TracedStep {
 public:
  TracedStep(DeviceCounters& figures, unsigned device, TraceStep step, uint64_t address = 0,
             uint64_t bytes = 0) noexcept
      : began_(traceBegins(figures)),
        address_(address),
        bytes_(bytes),
        device_(device),
        step_(step) {}
  ~TracedStep() {
    constexpr uint64_t kLeastNs = 1000;
    if (began_ == 0) [[likely]]
      return;
    if (const uint64_t now = nowNs(); now - began_ >= kLeastNs)
      traced(TraceKind::kStep, device_, began_, now, address_, bytes_,
             static_cast<uint64_t>(step_));
  }
  TracedStep(const TracedStep&) = delete;
  TracedStep& operator=(const TracedStep&) = delete;

 private:
  const uint64_t began_;  // 0: nobody traces
  const uint64_t address_, bytes_;
  const unsigned device_;
  const TraceStep step_;
};

/// An extent changed its place.
inline void placeChanged(DeviceCounters& figures, const PlaceChange& change) noexcept {
  const Place before = notePlace(countersFile(), change);
  if (before == change.place) return;
  if (const uint64_t now = traceBegins(figures); now != 0) {
    putEvent(countersFile().trace, TraceKind::kState, change.device, now, now, change.address,
             change.bytes,
             static_cast<uint64_t>(before) | static_cast<uint64_t>(change.place) << 8 |
                 uint64_t{change.ahead} << 16);
  }
}

}  // namespace olpager::pager
