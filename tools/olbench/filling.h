// How fast the driver makes host memory that nobody has used yet, for one thread and for several
// that ask for it at the same time. Throws std::runtime_error.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// In a child without the pager: 1, 2, 4 and 8 threads make options.bytes of host chunks, which are
/// kept, so that each row has memory of its own. {"device", "bytes", "rows": [{"threads",
/// "gigabytes_per_second"}, ...]}. A simulated driver clears no memory: its rows tell nothing.
nlohmann::json measureFilling(const Options& options);
void printFilling(const nlohmann::json& result);

}  // namespace olpager::tools::bench
