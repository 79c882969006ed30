#include "memserver/server/metrics.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/fd.h"
#include "base/format.h"

namespace olpager::memserver {
namespace {

constexpr int kRequestMs = 1000;
constexpr size_t kRequestBytes = 8 << 10;

bool loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

class Endpoint final : public MetricsEndpoint {
 public:
  explicit Endpoint(std::function<std::string()> text) : text_(std::move(text)) {}
  ~Endpoint() override {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const override { return address_; }

  Status open(const std::string& address) {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) return Error{base::format("{}: host:port is wanted", address)};
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); error != 0) {
      return Error{base::format("{}: {}", address, gai_strerror(error))};
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> freed(found, freeaddrinfo);
    if (!loopback(found->ai_addr)) {
      return Error{
          base::format("{}: figures are served on loopback only, in the clear; put a proxy in front", address)};
    }
    listener_ = base::UniqueFd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!listener_ || bind(listener_.get(), found->ai_addr, found->ai_addrlen) != 0 ||
        listen(listener_.get(), 16) != 0) {
      return Error{base::format("{}: {}", address, std::strerror(errno))};
    }
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    const auto port = bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                                                 : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port;
    address_ = base::format("{}:{}", address.substr(0, colon), ntohs(port));
    thread_ = std::thread([this] { serve(); });
    return {};
  }

 private:
  static bool ready(int fd, short events, int ms) {
    pollfd waiting{fd, events, 0};
    return poll(&waiting, 1, ms) > 0;
  }

  void serve() {
    while (!stop_.load()) {
      if (!ready(listener_.get(), POLLIN, 100)) continue;
      const base::UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer) answer(peer.get());
    }
  }

  // One request after the other: whoever is slow is cut off after a second.
  void answer(int fd) const {
    std::string request;
    char bytes[1024];
    while (request.find("\r\n\r\n") == std::string::npos) {
      if (request.size() > kRequestBytes || !ready(fd, POLLIN, kRequestMs)) return;
      const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
      if (got <= 0) return;
      request.append(bytes, static_cast<size_t>(got));
    }
    const bool get = request.starts_with("GET /metrics ") || request.starts_with("GET / ");
    const std::string body = get ? text_() : "only GET /metrics\n";
    std::string reply = base::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
        "Connection: close\r\n\r\n{}",
        get ? "200 OK" : "404 Not Found", body.size(), body);
    for (size_t sent = 0; sent < reply.size();) {
      const ssize_t put = send(fd, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
      if (put > 0) {
        sent += static_cast<size_t>(put);
      } else if (errno != EAGAIN || !ready(fd, POLLOUT, kRequestMs)) {
        return;
      }
    }
    shutdown(fd, SHUT_WR);
  }

  const std::function<std::string()> text_;
  base::UniqueFd listener_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

std::vector<Metric> metricsOf(const ServiceFigures& service, const SlabStore::Figures& store) {
  constexpr const char* kTcp = R"({transport="tcp"})";
  constexpr const char* kShm = R"({transport="shm"})";
  return {
      {"donated_bytes", "gauge", "What it holds for sessions, lent or not.", store.donated()},
      {"free_bytes", "gauge", "Zeroed and lent to nobody.", store.free},
      {"lent_bytes", "gauge", "Lent to sessions.", store.lent},
      {"cleaning_bytes", "gauge", "Taken back and being zeroed.", store.cleaning},
      {"zeroed_bytes_total", "counter", "Zeroed before they were lent again.", store.zeroed},
      {"replaced_bytes_total", "counter", "Given up because a session had mapped them, and replaced.", store.replaced},
      {"returned_bytes_total", "counter", "Given back to the system under pressure.", store.returned},
      {"sessions", "gauge", "Sessions that are connected or hold leases.", service.sessions},
      {"sessions_connected", "gauge", "Sessions that are connected.", service.connected},
      {"sessions_total", "counter", "Sessions so far; a lost connection that comes back is another one.",
       service.sessions_accepted},
      {"links", "gauge", "Connections of sessions that are up, by transport.", service.links_tcp, kTcp},
      {"links", "gauge", "Connections of sessions that are up, by transport.", service.links_shm, kShm},
      {"links_total", "counter", "Connections of sessions so far, by transport.", service.accepted_tcp, kTcp},
      {"links_total", "counter", "Connections of sessions so far, by transport.", service.accepted_shm, kShm},
      {"moved_bytes_total", "counter",
       "Read and written by sessions through the daemon's threads; by shared memory they copy themselves.",
       service.moved},
      {"leases_granted_total", "counter", "Slabs lent.", service.leases_granted},
      {"leases_released_total", "counter", "Slabs that sessions gave back.", service.leases_released},
      {"leases_expired_total", "counter", "Slabs of sessions that did not come back in time.", service.leases_expired},
      {"leases_revoked_total", "counter", "Slabs taken from sessions.", service.leases_revoked},
      {"leases_moved_total", "counter", "Slabs that a session claimed over a new connection.", service.leases_moved},
      {"requests_total", "counter", "Messages answered.", service.requests},
      {"leases_refused_total", "counter", "Requests for memory that got none.", service.refused},
      {"protocol_errors_total", "counter", "Connections closed for what they sent.", service.broken},
      {"recalls_total", "counter", "Times that memory was wanted back.", service.recalls},
      {"recalled_bytes_total", "counter", "Bytes wanted back.", service.recalled_bytes},
  };
}

std::string metricsText(const std::vector<Metric>& metrics, uint64_t configured) {
  std::string text = base::format(
      "# HELP olmemserver_configured_bytes What it may donate at most.\n# TYPE olmemserver_configured_bytes gauge\n"
      "olmemserver_configured_bytes {}\n",
      configured);
  const char* before = "";
  for (const Metric& metric : metrics) {
    if (std::strcmp(before, metric.name) != 0) {
      text += base::format("# HELP olmemserver_{0} {1}\n# TYPE olmemserver_{0} {2}\n", metric.name, metric.help,
                           metric.type);
    }
    before = metric.name;
    text += base::format("olmemserver_{} {}\n", metric.fullName(), metric.value);
  }
  return text;
}

Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const std::string& address, std::function<std::string()> text) {
  auto endpoint = std::make_unique<Endpoint>(std::move(text));
  if (const Status status = endpoint->open(address); !status.ok()) return status.error();
  return std::unique_ptr<MetricsEndpoint>(std::move(endpoint));
}

}  // namespace olpager::memserver
