// olbench remote: what a program under the pager gets from memservers below host RAM, beside the
// limits under it in the same run: raw sockets (or memcpy), and a copy from pinned host memory.
// With real memservers on this host.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// Sizes for the simulated GPU, or for hardware.
Options remoteSizes(bool simulated);

/// A walk through options.bytes with options.vram and options.host, for 1 to 3 memservers, 1 or 2
/// replicas, by TCP and by shared memory, reading and writing. Throws std::runtime_error.
nlohmann::json measureRemote(const Options& options);
void printRemote(const nlohmann::json& result);

}  // namespace olpager::tools::bench
