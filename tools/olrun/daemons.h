// The daemons that the settings name: the memservers, or the gpunodes where there are some. Asked
// before the program starts, so that one that is not there, or does not take the key, is a line of
// olrun's and not a failing cuInit inside the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/settings.h"

namespace olpager::tools {

struct DaemonAnswer {
  const char* kind = "";  // "memserver", "gpunode"
  std::string address;
  std::string problem;  // "": it would serve the program. Else one line that names the daemon
  std::string text;     // what it says of itself, one line
  bool away = false;    // it did not answer at all
};

/// Asks all at once, over connections of their own, which are closed again. Waits for some seconds
/// at most (kConnectMs, kAnswerMs). In the order of the settings. The Error: the key file can't be
/// used. All threads have ended when it returns.
Result<std::vector<DaemonAnswer>> askDaemons(const base::Settings& settings);

}  // namespace olpager::tools
