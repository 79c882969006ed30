// What a kernel launch names. Used by launches and by graph nodes.
#pragma once

#include <cuda.h>

#include "pager/pool.h"

namespace olpager::local {

/// Adds to `access` all that the parameters of `function` (a CUfunction, or a CUkernel in its
/// place) name: `parameters` is the array of pointers to them, or nullptr with the block that
/// `extra` gives. Thread-safe; wait-free for a kernel that was launched before in `context`.
void addKernel(pager::Access& access, CUfunction function, CUcontext context,
               void* const* parameters, void* const* extra);

}  // namespace olpager::local
