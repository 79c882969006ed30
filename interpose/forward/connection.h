// How a session's link is had, and had again: the supervisor is asked once, the worker is connected
// to with the session's key. Thread-safety: one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/result.h"
#include "base/settings.h"
#include "coherence/calls/channel.h"
#include "coherence/transport/transport.h"
#include "forwarding/page_route.h"
#include "forwarding/wire/session_protocol.h"
#include "forwarding/wire/straight.h"
#include "interpose/forward/sites.h"

namespace olpager::forward {

/// To connect to a gpunode, and for its answer: its driver may start meanwhile.
inline constexpr uint32_t kConnectMs = 5000, kAnswerMs = 30000;

/// While a program starts: a gpunode that can't be asked is asked again, for two seconds. A cable
/// or a daemon may be away that long. `ask` says by its argument that the answer is one that lasts.
template <typename Ask>
auto askPastOutage(Ask&& ask) {
  constexpr std::chrono::milliseconds kOutage{2000}, kPause{100};
  const auto end = std::chrono::steady_clock::now() + kOutage;
  bool lasts = false;
  auto reply = ask(&lasts);
  while (!reply.ok() && !lasts && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
    reply = ask(&lasts);
  }
  return reply;
}

class Connection {
 public:
  /// To the gpunode of `site`, for the program's session number `slot` of `slots`.
  /// `domain`: of every link to the worker. Regions registered in it keep their keys over lost
  /// links.
  Connection(const base::Settings& settings, Site site, unsigned slot, unsigned slots,
             transport::DomainPtr domain)
      : settings_(settings),
        site_(std::move(site)),
        slot_(slot),
        slots_(slots),
        domain_(std::move(domain)) {}

  /// Asks the gpunode for a session and connects to its worker. The Error is one line.
  Status open(calls::Channel& channel);
  /// Connects to the worker again, until it succeeds, the grace time is over or the gpunode says
  /// that the worker is gone.
  Status reopen(calls::Channel& channel);
  uint64_t number() const { return session_.session; }
  /// The data that the worker of the program's session in `slot` needs to connect to this one's
  /// worker.
  void nameToPeer(unsigned slot, PeerLinkHead* head, std::string* address) const;
  /// How the worker is reached for the pages of a unified view, once the session is open.
  PageRoute pageRoute() const;
  /// True if the worker maps memory that has a descriptor.
  bool sharesMemory() const { return shares_memory_; }

 private:
  /// `lasts`: as transport::ConnectOptions::lasts.
  Status join(calls::Channel& channel, std::chrono::milliseconds greeting, bool* lasts = nullptr);
  uint32_t connectMs() const;

  const base::Settings settings_;
  const Site site_;
  const unsigned slot_, slots_;
  std::unique_ptr<transport::Endpoint> node_;
  transport::Options options_;  // of `node_`
  SessionReply session_;
  std::string peer_address_;  // the gpunode's as numbers, where that is known: names may mean
                              // something else elsewhere
  transport::Tls tls_ = transport::Tls::kAll;
  std::string link_;  // the last one's id
  const transport::DomainPtr domain_;
  std::atomic<bool> shares_memory_{false};
};

}  // namespace olpager::forward
