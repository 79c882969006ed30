// Monotonic time in nanoseconds.
#pragma once

#include <ctime>

#include <cstdint>

namespace olpager::pager {

inline uint64_t nowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace olpager::pager
