// olbench memserver: what a session gets from a real olmemserver on this host, beside the bare link
// to it in the same run.
#pragma once

#include <nlohmann/json.hpp>

namespace olpager::tools::bench {

struct MemserverOptions {
  unsigned rounds = 5;
  double seconds = 0.5;  // of each timed part
};

nlohmann::json measureMemserver(const MemserverOptions& options);
void printMemserver(const nlohmann::json& result);

}  // namespace olpager::tools::bench
