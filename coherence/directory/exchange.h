// The home and its agents in one process: messages are calls. A message to the home is a step of
// the directory at once; one to an agent waits in the agent's inbox until the agent's own thread
// takes it. All are carried in the order in which they were sent.
//
// Thread-safety: every member may be called by any thread. The exchange has one mutex, a leaf:
// under it run steps of the directory, which are pure, and `wake`. So an agent may post with its
// own lock held.
#pragma once

#include <functional>
#include <vector>

#include "base/held_signals.h"
#include "coherence/directory/directory.h"

namespace olpager::directory {

/// A leaf, taken under an agent's own lock: behind all ranks of pager/locks.h.
inline constexpr base::LockRank kExchangeMutex{400, "Exchange::mutex_"};

class Exchange {
 public:
  /// An agent takes part. `wake` says that its empty inbox has something now. The thread that posts
  /// calls it, under the exchange's mutex and any lock of its own: `wake` takes no lock, does not
  /// block, and is not lost if nobody waits yet (a semaphore, an eventfd).
  void join(AgentId agent, std::function<void()> wake);

  /// The next operation of the program, which runs at that agent: its age.
  Age operation(AgentId agent);
  /// All operations below are complete.
  Age oldest() const;
  /// Extents that nobody owns. The numbers were never allocated, or are kReleased.
  void allocate(ExtentId first, ExtentId count);
  /// No operation that is under way reaches them. news() tells of each when it is kReleased.
  void free(ExtentId first, ExtentId count);
  AgentId owner(ExtentId extent) const;

  /// From an agent.
  void post(const Message& message);
  /// Moves the messages that have come for the agent since the last call behind `to`. False:
  /// nothing has.
  bool take(AgentId agent, std::vector<Message>& to);
  /// The home's reports to the layer above since the last call (types.h): kReleased, kViolation.
  std::vector<Action> news();

 private:
  template <typename Step>
  void home(Step&& step);

  struct Inbox {
    std::vector<Message> messages;
    std::function<void()> wake;
    bool open = false;
  };
  mutable base::HoldingMutex mutex_{kExchangeMutex};
  // All under the mutex:
  Directory home_;
  Inbox inboxes_[kMostAgents];
  Actions actions_;  // of the present step
  std::vector<Action> news_;
};

}  // namespace olpager::directory
