// Contexts that have ended over something of ours, which the driver does not know of: an operation
// was refused because what it reaches was lost with a memserver
// (CUDA_ERROR_ECC_UNCORRECTABLE, as where memory had an uncorrectable error natively), or a graph
// was launched in parts and one of them refused (CUDA_ERROR_LAUNCH_FAILED). Launches, copies,
// device memory that is allocated or freed, waits and questions whether work is done answer that
// error until the context is destroyed or reset. A program that looks at its waits alone would take
// old bytes for a result otherwise. A green context shares that with its primary one, whose memory
// it uses.
//
// Thread-safety: any thread. Nothing allocates; while no context has ended all of it is one load.
#pragma once

#include <cuda.h>

#include <atomic>

namespace olpager::local {

/// From now on everything in `context` answers `error`, which the first one to say so chooses.
void contextEnds(CUcontext context, CUresult error) noexcept;
/// An operation in `context` was refused over lost memory.
inline void memoryLostIn(CUcontext context) noexcept {
  contextEnds(context, CUDA_ERROR_ECC_UNCORRECTABLE);
}

/// `context` goes, or is reset: its handle may name another one from now on.
void lostContextGone(CUcontext context) noexcept;

/// True if any context has ended so.
extern std::atomic<bool> g_any_lost;
inline bool anyLost() noexcept { return g_any_lost.load(std::memory_order_acquire); }

/// Private.
CUresult errorOfLost(CUcontext context) noexcept;

/// The error of everything in `context`; CUDA_SUCCESS if it has not ended so.
inline CUresult lostIn(CUcontext context) noexcept {
  return anyLost() ? errorOfLost(context) : CUDA_SUCCESS;
}
/// The error of the first such context; CUDA_SUCCESS if there is none.
CUresult lostAnywhere() noexcept;

}  // namespace olpager::local
