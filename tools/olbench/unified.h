// Measures the cost of the unified view over two gpunodes beside one gpunode alone: launches whose
// memory is where they run, and launches whose memory is elsewhere in turns. Throws
// std::runtime_error. Not thread-safe.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// {"measurement", "device", "shared_page_bytes", "rows": [{"what", "unit", "one", "two"}, ...] for
/// each transport}
nlohmann::json measureUnified(const Options& options);
void printUnified(const nlohmann::json& result);
/// In a child that is forwarded: its memory is 3/5 of options.vram at a time, so that two such
/// blocks are at one gpunode by paging, and at two without.
nlohmann::json measureUnifiedChild(const Options& options);

}  // namespace olpager::tools::bench
