// Tells if memory of the program's own is mapped such that other processes may have it too
// (MAP_SHARED: POSIX segments, files, memfds). Thread-safety: any thread; a mapping that changes
// meanwhile may count either way.
#pragma once

#include <cstdint>

namespace olpager::forward {

/// True where any of [address, + bytes) is. Reads the system's list of mappings: for rare
/// questions.
bool isMappedShared(uint64_t address, uint64_t bytes);

}  // namespace olpager::forward
