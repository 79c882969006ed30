// Contexts on the client: pure bookkeeping, no call. Thread-safety: the stack is each thread's own; the rest any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

/// The calling thread's current context; 0: none.
uint64_t currentContext();
/// The device of a context that exists; false for any other number.
bool deviceOf(uint64_t context, CUdevice* device);

}  // namespace olpager::forward
