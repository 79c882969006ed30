#include "coherence/status/metrics.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "base/fd.h"
#include "base/format.h"
#include "base/log.h"
#include "coherence/status/https.h"
#include "coherence/transport/core/address.h"

namespace olpager::status {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kRequest = 1s;          // the whole of it, and its reply
constexpr auto kNoDescriptor = 100ms;  // until a connection is tried to be taken again
constexpr size_t kRequestBytes = 8 << 10;
constexpr size_t kAskers = 64;  // at a time: one more takes the place of the oldest

/// Facts that show that a file is another one, or has been written.
struct FileState {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  int64_t changed_s = 0, changed_ns = 0;
  bool operator==(const FileState&) const = default;

  static FileState of(const std::string& path) {
    struct stat about {};
    if (stat(path.c_str(), &about) != 0) return {};
    return {about.st_dev, about.st_ino, about.st_size, about.st_ctim.tv_sec, about.st_ctim.tv_nsec};
  }
};

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

  std::string url() const override {
    return base::format("{}://{}/metrics", certificate_ ? "https" : "http", address_);
  }
  std::string warning() const override {
    if (!beyond_ || certificate_) return "";
    return base::format(
        "figures at {} and their token go in the clear: who can read this network can use the "
        "token (--prometheus-cert encrypts)",
        url());
  }

  olpager::Status open(const MetricsOptions& options) {
    const std::string& address = options.address;
    if (options.certificate.empty() != options.private_key.empty())
      return Error{
          "a certificate and its key go together: --prometheus-cert FILE and "
          "--prometheus-cert-key FILE"};
    if (!options.token.empty()) {
      token_file_ = options.token;
      token_seen_ = FileState::of(token_file_);
      auto token = loadToken(token_file_);
      if (!token.ok()) return Error{"token: " + token.error().message};
      token_ = std::move(token).value();
    }
    if (!options.certificate.empty()) {
      auto certificate = Certificate::load(options.certificate, options.private_key);
      if (!certificate.ok()) return Error{"certificate: " + certificate.error().message};
      certificate_ = std::move(certificate).value();
    }
    const auto found = transport::resolve(address, true);
    if (!found.ok()) return found.error();
    transport::SocketAddress at = found.value().front();
    beyond_ = !at.loopback();
    if (beyond_ && token_.empty()) {
      return Error{base::format(
          "{}: not without a token: others than this host can reach it. Give --prometheus-token "
          "FILE (openssl rand -hex 32 makes one; chmod 600), or listen on 127.0.0.1",
          address)};
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
    std::unique_ptr<HttpsSession> https;
    std::string request, reply;
    size_t sent = 0;
    bool http = true;
    bool answered() const { return !reply.empty() && sent == reply.size(); }
  };

  void serve() {
    sigset_t pipe;  // who has gone is seen by what write(2) returns
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
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
        const short waits =
            asker.https ? asker.https->wants() : static_cast<short>(speaks ? POLLOUT : POLLIN);
        fds.push_back({asker.socket.get(), waits, 0});
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
    Asker asker{std::move(socket), Clock::now() + kRequest};
    if (certificate_) {
      asker.https = HttpsSession::make(*certificate_, asker.socket.get());
      if (!asker.https) return true;  // no memory: it is cut off
    }
    askers_.push_back(std::move(asker));
    return true;
  }

  // Does the work that can be done now. False: it is over.
  bool goesOn(Asker& asker) {
    const int fd = asker.socket.get();
    HttpsSession* const https = asker.https.get();
    char bytes[1024];
    if (asker.answered()) return recv(fd, bytes, sizeof bytes, 0) > 0;
    while (asker.reply.empty()) {
      const ssize_t got =
          https ? https->read(bytes, sizeof bytes) : recv(fd, bytes, sizeof bytes, 0);
      if (got <= 0) return got < 0 && errno == EAGAIN;
      asker.request.append(bytes, static_cast<size_t>(got));
      asker.http = isHttp(asker.request);
      if (asker.http && asker.request.size() <= kRequestBytes &&
          asker.request.find("\r\n\r\n") == std::string::npos) {
        if (https) continue;  // it may have more, of which poll(2) does not know
        return true;
      }
      asker.reply = replyTo(asker.request);
    }
    const char* const from = asker.reply.data() + asker.sent;
    const size_t left = asker.reply.size() - asker.sent;
    const ssize_t put =
        https ? https->write(from, left) : send(fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put <= 0) return put < 0 && errno == EAGAIN;
    asker.sent += static_cast<size_t>(put);
    if (!asker.answered()) {
      if (https) https->writesOn();
      return true;
    }
    if (https) https->finish();
    shutdown(fd, SHUT_WR);
    // An asker that has not been heard to the end would be told that the connection is broken,
    // before the reply.
    return !asker.http;
  }

  // A file that was written again, or replaced, has another token. While what is there is none, the
  // one before is good.
  void lookAtToken() {
    if (token_file_.empty()) return;
    const FileState now = FileState::of(token_file_);
    if (now == token_seen_) return;
    token_seen_ = now;
    auto token = loadToken(token_file_);
    if (!token.ok()) {
      base::logWarn("the token for figures stays as it was: %s", token.error().message.c_str());
    } else if (token.value() != token_) {
      token_ = std::move(token).value();
      base::logInfo("figures are for who brings the new token of %s", token_file_.c_str());
    }
  }

  std::string replyTo(const std::string& request) {
    const bool http = isHttp(request);
    if (http) lookAtToken();
    const bool may = !http || token_.empty() || bringsToken(request, token_);
    const bool get = may && (request.starts_with("GET /metrics ") || request.starts_with("GET / "));
    const std::string body = get    ? text_()
                             : !may ? "figures are for who brings the token: Authorization: "
                                      "Bearer TOKEN\n"
                                    : "figures for Prometheus, by HTTP: GET /metrics\n";
    return base::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
        "{}\r\n{}"
        "Connection: close\r\n\r\n{}",
        get    ? "200 OK"
        : !may ? "401 Unauthorized"
        : http ? "404 Not Found"
               : "400 Bad Request",
        body.size(), may ? "" : "WWW-Authenticate: Bearer\r\n", body);
  }

  // As far as it has come. A node that takes this for a daemon's port speaks first as well, and is
  // told at once.
  static bool isHttp(const std::string& request) {
    return request.empty() || (request.front() >= 'A' && request.front() <= 'Z');
  }

  const std::function<std::string()> text_;
  base::UniqueFd listener_, end_;
  std::string address_;
  std::string token_;  // "": none is asked for
  std::string token_file_;
  FileState token_seen_;  // when it was read
  std::unique_ptr<Certificate> certificate_;
  bool beyond_ = false;       // loopback
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

Result<std::unique_ptr<MetricsEndpoint>> serveMetrics(const MetricsOptions& options,
                                                      std::function<std::string()> text) {
  auto endpoint = std::make_unique<Endpoint>(std::move(text));
  if (const auto status = endpoint->open(options); !status.ok()) return status.error();
  return std::unique_ptr<MetricsEndpoint>(std::move(endpoint));
}

Result<std::unique_ptr<MetricsEndpoint>> serveMetricsAloud(const MetricsOptions& options,
                                                           std::function<std::string()> text) {
  auto served = serveMetrics(options, std::move(text));
  if (!served.ok()) return Error{"--prometheus: " + served.error().message};
  base::logInfo("figures at %s", served.value()->url().c_str());
  if (const std::string warning = served.value()->warning(); !warning.empty())
    base::logWarn("%s", warning.c_str());
  return served;
}

}  // namespace olpager::status
