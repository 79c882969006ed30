// Functions that local mode takes besides those that the specification marks: it has to know of them, not to change
// what they do.
#pragma once

#include "interpose/api/driver_symbols.h"

namespace olpager::local {

/// The function of ours for `symbol`, or nullptr.
void* extraHook(api::Symbol symbol);

}  // namespace olpager::local
