// The executors of the unified view over several gpunodes, as a session's group (states and purpose
// of a group: interpose/forward/group.h). The class has the home, the links for pages, and the
// order of records.
//
// A move. Home::route chooses the executor of an operation. If that is not the active executor, the
// active one comes to its end first: all contexts are synchronised, for kPatience at most, and
// nothing is sent meanwhile. Work that does not end by then may wait for this operation or a later
// one (a kernel that spins, a host function). So the operation stays at the active executor, and
// its pages come there. No other move is tried until that work has ended. Nothing moves while a
// stream captures, because a synchronisation would end the capture.
//
// Kept calls. A thread need not wait for the move if nobody waits for its operation. The call is
// kept, and so is each later call of the kind, of any thread, in one queue. The mover's thread
// makes the move, and then sends the kept calls in their order; each may be for another move. All
// other calls wait until nothing is kept. The queue is bounded (kMostKept, kMostKeptBytes): a
// thread that finds it full waits for room. Nothing is kept
//   - while the view has managed memory (its pages are given before an operation's turn);
//   - while running work has not ended for kPatience;
//   - if some executors share pinned memory with this process and some don't (a record is of one
//     kind).
//
//   nothing is kept -> an operation goes elsewhere and may be kept (enter) -> kept: the mover's
//   thread alone moves and sends -> nothing is kept, when the last call has been sent
//
// Owner: the session. Thread-safety: any thread. Locks: order_ (interpose/forward/locks.h), held
// from an operation's turn until its record is written; below it keeping_, the page links' and the
// home's. A call is kept under keeping_ alone if others are kept. A move is made by the thread that
// has order_ if nothing is kept, else by the mover's thread, which gives order_ up meanwhile. So
// the state of a move (unfinished_, code_ and others) belongs to the mover's thread while keeps_ is
// true, and is under order_ while keeps_ is false.
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

/// The choice of an operation's executor.
enum class Routing : uint8_t {
  kOwner,       // by Home::routed()
  kRoundRobin,  // to one executor after the other
  kOne,         // to one
};

/// An attribute of a device by one executor's driver; nullopt: the driver has none.
std::optional<int> attributeAt(forward::Session& session, unsigned executor,
                               CUdevice_attribute attribute, CUdevice device);

// Many members: one for each event of an executor.
class Executors final : public forward::Group {
 public:
  /// The session's executors have started. Call start() before all else. `counters` outlive the
  /// object, which counts there by executor. `one`: the executor of Routing::kOne. `managed`:
  /// managed memory is spread over the executors.
  Executors(forward::Session& session, status::UnifiedCounters& counters, Routing routing,
            unsigned one, bool managed);
  ~Executors() override;

  /// Checks that the executors can be one device, and makes their links. The Error is one line.
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
  // Pages that the program may get, and that it is told of, of all executors: memory of memservers
  // counts once.
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
  // Calls are kept, or will be when the turn is over that has keeping_. Becomes true under both
  // locks.
  std::atomic<bool> keeps_{false};
  std::atomic<bool> stopping_{false};

  // State of a move: work that the active executor has not ended within kPatience.
  std::vector<std::unique_ptr<Unfinished>> unfinished_;
  bool faulted_ = false;       // one of them tells of a kernel's fault
  uint64_t finishing_ns_ = 0;  // until it was finished, when it was last found so
  CodeStates code_;            // variables of code that ran

  // Regions that were removed and are not released: allocations that need their room wait.
  std::mutex releasing_;  // above the home's
  std::condition_variable released_;
  size_t leaving_ = 0;
  uint64_t gone_ = 0;            // regions that have been released so far
  std::vector<uint64_t> bases_;  // of regions that are released, for released()
};

}  // namespace olpager::unified
