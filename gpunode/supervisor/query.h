// olgpunode --state: asks a running daemon for its sessions. Thread-safety: any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "gpunode/supervisor/options.h"

namespace olpager::gpunode {

/// A line for each session of the key's holder; "" when there is none. Waits for some seconds at most.
Result<std::string> askState(const SupervisorOptions& options);

}  // namespace olpager::gpunode
