// A session and a lease of the service. Private to service.cpp, lending.cpp and recalls.cpp.
#pragma once

#include <sys/random.h>
#include <time.h>

#include "base/boot_clock.h"
#include "base/daemon_log.h"
#include "memserver/server/service.h"

namespace olpager::memserver {

using base::bootMs;
using transport::Completion;
using transport::LinkPtr;
using transport::MessageClass;
using transport::Outcome;

inline LeaseId randomId() {
  LeaseId id;
  while (getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(id.bytes.size())) {
  }
  return id;
}

struct Service::Session {
  uint64_t number = 0;
  LinkPtr link;
  transport::PeerInfo peer;

  // In order, by one thread at a time.
  tbb::concurrent_queue<Completion> inbox;
  std::atomic<uint64_t> queued{0};

  std::atomic<uint64_t> bytes{0};
  std::atomic<int64_t> renewed_ms{0};
  std::atomic<int64_t> down_ms{0};  // 0: connected
  std::atomic<bool> ending{false};  // its time is over
  std::atomic<bool> closed{false};  // by the service; its kDown comes

  // The session's name in the log (base::LogAbout).
  std::string numberText() const { return std::to_string(number); }
  std::atomic<uint64_t> most_bytes{0};  // that it has had
  void noteMost() {
    const uint64_t now = bytes.load();
    uint64_t most = most_bytes.load();
    while (now > most && !most_bytes.compare_exchange_weak(most, now)) {
    }
  }
  std::atomic<bool> told_begin{false}, told_end{false};

  // Until then it is not counted or shown: it may be somebody who only asks for the state.
  std::atomic<bool> greeted{false};
  std::atomic<int64_t> empty_since_ms{0};  // greeted: since when it holds no memory, if it does not

  std::mutex mutex;
  std::string label;
  std::set<LeaseId> leases;
  uint64_t recalled = 0;  // wanted back
  int64_t recall_by_ms = 0;
  std::string recall_why;
  uint64_t recall_number = 0;  // counts what is to be told
  uint64_t recall_told = 0;    // the last that was
};

/// For as long as it lives, this thread's lines are about that session.
class Service::About {
 public:
  explicit About(const Session& session)
      : number_(session.numberText()), about_(number_, session.peer.key_name) {}

 private:
  const std::string number_;
  const base::LogAbout about_;
};

struct Service::Lease {
  LeaseId id;
  std::string key_name;

  std::mutex mutex;
  SlabPtr slab;               // none: it has ended
  std::optional<Cause> over;  // why it ends
  transport::RegionPtr region;
  bool ending = false;      // the registration: regionEnded() comes
  bool handed_out = false;  // in this or an earlier registration
  SessionPtr session;
};

}  // namespace olpager::memserver
