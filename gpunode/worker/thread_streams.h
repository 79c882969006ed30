// The streams that stand for the default streams of the client's threads, one in each context that
// a thread uses. Thread-safety: any thread. Lock: mutex_, before Exchange's hands_; the driver is
// called under it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace olpager::gpunode {

class Worker;

class ThreadStreams {
 public:
  explicit ThreadStreams(Worker& worker) : worker_(worker) {}

  /// `thread` and `context` are the client's numbers; the context is current.
  CUresult find(uint32_t thread, uint64_t context, CUstream* stream);
  /// The driver has taken the streams in it with it.
  void contextGone(uint64_t context);

 private:
  struct ThreadStream {
    CUstream stream = nullptr;
    uint32_t thread = 0;  // whose it is
  };

  Worker& worker_;
  std::mutex mutex_;
  /// By context and the thread's place.
  std::map<std::pair<uint64_t, uint32_t>, ThreadStream> all_;
};

}  // namespace olpager::gpunode
