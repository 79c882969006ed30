// The gpunode that a program has for itself on this machine (--gpunode local;
// forwarding/local_gpunode.h).
#pragma once

#include <string>

#include "base/result.h"
#include "base/settings.h"
#include "tools/olrun/environment.h"

namespace olpager::tools {

/// Starts it for this process and whatever this process becomes, and waits until it serves.
/// Settings of this machine's memory and driver hold for it. `self`: this program's own path. The
/// path of its Unix socket; the Error is one line without its name. Before there is a second
/// thread.
Result<std::string> startLocalGpunode(const base::Settings& settings,
                                      const Environment& environment, const std::string& self);

}  // namespace olpager::tools
