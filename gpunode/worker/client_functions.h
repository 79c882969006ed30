// Host functions of the client's, called from streams of the worker's: a stream goes on when the
// client has said that its function is over. Thread-safety: any thread. Lock: mutex_; nothing is
// called under it.
//
// While one is in a stream, the client may wait for a page that only a call of the driver brings:
// the function touches managed memory. Drivers wait for work inside some of their calls and answer
// no other call of the context meanwhile: synchronous copies, copies to memory that is not pinned,
// and ends of pinned memory (measured on an H200, driver 580). So none of these is made then.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace olpager::gpunode {

class Worker;

class ClientFunctions {
 public:
  explicit ClientFunctions(Worker& worker) : worker_(worker) {}

  /// One goes into a stream, before the driver is asked for that; with `over` it does not come.
  void comes() noexcept { ahead_.fetch_add(1); }
  void over() noexcept { ahead_.fetch_sub(1); }
  /// Whether one is in a stream, or runs.
  bool areAhead() const noexcept { return ahead_.load() > 0; }

  /// Tells the client and waits until the function is over, or the session.
  void call(uint32_t number, CUresult status);
  /// The client says that it is over.
  void isOver(uint32_t number);

 private:
  struct Called {
    uint32_t calls = 0;  // that wait for it
    uint32_t done = 0;   // that the client has said are over, and that nobody has taken yet
  };

  Worker& worker_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<uint32_t, Called> called_;  // by function
  std::atomic<int64_t> ahead_{0};
};

}  // namespace olpager::gpunode
