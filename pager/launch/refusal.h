// When what an operation reaches can never be all usable at once, and what the user is told then.
#pragma once

#include "pager/reach/closure.h"

namespace olpager::pager {

/// VRAM and host memory together are too small, whatever leaves them: memservers are no place from
/// which the GPU can use memory. Under the mutex.
bool neverFits(const PoolState& state, const Closure& closure);
/// True if all memory that launches may reach can be usable at once. Under the mutex.
bool allFits(const PoolState& state);
/// Under the mutex.
void tellRefused(const PoolState& state, const Closure& closure);
/// The same where a scan that it waits for does not end.
void tellNoScan();

}  // namespace olpager::pager
