// Brings changes that kernels made to pinned memory back to the client, in stream order.
//
// Pinned memory has a copy at the client and one here. After a kernel, changed bytes have to reach
// the client's copy before the client can tell that the kernel is over.
//
// A host function behind each launch would bring them, but it makes the GPU wait for the CPU. So
// the blocks that launches may have changed gather here as a stream's debt (owe). One host function
// for each stream pays the debt (settle): it compares the blocks and sends the changes. settle()
// comes before every call by which the client can tell that launches are over: calls that the
// client waits for (but launches), records of events, host functions. settlesBefore() names the
// calls that need none.
//
// A client may make none of these calls and look at its memory. For such a client nothing makes the
// GPU wait: attend() records an event behind the stream's work, and pays when the event has passed,
// some kTurns later.
//
// A stream's debt is in one place at a time: with the stream's launches (answers_), behind an event
// (behind_), or with a thread that pays it. settle() waits for such a thread, so that its caller's
// answer reaches the client after the changes.
//
// Thread-safety: owe(), expect(), payNow(), settle(), contextGone() from any thread, attend() from
// the leader. Locks, in this order: hands_ (the driver is called under it; the driver may wait
// there for a full stream, but not for calls that come by themselves: settlesBefore), paying_
// (changes are sent in the order in which they are found), mutex_ (nothing is called under it).
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "forwarding/wire/wire.h"

namespace olpager::gpunode {

class Worker;

class Exchange {
 public:
  static constexpr std::chrono::milliseconds kTurn{1};

  explicit Exchange(Worker& worker) : worker_(worker) {}

  /// Work in this stream may have changed `blocks` (all that kernels can reach) and `own` blocks of
  /// its own. The client counts on one answer (Answer::kHostBytes).
  void owe(CUcontext context, CUstream stream, std::vector<uint64_t> blocks,
           std::vector<uint64_t> own = {});
  /// A graph that is launched next in the stream may change these.
  void expect(CUcontext context, CUstream stream, std::vector<uint64_t> blocks);
  /// Sends the changes so far to blocks that are owed or expected. Called in the midst of the
  /// stream's work, by a host function of a graph.
  void payNow();
  /// True while anything is owed.
  bool owes() const { return owes_.load(std::memory_order_relaxed); }
  /// The leader calls this at least once a kTurn while something is owed: pays debts whose event
  /// has passed, and records events behind debts that are a kTurn old.
  void attend();
  /// Enqueues the host functions that pay. If one can't be enqueued (a context that is lost), the
  /// answer is empty.
  void settle();
  /// Forgets the context's events, which the driver has destroyed.
  void contextGone(CUcontext context);
  /// True for a call before which debts have to be settled.
  static bool settlesBefore(const forward::CallHead& head);

 private:
  using Clock = std::chrono::steady_clock;
  using Where = std::pair<CUcontext, CUstream>;
  struct Owing {
    uint32_t answers = 0;
    std::vector<uint64_t> blocks;  // calls of several streams need not come as the client made them
    void add(const Owing& more);
  };
  struct Behind {
    CUevent event = nullptr;
    Owing owing;
  };

  struct Payment;
  static void CUDA_CB payInStream(CUstream stream, CUresult status, void* data);
  void pay(Owing owing);
  void mark();
  void collect();
  CUevent eventIn(CUcontext context);
  void noteOwes();

  Worker& worker_;
  std::atomic<bool> owes_{false};
  std::mutex hands_;
  std::mutex paying_;
  std::mutex mutex_;
  std::map<Where, Owing> answers_;
  std::map<Where, Behind> behind_;
  std::map<CUcontext, std::vector<CUevent>> spare_;
  std::vector<uint64_t> blocks_;  // all that kernels can reach, as it was told last
  std::map<Where, std::vector<uint64_t>> expected_;  // of each stream's last graph, which may run
  Clock::time_point since_;                          // of what has no event
  Clock::time_point looked_;                         // at the events
};

}  // namespace olpager::gpunode
