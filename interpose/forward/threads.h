// The program's threads that call: what the worker knows each by, and how many there are.
//
// Thread-safety: any thread; no lock is held by the caller's side. Lock: a leaf of its own.
#pragma once

#include <cstdint>

namespace olpager::forward {

/// The calling thread's number, in every session the same; never 0. Given back when the thread
/// ends.
uint32_t thisThread();
/// Threads that have called and have not ended.
uint32_t callingThreads();

}  // namespace olpager::forward
