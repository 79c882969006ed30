// What kernels changed in pinned memory that both ends have comes back to the client in stream order behind them. Not behind each launch: a
// host function in a stream makes the GPU wait for the CPU. What launches owe gathers here, and one host function for each stream
// pays it before anything by which the client can tell that they are done: before every call that it waits for but launches, that
// records an event, that calls a host function, ... (settlesBefore names what does not count). A client that calls nothing and looks at
// its memory sees it after kLatest.
//
// Thread-safety: any thread. Its lock is held while nothing is called.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/forward/wire.h"

namespace olpager::gpunode {

class Worker;

class Exchange {
 public:
  static constexpr std::chrono::milliseconds kLatest{2};

  explicit Exchange(Worker& worker) : worker_(worker) {}

  /// What is in this stream may have changed these blocks (all that kernels can reach); the client counts on one answer
  /// (Answer::kHostBytes).
  void owe(CUcontext context, CUstream stream, std::vector<uint64_t> blocks);
  /// Whether anything is owed.
  bool owes() const { return owes_.load(std::memory_order_relaxed); }
  /// Whether it has been owed for longer than kLatest.
  bool isLate();
  /// Enqueues the host functions that pay. Where one can't be enqueued (a context that is lost), the answer is empty.
  void settle();
  /// Whether what is owed has to be settled before this call.
  static bool settlesBefore(const forward::CallHead& head);

 private:
  Worker& worker_;
  std::atomic<bool> owes_{false};
  std::mutex mutex_;
  std::map<std::pair<CUcontext, CUstream>, uint32_t> answers_;
  std::vector<uint64_t> blocks_;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace olpager::gpunode
