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

/// The files of this installation: a missing one is "".
struct Installation {
  std::string library, link_folder;
  std::string driver;  // absolute path or "libcuda.so.1"
};

/// Asks the daemons that the settings name; what forwarded programs don't need is not looked at
/// where these are other gpunodes than this machine's own. `no_local`: why that does not start.
std::vector<Finding> checkMachine(const base::Settings& settings, const Installation& installed,
                                  const std::string& no_local);

/// Bytes of the host tier, by the setting `host`.
uint64_t hostTier(const base::Budget& given);

}  // namespace olpager::tools
