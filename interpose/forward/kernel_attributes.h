// Attributes of kernels: which answers a change makes wrong, and changes that change nothing. Libraries set the same shared memory for
// a kernel before each of its launches. Thread-safety: any thread.
#pragma once

#include <string_view>

#include "interpose/api/driver_symbols.h"

namespace olpager::forward {

/// Whether the answer to this question may be another after an attribute of some kernel was set. `arguments`: as the generated encoder
/// writes them.
bool changesWithKernel(api::Symbol symbol, std::string_view arguments);

/// What was set may not be so any more.
void forgetSetAttributes();

}  // namespace olpager::forward
