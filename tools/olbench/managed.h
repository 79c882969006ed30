// Managed memory between CPU and GPU, moved by the driver and by the pager. Throws
// std::runtime_error.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// In a child: GB/s of the GPU's touch of options.bytes that the CPU wrote, of the CPU's read in
/// order of what the GPU wrote, and of the GPU's touch of what the CPU has read. Microseconds of a
/// CPU fault on a page in VRAM. Times of copies from and to pinned memory. Results are checked.
nlohmann::json measureManaged(const Options& options);
/// In a child: GB/s of kernels that write options.bytes, which exceed the VRAM budget, part by
/// part.
nlohmann::json measureManagedWalk(const Options& options);

/// Driver and pager in turns; the walk by the pager alone. options.bytes fit VRAM.
nlohmann::json managed(const Options& options);
void printManaged(const nlohmann::json& result);

}  // namespace olpager::tools::bench
