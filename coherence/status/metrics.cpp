#include "coherence/status/metrics.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/fd.h"
#include "base/format.h"
#include "coherence/transport/core/address.h"

namespace olpager::status {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kRequest = 1s;          // the whole of it, and its reply
constexpr auto kNoDescriptor = 100ms;  // until a connection is tried to be taken again
constexpr size_t kRequestBytes = 8 << 10;

class Endpoint final : public MetricsEndpoint {
 public:
  explicit Endpoint(std::function<std::string()> text) : text_(std::move(text)) {}
  ~Endpoint() override {
    if (!thread_.joinable()) return;
    stop_.store(true);
    eventfd_write(end_.get(), 1);
    thread_.join();
  }
  const std::string& address() const override { return address_; }

  olpager::Status open(const std::string& address) {
    const auto found = transport::resolve(address, true);
    if (!found.ok()) return found.error();
    transport::SocketAddress at = found.value().front();
    if (!at.loopback()) {
      return Error{base::format(
          "{}: figures are served on loopback only, in the clear; put a proxy in front", address)};
    }
    listener_ = transport::makeSocket(at.family());
    const int on = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!listener_ || bind(listener_.get(), at.get(), at.length) != 0 ||
        listen(listener_.get(), 16) != 0) {
      return Error{transport::whyNotBound(at, errno)};
    }
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at.storage), &at.length);
    address_ = at.text();
    end_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!end_) return Error{base::format("eventfd: {}", std::strerror(errno))};
    thread_ = std::thread([this] { serve(); });
    return {};
  }

 private:
  // False: the time is over, or all of this is.
  bool ready(int fd, short events, Clock::time_point until) const {
    while (!stop_.load()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) return false;
      pollfd waiting[] = {{fd, events, 0}, {end_.get(), POLLIN, 0}};
      const int got = poll(waiting, 2, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
      if (got > 0 && waiting[1].revents == 0) return true;
    }
    return false;
  }

  void serve() {
    while (!stop_.load()) {
      if (!ready(listener_.get(), POLLIN, Clock::now() + 1h)) continue;
      const base::UniqueFd peer(
          accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer) {
        answer(peer.get());
      } else if (errno != EAGAIN) {
        ready(-1, 0, Clock::now() + kNoDescriptor);  // the connection is still there, and readable
      }
    }
  }

  // One after the other: who drips a request, or does not take the reply, is cut off when its time
  // is over.
  void answer(int fd) const {
    const auto until = Clock::now() + kRequest;
    std::string request;
    char bytes[1024];
    while (request.find("\r\n\r\n") == std::string::npos) {
      if (request.size() > kRequestBytes || !isHttp(request)) break;
      if (!ready(fd, POLLIN, until)) return;
      const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
      if (got <= 0) return;
      request.append(bytes, static_cast<size_t>(got));
    }
    const bool http = isHttp(request);
    const bool get = request.starts_with("GET /metrics ") || request.starts_with("GET / ");
    const std::string body = get ? text_() : "figures for Prometheus, by HTTP: GET /metrics\n";
    const std::string reply = base::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
        "{}\r\n"
        "Connection: close\r\n\r\n{}",
        get    ? "200 OK"
        : http ? "404 Not Found"
               : "400 Bad Request",
        body.size(), body);
    for (size_t sent = 0; sent < reply.size();) {
      if (!ready(fd, POLLOUT, until)) return;
      const ssize_t put = send(fd, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN) return;
      sent += static_cast<size_t>(std::max<ssize_t>(put, 0));
    }
    shutdown(fd, SHUT_WR);
    // Who has not been heard to the end would be told that the connection is broken, before the
    // reply.
    while (!http && ready(fd, POLLIN, until) && recv(fd, bytes, sizeof bytes, 0) > 0) {
    }
  }

  // As far as it has come. A node that takes this for a daemon's port speaks first as well, and is
  // told at once.
  static bool isHttp(const std::string& request) {
    return request.empty() || (request.front() >= 'A' && request.front() <= 'Z');
  }

  const std::function<std::string()> text_;
  base::UniqueFd listener_, end_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

std::vector<Figure> figuresOf(const std::vector<Metric>& metrics) {
  std::vector<Figure> figures;
  figures.reserve(metrics.size());
  for (const Metric& metric : metrics)
    figures.push_back({metric.name + metric.labels, metric.value});
  return figures;
}

std::string metricsText(std::string_view daemon, const std::vector<Metric>& metrics) {
  std::string text;
  std::string_view before;
  for (const Metric& metric : metrics) {
    if (before != metric.name) {
      text += base::format("# HELP {0}_{1} {2}\n# TYPE {0}_{1} {3}\n", daemon, metric.name,
                           metric.help, metric.type);
    }
    before = metric.name;
    text += base::format("{}_{}{} {}\n", daemon, metric.name, metric.labels, metric.value);
  }
  return text;
}

Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const std::string& address,
                                                      std::function<std::string()> text) {
  auto endpoint = std::make_unique<Endpoint>(std::move(text));
  if (const auto status = endpoint->open(address); !status.ok()) return status.error();
  return std::unique_ptr<MetricsEndpoint>(std::move(endpoint));
}

}  // namespace olpager::status
