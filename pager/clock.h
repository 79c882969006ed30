// Monotonic time, and how long a wait goes on before its conditions are looked at by the clock.
#pragma once

#include <ctime>

#include <chrono>
#include <cstdint>

namespace olpager::pager {

/// A wait for PoolState::changed looks this often, since some conditions come true by the clock.
inline constexpr std::chrono::milliseconds kLook{100};

/// Nanoseconds.
inline uint64_t nowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace olpager::pager
