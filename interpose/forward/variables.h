// Variables of modules and libraries, and what goes with these. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "forwarding/wire/wire.h"

namespace olpager::forward {

/// `owner`: the module or library. One in managed memory has its bytes here, at the address that
/// kernels have for it, until its owner goes.
CUresult findVariable(VariableKind kind, uint64_t owner, const char* name, CUdeviceptr* address,
                      size_t* bytes);

/// A module was loaded in a context, or is what a library is there.
void noteModule(uint64_t module, uint64_t context);
void noteModuleOf(uint64_t module, uint64_t library);

/// Before a module, a library, or a context with the modules in it goes: the memory of their
/// managed variables does as well.
void variablesGone(uint64_t owner);

}  // namespace olpager::forward
