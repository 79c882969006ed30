// Contexts in which an operation was refused because what it reaches was lost with a memserver. Such a context has ended, as one
// whose memory had an uncorrectable error natively: launches, copies, allocations, waits and questions about work in it answer
// CUDA_ERROR_ECC_UNCORRECTABLE until it is destroyed or reset. A program that looks at its waits alone would take old bytes for a result otherwise.
//
// Thread-safety: any thread. No lock, no allocation.
#pragma once

#include <cuda.h>

#include <atomic>

namespace olpager::local {

/// An operation in `context` was refused over lost memory.
void memoryLostIn(CUcontext context) noexcept;

/// `context` goes, or is reset: its handle may name another one from now on.
void lostContextGone(CUcontext context) noexcept;

/// Private: whether there are any.
extern std::atomic<bool> g_any_lost;
bool isAmongLost(CUcontext context) noexcept;

/// CUDA_ERROR_ECC_UNCORRECTABLE when `context` has lost memory that it needed, else CUDA_SUCCESS. One load while none has.
inline CUresult lostIn(CUcontext context) noexcept {
  if (!g_any_lost.load(std::memory_order_acquire)) [[likely]]
    return CUDA_SUCCESS;
  return isAmongLost(context) ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

}  // namespace olpager::local
