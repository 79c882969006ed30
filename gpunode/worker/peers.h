// Links to the workers of the program's other sessions: made when the client says so, by the one
// that it says it to; the other one takes them by its session's own listener. Each pair has a key
// of its own (forwarding/wire/peer_keys.h). A later link replaces an earlier one. The end that has
// connected connects again where it is told to (connectAgain). Thread-safety: any thread. Errors:
// one line.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/wire/session_protocol.h"
#include "gpunode/worker/peer.h"

namespace olpager::gpunode {

struct PeerOptions {
  unsigned slot = 0;
  bool allowed = false;  // else the worker is in no links
  transport::Choice choice = transport::Choice::kAuto;
  transport::Tls tls = transport::Tls::kAll;
  std::vector<std::string> rails;      // transport::Options::rails
  std::chrono::milliseconds grace{0};  // for which a link may be lost; 0: as long as it likes
};

class Peers {
 public:
  Peers() = default;
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Before all else.
  void configure(const PeerOptions& options) { options_ = options; }
  bool allowed() const { return options_.allowed; }
  /// Likewise: who hears of pages on all links.
  void setPageHearer(PageHearer* pages) { pages_ = pages; }

  /// Connects to the worker of the session in `slot`, which `route` leads to at its gpunode's
  /// address; waits for some seconds at most.
  Result<PeerPtr> connect(unsigned slot, const std::string& address, uint64_t route,
                          const transport::NamedKey& key, transport::Tls tls, bool tcp_only);
  /// The link to that worker is lost: where it was made from here, a thread makes another, unless
  /// there is one by then or none can be made within that time. Else the other end does that.
  void connectAgain(unsigned slot, std::chrono::milliseconds within);
  /// One that has proved its key comes to `endpoint`, which is the session's own.
  Result<transport::Accepted> accept(unsigned slot, transport::Endpoint& endpoint);
  /// The link to it when it is up; null: there is none within a time in which one that the other
  /// end knows of comes up.
  PeerPtr find(unsigned slot);
  /// The link to it if it is up now; null: it is not. Waits for nothing.
  PeerPtr upNow(unsigned slot);
  /// A copy's end that nobody waits for the other end of any more.
  void stop(unsigned slot, uint64_t copy);
  void contextGone(uint64_t context);
  /// Counts what the links carry: that to the worker of the session in slot s in number s + 1.
  /// If a link has replaced another, what that one carried last is counted as well.
  void count(status::LinksCounters& into);

  /// A stream of the worker's own in `context` (the client's number), which is current, for one
  /// user until given back.
  CUresult takeStream(const api::DriverTable& driver, uint64_t context, CUstream* stream);
  void giveStream(uint64_t context, CUstream stream);

  /// Bytes of copies that were sent to other workers, and that came from them.
  std::atomic<uint64_t> sent{0}, taken{0};

 private:
  /// How a worker is connected to.
  struct Way {
    std::string address;
    uint64_t route = 0;
    transport::NamedKey key;
    transport::Tls tls = transport::Tls::kAll;
    bool tcp_only = false;
  };
  struct Slot {
    PeerPtr peer;
    std::unique_ptr<transport::Endpoint> endpoint;  // of one that was connected from here
  };
  Result<PeerPtr> connect(unsigned slot, const Way& way, uint32_t within_ms);
  void makeAgain(unsigned slot, const Way& way);
  void put(unsigned slot, const PeerPtr& peer, std::unique_ptr<transport::Endpoint> endpoint);
  PeerPtr at(unsigned slot);

  PeerOptions options_;
  PageHearer* pages_ = nullptr;
  std::mutex mutex_;  // above a peer's
  std::array<Slot, forward::kMostSlots> slots_;
  std::vector<PeerPtr> replaced_;  // not counted since
  uint64_t next_link_ = 1;
  std::map<unsigned, Way> ways_;  // by slot: of links that were made from here
  // By slot: of those that a thread makes again, until when it tries.
  std::map<unsigned, std::chrono::steady_clock::time_point> making_again_;
  std::condition_variable made_again_;  // or not
  bool ends_ = false;
  struct Streams {
    std::vector<CUstream> idle, used;
  };
  std::map<uint64_t, Streams> streams_;  // by context
};

}  // namespace olpager::gpunode
