#include "coherence/status/metrics.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
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
constexpr size_t kAskers = 64;  // at a time: one more takes the place of the oldest

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
  struct Asker {
    base::UniqueFd socket;
    Clock::time_point until;
    std::string request, reply;
    size_t sent = 0;
    bool http = true;
    bool answered() const { return !reply.empty() && sent == reply.size(); }
  };

  void serve() {
    auto accepts_from = Clock::now();  // else no descriptor was left
    while (!stop_.load()) {
      const auto now = Clock::now();
      std::erase_if(askers_, [&](const Asker& asker) { return now >= asker.until; });
      auto until = now + 1h;
      const bool accepts = now >= accepts_from;
      if (!accepts) until = accepts_from;
      std::vector<pollfd> fds{{end_.get(), POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}};
      const size_t first = fds.size();
      for (const Asker& asker : askers_) {
        until = std::min(until, asker.until);
        const bool speaks = !asker.reply.empty() && !asker.answered();
        fds.push_back({asker.socket.get(), static_cast<short>(speaks ? POLLOUT : POLLIN), 0});
      }
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
      if (poll(fds.data(), fds.size(), static_cast<int>(wait)) < 0) continue;
      size_t number = first;
      std::erase_if(askers_,
                    [&](Asker& asker) { return fds[number++].revents != 0 && !goesOn(asker); });
      if (fds[1].revents != 0 && !take()) accepts_from = Clock::now() + kNoDescriptor;
    }
  }

  // False: no descriptor is left. The connection is still there.
  bool take() {
    base::UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return errno == EAGAIN || errno == ECONNABORTED;
    if (askers_.size() == kAskers) askers_.pop_front();
    askers_.push_back({std::move(socket), Clock::now() + kRequest});
    return true;
  }

  // What can be done now. False: it is over.
  bool goesOn(Asker& asker) const {
    const int fd = asker.socket.get();
    char bytes[1024];
    if (asker.answered()) return recv(fd, bytes, sizeof bytes, 0) > 0;
    if (asker.reply.empty()) {
      const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
      if (got <= 0) return got < 0 && errno == EAGAIN;
      asker.request.append(bytes, static_cast<size_t>(got));
      asker.http = isHttp(asker.request);
      if (asker.http && asker.request.size() <= kRequestBytes &&
          asker.request.find("\r\n\r\n") == std::string::npos)
        return true;
      asker.reply = replyTo(asker.request);
    }
    const ssize_t put = send(fd, asker.reply.data() + asker.sent, asker.reply.size() - asker.sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0) return errno == EAGAIN;
    asker.sent += static_cast<size_t>(put);
    if (!asker.answered()) return true;
    shutdown(fd, SHUT_WR);
    // Who has not been heard to the end would be told that the connection is broken, before the
    // reply.
    return !asker.http;
  }

  std::string replyTo(const std::string& request) const {
    const bool http = isHttp(request);
    const bool get = request.starts_with("GET /metrics ") || request.starts_with("GET / ");
    const std::string body = get ? text_() : "figures for Prometheus, by HTTP: GET /metrics\n";
    return base::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
        "{}\r\n"
        "Connection: close\r\n\r\n{}",
        get    ? "200 OK"
        : http ? "404 Not Found"
               : "400 Bad Request",
        body.size(), body);
  }

  // As far as it has come. A node that takes this for a daemon's port speaks first as well, and is
  // told at once.
  static bool isHttp(const std::string& request) {
    return request.empty() || (request.front() >= 'A' && request.front() <= 'Z');
  }

  const std::function<std::string()> text_;
  base::UniqueFd listener_, end_;
  std::string address_;
  std::deque<Asker> askers_;  // the thread's, the oldest first
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
