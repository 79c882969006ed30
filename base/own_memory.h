// Memory of this process that the program may have unmapped or protected meanwhile, without a word:
// registered memory, as long as nothing uses it. Thread-safety: any thread, without locks.
#pragma once

#include <cstdint>

namespace olpager::base {

/// Copies [from, + bytes) of this process to `to`; false where that is not all mapped and readable.
/// Never faults, unless the system refuses such copies altogether: then it reads as anybody does.
bool readUnlessGone(void* to, uint64_t from, uint64_t bytes);
/// And `from` to [to, + bytes), up to where that is not mapped and writable; false: not all of it
/// is.
bool writeUnlessGone(uint64_t to, const void* from, uint64_t bytes);

}  // namespace olpager::base
