// The threads that streams run on: one for each stream that has work, borrowed from a pool that
// grows as needed, since an operation may block for as long as another stream pleases (events,
// wait-value). Idle threads end after two seconds.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class Runners {
 public:
  static Runners& get();
  /// Has a thread call stream->run().
  void start(std::shared_ptr<Stream> stream);

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Stream>> ready_;
  size_t idle_ = 0;
};

/// A detached thread with all signals blocked.
void startThread(const char* name, std::function<void()> body);

}  // namespace olpager::simgpu
