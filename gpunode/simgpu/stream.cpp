#include "gpunode/simgpu/stream.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/runners.h"

namespace olpager::simgpu {

namespace {

constexpr auto kLazyLimit = std::chrono::milliseconds(500);

/// SplitMix64 (Steele, Lea, Flood 2014): a good number from any two.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Seeded: a quarter of the operations waits up to 2 ms, the others not at all.
void jitter(uint64_t seed, uint64_t stream, uint64_t number) {
  const uint64_t r = mix(seed ^ mix(stream * 0x10001 + number));
  if ((r & 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds((r >> 8) % 2000));
}

}  // namespace

bool StreamPoint::complete() const { return stream == nullptr || stream->completed(number); }

void StreamPoint::wait() const {
  if (stream != nullptr) stream->waitFor(number);
}

Stream::Stream(std::weak_ptr<Context> context, CUstream handle, uint64_t id, unsigned flags,
               int priority)
    : attributes(priority), context_(std::move(context)), handle_(handle), id_(id), flags_(flags) {}

Stream::~Stream() = default;

StreamPoint Stream::enqueue(std::unique_ptr<StreamOp> op, std::vector<StreamPoint> dependencies) {
  std::unique_lock lock(mutex_);
  const uint64_t number = ++submitted_;
  queue_.push_back(Item{std::move(op), std::move(dependencies), number});
  const bool start = !running_;
  running_ = true;
  lock.unlock();
  auto self = shared_from_this();
  if (start) Runners::get().start(self);
  return StreamPoint{std::move(self), number};
}

StreamPoint Stream::last() {
  std::scoped_lock lock(mutex_);
  return StreamPoint{shared_from_this(), submitted_};
}

bool Stream::idle() {
  std::scoped_lock lock(mutex_);
  return completed_.load(std::memory_order_relaxed) == submitted_;
}

void Stream::kick() {
  if (!Driver::get().settings.lazy) return;
  std::scoped_lock lock(mutex_);
  kicked_ = submitted_;
  changed_.notify_all();
}

void Stream::waitFor(uint64_t number) {
  if (completed(number)) return;
  std::unique_lock lock(mutex_);
  if (kicked_ < number) {
    kicked_ = number;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return completed(number); });
}

std::shared_ptr<CaptureSession> Stream::captureSession() {
  if (!inCapture()) return nullptr;
  std::scoped_lock lock(mutex_);
  return capture_;
}

void Stream::setCapture(std::shared_ptr<CaptureSession> session) {
  std::scoped_lock lock(mutex_);
  in_capture_.store(session != nullptr, std::memory_order_release);
  capture_ = std::move(session);
}

void Stream::run() {
  const Settings& settings = Driver::get().settings;
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    Item item = std::move(queue_.front());
    queue_.pop_front();
    if (settings.lazy) changed_.wait_for(lock, kLazyLimit, [&] { return kicked_ >= item.number; });
    lock.unlock();
    for (const StreamPoint& dependency : item.dependencies) dependency.wait();
    item.dependencies.clear();
    if (settings.jitter) jitter(settings.seed, id_, item.number);
    if (auto context = context_.lock()) {
      if (context->error() == CUDA_SUCCESS || item.op->always()) {
        const CUresult result = item.op->execute(*context);
        if (result != CUDA_SUCCESS) context->fail(result);
      }
      item.op.reset();  // before completion: what it holds is free when waiters go on
    }
    lock.lock();
    completed_.store(item.number, std::memory_order_release);
    changed_.notify_all();
  }
  running_ = false;
}

Runners& Runners::get() {
  static Runners* runners = new Runners;  // never destroyed: its threads outlive exit handlers
  return *runners;
}

void Runners::start(std::shared_ptr<Stream> stream) {
  std::unique_lock lock(mutex_);
  ready_.push_back(std::move(stream));
  if (idle_ >= ready_.size()) {
    changed_.notify_one();
    return;
  }
  lock.unlock();
  startThread("olsim-stream", [this] { work(); });
}

void Runners::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (ready_.empty()) {
      ++idle_;
      const bool called =
          changed_.wait_for(lock, std::chrono::seconds(2), [&] { return !ready_.empty(); });
      --idle_;
      if (!called) return;
    }
    auto stream = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    stream->run();
    stream.reset();
    lock.lock();
  }
}

void startThread(const char* name, std::function<void()> body) {
  // Signals are for the program's own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace olpager::simgpu
