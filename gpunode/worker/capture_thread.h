// Captures that forbid threads something begin and end on one thread: the driver asks that, and the
// worker's own threads take turns (lead.h). The client decides which of its threads may do what
// (interpose/forward/captures.h). Thread-safety: any thread. Locks: turns_, held while something
// runs; below it mutex_, which is not.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace olpager::gpunode {

class CaptureThread {
 public:
  CaptureThread() = default;
  ~CaptureThread();
  CaptureThread(const CaptureThread&) = delete;
  CaptureThread& operator=(const CaptureThread&) = delete;

  /// Runs `what` there, and waits until it is over. `what` does not throw.
  void run(const std::function<void()>& what);

 private:
  void work();

  std::mutex turns_;  // one caller at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* due_ = nullptr;
  bool ends_ = false;
  std::thread thread_;  // started by the first run()
};

}  // namespace olpager::gpunode
