// Blocks of host memory: pinned or managed memory that the program allocated, which lies in the
// window (window.h) at the same addresses here and at the workers, memory that it registered
// (registered.h), and variables in managed memory. Thread-safety: any thread. Locks: those of the
// table (block_table.h).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "coherence/transport/regions.h"

namespace olpager::forward {

class Call;
class Reader;
class Session;

/// A block as the program made it.
struct BlockInfo {
  uint64_t base = 0, bytes = 0;
  bool managed = false;
  bool registered = false;  // memory of the program's own, not in the window
  uint64_t there = 0;       // what kernels call `base`; 0: they can't reach it
};
/// By an address of the program's or of kernels'. False: it is in no block.
bool blockAt(uint64_t address, BlockInfo* found);
/// False: an address that lies in no block for sure. Takes no lock.
bool mayBeBlock(uint64_t address);
/// True if [address, + bytes) is pinned: allocated by cuMemHostAlloc or registered.
bool isPinned(const void* address, uint64_t bytes);
/// True if [address, + bytes) is one memory with the session's worker, at the same address: the GPU
/// copies from and to it by itself, in stream order, and nothing has to be waited for, sent or
/// looked at.
bool isShared(const Session& session, const void* address, uint64_t bytes);
/// True if the address, as kernels use it, lies in a block of which a worker has a copy of its own:
/// of any session, or of this one.
bool isExchanged(uint64_t address);
bool isExchanged(const Session& session, uint64_t address);
/// The program's address for an address of kernels': of registered memory the two differ.
uint64_t hereOf(uint64_t address);
/// True if the program has named all of a worker's [address, + bytes), as pinned memory or to a
/// copy in a graph; `here`: the program's address of it.
bool isNamedThere(uint64_t address, uint64_t bytes, uint64_t* here);
/// Names pinned memory to a session's worker: valid until it is freed or unregistered. False:
/// [address, + bytes) is not all pinned, or could not be registered.
bool pinnedRegion(const Session& session, const void* address, uint64_t bytes,
                  transport::RemoteKey* key, uint64_t* offset);

/// A block of the window: of pinned memory, or of what programs may take for managed memory, which
/// kernels reach from the start.
CUresult allocateBlock(uint64_t bytes, unsigned flags, bool managed, CUdeviceptr* out);
/// After all that uses it. Fails for a block of the other sort.
CUresult releaseBlock(uint64_t address, bool managed);
/// Blocks are every session's. A session whose first context was made after a block maps it now, in
/// that context.
void mapPinned(Session* session, uint64_t context);

/// A variable in managed memory, which is mapped here by now, all zeros as the worker takes it to
/// be: a block of its own, exchanged from now on.
void addVariable(Session* session, uint64_t address, uint64_t bytes);
/// Puts the bytes that came for a variable in place.
void putVariable(const Session* session, Reader& runs);
/// `gone` tells the worker. The variable's memory can be unmapped after that.
void removeVariable(uint64_t address, Call& gone);

/// Exchanged memory of a session's worker alone, in the window, for what is no block; also while
/// something captures. The caller tells its end, when nothing uses it.
CUresult mapThere(Session* session, uint64_t bytes, uint64_t* there);
void unmapThere(Session* session, uint64_t there);

}  // namespace olpager::forward
