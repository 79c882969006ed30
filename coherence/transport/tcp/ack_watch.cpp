#include "coherence/transport/tcp/ack_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace olpager::transport {

int64_t AckWatch::unansweredMs(int fd, int64_t now_ms, bool late) {
  tcp_info info{};
  socklen_t length = sizeof info;
  const bool known = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  if (!known || (info.tcpi_unacked == 0 && info.tcpi_probes == 0)) {
    since_ms_ = 0;
    return 0;
  }
  if (since_ms_ == 0 || late) since_ms_ = now_ms;
  // An answer since then: what waits now has not waited longer. The window of one that is stopped
  // is asked for at growing distances, up to minutes: between two questions nothing waits.
  since_ms_ = std::max(since_ms_, now_ms - int64_t{info.tcpi_last_ack_recv});
  return now_ms - since_ms_;
}

}  // namespace olpager::transport
