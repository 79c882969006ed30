#include "interpose/forward/trips.h"

#include <array>
#include <atomic>

#include "base/log.h"
#include "forwarding/tally.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {
namespace {

struct Told {
  Tally trips;
  std::atomic<uint64_t> launches{0}, exchanges{0};
};
std::array<Told, kMostSessions> g_told;  // by slot

}  // namespace

void noteTrip(unsigned slot, uint16_t function, std::chrono::nanoseconds took) {
  g_told[slot].trips.note(function, took);
}

void noteLaunch(unsigned slot, bool exchanges) {
  g_told[slot].launches.fetch_add(1, std::memory_order_relaxed);
  if (exchanges) g_told[slot].exchanges.fetch_add(1, std::memory_order_relaxed);
}

void tellTrips(unsigned slot, const std::string& gpunode) {
  const Told& told = g_told[slot];
  if (severalSessions()) base::logDebug("gpunode %s:", gpunode.c_str());
  told.trips.tell("round trips", "waited");
  base::logDebug("%llu launches, %llu with an exchange of pinned memory",
                 static_cast<unsigned long long>(told.launches.load()),
                 static_cast<unsigned long long>(told.exchanges.load()));
}

}  // namespace olpager::forward
