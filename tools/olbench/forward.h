// Measures the cost of forwarded calls: a program of its own natively and through an olgpunode of
// this build over TCP and shared memory, in turns, beside a raw TCP ping-pong. Throws
// std::runtime_error. Not thread-safe.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

/// {"measurement", "device", "tcp_ping_pong_us", "rows": [{"what", "unit", "native", "tcp", "shm"},
/// ...]}
nlohmann::json measureForward(const Options& options);
void printForward(const nlohmann::json& result);

}  // namespace olpager::tools::bench
