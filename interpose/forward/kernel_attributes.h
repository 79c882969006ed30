// Attributes of kernels: which answers a change makes wrong, and changes that change nothing.
// Libraries set the same shared memory for a kernel before each of its launches. Thread-safety: any
// thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace olpager::forward {

/// Whether the answer to this question (a symbol or an Operation, and its arguments as the
/// generated encoder writes them) may be another after something was set of some kernel.
bool changesWithKernel(size_t function, std::string_view arguments);

/// What was set may not be so any more.
void forgetSetAttributes();

}  // namespace olpager::forward
