// olbench directory: how many steps of the ownership protocol one core makes, and what an extent
// costs that is at rest. No GPU.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace olpager::tools::bench {

struct DirectoryOptions {
  uint32_t extents = 8u << 20;  // 16 TiB of pages of 2 MiB
  unsigned rounds = 3;
};

nlohmann::json measureDirectory(const DirectoryOptions& options);
void printDirectory(const nlohmann::json& result);

}  // namespace olpager::tools::bench
