// Host functions of the client's, called from streams of the worker's: a stream goes on when the
// client has said that its function is over. Thread-safety: any thread. Lock: mutex_; nothing is
// called under it.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace olpager::gpunode {

class Worker;

class ClientFunctions {
 public:
  explicit ClientFunctions(Worker& worker) : worker_(worker) {}

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
};

}  // namespace olpager::gpunode
