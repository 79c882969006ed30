// olbench disk: the tier of disks beside the disk alone, by requests of the same kind, in the same
// run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace olpager::tools::bench {

struct DiskOptions {
  std::string folder;
  uint64_t bytes = uint64_t{1} << 30;  // of each of two files
  unsigned rounds = 3;
};

nlohmann::json measureDisk(const DiskOptions& options);
void printDisk(const nlohmann::json& result);

}  // namespace olpager::tools::bench
