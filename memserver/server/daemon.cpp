#include "memserver/server/daemon.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <oneapi/tbb/global_control.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/boot_clock.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process.h"
#include "base/size.h"
#include "base/version.h"
#include "coherence/transport/trust/keys.h"
#include "memserver/server/metrics.h"
#include "memserver/server/pressure.h"
#include "memserver/server/service.h"

namespace olpager::memserver {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kTouchWait = std::chrono::milliseconds(5);
constexpr int64_t kPressureMs = 1000;
constexpr uint64_t kLeastReserve = 1ull << 30;

int refuse(const std::string& why) {
  base::print(stderr, "olmemserver: {}\n", why);
  return 2;
}

uint64_t bytesOf(const base::Budget& budget, uint64_t of) {
  return budget.percent != 0 ? static_cast<uint64_t>(static_cast<double>(of) * budget.percent / 100)
                             : budget.bytes;
}

// A power of two that cuts it into a few hundred.
uint64_t slabFor(uint64_t memory) {
  return std::clamp<uint64_t>(std::bit_floor(std::max<uint64_t>(memory / 256, 1)),
                              2 * kFramePageBytes, 1ull << 30);
}

// On a terminal a line that grows; else a line of the log now and then.
class Progress {
 public:
  explicit Progress(uint64_t all)
      : all_(all), shown_(isatty(STDERR_FILENO) == 1), last_ms_(shown_ ? 0 : base::bootMs()) {}
  ~Progress() {
    if (shown_) base::print(stderr, "\r\x1b[K");
  }
  void there(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    const int64_t now = base::bootMs();
    if (!shown_) {
      constexpr int64_t kLineMs = 2000;
      if (now - last_ms_ < kLineMs || bytes <= most_) return;
      last_ms_ = now;
      most_ = bytes;
      base::logInfo("making memory: %s of %s", base::formatSize(bytes).c_str(),
                    base::formatSize(all_).c_str());
      return;
    }
    if (now - last_ms_ < 100 || bytes < most_) return;
    last_ms_ = now;
    most_ = bytes;
    constexpr uint64_t kWidth = 40;
    const uint64_t full = bytes * kWidth / all_;
    base::print(stderr, "\rmemory [{:=<{}}{: <{}}] {} of {}\x1b[K", "", full, "", kWidth - full,
                base::formatSize(bytes), base::formatSize(all_));
    std::fflush(stderr);
  }

 private:
  const uint64_t all_;
  const bool shown_;
  std::mutex mutex_;
  int64_t last_ms_;
  uint64_t most_ = 0;
};

class Daemon {
 public:
  explicit Daemon(const DaemonOptions& options)
      : options_(options),
        reader_(options_.proc, options_.cgroup),
        threads_(std::max(4u, std::thread::hardware_concurrency())),
        allowed_(tbb::global_control::max_allowed_parallelism, threads_ + 1),
        arena_(static_cast<int>(threads_), 0) {
    sigemptyset(&ends_);
    sigaddset(&ends_, SIGTERM);
    sigaddset(&ends_, SIGINT);
  }

  int run() {
    if (const int status = size(); status != 0) return status;
    if (const int status = network(); status != 0) return status;
    if (const int status = fill(); status != 0) return status;
    if (ended_) return 0;  // nothing is lent
    if (const int status = open(); status != 0) return status;
    watch();
    return end();
  }

 private:
  int size() {
    const auto now = reader_.read();
    if (!now.ok()) return refuse(now.error().message);
    const MemoryStatus& status = now.value();
    reserve_ = options_.reserve.given() ? bytesOf(options_.reserve, status.total)
                                        : std::max(kLeastReserve, status.total / 20);
    const uint64_t room = status.room();
    const uint64_t most = room - std::min(room, reserve_);
    uint64_t wanted = options_.memory.given() ? bytesOf(options_.memory, room) : most;
    slab_ = options_.slab != 0 ? options_.slab : slabFor(wanted);
    wanted = wanted / slab_ * slab_;
    if (wanted > most) {
      return refuse(base::format(
          "--memory {}: {} are available, of which {} are reserved (--reserve); ask for less",
          base::formatSize(wanted), base::formatSize(room), base::formatSize(reserve_)));
    }
    if (wanted == 0) {
      return refuse(base::format(
          "there is not one slab of {} to donate: {} are available, of which {} are reserved",
          base::formatSize(slab_), base::formatSize(room), base::formatSize(reserve_)));
    }
    configured_ = wanted;
    return 0;
  }

  // All that can be refused is refused before memory is touched.
  int network() {
    // A lent slab takes three: its own, and a copy for each region. A link takes one for each of
    // its connections.
    base::raiseLimit(RLIMIT_NOFILE);
    transport::Options network;
    network.release = base::kVersion;
    network.choice = options_.choice;
    network.rails = options_.rails;
    network.tls = options_.tls;
    network.silent_ms = 0;  // a session that is stopped keeps what it has
    network.limits.links = options_.sessions + kSpareLinks;
    // Sessions' messages are short, and few of them are unanswered.
    network.limits.message_bytes = protocol::kMaxRequestBytes;
    network.requests = 16;
    network.notices = 4;
    network.stream = 1;
    if (!options_.key.empty()) {
      auto keys = transport::loadKeys(options_.key);
      if (!keys.ok()) return refuse(keys.error().message);
      network.keys = keys.value();
      for (const auto& [name, quota] : options_.quotas) {
        if (!keys.value()->find(name))
          return refuse(base::format("quota of {}: {} has no such key", name, options_.key));
      }
    } else if (!options_.quotas.empty()) {
      return refuse("a key's quota needs keys: --key FILE");
    }
    auto made = transport::makeEndpoint(network);
    if (!made.ok()) return refuse(made.error().message);
    endpoint_ = std::move(made.value());
    for (const std::string& address : options_.listen) {
      auto heard = endpoint_->listen(
          address, [this](const transport::PeerInfo& peer) { return accept(peer); });
      if (!heard.ok()) return refuse(heard.error().message);
      listeners_.push_back(std::move(heard.value()));
    }
    if (options_.prometheus.wanted()) {
      auto served = status::serveMetricsAloud(options_.prometheus, [this] { return metrics(); });
      if (!served.ok()) return refuse(served.error().message);
      metrics_ = std::move(served.value());
    }
    // Memfds for sessions of this host, private memory (and its huge pages) for others.
    const bool near =
        std::all_of(options_.listen.begin(), options_.listen.end(), [](auto& address) {
          return address.starts_with("unix:") || address.starts_with("127.") ||
                 address.starts_with("[::1]") || address.starts_with("localhost:");
        });
    kind_ =
        near && options_.choice != transport::Choice::kTcp ? SlabKind::kShared : SlabKind::kPrivate;
    return 0;
  }

  int fill() {
    base::raiseLimit(RLIMIT_MEMLOCK);
    SlabOptions slabs;
    slabs.bytes = slab_;
    slabs.huge = options_.huge;
    slabs.lock = options_.lock;
    slabs.numa_node = options_.numa == -2 ? numaNodeOf(options_.listen.front()) : options_.numa;
    store_ = std::make_unique<SlabStore>(slabs, arena_, [] {});
    store_->setTarget(configured_);
    const int64_t begun = base::bootMs();
    base::logInfo("making memory: %s in slabs of %s; sessions are accepted when it is there",
                  base::formatSize(configured_).c_str(), base::formatSize(slab_).c_str());
    Status status;
    {
      Progress progress(configured_);
      FillPolicy policy(reserve_, slab_);
      status = store_->fill(kind_, [&](uint64_t bytes) {
        progress.there(bytes);
        return goOn(policy);
      });
    }
    if (ended_) return 0;
    if (!status.ok()) {
      base::logError("%s", status.error().message.c_str());
      return 1;
    }
    made_ = store_->figures().donated();
    store_->setTarget(made_);
    if (made_ < configured_) {
      base::logWarn(
          "%s of %s are made: there is room for no more (--reserve %s); the rest is when there is",
          base::formatSize(made_).c_str(), base::formatSize(configured_).c_str(),
          base::formatSize(reserve_).c_str());
    }
    base::logInfo("%s in slabs of %s, made in %lld ms%s", base::formatSize(made_).c_str(),
                  base::formatSize(slab_).c_str(), static_cast<long long>(base::bootMs() - begun),
                  slabs.numa_node >= 0
                      ? base::format(", on NUMA node {} if it has room", slabs.numa_node).c_str()
                      : "");
    return 0;
  }

  // True if one slab more is to be made: no signal has come, and there is room (others may have
  // taken what there was at the start). Any thread, one at a time.
  bool goOn(FillPolicy& policy) {
    for (auto pause = std::chrono::milliseconds(0);; pause = kTouchWait) {
      if (waitForSignal(pause) != 0) {
        ended_ = true;
        return false;
      }
      const auto answer = policy.next(store_->untouched(), [this] { return reader_.read(); });
      if (answer != FillPolicy::Answer::kWait) return answer == FillPolicy::Answer::kMake;
    }
  }

  int open() {
    ServiceOptions service;
    service.lease_ms = options_.lease_ms;
    service.session_quota = options_.quota;
    service.key_quotas = options_.quotas;
    service.hard_recall = options_.hard_recall;
    service.most_sessions = options_.sessions;
    {
      std::lock_guard lock(service_mutex_);
      service_ = std::make_unique<Service>(service, *store_, arena_, endpoint_->makeQueue());
    }
    for (const auto& listener : listeners_) {
      base::print("olmemserver: listening on {}\n", listener->address());
    }
    std::fflush(stdout);
    return 0;
  }

  // On the thread of the endpoint, which ends before the service does. While memory is being made
  // there is no service.
  std::string metrics() {
    std::lock_guard lock(service_mutex_);
    std::vector<status::Metric> metrics;
    if (service_) metrics = metricsOf(service_->figures(), store_->figures());
    metrics.insert(metrics.begin(),
                   {"configured_bytes", "gauge", "What it may donate at most.", configured_});
    return status::metricsText("olmemserver", metrics);
  }

  // Sessions that come while memory is being made are told to come back.
  Result<transport::Accepted> accept(const transport::PeerInfo& peer) {
    std::lock_guard lock(service_mutex_);
    if (!service_) return Error{"this memserver is still starting"};
    return service_->accept(peer);
  }

  // Returns the signal's number; 0: none came in this time.
  int waitForSignal(std::chrono::milliseconds time) {
    const timespec limit{time.count() / 1000, time.count() % 1000 * 1'000'000};
    const int signal = std::max(0, sigtimedwait(&ends_, nullptr, &limit));
    if (signal != 0) base::logInfo("signal %d: ending", signal);
    return signal;
  }

  // Until a signal: looks at the machine's memory.
  void watch() {
    PressureOptions pressure;
    pressure.reserve = reserve_;
    pressure.configured = configured_;
    pressure.made = made_;
    pressure.slab = slab_;
    pressure.some = options_.pressure_some;
    pressure.full = options_.pressure_full;
    pressure.calm_ms = options_.calm_ms;
    PressurePolicy policy(pressure);
    uint64_t target = made_;
    for (int64_t looked = 0;;) {
      if (waitForSignal(kLook) != 0) return;
      const int64_t now = base::bootMs();
      if (now - looked < kPressureMs) continue;
      looked = now;
      const auto status = reader_.read();
      if (!status.ok()) {
        base::warnOnce("meminfo", "%s: pressure is not watched", status.error().message.c_str());
        continue;
      }
      const auto decision = policy.decide(status.value(), store_->figures().donated(), now);
      if (decision.target != target) {
        base::logInfo("%s: donating %s, was %s%s%s",
                      decision.target < target ? "giving memory back" : "taking memory again",
                      base::formatSize(decision.target).c_str(), base::formatSize(target).c_str(),
                      decision.why.empty() ? "" : "; ", decision.why.c_str());
        target = decision.target;
        store_->setTarget(target);
      }
      // Free slabs have gone; the rest is with sessions.
      const uint64_t donated = store_->figures().donated();
      const uint64_t cleaning = store_->figures().cleaning;
      const uint64_t missing = donated - std::min(donated, target + cleaning);
      const uint64_t recalled = service_->recalledBytes();
      if (missing > recalled || (missing == 0 && recalled != 0)) {
        service_->recall(missing, options_.recall_ms,
                         decision.why.empty() ? "memory pressure" : decision.why);
      }
      if (decision.calm) store_->grow(kind_);
    }
  }

  int end() {
    service_->stopLending();
    const uint64_t lent = service_->lentBytes();
    if (lent != 0) {
      base::logInfo("%s are lent; sessions have %u ms to move their pages elsewhere",
                    base::formatSize(lent).c_str(), options_.shutdown_ms);
      service_->recall(lent, options_.shutdown_ms, "the memserver ends");
    }
    const int64_t until = base::bootMs() + options_.shutdown_ms;
    int second = 0;
    while (service_->lentBytes() != 0 && base::bootMs() < until && second == 0)
      second = waitForSignal(kLook);
    const uint64_t left = service_->lentBytes();
    if (left != 0) {
      base::logError(
          "%s are still lent%s: their pages are lost", base::formatSize(left).c_str(),
          second != 0 ? ", and a second signal came" : " after the time that sessions had");
    }
    // A second signal, or a third, ends it whatever hangs.
    sigset_t now = ends_;
    std::thread([now]() mutable {
      int signal = 0;
      sigwait(&now, &signal);
      _exit(128 + signal);
    }).detach();
    listeners_.clear();  // first: a dismissed session connects anew
    service_->dismiss();
    if (second != 0) _exit(128 + second);
    metrics_.reset();
    service_.reset();
    endpoint_.reset();
    store_.reset();
    return left == 0 ? 0 : 1;
  }

  const DaemonOptions options_;
  const MemoryReader reader_;
  const unsigned threads_;
  tbb::global_control allowed_;
  tbb::task_arena arena_;
  sigset_t ends_{};
  uint64_t reserve_ = 0, slab_ = 0, configured_ = 0, made_ = 0;
  bool ended_ = false;  // by a signal, while memory was made
  SlabKind kind_ = SlabKind::kPrivate;
  std::unique_ptr<SlabStore> store_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::mutex service_mutex_;  // while it is being made
  std::unique_ptr<Service> service_;
  std::unique_ptr<status::MetricsEndpoint> metrics_;
  std::vector<std::unique_ptr<transport::Listener>> listeners_;
};

}  // namespace

int numaNodeOf(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || listen.starts_with("unix:")) return -1;
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return -1;
  int node = -1;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (each->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(each->ifa_addr)->sin_addr, text,
                sizeof text);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(each->ifa_addr)->sin6_addr, text,
                sizeof text);
    }
    if (host != text) continue;
    std::ifstream file(base::format("/sys/class/net/{}/device/numa_node", each->ifa_name));
    if (!(file >> node)) node = -1;
    break;
  }
  freeifaddrs(all);
  return node;
}

int runDaemon(const DaemonOptions& options) { return Daemon(options).run(); }

}  // namespace olpager::memserver
