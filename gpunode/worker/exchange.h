// What kernels changed in pinned memory that both ends have comes back to the client in stream
// order behind them. Not behind each launch: a host function in a stream makes the GPU wait for the
// CPU. What launches owe gathers here, and one host function for each stream pays it before
// anything by which the client can tell that they are done: before every call that it waits for but
// launches, that records an event, that calls a host function, ... (settlesBefore names what does
// not count). A client that calls none of these and looks at its memory sees it some kTurns later:
// for that nothing makes the GPU wait. An event is put behind what the stream has, and when the
// leader finds that it has passed, the leader pays.
//
// What a stream owes is in one place at a time: with its launches (answers_), behind an event
// (behind_), or in the hands of attend(). settle() waits for those hands, and is such hands itself:
// what its caller tells the client then comes behind what they have paid.
//
// Thread-safety: owe(), expect(), payNow(), settle(), contextGone() from any thread, attend() from
// the leader. Locks, in this order: hands_ (the driver is called under it; it may wait there for a
// stream that is full, but not for calls that come by themselves: settlesBefore), paying_ (what is
// found changed is told in that order), mutex_ (nothing is called under it).
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

  /// What is in this stream may have changed these blocks (all that kernels can reach), and those
  /// of its `own`; the client counts on one answer (Answer::kHostBytes).
  void owe(CUcontext context, CUstream stream, std::vector<uint64_t> blocks,
           std::vector<uint64_t> own = {});
  /// A graph that is launched next in the stream may change these.
  void expect(CUcontext context, CUstream stream, std::vector<uint64_t> blocks);
  /// Tells what has been changed so far of what is owed or expected: of who runs in the midst of
  /// it, a host function of a graph.
  void payNow();
  /// Whether anything is owed.
  bool owes() const { return owes_.load(std::memory_order_relaxed); }
  /// Of the leader, at least once a kTurn while something is owed: pays what has come to its event,
  /// and puts events behind what has been owed for a kTurn.
  void attend();
  /// Enqueues the host functions that pay. Where one can't be enqueued (a context that is lost),
  /// the answer is empty.
  void settle();
  /// Its events are gone with it.
  void contextGone(CUcontext context);
  /// Whether what is owed has to be settled before this call.
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
