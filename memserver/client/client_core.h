// The session's end. One thread, the agent, renews, takes completions and calls the Observer;
// callers post transfers themselves. Connecting blocks, and has a thread of its own as long as it
// takes.
//
// State, under mutex_, moved by the agent only:
//   kDown (with connector_: an attempt is under way) -> kGreeting (a link is there; kHello, then
//   kAttach for every slab held) -> kUp -> kEnding (the link fails; its kDown is awaited) -> kDown.
//   kGreeting -> kEnding as well.
//
// A transfer: waiting_ (not with the transport) -> issued (with the transport of the current link)
// -> done_ (to be told) -> gone. A link that fails puts issued transfers back to waiting_; this
// side's transport has then stopped touching its local ranges, and the next link (`replaces`) is up
// only when the memserver's has, so that no write of the old link can land after one of the new.
//
// A slab: held (key != 0: attached to the current link) -> releasing (its transfers are done first)
// -> gone; or lost -> gone. A slab's bytes are believed only under the lease id with which it came.
//
// Leases' clock. The memserver counts the lease time from the last renewal that it has received,
// and only while the connection is down; this side counts 9/10 of it from the last answered
// renewal's sending. A greeting counts as one when all that is held is attached. Then this side
// gives the leases up, and never shows their ids again. Before that one attempt to connect has to
// have failed. The same goes for a memserver that answers renewals but of the transfers that wait
// nothing, not one slice, for as long, over however many connections: it is of no use, and is not
// connected to again for as long.
//
// Lock: mutex_; nothing of the transport or the Observer is called under it, but Link::state().
//
// client.cpp has the calls, client_transfers.cpp the transfers, client_messages.cpp the memserver's
// messages, client_connection.cpp the thread.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/boot_clock.h"
#include "base/fd.h"
#include "memserver/client.h"
#include "memserver/protocol.h"

namespace olpager::memserver {

using base::bootMs;
using transport::Class;
using transport::Completion;
using transport::LinkPtr;
using transport::LocalRange;
using transport::MessageClass;
using transport::Outcome;

inline constexpr int64_t kAnswerMs = 5000;  // for the greeting and the attaching
inline constexpr int64_t kRenewMs = 500;    // at most, between renewals
inline constexpr int64_t kTickMs = 100;     // at most, between looks at the clock
inline constexpr int64_t kFirstRetryMs = 100, kLastRetryMs = 2000;
inline constexpr int64_t kGoodbyeMs = 1000;
inline constexpr int64_t kFirstMs = 2000;  // of the first connection: attempts begin so long
inline constexpr uint32_t kFewAttempts = 3,
                          kMostAttempts = 20;  // of one transfer that takes its link down each time
inline constexpr int64_t kMostPatienceMs = 120'000;  // with it, where the lease time is longer
inline constexpr uint64_t kMostMemory = 1ull << 48;  // that a memserver is believed to have
inline constexpr uint32_t kConnectAnswerMs = 2000;   // a memserver that says nothing is not there
inline constexpr int64_t kSpeedWindowUs = 100'000;

inline int64_t nowUs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
}

// Bytes per second of the times in which there was anything to do.
class Speed {
 public:
  void begun(int64_t now_us) {
    if (active_++ == 0) since_us_ = now_us;
  }
  void ended(uint64_t bytes, int64_t now_us) {
    --active_;
    bytes_ += bytes;
    const int64_t elapsed = now_us - since_us_;
    const bool worth = bytes_ >= (1 << 20) && elapsed > 0;
    if (elapsed < kSpeedWindowUs && !(active_ == 0 && worth)) return;
    if (worth) {
      const double rate = static_cast<double>(bytes_) * 1e6 / static_cast<double>(elapsed);
      rate_ = rate_ == 0 ? rate : rate_ * 0.7 + rate * 0.3;
    }
    since_us_ = now_us;
    bytes_ = 0;
  }
  uint64_t rate() const { return static_cast<uint64_t>(rate_); }

 private:
  uint64_t active_ = 0, bytes_ = 0;
  int64_t since_us_ = 0;
  double rate_ = 0;
};

enum class State : uint8_t { kDown, kGreeting, kUp, kEnding };

struct HeldSlab {
  LeaseId lease;
  uint64_t bytes = 0;
  uint64_t key = 0;        // on the current link; 0: not attached
  uint32_t transfers = 0;  // not done
  bool releasing = false;
};

struct Transfer {
  uint64_t id = 0;
  bool write = false;
  bool issued = false;
  bool interrupted = false;
  uint32_t attempts = 0;  // that took the link down
  int64_t failed_ms = 0;  // when the first of them did
  Class klass = Class::kDemand;
  uint64_t context = 0;
  std::vector<LocalRange> local;
  FrameRange frame;
  transport::OperationId operation = 0;  // while issued and known
};

struct Done {
  uint64_t context = 0;
  TransferResult result = TransferResult::kOk;
};

// Many members: the four files look at most of them, under one lock.
class ClientCore final : public Client {
 public:
  ClientCore(const ClientOptions& options, Observer& observer);
  ~ClientCore() override;

  Status open();

  Result<std::vector<Slab>> lease(uint64_t bytes, uint32_t timeout_ms) override;
  void release(SlabId slab) override;
  std::vector<Slab> slabs() const override;
  uint64_t read(std::span<const LocalRange> into, const FrameRange& from, Class klass,
                uint64_t context) override {
    return post(false, into, from, klass, context);
  }
  uint64_t write(std::span<const LocalRange> from, const FrameRange& into, Class klass,
                 uint64_t context) override {
    return post(true, from, into, klass, context);
  }
  void raise(uint64_t transfer, Class klass) override;
  bool interrupt() override;
  Figures figures() const override;
  const std::string& address() const override { return options_.address; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Request {
    int64_t sent_ms = 0;  // CLOCK_BOOTTIME
    int64_t sent_us = 0;
    int64_t waits_since_ms = 0;  // as sent_ms, less the times in which this process did not run
    size_t type = 0;
    std::vector<SlabId> attaching;
  };
  struct Wish {  // of a thread in lease()
    bool done = false;
    std::vector<Slab> slabs;
    std::string why;
  };

  void agent();
  void wake() const;
  void takeCompletions();
  void transferEnded(const Completion& completion);
  void messageArrived(const Completion& completion);
  std::string handle(Lock& lock, uint64_t number, const Request* request, protocol::Body& body);
  void linkIsDown(const LinkPtr& link);
  void attemptFailed(const std::string& why, bool answered);
  void retryLater();  // under mutex_
  void startConnecting();
  void connected(Result<LinkPtr> link);
  void greeted(Lock& lock);
  void tick();
  static uint64_t movedOver(const transport::Link& link);
  bool standsStill(int64_t since_last_ms, uint64_t moved);
  void deliver();
  void issueWaiting();

  uint64_t post(bool write, std::span<const LocalRange> local, const FrameRange& frame, Class klass,
                uint64_t context);
  bool request(protocol::Body body, std::vector<SlabId> attaching = {}, uint64_t number = 0);
  void flushReleases();
  void finish(uint64_t id, TransferResult result);  // under mutex_
  void lose(Lock& lock, SlabId slab, const std::string& why);
  void loseAll(Lock& lock, const std::string& why);
  void noteCapacity(const protocol::Capacity& capacity);
  void happen(Event::Kind kind, const std::string& text, SlabId slab = 0, uint64_t bytes = 0,
              uint32_t deadline = 0);
  /// Since the last renewal that was answered; then what is there is taken for lost. The memserver
  /// keeps it a little longer.
  int64_t patience() const { return lease_ms_ - lease_ms_ / 10; }
  bool onAgent() const { return std::this_thread::get_id() == agent_.get_id(); }

  const ClientOptions options_;
  Observer& observer_;
  const transport::QueuePtr queue_;
  const base::UniqueFd wake_;
  std::thread agent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kDown;
  bool closing_ = false;
  bool goodbye_said_ = false;
  bool told_up_ = false;
  std::thread connector_;
  std::optional<Result<LinkPtr>> connect_result_;
  bool connect_lasts_ = false;  // the result is a no that lasts
  LinkPtr link_;                // kGreeting, kUp, kEnding
  std::string last_link_;       // the agent's: what the next one replaces
  std::string first_error_;     // why there was no first connection
  int64_t opened_ms_ = 0;
  uint64_t next_number_ = 1, next_transfer_ = 1, next_slab_ = 1;
  std::map<SlabId, HeldSlab> slabs_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::deque<uint64_t> waiting_[transport::kClasses];
  uint32_t issued_ = 0;
  std::deque<Done> done_;
  std::deque<Event> events_;
  std::vector<LeaseId> to_release_;
  std::vector<LeaseId> unsure_;  // kRelease sent, not answered
  std::unordered_map<uint64_t, Request> requests_;
  std::map<uint64_t, std::shared_ptr<Wish>> wishes_;  // by the request's number
  protocol::Capacity capacity_;
  uint32_t lease_ms_ = 30'000;
  int64_t renewed_ms_ = 0;       // sending of the last renewal that was answered
  int64_t greeted_ms_ = 0;       // sending of the greeting of this link
  int64_t last_renewal_ms_ = 0;  // sending of the last renewal
  int64_t heard_ms_ = 0;
  int64_t greeting_until_ms_ = 0;
  int64_t retry_at_ms_ = 0, retry_ms_ = 0;
  bool useful_ = false;    // something was moved or renewed over the link
  bool troubled_ = false;  // it ended with a transfer that has seen several end
  bool given_up_ = false;  // it ended because nothing was moved over it
  uint64_t moved_ = 0;     // bytes, over this link
  int64_t still_ms_ = 0;   // how long transfers wait and nothing is moved, over any link
  int64_t looked_at_moved_ms_ = 0;
  int64_t looked_ms_ = 0;
  bool attempt_failed_ = false;  // since the link went down
  bool stalled_ = false;
  Speed reads_, writes_;
  Figures figures_;
};

}  // namespace olpager::memserver
