// This machine's memory as the kernel reports it. Thread-safety: any thread.
#pragma once

#include <cstdint>

namespace olpager::base {

/// Bytes of RAM; 0 where the kernel does not tell.
uint64_t totalMemory();
/// Bytes that could be used now without swapping; 0 where the kernel does not tell.
uint64_t availableMemory();

}  // namespace olpager::base
