// Contexts that a kernel has ended. The client is told of each as soon as it is known here
// (Answer::kFault), also where it waits for nothing: what it sends one way fails there from then
// on, as the driver's own calls would.
//
// A call that fails with a fault makes it known. While no calls come the watch asks a stream of its
// own in each context, in which nothing ever is: the stream says what the driver knows. The watch
// makes the stream before the first call in the context, since a driver may want the GPU idle for
// that, and asks it soon after the last call, and then at growing distances.
//
// Thread-safety: any thread; attend() of the leader alone. Locks: hands_ (the driver is called
// under it), and under it mutex_ (nothing is called under it). Nobody asks in a context while it is
// taken down: contextEnds() waits for those hands.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

#include "forwarding/wire/wire.h"

namespace olpager::gpunode {

class Worker;

class FaultWatch {
 public:
  explicit FaultWatch(Worker& worker) : worker_(worker) {}

  /// A call is made in this context, which exists.
  void called(const forward::CallHead& head) {
    if (head.reply == 0) worked_.store(true, std::memory_order_relaxed);
    if (head.context != last_.load(std::memory_order_relaxed)) add(head.context);
  }
  /// A call has failed with a kernel's fault: tells of every context that is ended and was not told
  /// of. True if the call's own is one.
  bool look(uint64_t context);
  /// The driver's word on a context: success, or the fault that has ended it.
  CUresult stateOf(uint64_t context);
  /// The leader's alone: how long it may wait for a call before it attends.
  std::chrono::milliseconds turn();
  /// The leader's alone, when no call has come.
  void attend();
  /// A call is about to take this context down. The watch forgets the context; if the context
  /// stays, its next call brings it back.
  void contextEnds(uint64_t context);

 private:
  struct Watched {
    CUstream stream = nullptr;
    bool told = false;
  };

  using Clock = std::chrono::steady_clock;

  void add(uint64_t context);
  void ask(bool makes_streams);
  CUresult stateOf(uint64_t context, Watched& watched);

  Worker& worker_;
  std::atomic<uint64_t> last_{0};    // a context that is watched
  std::atomic<bool> worked_{false};  // since turn() was asked
  std::chrono::milliseconds turn_{0};
  Clock::time_point asked_;  // by attend()
  std::mutex hands_;
  std::mutex mutex_;
  std::map<uint64_t, Watched> watched_;  // by the client's number
};

}  // namespace olpager::gpunode
