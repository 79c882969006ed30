// A full memory fence.
#pragma once

#include <atomic>

#include "base/sanitizer.h"

namespace olpager::simgpu::ptx {

/// Orders all memory accesses before it before all after it, for every thread.
inline void fullFence() {
  if constexpr (base::kThreadSanitizer) {
    // The thread sanitizer knows no fences; an operation on one common variable orders the same.
    static std::atomic<int> common{0};
    common.fetch_add(1, std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

}  // namespace olpager::simgpu::ptx
