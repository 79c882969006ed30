// olgpunode --state: asks a running daemon for its users and their shares. Thread-safety: any
// thread.
#pragma once

#include <string>

#include "base/result.h"
#include "coherence/status/status.h"
#include "gpunode/supervisor/options.h"

namespace olpager::gpunode {

/// The sessions of the key's holder, and the devices. Waits for some seconds at most.
Result<status::Status> askState(const SupervisorOptions& options);
std::string stateText(const status::Status& state);
std::string stateJson(const status::Status& state);

}  // namespace olpager::gpunode
