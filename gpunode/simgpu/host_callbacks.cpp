#include "gpunode/simgpu/host_callbacks.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/runners.h"

namespace olpager::simgpu {

HostCallbacks& HostCallbacks::get() {
  static HostCallbacks* callbacks =
      new HostCallbacks;  // never destroyed: its thread outlives exit handlers
  return *callbacks;
}

void HostCallbacks::run(const std::function<void()>& call) {
  Job job{&call};
  std::unique_lock lock(mutex_);
  if (!started_) {
    started_ = true;
    startThread("olsim-hostfn", [this] { work(); });
  }
  jobs_.push_back(&job);
  changed_.notify_all();
  changed_.wait(lock, [&] { return job.done; });
}

void HostCallbacks::work() {
  ThreadState::get().in_callback = true;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !jobs_.empty(); });
    Job* job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    (*job->call)();
    lock.lock();
    job->done = true;
    changed_.notify_all();
  }
}

}  // namespace olpager::simgpu
