// A pager's view of what is at other agents: extents that a directory (coherence/directory) moves
// between this pager's GPU, other GPUs, and the program's CPU. Elsewhere owns this pager's Agent,
// steps it, and has the pager (Residence) carry out what the steps ask for. The same for a GPU and
// for the CPU, for messages that are calls (directory::Exchange) and for messages that are records.
//
// The words:
//
//   need      the pager: an operation needs extents, begun before it is known to reach all of them
//   grant     the extent is mapped and claimed by operations that wait for it
//   yield     the extent is unmapped; the frame stays as it is, another agent reads it
//   release   the frame is the pager's again
//
// An extent's states to the pager:
//
//   kAbsent   it has no frame here: no chunk, no mapping. The bytes are at another agent, or
//             nowhere yet. A launch that reaches it needs() it; nothing of the engine's (mapNew,
//             prefetch, eviction, remote tier) looks at it.
//   claimed   it has a frame, and Elsewhere has claimed it as a mover claims an extent in a
//             transitional state (region.h): fetching, given, retained. The engine leaves it alone.
//   granted   it is one of the pager's own: in VRAM or in place (kVram, kInPlace), mapped for
//             writing or for reading only. The engine may move it between VRAM and host memory as
//             any other. Two exceptions: one that is lent stays where it is; and the pager's lower
//             tiers (kParked, kRemote) are for what is granted too, so a frame is room in VRAM or
//             host memory, whichever the engine prefers. Residence::yield finds the bytes and puts
//             them where the taker can read them.
//
//   ask          state before            carried out by Residence       state after
//   fetch        kAbsent, claimed        take a frame, copy, landed()   claimed
//   clear        kAbsent, claimed        take a frame, zeros            claimed
//   grant        claimed, granted        map, for writing or reading    granted
//   yield        granted                 unmap; keep the bytes          claimed
//   release      claimed                 give the frame back            kAbsent
//   stop         granted for writing     no new launch goes resident    granted; quiet() is due
//   go           granted for writing     they may again                 granted
//   lend         granted                 the engine may not move it     granted
//   lendOver     granted                 it may                         granted
//
// The pager takes a frame's memory at fetch or clear, and finds room for it by itself: the agent
// counts no frames.
//
// Two kinds of operations use extents:
//
//   told      they lack something, or may lose it: copies on extents that are mapped for reading,
//             launches on the slow path (acquisition.h), CPU faults. need() ... runnable() ...
//             submit() ... complete(). Told operations have an age.
//   untold    launches that find Region::blocked zero and all that they reach granted for writing:
//             they cost what they cost without a directory. Before the agent gives an extent up
//             that is granted for writing it asks stop(): the pager raises Region::blocked, waits
//             for the grace period and for the region to be quiet (in_flight.h), without blocking
//             anybody, and then calls quiet(). A kernel that never ends so holds its extents, and
//             nothing else.
//
// A launch as an object:
//   begin    Directory gives its age (Exchange::operation); need(age, what is named)
//   ready    each time its closure grows: more(age, need). runnable(age) tells that it claims all
//            that was named so far
//   commit   under the pager's mutex, in one go: the closure is settled, submit(age) is true, then
//            Access::commit takes the launch's number. If submit is false it has lost a claim, and
//            runnable(age) follows
//   over     the stream has passed its number: complete(age)
//   cancel   it is given up before commit: cancel(age)
//
// Locks and threads:
//   All members are called under the pager's mutex (of a GPU: PoolState::mutex, of the CPU: that of
//   its faults), passed as Lock: carry() hands it to Residence, which may release it around driver
//   calls. Meanwhile other threads may call in: their actions are queued, and the thread that
//   carries goes on with them. So actions are carried out in order, by one thread at a time, and no
//   message overtakes the mapping that it tells of.
//   Messages go out through Residence::post, under the pager's mutex: an exchange's mutex comes
//   below it locks.h. Messages come in by receive(), from the pager's own thread, which an
//   exchange or a link has woken: never from a thread that holds another pager's mutex.
//   Nothing here waits. A thread that waits for runnable() waits on the pager's condition.
#pragma once

#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coherence/directory/agent.h"

namespace olpager::pager {

/// A pager's work for its agent. Each is called under the pager's mutex, by whoever carries.
template <typename Lock>
class Residence {
 public:
  virtual ~Residence() = default;

  /// Bring the extent's bytes from that agent's frame, which stays as it is until landed(). The
  /// frame here still has the bytes named `have` (0: nothing): what is equal by hash need not be
  /// copied. Begins the copy; whoever sees its end calls Elsewhere::landed().
  virtual void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
                     directory::Content have, Lock& lock) = 0;
  /// The extent never had bytes: its frame becomes zeros.
  virtual void clear(directory::ExtentId extent, Lock& lock) = 0;
  virtual void grant(directory::ExtentId extent, directory::Mode mode, Lock& lock) = 0;
  virtual void yield(directory::ExtentId extent, Lock& lock) = 0;
  virtual void release(directory::ExtentId extent, Lock& lock) = 0;
  /// Elsewhere::quiet() is due once no untold operation uses the extent: from here, or later.
  virtual void stop(directory::ExtentId extent, Lock& lock) = 0;
  virtual void go(directory::ExtentId extent, Lock& lock) = 0;
  virtual void lend(directory::ExtentId extent, Lock& lock) = 0;
  virtual void lendOver(directory::ExtentId extent, Lock& lock) = 0;

  /// The operation claims all that it is known to need: submit() it.
  virtual void runnable(directory::Age age) = 0;
  /// The operation can't ever claim all: the extent is freed. cancel() it.
  virtual void failed(directory::Age age, directory::ExtentId extent) = 0;

  virtual void post(const directory::Message& message) = 0;
  /// A step that the protocol excludes has happened: a mistake, or a peer that is not ours. The
  /// session can't go on.
  virtual void violated(const directory::Action& action) = 0;
};

template <typename Lock>
class Elsewhere {
 public:
  /// `untold`: it runs operations that it does not tell of. The CPU has none: a touch of what is
  /// dropped is a new fault.
  Elsewhere(directory::AgentId id, Residence<Lock>& residence, bool untold = true)
      : agent_(id, untold), residence_(residence) {}

  /// The directory's extents are those below `count`.
  void resize(directory::ExtentId count) { agent_.resize(count); }

  void need(directory::Age age, std::span<const directory::Need> needs, directory::Age oldest,
            Lock& lock) {
    step(lock, [&](auto& out) { agent_.begin(age, needs, oldest, out); });
  }
  void more(directory::Age age, directory::Need need, Lock& lock) {
    step(lock, [&](auto& out) { agent_.reach(age, need, out); });
  }
  /// True: it may go, and what it needs stays until complete(). An extent that another thread is
  /// about to map for it is not there yet: false then as well, and runnable() follows.
  [[nodiscard]] bool submit(directory::Age age) {
    return !told_.contains(age) && agent_.submit(age);
  }
  /// True if submit() would be.
  [[nodiscard]] bool runnable(directory::Age age) const {
    return !told_.contains(age) && agent_.runnable(age);
  }
  /// A submitted operation uses the extent once more, which may have been stopped since: then go()
  /// follows. False: it does not claim the extent.
  [[nodiscard]] bool useAgain(directory::Age age, directory::ExtentId extent, Lock& lock) {
    bool claims = false;
    step(lock, [&](auto& out) { claims = agent_.useAgain(age, extent, out); });
    return claims;
  }
  void complete(directory::Age age, Lock& lock) {
    step(lock, [&](auto& out) { agent_.complete(age, out); });
  }
  void cancel(directory::Age age, Lock& lock) {
    step(lock, [&](auto& out) { agent_.cancel(age, out); });
  }

  /// No operation waits for the extent any more: the program has freed it.
  void unneed(directory::ExtentId extent, Lock& lock) {
    step(lock, [&](auto& out) { agent_.unneed(extent, out); });
  }

  void receive(const directory::Message& message, Lock& lock) {
    step(lock, [&](auto& out) { agent_.receive(message, out); });
  }
  void landed(directory::ExtentId extent, directory::Number number, Lock& lock) {
    step(lock, [&](auto& out) { agent_.landed(extent, number, out); });
  }
  /// After Residence::stop(). `written`: untold operations may have written the extent.
  void quiet(directory::ExtentId extent, bool written, Lock& lock) {
    step(lock, [&](auto& out) { agent_.quiet(extent, written, out); });
  }
  /// Pages of frames with bytes that were given away (release).
  uint64_t retained() const { return agent_.retained(); }
  /// Gives up retained pages until so many stay at most.
  void shed(uint64_t keep, Lock& lock) {
    step(lock, [&](auto& out) { agent_.shed(keep, out); });
  }

  /// Ahead of what is carried out: whether an extent is granted the pager knows by itself.
  const directory::Agent& agent() const { return agent_; }

 private:
  template <typename Step>
  void step(Lock& lock, Step&& step) {
    step(actions_);
    for (const directory::Action& action : actions_) {
      // Told when what comes before it has been carried out.
      if (action.kind == directory::ActionKind::kRunnable) ++told_[action.age];
      queue_.push_back(action);
    }
    actions_.clear();
    if (!carrying_) carry(lock);
  }

  void carry(Lock& lock) {
    carrying_ = true;
    while (!queue_.empty()) {
      const directory::Action action = queue_.front();
      queue_.pop_front();
      carryOut(action, lock);
    }
    carrying_ = false;
  }

  void carryOut(const directory::Action& action, Lock& lock) {
    using directory::ActionKind;
    switch (action.kind) {
      case ActionKind::kSend:
        return residence_.post(action.message);
      case ActionKind::kMap:
        return residence_.grant(action.extent, action.mode, lock);
      case ActionKind::kUnmap:
        return residence_.yield(action.extent, lock);
      case ActionKind::kFetch:
        return residence_.fetch(action.extent, action.peer, action.number, action.content, lock);
      case ActionKind::kClear:
        return residence_.clear(action.extent, lock);
      case ActionKind::kFree:
        return residence_.release(action.extent, lock);
      case ActionKind::kStop:
        return residence_.stop(action.extent, lock);
      case ActionKind::kGo:
        return residence_.go(action.extent, lock);
      case ActionKind::kLend:
        return residence_.lend(action.extent, lock);
      case ActionKind::kLendOver:
        return residence_.lendOver(action.extent, lock);
      case ActionKind::kRunnable: {
        const auto told = told_.find(action.age);
        if (--told->second != 0) return;  // it has lost and got something since
        told_.erase(told);
        if (agent_.runnable(action.age)) residence_.runnable(action.age);
        return;
      }
      case ActionKind::kFailed:
        return residence_.failed(action.age, action.extent);
      case ActionKind::kClaimLost:
        return;
      default:
        return residence_.violated(action);
    }
  }

  directory::Agent agent_;
  Residence<Lock>& residence_;
  directory::Actions actions_;                         // of the present step
  std::deque<directory::Action> queue_;                // to be carried out, in order
  bool carrying_ = false;                              // a thread is at it
  std::unordered_map<directory::Age, uint32_t> told_;  // kRunnable that are queued
};

}  // namespace olpager::pager
