// Facts about contexts beyond the calling thread's. Thread-safety: any thread. Lock:
// PrimaryContexts::mutex.
#pragma once

#include "interpose/local/context.h"

namespace olpager::local {

/// True when `place` is a primary context that was reset or released to the end and not retained
/// since: the thread still has it current, and native CUDA answers CUDA_ERROR_CONTEXT_IS_DESTROYED.
bool primaryIsGone(const Place& place);

/// A green context of `device` has been made: `primary`, its primary context, is active with it.
void primaryIsThere(CUdevice device, CUcontext primary);

/// Before a green context of `device` goes, which greenContextsOf() counts no more: the primary one
/// goes with it where nothing else keeps it.
void primaryMayBeGone(CUdevice device);

/// The primary context of `device` while the program retains it, else nullptr.
CUcontext retainedPrimary(CUdevice device);

}  // namespace olpager::local
