// Contexts in which an operation was refused because what it reaches was lost with a memserver.
// Such a context has ended, as one whose memory had an uncorrectable error natively: launches,
// copies, device memory that is allocated or freed, waits and questions whether work is done answer
// CUDA_ERROR_ECC_UNCORRECTABLE until it is destroyed or reset. A program that looks at its waits
// alone would take old bytes for a result otherwise. A green context shares that with its primary
// one, whose memory it uses.
//
// Thread-safety: any thread. Nothing allocates; while nothing is lost all of it is one load.
#pragma once

#include <cuda.h>

#include <atomic>

namespace olpager::local {

/// An operation in `context` was refused over lost memory.
void memoryLostIn(CUcontext context) noexcept;

/// `context` goes, or is reset: its handle may name another one from now on.
void lostContextGone(CUcontext context) noexcept;

/// Whether any context has lost memory that it needed.
extern std::atomic<bool> g_any_lost;
inline bool anyLost() noexcept { return g_any_lost.load(std::memory_order_acquire); }

/// Private.
bool isAmongLost(CUcontext context) noexcept;

/// CUDA_ERROR_ECC_UNCORRECTABLE when `context` has lost memory that it needed, else CUDA_SUCCESS.
inline CUresult lostIn(CUcontext context) noexcept {
  return anyLost() && isAmongLost(context) ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

}  // namespace olpager::local
