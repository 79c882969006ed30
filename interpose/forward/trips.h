// Which calls a program waited for, and how long: told at its end with OL_LOG=debug. A program that
// is slow in forwarded mode is slow by these. Thread-safety: any thread, no locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace olpager::forward {

/// A round trip of a call has taken this long. `function`: a symbol, or an Operation.
void noteTrip(unsigned slot, uint16_t function, std::chrono::nanoseconds took);
/// A launch has been made, with or without an exchange of pinned memory.
void noteLaunch(unsigned slot, bool exchanges);
/// A line on standard error for those of a session that took the most together.
void tellTrips(unsigned slot, const std::string& gpunode);

}  // namespace olpager::forward
