// The home's links to the workers of its executors: for each a channel of pages beside that of
// calls, with a connection and a thread of its own (forwarding/wire/pages_wire.h). Messages that
// come over it are given to the home (Home::receive); the home's for an executor go out over it, in
// the order in which they are taken (Home::take).
//
// States of one link: closed -> up (open) -> lost, or closed again; final. A connection that is
// lost is made again within the session's grace time, and nothing is lost by that (calls::Channel).
// Only then is the executor lost, and its user told, once.
//
// Owner: the session of several executors, for as long as its executors are up. Thread-safety:
// flush() from any thread, also while the home is used by others; open() once for each executor,
// after its session is open and before anything is sent that has an age; close() once. Locks: one
// for each executor, in which records are taken and written in one order; below it the home's and
// the channel's. A thread that flushes may hold the order lock of any executor, and no lock of the
// home's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "coherence/calls/channel.h"
#include "forwarding/page_route.h"
#include "interpose/unified/home.h"

namespace olpager::unified {

using forward::PageRoute;

class PageLinks {
 public:
  /// All are called from a link's thread, which holds no lock.
  struct Hearer {
    /// That executor's link is gone for good, or what it said is not to be trusted: the session
    /// can't go on. `why`: half a line. Once for each executor.
    std::function<void(unsigned executor, const std::string& why)> lost;
    /// An executor has said something, and the home has heard it: operations may be complete,
    /// regions released. May be empty.
    std::function<void()> heard;
    /// The counters of that executor's link; null: nothing is counted. May be empty.
    std::function<status::LinkBytes*(unsigned executor)> counted = {};
  };

  PageLinks(Home& home, unsigned executors, Hearer hearer);
  ~PageLinks();
  PageLinks(const PageLinks&) = delete;
  PageLinks& operator=(const PageLinks&) = delete;

  /// Connects to that executor's worker, and listens from now on. The Error is half a line.
  Status open(unsigned executor, const PageRoute& route);
  /// Sends the messages that the home has for its executors. After each change of the home: add,
  /// remove, send, cancel. Messages for an executor whose link is not open yet wait for that. Costs
  /// nothing where the home has nothing for anybody.
  void flush();
  /// Before the sessions are left: a link that is lost from now on is no failure. Ends the threads.
  void close();

 private:
  struct Link;
  void listen(Link& link);
  void push(Link& link);
  void lose(Link& link, const std::string& why);

  Home& home_;
  const Hearer hearer_;
  std::atomic<bool> closing_{false};
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace olpager::unified
