// Counts round trips: the calls that a program waited for, and how long; told at its end with
// OL_LOG=debug. A program that is slow in forwarded mode is slow by these. Thread-safety: any
// thread, no locks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "forwarding/tally.h"

namespace olpager::forward {

class Session;

/// The counts of a session.
struct Trips {
  Tally trips;
  std::atomic<uint64_t> launches{0}, exchanges{0};
};

/// A round trip of a call has taken this long. `function`: a symbol, or an Operation.
void noteTrip(const Session& session, uint16_t function, std::chrono::nanoseconds took);
/// A launch has been made, with or without an exchange of pinned memory.
void noteLaunch(const Session& session, bool exchanges);
/// A line on standard error for those of a session that took the most together.
void tellTrips(const Session& session);

}  // namespace olpager::forward
