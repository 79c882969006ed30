#include "memserver/server/metrics.h"

namespace olpager::memserver {

std::vector<status::Metric> metricsOf(const ServiceFigures& service,
                                      const SlabStore::Figures& store) {
  constexpr const char* kTcp = R"({transport="tcp"})";
  constexpr const char* kShm = R"({transport="shm"})";
  constexpr const char* kVerbs = R"({transport="verbs"})";
  const auto of = [](const auto& by_kind, transport::LinkKind kind) {
    return by_kind[static_cast<size_t>(kind)];
  };
  using transport::LinkKind;
  return {
      {"donated_bytes", "gauge", "What it holds for sessions, lent or not.", store.donated()},
      {"free_bytes", "gauge", "Zeroed and lent to nobody.", store.free},
      {"lent_bytes", "gauge", "Lent to sessions.", store.lent},
      {"cleaning_bytes", "gauge", "Taken back and being zeroed.", store.cleaning},
      {"zeroed_bytes_total", "counter", "Zeroed before they were lent again.", store.zeroed},
      {"replaced_bytes_total", "counter",
       "Given up because a session had mapped them, and replaced.", store.replaced},
      {"returned_bytes_total", "counter", "Given back to the system under pressure.",
       store.returned},
      {"sessions", "gauge", "Sessions that are connected or hold leases.", service.sessions},
      {"sessions_connected", "gauge", "Sessions that are connected.", service.connected},
      {"sessions_total", "counter",
       "Sessions so far; a lost connection that comes back is another one.",
       service.sessions_accepted},
      {"links", "gauge", "Connections of sessions that are up, by transport.",
       of(service.links, LinkKind::kTcp), kTcp},
      {"links", "gauge", "Connections of sessions that are up, by transport.",
       of(service.links, LinkKind::kShm), kShm},
      {"links", "gauge", "Connections of sessions that are up, by transport.",
       of(service.links, LinkKind::kVerbs), kVerbs},
      {"links_total", "counter", "Connections of sessions so far, by transport.",
       of(service.accepted, LinkKind::kTcp), kTcp},
      {"links_total", "counter", "Connections of sessions so far, by transport.",
       of(service.accepted, LinkKind::kShm), kShm},
      {"links_total", "counter", "Connections of sessions so far, by transport.",
       of(service.accepted, LinkKind::kVerbs), kVerbs},
      {"rails", "gauge", "Rails of sessions' connections over verbs, by state.", service.rails,
       R"({state="in_use"})"},
      {"rails", "gauge", "Rails of sessions' connections over verbs, by state.",
       service.rails_set_aside, R"({state="set_aside"})"},
      {"moved_bytes_total", "counter",
       "Read and written by sessions through the daemon's threads; by shared memory and RDMA they "
       "copy themselves.",
       service.moved},
      {"leases_granted_total", "counter", "Slabs lent.", service.leases_granted},
      {"leases_released_total", "counter", "Slabs that sessions gave back.",
       service.leases_released},
      {"leases_expired_total", "counter", "Slabs of sessions that did not come back in time.",
       service.leases_expired},
      {"leases_revoked_total", "counter", "Slabs taken from sessions.", service.leases_revoked},
      {"leases_moved_total", "counter", "Slabs that a session claimed over a new connection.",
       service.leases_moved},
      {"requests_waiting", "gauge", "Messages that wait for their turn, or are being answered.",
       service.waiting},
      {"requests_total", "counter", "Messages answered.", service.requests},
      {"leases_refused_total", "counter", "Requests for memory that got none.", service.refused},
      {"protocol_errors_total", "counter", "Connections closed for what they sent.",
       service.broken},
      {"recalls_total", "counter", "Times that memory was wanted back.", service.recalls},
      {"recalled_bytes_total", "counter", "Bytes wanted back.", service.recalled_bytes},
  };
}

}  // namespace olpager::memserver
