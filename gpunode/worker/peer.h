// The link to the worker of another of the program's sessions, and what is under way on it. One end
// of a copy offers pieces of its pinned memory, which the other one reads: so no worker writes into
// another, and what it may read is what was meant for it.
//
// States: made -> up -> down; final. Thread-safety: any thread; a Copy has one user, who waits for
// what happens to it. A link that is down has ended all reads before: memory is its owner's again.
// A peer that says what makes no sense loses the link.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coherence/status/link_counters.h"
#include "coherence/transport/transport.h"
#include "gpunode/worker/peer_wire.h"
#include "gpunode/worker/staging.h"

namespace olpager::gpunode {

/// The one that hears of pages that executors of a unified view give each other (agent.h). Called
/// from a link's thread and under its lock: it leaves itself a note, and returns.
class PageHearer {
 public:
  virtual ~PageHearer() = default;
  /// How a readPage() ended.
  enum class ReadIs : uint8_t {
    kGood,    // the bytes are there
    kCut,     // the link was lost
    kFailed,  // the other end has nothing there to read
  };
  /// The link of that number is up.
  virtual void peerUp(unsigned slot, uint64_t link) = 0;
  /// By the worker of the session in `slot`. `behind`: the bytesBehind() it.
  virtual void offered(unsigned slot, uint64_t link, const PeerMessage& page,
                       std::span<const std::byte> behind) = 0;
  virtual void read(uint64_t read, ReadIs how) = 0;
  /// The link is down; the last of it. `refused`: it made no sense.
  virtual void peerLost(unsigned slot, uint64_t link, bool refused) = 0;
};

class Peer : public std::enable_shared_from_this<Peer> {
 public:
  /// An event at one end of a copy.
  struct Event {
    enum class Kind : uint8_t {
      kOffer,    // `said`, and `bytes` where they came with it
      kTaken,    // `said`
      kRead,     // of read(): `read`
      kOver,     // the other end is over before all was taken: it reads no more of it
      kStopped,  // the client has given it up: the other end may still read
      kLost,     // the link is down; the last
    };
    Kind kind = Kind::kLost;
    PeerMessage said;
    std::vector<std::byte> bytes;
    uint64_t read = 0;
    bool good = false;  // kRead: the bytes are there
  };
  struct Copy {
    uint64_t number = 0;
    std::deque<Event> events;  // under the peer's mutex_
  };
  using CopyPtr = std::shared_ptr<Copy>;

  /// `pages` null: nobody hears of pages here.
  explicit Peer(unsigned slot, PageHearer* pages)
      : slot_(slot), pages_(pages), staging_(transport::kRemoteRead) {}
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Before run(). A link has a higher number than those to the same worker that it replaces.
  void setNumber(uint64_t number) { number_ = number; }
  /// Listens to the queue from now on, in a thread of its own. `link` null: it comes with the
  /// queue's kUp.
  void run(transport::QueuePtr queue, transport::LinkPtr link);
  /// Nothing more comes over it: as if the link were lost.
  void close(const std::string& why);

  unsigned slot() const { return slot_; }
  uint64_t number() const { return number_; }
  Staging& staging() { return staging_; }
  bool waitUp(std::chrono::milliseconds timeout);
  bool isUp();
  /// True if the link has come, and is of that kind.
  bool is(transport::LinkKind kind);
  std::string describe();
  /// Adds what the link has carried since it was counted last, and says how it goes.
  void count(status::LinkBytes& into);

  /// The user of a copy's end here; null: it has one. Messages that came for it before are there.
  CopyPtr begin(uint64_t number);
  void end(const CopyPtr& copy);
  /// The next that happens; false: nothing within the time.
  bool next(const CopyPtr& copy, Event& event, std::chrono::milliseconds timeout);
  /// The client waits for the copy no more (Event::kStopped), also before begin().
  void stop(uint64_t number);
  /// For who has offered and gives the copy up: returns when the other end reads no more of it,
  /// which is when it has said kOver or the link is down. Says kOver first; what is not answered
  /// within `patience` costs the link. Takes the copy's events.
  void settle(const CopyPtr& copy, std::chrono::milliseconds patience);
  /// Waits while the other end has no room. False: the link is down.
  bool say(const PeerMessage& message, std::span<const std::byte> bytes = {});
  /// Reads what was offered into a piece; Event::kRead follows with `read`. False: the link is
  /// down.
  bool read(const CopyPtr& copy, uint64_t read, const transport::LocalRange& into,
            const transport::RemoteRange& from);
  /// The same for a page or a part of one: PageHearer::read() follows.
  bool readPage(uint64_t read, const transport::LocalRange& into,
                const transport::RemoteRange& from) {
    return this->read(nullptr, read, into, from);
  }

 private:
  enum class State : uint8_t { kMade, kUp, kDown };
  void listen(const transport::QueuePtr& queue);
  void take(transport::Completion& completion);
  void hear(const transport::Completion& completion);
  void add(uint64_t number, Event event);
  void nonsense(const char* what);

  const unsigned slot_;
  uint64_t number_ = 1;
  PageHearer* const pages_;
  Staging staging_;
  std::mutex mutex_;  // alone
  std::condition_variable changed_;
  State state_ = State::kMade;
  bool refused_ = false;  // it made no sense: nothing more is heard of it
  transport::LinkPtr link_;
  std::map<uint64_t, CopyPtr> copies_;
  // For copies that nobody has begun here: the other end is ahead, or late.
  std::map<uint64_t, std::vector<Event>> early_;
  size_t early_events_ = 0, early_bytes_ = 0;
  std::set<uint64_t>
      ended_;  // the last numbers whose ends here are over: what still comes for them is too late
  std::map<uint64_t, std::pair<CopyPtr, uint64_t>> reads_;  // without a copy: of a page
  uint64_t next_read_ = 1;
  uint64_t rooms_ = 0;  // how often there was room again
  status::CountedBytes counted_;
};
using PeerPtr = std::shared_ptr<Peer>;

}  // namespace olpager::gpunode
