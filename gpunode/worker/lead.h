// The lead of a session: one thread at a time, the leader, takes the records and makes the calls.
//
// Before a call that may wait (for the GPU, or for the client) the leader gives the lead away if
// the client has other threads or host functions. If it had none at that moment and the call still
// waits after a few milliseconds, another thread takes the lead. Calls are made in the order in
// which they were taken: when a leader takes a call, the call before is over or waits.
//
// The leader never waits for pages (stream_queues.h): a call that lacks memory is suspended, and
// calls behind it are queued. The thread of a call that can't be suspended gives the lead away,
// makes the calls of its queue afterwards, and then waits for the lead again.
//
// While host functions run or gates are closed, any call may wait for them. Then another thread
// reads on, and makes only the calls that end host functions or open gates.
//
// States of the lead: nobody's -> a thread's (takeLead) -> nobody's (the thread gives it away), or
// another thread's (the leader's call waited for too long). All moves are under mutex_.
//
// Thread-safety: any thread. Locks: mutex_ (the leader); reading_mutex_ (the reader of records),
// never with mutex_, before rejoin_mutex_ (the thread that waits for the client's next link) and
// the channel's. None is held while a call is made.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "coherence/calls/channel.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/stream_queues.h"

namespace olpager::gpunode {

class Worker;

class Lead {
 public:
  explicit Lead(Worker& worker) : worker_(worker) {}

  /// Leads, with as many threads as it takes, until the session ends. Returns why it ended.
  std::string serve(std::function<bool()> rejoined);
  /// The thread that finds the link gone waits for the next: the leader, or one that waits for a
  /// transfer. False: there is none.
  bool rejoin();

  bool ended() const { return ended_; }
  /// The session ends when the calls that are under way are over.
  void end() { ended_.store(true); }
  /// The session ends because the client sent this.
  void nonsense(const forward::CallHead& head);

  /// A host function is the client's from now on, or not any more.
  void functionBegins();
  void functionIsOver();
  /// A stream waits for the client from now on: somebody has to hear of it whatever the leader's
  /// calls wait for.
  void gatePut() { free_.notify_one(); }
  /// The call that this thread makes waits for memory: where it leads it leaves the lead.
  static void waitsForMemory() noexcept;
  /// For a call behind all others (kBehindAll), when it is made: waits until the operations that
  /// were taken by then and may wait have been made. The call is behind queued calls already.
  void awaitOperations();

 private:
  using Record = std::vector<std::byte>;
  using Spare = std::unique_ptr<StreamQueues::Suspension>;  // for the next call
  struct Making;
  void lead();
  void make(const forward::CallHead& head, Record& record, uint64_t self, uint64_t waits,
            Spare& spare);
  void leave(Making& making);
  bool isQueued(const forward::CallHead& head, Record& record);
  bool takeLead(std::unique_lock<std::mutex>& lock, uint64_t self);
  calls::Channel::Read take(Record& record);
  calls::Channel::Read next(Record& record, std::chrono::microseconds timeout);
  void readAhead(uint64_t stuck);
  bool opensNow(const Record& record) const;
  bool clientEndsSomething() const;  // under mutex_
  void startThread();                // under mutex_

  Worker& worker_;

  std::mutex mutex_;
  std::condition_variable free_;
  uint64_t leader_ = 0;           // 0: nobody
  bool waits_ = false;            // the leader is in a call that may wait
  uint64_t waited_ = 0;           // how many such calls there were
  std::set<uint64_t> operating_;  // those that are operations and not over, by that count
  std::condition_variable operated_;
  uint32_t followers_ = 0;
  uint32_t asleep_ = 0;     // followers that do not look at the clock
  uint32_t functions_ = 0;  // host functions that the client has not answered
  uint64_t next_thread_ = 1;
  std::string why_;

  /// The leader's call that was not expected to wait, by number; 0: it is in none.
  std::atomic<uint64_t> call_{0};
  uint64_t calls_ = 0;  // of the leader alone

  std::mutex reading_mutex_;
  /// Read while the leader was in a call, to be made by it in their order.
  std::deque<Record> ahead_;
  size_t ahead_bytes_ = 0;

  std::mutex rejoin_mutex_;
  std::function<bool()> rejoined_;
  std::atomic<bool> ended_{false};
};

}  // namespace olpager::gpunode
