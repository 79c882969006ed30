// The exchange of blocks that a worker has memory of its own for. Both keep a copy of what they
// last agreed on (`agreed`). Bytes that differ from it here were changed by the program or another
// session's kernels, and go to the worker before a kernel that may reach the block: every kernel
// after the block's address has gone to the GPU ("named"). A kernel's changes come back in
// stream order behind it (Answer::kHostBytes, session.cpp). A block that a worker shares is not
// exchanged.
//
// Thread-safety: any thread. Locks: those of the table (block_table.h).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "forwarding/wire/runs.h"

namespace olpager::forward {

class Session;

/// A kernel reaches pinned memory by an address that the program has given it: in its parameters,
/// or in bytes that went to the GPU before. Blocks that an address in [words, + bytes) lies in are
/// named from now on, for kernels of that session.
void noteAddresses(const Session* session, const void* words, uint64_t bytes);
/// Memory of `from`'s devices goes to `to`'s, unseen: memory that kernels of the one can reach,
/// those of the other can from now on.
void noteAddressesOf(const Session* to, const Session* from);
/// From now on the program's changes in the block, if the session exchanges it, are looked for
/// before the session's graphs, and the graphs' changes come back.
void noteNamed(const Session* session, uint64_t block);
/// All such blocks, by the worker's addresses.
std::vector<uint64_t> namedBlocks(const Session* session);
/// awaitMemory() of them all, by kernel.
CUresult awaitNamed(const Session& session);

/// Before a launch: the program's changes in all blocks that were ever named go to the worker, when
/// nothing is to come for them any more. Returns these blocks: the kernel's changes in them have to
/// come back.
std::vector<uint64_t> sendPinned(Session* session);
/// The same without waiting: for a thread that may not (a host function's).
void sendPinnedNow(Session* session);
/// Tells the worker on that side the program's changes, of blocks or of memory of mapThere().
void sendRuns(Session* session, unsigned side, const std::vector<std::byte>& runs);
/// Bytes of a block that a kernel changed, from the session's worker on that side. Bytes of no
/// block are dropped.
void takePinned(const Session& session, unsigned side, const Run& run);
/// Kernels of the worker on side `to` can reach what those of the one on side `from` can.
void nameAlsoAt(unsigned to, unsigned from);

/// True if kernels of the session that were launched before may have changed the memory, and the
/// changes are still to come. The session's link brings them in the order of its answers. Bytes
/// that a worker writes into a region by itself may overtake them.
bool changesAreToCome(const Session& session, const void* memory);
/// Waits until nothing is to come any more for memory that is about to be read: a copy that was
/// made before may not have brought its bytes yet. The driver would read them in stream order.
/// `reader`: whose copy or, with `by_kernel`, kernels read it: what its own kernels wrote is there
/// for the next one anyway.
CUresult awaitMemory(uint64_t address, uint64_t bytes, const Session& reader,
                     bool by_kernel = false);

}  // namespace olpager::forward
