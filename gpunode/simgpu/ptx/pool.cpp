// A thread pool for launches. Threads wait for work; a launch offers its work to idle ones and
// always works itself.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu::ptx {
namespace {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(unsigned threads)
      : concurrency_(threads != 0 ? threads : std::max(1U, std::thread::hardware_concurrency())) {}

  ~ThreadPool() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  unsigned concurrency() const override { return concurrency_; }

  void run(unsigned workers, const std::function<void(unsigned)>& fn) override {
    if (workers > 1) {
      Job job{&fn, 1, workers, 0};
      {
        const std::lock_guard lock(mutex_);
        // Started with the first launch that can use them: a process that only loads the library
        // gets no threads.
        while (threads_.size() + 1 < concurrency_) threads_.emplace_back([this] { loop(); });
        jobs_.push_back(&job);
      }
      wake_.notify_all();
      fn(0);
      std::unique_lock lock(mutex_);
      std::erase(jobs_, &job);
      done_.wait(lock, [&] { return job.running == 0; });
    } else {
      fn(0);
    }
  }

 private:
  struct Job {
    const std::function<void(unsigned)>* fn;
    unsigned next;
    unsigned workers;
    unsigned running;
  };

  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      Job& job = *jobs_.front();
      const unsigned id = job.next++;
      ++job.running;
      if (job.next == job.workers) jobs_.pop_front();
      lock.unlock();
      (*job.fn)(id);
      lock.lock();
      if (--job.running == 0) done_.notify_all();
    }
  }

  const unsigned concurrency_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Job*> jobs_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Executor> makeThreadPool(unsigned threads) {
  return std::make_unique<ThreadPool>(threads);
}

}  // namespace olpager::simgpu::ptx
