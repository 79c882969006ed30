// A full memory fence.
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define PTX_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PTX_THREAD_SANITIZER 1
#endif
#endif

namespace olpager::simgpu::ptx {

/// Orders all memory accesses before it before all after it, for every thread.
inline void fullFence() {
#ifdef PTX_THREAD_SANITIZER
  // The thread sanitizer knows no fences; an operation on one common variable orders the same.
  static std::atomic<int> common{0};
  common.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace olpager::simgpu::ptx
