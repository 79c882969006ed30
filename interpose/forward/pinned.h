// What comes back for pinned memory.
#pragma once

#include "forwarding/wire/runs.h"

namespace olpager::forward {

/// Bytes of a block that a kernel changed, from the worker of the session in `slot`. What names no
/// block is dropped.
void takePinned(unsigned slot, const Run& run);

}  // namespace olpager::forward
