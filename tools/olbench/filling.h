// How fast the driver makes host memory that nobody has used yet, alone and behind threads that
// touch memory ahead of it (pager/residency/first_touch.h). Throws std::runtime_error.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// In a child without the pager: for 0, 1, 2, 4 and 8 threads options.bytes of host chunks are made
/// and kept, so that each row has memory of its own. {"device", "rows": [{"threads",
/// "driver_gigabytes_per_second": of the driver's calls alone, "gigabytes_per_second": until all
/// was made}, ...]}. A simulated driver clears no memory: its rows tell nothing.
nlohmann::json measureFilling(const Options& options);
void printFilling(const nlohmann::json& result);

}  // namespace olpager::tools::bench
