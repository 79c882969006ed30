// The executors of the unified view over several gpunodes, as a session's group: it has the home,
// the links for pages, and the order of what is sent (interpose/forward/group.h says what a group
// is for, and its states).
//
// A move. An operation goes where Home::route says. Where that is another executor than the active
// one, nothing is sent while the active one comes to its end: all contexts are synchronised, for
// kPatience at most. What does not end by then may wait for what only this or a later operation
// brings (a kernel that spins, a host function), so the operation stays where it is and its pages
// come there. Until that has ended no other move is tried. While a stream captures nothing moves:
// to synchronise would end the capture.
//
// Kept calls. The thread whose operation goes elsewhere does not wait for the move where nobody
// waits for the operation: the call is kept, and so is each later one of the kind, of any thread,
// in one queue. The mover's thread makes the move and then sends what is kept, each call in its
// turn, which may be for another move. All other calls wait until nothing is kept. The queue is
// bounded (kMostKept, kMostKeptBytes): who finds it full waits for room. Nothing is kept while
// there is managed memory of the view's (its pages are given before an operation's turn), while
// what runs has not ended for kPatience, or where executors are of two kinds, some that share
// pinned memory with this process and some that don't (a record is of one kind).
//
//   nothing is kept -> an operation goes elsewhere and may be kept (enter) -> kept: the mover's
//   thread alone moves and sends -> nothing is kept, when the last one has been sent
//
// Owner: its session. Thread-safety: any thread. Locks: order_ (interpose/forward/locks.h), held
// from an operation's turn until its record is written; below it keeping_, the page links' and the
// home's. A call is kept under keeping_ alone where others are. All moves where nothing is kept by
// who has order_, else by the mover's thread, which gives order_ up meanwhile: so what is of a move
// (unfinished_, code_ and others) belongs to the mover's thread while keeps_ is true, and is under
// order_ while it is not.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/held_signals.h"
#include "base/result.h"
#include "coherence/status/unified_counters.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/group.h"
#include "interpose/forward/kept_call.h"
#include "interpose/unified/code_states.h"
#include "interpose/unified/event_clock.h"
#include "interpose/unified/home.h"
#include "interpose/unified/managed_memory.h"
#include "interpose/unified/page_link.h"
#include "interpose/unified/unfinished.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

/// Where operations go.
enum class Routing : uint8_t {
  kOwner,       // where Home::routed() says
  kRoundRobin,  // to one executor after the other
  kOne,         // to one
};

/// What one executor's driver says of its device; nullopt: it does not.
std::optional<int> attributeAt(forward::Session& session, unsigned executor,
                               CUdevice_attribute attribute, CUdevice device);

class Executors final : public forward::Group {
 public:
  /// Of a session whose executors have started. It is not of use before start(). `counters`: where
  /// it tells of its executors, for as long as it lives. `one`: of Routing::kOne. `managed`:
  /// whether managed memory is spread over them.
  Executors(forward::Session& session, status::UnifiedCounters& counters, Routing routing,
            unsigned one, bool managed);
  ~Executors() override;

  /// Whether they can be one device, and their links. The Error is one line.
  Status start();

  void leaves() override;
  void bind(const std::string& what) override;
  std::shared_ptr<const forward::SharedVariable> share(forward::CodeThere code,
                                                       const std::string& name) override;
  void contextGone(uint64_t context) override;
  bool add(uint64_t base, uint64_t bytes) override;
  void remove(uint64_t base) override;
  std::vector<uint64_t> released(bool wait) override;
  void awaitReleased() override;
  uint64_t freeBytes() const override;
  uint64_t totalBytes() const override;
  std::optional<forward::ManagedRange> managedAt(uint64_t address) override {
    return managed_.at(address);
  }
  void attachManaged(uint64_t base, unsigned flags, CUstream stream) override {
    managed_.attach(base, flags, stream);
  }
  CUresult giveManaged(const forward::ManagedUse& use) override { return managed_.give(use); }
  void awaitKept() override;

  ManagedMemory& managed() { return managed_; }
  EventClock& eventClock() { return event_clock_; }

 private:
  unsigned enter(const Uses& uses, forward::Aged* aged, bool* kept) override;
  void keep(std::unique_ptr<forward::KeptCall> call) override;
  void behindKept(std::function<void()> what) override;
  void leave(bool sent, bool kept, const forward::Aged& aged) override;
  forward::Aged draw(unsigned executor) override;
  void forget(uint64_t owner) override;

  using Lock = std::unique_lock<base::HoldingMutex>;
  Lock whenNoneIsKept();
  bool startsKeeping();
  bool joinsKept();
  bool isFull() const;
  std::optional<forward::Aged> sendHere(const Uses& uses, Home::Routed* elsewhere);
  forward::Aged noteSent(const Uses& uses, const Home::Sent& sent, status::RouteReason reason);
  forward::Aged sendRouted(const Uses& uses, const Home::Routed& elsewhere, Lock* released);
  void startMover();
  void runMover();
  void sendKept(Lock& lock, forward::KeptCall& call);
  void stopMover();
  std::optional<unsigned> asked() const;
  Status linkPeers(unsigned from, unsigned to);
  bool isFinished(std::chrono::milliseconds patience);
  bool moveTo(const Home::Routed& routed, std::chrono::steady_clock::time_point begun);
  Home::Sent send(unsigned executor, std::span<const forward::Named> named,
                  std::optional<uint64_t> united = std::nullopt);
  std::optional<Home::Sent> sendElsewhere(const Home::Routed& routed,
                                          std::span<const forward::Named> named);
  void bindHere(const std::string& what);
  bool finishActive(std::chrono::milliseconds patience);
  void heard();
  void awaitRelease(std::unique_lock<std::mutex>& lock, const std::function<bool()>& enough);
  uint64_t freeOf(const std::vector<uint64_t>& pages, uint64_t of_all) const;

  forward::Session& session_;
  status::UnifiedCounters& counters_;
  const std::vector<uint64_t> holds_;  // pages that each can hold
  const std::vector<uint64_t> told_;   // of these, what the program is told of (OL_REPORT)
  // Of all executors, with what memservers lend counted once: pages that the program may get, and
  // that it is told of.
  const uint64_t most_, most_told_;
  const Routing routing_;
  unsigned next_;  // of Routing::kOne and kRoundRobin: where an operation is to go. Under order_
  Home home_;
  PageLinks links_;
  base::HoldingMutex order_;

  ManagedMemory managed_;
  EventClock event_clock_;

  bool same_kind_ = false;               // of pinned memory, at all executors
  std::atomic<bool> mover_runs_{false};  // from start() to leaves()
  std::thread mover_;

  base::HoldingMutex keeping_;  // below order_
  base::Condition due_;         // something is kept, or the mover is to stop
  base::Condition sent_;        // less is kept
  // Under keeping_. Calls that are kept, oldest first; the first one is being sent, or waits for a
  // move.
  std::deque<std::unique_ptr<forward::KeptCall>> kept_;
  size_t kept_bytes_ = 0;
  size_t awaiting_ = 0;  // threads that wait for the end of kept_; one more from leaves() on
  // Whether there are any, or will be when the turn is over that has keeping_. It becomes true
  // under both.
  std::atomic<bool> keeps_{false};
  std::atomic<bool> stopping_{false};

  // Of who moves. What the active executor has not come to the end of within kPatience.
  std::vector<std::unique_ptr<Unfinished>> unfinished_;
  bool faulted_ = false;       // one of them tells of a kernel's fault
  uint64_t finishing_ns_ = 0;  // until it was finished, when it was last found so
  CodeStates code_;            // variables of code that ran

  // Regions that were removed and are not released: who needs their room waits.
  std::mutex releasing_;  // above the home's
  std::condition_variable released_;
  size_t leaving_ = 0;
  uint64_t gone_ = 0;            // regions that have been released so far
  std::vector<uint64_t> bases_;  // of regions that are released, for released()
};

}  // namespace olpager::unified
