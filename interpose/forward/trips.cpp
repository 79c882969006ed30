#include "interpose/forward/trips.h"

#include <atomic>

#include "base/log.h"
#include "interpose/forward/tally.h"

namespace olpager::forward {
namespace {

Tally g_trips;
std::atomic<uint64_t> g_launches{0}, g_exchanges{0};

}  // namespace

void noteTrip(uint16_t function, std::chrono::nanoseconds took) { g_trips.note(function, took); }

void noteLaunch(bool exchanges) {
  g_launches.fetch_add(1, std::memory_order_relaxed);
  if (exchanges) g_exchanges.fetch_add(1, std::memory_order_relaxed);
}

void tellTrips() {
  g_trips.tell("round trips", "waited");
  base::logDebug("%llu launches, %llu with an exchange of pinned memory",
                 static_cast<unsigned long long>(g_launches.load()),
                 static_cast<unsigned long long>(g_exchanges.load()));
}

}  // namespace olpager::forward
