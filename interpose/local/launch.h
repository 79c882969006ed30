// Finds the memory that a kernel launch names, and a kernel's code. Used by launches, graph nodes
// and questions.
#pragma once

#include <cuda.h>

#include "pager/pool.h"

namespace olpager::local {

/// Adds to `access` all that the parameters of `function` (a CUfunction, or a CUkernel in its
/// place) name: `parameters` is the array of pointers to them, or nullptr with the block that
/// `extra` gives. Thread-safe; wait-free for a kernel that was launched before in `context`.
void addKernel(pager::Access& access, CUfunction function, CUcontext context,
               void* const* parameters, void* const* extra);

/// The driver is about to be asked something of `function` (as above) in the current context: where
/// work that runs may wait for a touch of managed memory, its code is loaded now as for a launch.
void kernelIsAsked(CUfunction function);

}  // namespace olpager::local
