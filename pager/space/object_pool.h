// Memory for objects of which there is one for each extent: side by side in blocks, without
// malloc's header around each.
//
// A type takes part by declaring
//   static void* operator new(size_t) / operator new(size_t, std::nothrow_t) / operator
//   delete(void*)
// with these functions behind them, so that new, delete and std::unique_ptr work as ever. Blocks
// are kept for later objects of the size and never given back: the peak of extents, at less than
// 128 bytes each.
//
// Thread-safety: any thread, with or without the pager's mutex (a lock of its own that nothing is
// taken under).
#pragma once

#include <cstddef>

namespace olpager::pager {

/// `bytes` from the pool. nullptr: no memory.
void* takePooled(size_t bytes) noexcept;
/// Gives back the memory of takePooled(bytes).
void givePooled(void* object, size_t bytes) noexcept;

}  // namespace olpager::pager
