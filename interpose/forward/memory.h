// What the client knows of addresses: pinned memory of its own, and device memory outside of the
// pool's range. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "coherence/transport/regions.h"

namespace olpager::forward {

class Call;
class Reader;
class Session;

/// Device memory of a session that is not in its pool's range (variables of modules).
void noteDeviceMemory(const Session& session, CUdeviceptr address, uint64_t bytes);
/// The session that has noted it: the current context's before others; null: nobody.
Session* sessionOfNoted(uint64_t address);
/// Whether an address that may be either is device memory: in the pool's range, noted, or nothing
/// of this process's.
bool isDeviceMemory(uint64_t address);
/// Whether [address, + bytes) is pinned: allocated by cuMemHostAlloc or registered.
bool isPinned(const void* address, uint64_t bytes);

/// Pinned memory is every session's. A session whose first context was made after the memory maps
/// it now, in that context.
void mapPinned(Session* session, uint64_t context);

/// Whether [address, + bytes) is one memory with the session's worker, at the same address: the GPU
/// copies from and to it by itself, in stream order, and nothing has to be waited for, sent or
/// looked at.
bool isShared(const Session& session, const void* address, uint64_t bytes);

/// Whether the address, as kernels use it, lies in a block of which a worker has a copy of its own:
/// of any session, or of this one.
bool isExchanged(uint64_t address);
bool isExchanged(const Session& session, uint64_t address);
/// Where the program sees what kernels see there: of registered memory it is another address than
/// theirs.
uint64_t hereOf(uint64_t address);

/// A block as the program made it.
struct BlockInfo {
  uint64_t base = 0, bytes = 0;
  bool managed = false;
  bool registered = false;  // memory of the program's own, not in the window
  uint64_t there = 0;       // what kernels call `base`; 0: they can't reach it
};
/// By an address of the program's or of kernels'. False: it is in no block.
bool blockAt(uint64_t address, BlockInfo* found);
/// A block of the window: of pinned memory, or of what programs may take for managed memory, which
/// kernels reach from the start.
CUresult allocateBlock(uint64_t bytes, unsigned flags, bool managed, CUdeviceptr* out);
/// After all that uses it. Fails for a block of the other sort.
CUresult releaseBlock(uint64_t address, bool managed);

/// A variable in managed memory, which is mapped here by now, all zeros as the worker takes it to
/// be: a block of its own, exchanged from now on.
void addVariable(Session* session, uint64_t address, uint64_t bytes);
/// What came for it is in place.
void putVariable(const Session* session, Reader& runs);
/// `gone` tells the worker. Its memory can be unmapped after that.
void removeVariable(uint64_t address, Call& gone);
/// False: an address that lies in no block for sure. Takes no lock.
bool mayBeBlock(uint64_t address);

/// Where kernels reach memory that the program registered: the workers get memory for it there,
/// which is exchanged as that of a block in the window, until it is unregistered.
CUresult mirrored(uint64_t address, CUdeviceptr* out);

/// Where the workers have [address, + bytes) of the program's pinned memory: a block of the window,
/// or what it registered, for which they get memory as by mirrored(). `there` 0: it is not all
/// pinned.
CUresult pinnedThere(uint64_t address, uint64_t bytes, uint64_t* there);

/// Exchanged memory of a session's worker alone, in the window, for what is no block; also while
/// something captures. Its end is the caller's to tell, when nothing uses it.
CUresult mapThere(Session* session, uint64_t bytes, uint64_t* there);
void unmapThere(Session* session, uint64_t there);
/// Tells the worker what the program changed of such memory, or of blocks.
void sendRuns(Session* session, const std::vector<std::byte>& runs);

/// Names pinned memory to a session's worker: valid until it is freed or unregistered. False:
/// [address, + bytes) is not all pinned, or could not be registered.
bool pinnedRegion(const Session& session, const void* address, uint64_t bytes,
                  transport::RemoteKey* key, uint64_t* offset);

/// From now on what the program changes in the block, if the session exchanges it, is looked for
/// before the session's graphs, and what they change comes back.
void noteNamed(const Session* session, uint64_t block);
/// All such blocks, by the worker's addresses.
std::vector<uint64_t> namedBlocks(const Session* session);
/// awaitMemory() of them all, by kernel.
CUresult awaitNamed(const Session& session);
/// Waits until nothing is to come any more for memory that is about to be read: a copy that was
/// made before may not have brought its bytes yet. The driver would read them in stream order.
/// `reader`: whose copy or, with `by_kernel`, kernels read it: what its own kernels wrote is there
/// for the next one anyway.
CUresult awaitMemory(uint64_t address, uint64_t bytes, const Session& reader,
                     bool by_kernel = false);

/// A kernel reaches pinned memory by an address that the program has given it: in its parameters,
/// or in bytes that went to the GPU before. Blocks that an address in [words, + bytes) lies in are
/// named from now on, for kernels of that session.
void noteAddresses(const Session* session, const void* words, uint64_t bytes);
/// Memory of `from`'s devices goes to `to`'s, unseen: what kernels of the one can reach, those of
/// the other can from now on.
void noteAddressesOf(const Session* to, const Session* from);
/// Before a launch: what the program changed in all blocks that were ever named goes to the worker,
/// when nothing is to come for them any more. Returns these blocks: what the kernel changes in them
/// has to come back.
std::vector<uint64_t> sendPinned(Session* session);
/// The same without waiting: by who may not (a host function's thread).
void sendPinnedNow(Session* session);

}  // namespace olpager::forward
