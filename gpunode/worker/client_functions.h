// Host functions of the client's, called from streams of the worker's: a stream goes on when the
// client has said that its function is over. Thread-safety: any thread. Locks: mutex_ and
// graphs_mutex_, leaves; nothing is called under them.
//
// While one is in a stream, the client may wait for a page that only a call of the driver brings:
// the function touches managed memory. Drivers wait for work inside some of their calls and answer
// no other call of the context meanwhile: synchronous copies, copies to memory that is not pinned,
// and ends of pinned memory (measured on an H200, driver 580). So none of these is made then.
//
// A function of a graph is ahead from before each launch of a graph until the stream has passed
// that: an event behind the launch tells. The worker does not know which graphs have functions.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

class Worker;

class ClientFunctions {
 public:
  explicit ClientFunctions(Worker& worker) : worker_(worker) {}

  /// One goes into a stream, before the driver is asked for that; with `over` it does not come.
  void comes() noexcept { ahead_.fetch_add(1); }
  void over() noexcept { ahead_.fetch_sub(1); }
  /// True if a function is in a stream, or runs. Calls the driver where graphs may have some.
  bool areAhead() { return ahead_.load() > 0 || graphsAreAhead(); }

  /// One is a graph's from now on.
  void inGraphs() noexcept { in_graphs_.store(true); }
  /// Makes the call, which launches a graph. `arguments`: the call's.
  CUresult launchGraph(Invocation& in, const CalledWith& with, forward::Reader arguments,
                       const std::function<CUresult()>& launch);
  /// Waits until the streams have passed the graphs that were launched: no longer than the pager
  /// waits for a host function (pager/launch/host_functions.h).
  void awaitGraphs();
  /// The context (the client's number) is gone, and what was in its streams.
  void contextGone(uint64_t context);

  /// Tells the client and waits until the function is over, or the session.
  void call(uint32_t number, CUresult status);
  /// The client says that it is over.
  void isOver(uint32_t number);

 private:
  struct Called {
    uint32_t calls = 0;  // that wait for it
    uint32_t done = 0;   // that the client has said are over, and that nobody has taken yet
  };

  /// A stream, as the client's number and the driver's handle have it: with both none that is made
  /// later is taken for it.
  using StreamKey = std::pair<uint64_t, CUstream>;
  struct Passed {
    CUevent event = nullptr;  // behind the last graph
    uint64_t context = 0;
    uint64_t mark = 0;  // of the last record
  };
  bool graphsAreAhead();
  void mark(Invocation& in, const StreamKey& key);

  Worker& worker_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<uint32_t, Called> called_;  // by function
  std::atomic<int64_t> ahead_{0};

  std::atomic<bool> in_graphs_{false};
  std::atomic<uint64_t> launching_{0};  // graphs
  std::atomic<size_t> marked_{0};       // of passed_
  std::mutex graphs_mutex_;
  std::map<StreamKey, Passed> passed_;
  uint64_t marks_ = 0;
};

}  // namespace olpager::gpunode
