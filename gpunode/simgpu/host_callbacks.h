// The thread that runs the program's host functions (cuLaunchHostFunc, cuStreamAddCallback): one
// after the other, off the stream's own thread, as drivers do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace olpager::simgpu {

class HostCallbacks {
 public:
  static HostCallbacks& get();
  /// Runs `call` on the callback thread and returns when it has returned.
  void run(const std::function<void()>& call);

 private:
  struct Job {
    const std::function<void()>* call;
    bool done = false;
  };
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job*> jobs_;
  bool started_ = false;
};

}  // namespace olpager::simgpu
