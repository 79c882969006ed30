#include "gpunode/worker/capture_thread.h"

namespace olpager::gpunode {

CaptureThread::~CaptureThread() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void CaptureThread::run(const std::function<void()>& what) {
  std::lock_guard turn(turns_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  std::unique_lock lock(mutex_);
  due_ = &what;
  changed_.notify_all();
  changed_.wait(lock, [this] { return due_ == nullptr; });
}

void CaptureThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || due_ != nullptr; });
    if (due_ == nullptr) return;
    lock.unlock();
    (*due_)();
    lock.lock();
    due_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace olpager::gpunode
