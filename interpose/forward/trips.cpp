#include "interpose/forward/trips.h"

#include "base/log.h"
#include "forwarding/tally.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/session.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {

void noteTrip(const Session& session, uint16_t function, std::chrono::nanoseconds took) {
  session.parts().trips->trips.note(function, took);
}

void noteLaunch(const Session& session, bool exchanges) {
  Trips& trips = *session.parts().trips;
  trips.launches.fetch_add(1, std::memory_order_relaxed);
  if (exchanges) trips.exchanges.fetch_add(1, std::memory_order_relaxed);
}

void tellTrips(const Session& session) {
  const Trips& trips = *session.parts().trips;
  if (severalSessions()) base::logDebug("gpunode %s:", session.executor().name().c_str());
  trips.trips.tell("round trips", "waited");
  base::logDebug("%llu launches, %llu with an exchange of pinned memory",
                 static_cast<unsigned long long>(trips.launches.load()),
                 static_cast<unsigned long long>(trips.exchanges.load()));
}

}  // namespace olpager::forward
