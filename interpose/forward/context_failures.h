// Failures of calls in a context that are still to be reported: a fault of one of its kernels, that
// it is broken, and calls that failed and that nobody waited for. Thread-safety: ContextFailures
// under the mutex of SessionContexts; FailureCounts any thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>

namespace olpager::forward {

/// Counts over all contexts of a session: calls look at these alone as long as nothing has failed.
struct FailureCounts {
  std::atomic<uint32_t> to_tell{0};  // failed calls, and broken contexts
  std::atomic<uint32_t> faults{0};
};

/// A context's; CUDA_SUCCESS: nothing.
class ContextFailures {
 public:
  explicit ContextFailures(FailureCounts& counts) : counts_(counts) {}
  ~ContextFailures();
  ContextFailures(const ContextFailures&) = delete;
  ContextFailures& operator=(const ContextFailures&) = delete;

  /// A call of this thread; the first that is not told yet counts.
  void failed(uint32_t thread, CUresult why);
  /// From now on all calls in it fail. False: they did before.
  bool breaks(CUresult why);
  void faulted(CUresult fault);

  CUresult broken() const { return broken_; }
  CUresult fault() const { return fault_; }
  /// The error of a failed call of the thread's; it is reported thereby.
  CUresult take(uint32_t thread);
  /// The same for a call of any thread.
  CUresult takeAny();

 private:
  FailureCounts& counts_;
  std::map<uint32_t, CUresult> failed_;  // by thread
  CUresult broken_ = CUDA_SUCCESS, fault_ = CUDA_SUCCESS;
};

}  // namespace olpager::forward
