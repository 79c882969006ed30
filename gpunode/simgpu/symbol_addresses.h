// Addresses of this library's own exports, whoever else in the process exports the same names (the
// preloaded pager does).
#pragma once

#include "interpose/api/driver_symbols.h"

namespace olpager::simgpu {

/// Null when the library does not export the symbol.
void* symbolAddress(api::Symbol symbol);

}  // namespace olpager::simgpu
