// Links to the workers of the program's other sessions: made when the client says so, by the one
// that it says it to; the other one takes them by its session's own listener. Each pair has a key
// of its own (forwarding/wire/peer_keys.h). A later link replaces an earlier one. Thread-safety:
// any thread. Errors: one line.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
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
  std::vector<std::string> rails;  // transport::Options::rails
};

class Peers {
 public:
  /// Before all else.
  void configure(const PeerOptions& options) { options_ = options; }
  bool allowed() const { return options_.allowed; }
  /// Likewise: who hears of pages on all links.
  void setPageHearer(PageHearer* pages) { pages_ = pages; }

  /// Connects to the worker of the session in `slot`, which `route` leads to at its gpunode's
  /// address; waits for some seconds at most.
  Result<PeerPtr> connect(unsigned slot, const std::string& address, uint64_t route,
                          const transport::NamedKey& key, transport::Tls tls, bool tcp_only);
  /// One that has proved its key comes to `endpoint`, which is the session's own.
  Result<transport::Accepted> accept(unsigned slot, transport::Endpoint& endpoint);
  /// The link to it when it is up; null: there is none within a time in which one that the other
  /// end knows of comes up.
  PeerPtr find(unsigned slot);
  /// A copy's end that nobody waits for the other end of any more.
  void stop(unsigned slot, uint64_t copy);
  void contextGone(uint64_t context);

  /// A stream of the worker's own in `context` (the client's number), which is current, for one
  /// user until given back.
  CUresult takeStream(const api::DriverTable& driver, uint64_t context, CUstream* stream);
  void giveStream(uint64_t context, CUstream stream);

  /// Bytes of copies that were sent to other workers, and that came from them.
  std::atomic<uint64_t> sent{0}, taken{0};

 private:
  struct Slot {
    PeerPtr peer;
    std::unique_ptr<transport::Endpoint> endpoint;  // of one that was connected from here
  };
  PeerPtr put(unsigned slot, PeerPtr peer, std::unique_ptr<transport::Endpoint> endpoint);
  PeerPtr at(unsigned slot);

  PeerOptions options_;
  PageHearer* pages_ = nullptr;
  std::mutex mutex_;  // alone
  std::array<Slot, forward::kMostSlots> slots_;
  struct Streams {
    std::vector<CUstream> idle, used;
  };
  std::map<uint64_t, Streams> streams_;  // by context
};

}  // namespace olpager::gpunode
