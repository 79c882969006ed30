// Host memory that the program registered. Registered memory stays where it is. Workers get memory
// for it in the window, its *mirror*, when kernels or captured copies are to reach it; the two are
// exchanged as a block of the window is, until the memory is unregistered.
//
// Thread-safety: any thread. Locks: BlockTable::mirroring, above the table's others.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

/// The address at which kernels reach registered memory: its mirror, made now if there is none.
CUresult mirrored(uint64_t address, CUdeviceptr* out);

/// The workers' address for [address, + bytes) of the program's pinned memory: a block of the
/// window, or what it registered, for which they get memory as by mirrored(). `there` 0: it is not
/// all pinned.
CUresult pinnedThere(uint64_t address, uint64_t bytes, uint64_t* there);

}  // namespace olpager::forward
