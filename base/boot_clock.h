// Milliseconds since the machine started, time asleep included (CLOCK_BOOTTIME): leases and
// deadlines that another machine counts as well. Any thread.
#pragma once

#include <ctime>

#include <cstdint>

namespace olpager::base {

inline int64_t bootMs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace olpager::base
