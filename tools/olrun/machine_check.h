// olrun --check: what this machine lacks, each gap with its fix.
#pragma once

#include <string>
#include <vector>

#include "base/settings.h"

namespace olpager::tools {

struct Finding {
  enum class Kind : uint8_t { kGood, kNote, kGap };  // a note is a limit that local mode lives with
  Kind kind = Kind::kGood;
  std::string subject;
  std::string text;
};

/// `library`, `link_folder`: of this installation, "" when missing. `driver`: absolute path or
/// "libcuda.so.1". Asks the daemons that the settings name; what forwarded programs don't need is
/// not looked at where they name a gpunode.
std::vector<Finding> checkMachine(const base::Settings& settings, const std::string& library,
                                  const std::string& link_folder, const std::string& driver);

/// MemAvailable of /proc/meminfo in bytes; 0 unknown.
uint64_t availableMemory();

}  // namespace olpager::tools
