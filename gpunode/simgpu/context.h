// Contexts: one device's streams, sticky error, limits, and what libraries hang on it; the calling
// thread's stack of current contexts.
//
// States of a context: inactive (a primary context that nobody retains) <-> active -> destroyed
// (not primary). A fault makes it failed: every call answers the sticky error until it is reset or
// destroyed. Moved under Driver::primary_mutex (activation) and by an atomic (failure).
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gpunode/simgpu/call_lock.h"
#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/ptx/ptx.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class Device;

/// Text that kernels print: kept until the program synchronizes, then written in order, printf's to
/// stdout and that of assertions to stderr. Text that does not fit overwrites the oldest messages,
/// as in hardware's buffer. Thread-safety: any thread.
class PrintfSink final : public ptx::PrintfSink {
 public:
  void write(std::string_view text) override;
  void assertion(std::string_view text) override;
  void flush();
  /// Bytes of text that are kept (CU_LIMIT_PRINTF_FIFO_SIZE).
  void setCapacity(size_t bytes);

 private:
  std::mutex mutex_;
  std::mutex flush_mutex_;  // taken first: who flushes second finds the text written
  size_t capacity_ = 0;
  size_t bytes_ = 0;
  std::deque<std::string> messages_;
  std::string assertions_;
};

/// Kernels of a context that run. Thread-safety: any thread.
class RunningKernels {
 public:
  uint64_t begin();
  void end(uint64_t number);
  /// Waits until those that run now have ended. Hold no lock.
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> running_;
  uint64_t next_ = 0;
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(Device& device, CUcontext handle, uint64_t id, unsigned flags, bool primary);
  ~Context();

  Device& device() const { return device_; }
  CUcontext handle() const { return handle_; }
  uint64_t id() const { return id_.load(std::memory_order_relaxed); }
  bool primary() const { return primary_; }
  /// The green context that it is the context of. Set before it is given out.
  CUgreenCtx green = nullptr;
  /// The owner of memory that is allocated here: the primary context where it is a green one.
  Context& memoryOwner();
  std::atomic<unsigned> flags;
  std::atomic<bool> active{false};
  std::atomic<int> attached{0};  // cuCtxAttach

  // --- failure -----------------------------------------------------------------------------------
  /// The sticky error, or CUDA_SUCCESS.
  CUresult error() const { return error_.load(std::memory_order_acquire); }
  /// Makes `error` the sticky error unless there is one.
  void fail(CUresult error);

  // --- submission --------------------------------------------------------------------------------
  /// The stream that a handle means in this context: 0 and CU_STREAM_LEGACY the legacy default
  /// stream (with `per_thread`, 0 means the calling thread's own), CU_STREAM_PER_THREAD, or a
  /// stream of this context or another. Null: no such stream (CUDA_ERROR_INVALID_HANDLE).
  std::shared_ptr<Stream> stream(CUstream handle, bool per_thread);
  std::shared_ptr<Stream> legacy();
  std::shared_ptr<Stream> perThread();
  /// Enqueues `op` on `stream` (of this context) behind what the legacy-stream rules and
  /// `dependencies` say. Never for a stream in capture: see submitOrCapture().
  StreamPoint submit(Stream& stream, std::unique_ptr<StreamOp> op,
                     std::vector<StreamPoint> dependencies = {});
  /// The way of every asynchronous driver function: when `stream` is in capture, `node` goes to its
  /// graph, else the operation that `make` returns is submitted. `out` (may be null) gets the place
  /// when it was submitted.
  CUresult submitOrCapture(Stream& stream, const CaptureNode& node,
                           const std::function<std::unique_ptr<StreamOp>()>& make,
                           StreamPoint* out = nullptr);
  /// Waits for everything submitted to any stream of this context, prints what kernels printed; the
  /// sticky error.
  CUresult synchronize();
  /// Waits for one place, prints; the sticky error.
  CUresult synchronize(const StreamPoint& point);

  std::shared_ptr<Stream> createStream(unsigned flags, int priority);
  /// Takes the stream out of the context; its work goes on to its end.
  void forgetStream(Stream& stream);
  /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT when work on the legacy stream would depend on a stream in
  /// capture; with `invalidate` the captures are.
  CUresult checkLegacyCapture(bool invalidate = true);
  /// Places of everything submitted to this context that is not complete yet.
  std::vector<StreamPoint> pending();
  /// All streams that the program can submit to, the legacy stream included.
  std::vector<std::shared_ptr<Stream>> allStreams();
  /// A stream of the context's own, for events that the whole context records.
  std::shared_ptr<Stream> barrierStream();
  /// True when a stream of this context is in capture; they are invalidated when `invalidate` is
  /// set.
  bool capturing(bool invalidate);

  // --- what hangs on the context -----------------------------------------------------------------
  /// Runs once when the context is reset or destroyed, after its work is done: modules and others
  /// free what they have.
  void atTeardown(std::function<void()> hook);
  /// Makes an inactive context ready, with a new id and default limits.
  void activate();
  /// Waits, runs the hooks, frees the context's allocations, drops its streams. Afterwards it is
  /// inactive with no error.
  void teardown();

  PrintfSink& printf() { return printf_; }
  RunningKernels& runningKernels() { return running_kernels_; }
  /// For ptx::run: set while the context is torn down, so that endless kernels end.
  std::atomic<bool> cancel{false};
  size_t limit(CUlimit limit) const;
  CUresult setLimit(CUlimit limit, size_t value);
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  /// True when `peer`'s memory is enabled here (cuCtxEnablePeerAccess).
  bool peerEnabled(const Context& peer) const;
  CUresult enablePeer(Context& peer);
  CUresult disablePeer(Context& peer);

  std::mutex submit_mutex;
  /// OL_SIM_CTXLOCK: held while one of these waits for work of the context, as some drivers do
  /// (measured on an H200, driver 580): module load, free, a synchronous copy, a copy to memory
  /// that is not pinned. Taken by CallLock.
  std::recursive_mutex call_lock;
  /// Waits while a thread holds `call_lock`, first in every other call of the context.
  void waitForCallLock();

 private:
  friend class ThreadState;
  std::vector<StreamPoint> pendingLocked(bool blocking_only);

  Device& device_;
  const CUcontext handle_;
  std::atomic<uint64_t> id_;
  const bool primary_;
  std::atomic<CUresult> error_{CUDA_SUCCESS};
  std::shared_ptr<Stream> legacy_;
  std::shared_ptr<Stream> barrier_;
  std::vector<std::shared_ptr<Stream>> streams_;  // all but the legacy stream; under submit_mutex
  mutable std::mutex mutex_;
  std::array<size_t, CU_LIMIT_MAX> limits_{};
  std::vector<CUcontext> peers_;
  std::vector<std::function<void()>> hooks_;
  PrintfSink printf_;
  RunningKernels running_kernels_;
};

/// One thread's state: its stack of current contexts, capture mode, per-thread default streams.
/// Freed when the thread ends, never at the end of the process (exit handlers still call the
/// driver).
class ThreadState {
 public:
  static ThreadState& get();
  ~ThreadState();

  std::vector<std::shared_ptr<Context>> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool in_callback = false;  // a host function may not call the driver

 private:
  friend class Context;
  struct PerThreadStream {
    std::weak_ptr<Context> context;
    uint64_t context_id;
    std::shared_ptr<Stream> stream;
  };
  std::vector<PerThreadStream> streams_;
};

/// A number that no other stream of the process has had (cuStreamGetId).
uint64_t newStreamId();

// --- the calling thread --------------------------------------------------------------------------
/// The current context, whatever its state; null when there is none.
std::shared_ptr<Context> currentContext();
/// The current context ready for work: CUDA_ERROR_NOT_INITIALIZED, INVALID_CONTEXT,
/// CONTEXT_IS_DESTROYED, or the sticky error. Every driver function that needs a context starts
/// with it.
CUresult requireContext(std::shared_ptr<Context>* out);
/// requireContext() and the stream that the handle means in it, with its own context (streams carry
/// theirs).
CUresult requireStream(CUstream handle, bool per_thread, std::shared_ptr<Context>* context,
                       std::shared_ptr<Stream>* stream);
/// requireStream() for a stream that need not be of the current context: one that the program has
/// made is found without any.
CUresult requireOwnStream(CUstream handle, bool per_thread, std::shared_ptr<Context>* context,
                          std::shared_ptr<Stream>* stream);
/// True if the handle is none that the program has made.
inline bool isDefaultStream(CUstream handle) {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}
/// True if it means the legacy default stream, which some functions refuse.
inline bool isLegacy(CUstream handle, bool per_thread) {
  return handle == CU_STREAM_LEGACY || (handle == nullptr && !per_thread);
}
/// CUDA_SUCCESS after cuInit in this process; CUDA_ERROR_NOT_INITIALIZED before it and in a forked
/// child.
CUresult requireInit();

}  // namespace olpager::simgpu
