// Streams: ordered queues of operations. A stream's operations run one after the other on a runner
// thread that is borrowed while the queue is not empty; blocked operations block only their own
// stream.
//
// States of an operation: submitted (in the queue, numbered) -> running (at the head, its
// dependencies complete) -> complete (Stream::completed >= its number). Submission moves the first
// under Context::submit_mutex and Stream::mutex; the runner moves the others under Stream::mutex. A
// dependency always names an operation that was submitted earlier, so waits cannot form a circle.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/stream_attributes.h"

namespace olpager::simgpu {

class Context;
class Stream;
class CaptureSession;

/// One operation of a stream, a graph node's work included. execute() runs once on a runner thread,
/// without locks held.
class StreamOp {
 public:
  virtual ~StreamOp() = default;
  /// Does the work on context.device(). An error becomes the context's sticky error
  /// (Context::fail). Not called when the context has failed already.
  virtual CUresult execute(Context& context) = 0;
  /// For the log.
  virtual const char* name() const = 0;
  /// True for what runs even in a context that has failed (cuStreamAddCallback).
  virtual bool always() const { return false; }
};

/// An operation from a callable returning CUresult.
template <typename F>
class CallOp final : public StreamOp {
 public:
  CallOp(const char* op_name, F call, bool always)
      : name_(op_name), call_(std::move(call)), always_(always) {}
  CUresult execute(Context& context) override { return call_(context); }
  const char* name() const override { return name_; }
  bool always() const override { return always_; }

 private:
  const char* name_;
  F call_;
  const bool always_;
};
template <typename F>
std::unique_ptr<StreamOp> makeOp(const char* name, F call) {
  return std::make_unique<CallOp<F>>(name, std::move(call), false);
}
template <typename F>
std::unique_ptr<StreamOp> makeAlwaysOp(const char* name, F call) {
  return std::make_unique<CallOp<F>>(name, std::move(call), true);
}

/// A place in a stream: everything up to operation `number`. Default: nothing, always complete.
/// Copyable.
struct StreamPoint {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;

  bool complete() const;
  /// Waits until complete, and makes a lazy stream run. Hold no lock.
  void wait() const;
};

/// Streams' priorities are from here to 0.
inline constexpr int kGreatestPriority = -5;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::weak_ptr<Context> context, CUstream handle, uint64_t id, unsigned flags,
         int priority);
  ~Stream();

  CUstream handle() const { return handle_; }
  uint64_t id() const { return id_; }
  unsigned flags() const { return flags_; }
  bool nonBlocking() const { return (flags_ & CU_STREAM_NON_BLOCKING) != 0; }
  int priority() const { return attributes.priority(); }
  std::shared_ptr<Context> context() const { return context_.lock(); }

  /// Puts `op` at the end, to run when `dependencies` are complete, and returns its place. Used by
  /// Context::submit(); others call that, since it adds the dependencies that the legacy stream
  /// implies.
  StreamPoint enqueue(std::unique_ptr<StreamOp> op, std::vector<StreamPoint> dependencies);
  /// Everything submitted so far.
  StreamPoint last();
  bool idle();
  /// Lets a lazy stream run what it has (OL_SIM_MODE=lazy); nothing else needs it.
  void kick();
  void waitFor(uint64_t number);
  bool completed(uint64_t number) const {
    return completed_.load(std::memory_order_acquire) >= number;
  }

  /// The capture that this stream is in, or null.
  bool inCapture() const { return in_capture_.load(std::memory_order_acquire); }
  std::shared_ptr<CaptureSession> captureSession();
  void setCapture(std::shared_ptr<CaptureSession> session);

  /// Destroyed by the program, but kept by its context until it is idle. Under
  /// Context::submit_mutex.
  bool forgotten = false;
  StreamAttributes attributes;

 private:
  friend class Runners;
  struct Item {
    std::unique_ptr<StreamOp> op;
    std::vector<StreamPoint> dependencies;
    uint64_t number;
  };
  void run();  // by a runner: until the queue is empty

  const std::weak_ptr<Context> context_;
  const CUstream handle_;
  const uint64_t id_;
  const unsigned flags_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  uint64_t submitted_ = 0;
  uint64_t kicked_ = 0;  // lazy: may run up to this number
  std::atomic<uint64_t> completed_{0};
  bool running_ = false;
  std::shared_ptr<CaptureSession> capture_;
  std::atomic<bool> in_capture_{false};
};

}  // namespace olpager::simgpu
