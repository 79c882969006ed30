// Device memory of cuMemAlloc. The client gives out its addresses, in a part of the worker's range
// that is set aside for it, and keeps the book: the worker is told in order, and nobody waits as
// long as what is asked for is less than half of what was free when the worker last said so. Else
// the worker answers, and says anew how much is free.
//
// Thread-safety: any thread. Locks: those of the book (allocation_book.h).
#pragma once

#include <cstdint>

namespace olpager::forward {

class Session;

/// Before each call goes out: one that may use device memory or the driver's own in another way
/// ends what is known of free memory.
void noteCall(const Session& session, uint16_t function);
/// True if any memory of the context is known.
bool hasDeviceMemory(uint64_t context);

}  // namespace olpager::forward
