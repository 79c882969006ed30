// Starts worker processes. Thread-safety: one thread, which lives as long as they do (they die with
// it).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {

struct StartedWorker {
  pid_t pid = 0;
  base::UniqueFd socket;       // gpunode/worker/setup.h says what goes over it
  base::UniqueFd connections;  // for transport::Routes
};

/// Runs `program` with `environment` (NAME=value) and gives it `setup`. The caller reaps it. The
/// Error is one line.
Result<StartedWorker> launchWorker(const std::string& program, std::vector<std::string> environment,
                                   const WorkerSetup& setup);

/// This process's environment without the variables that the daemon decides itself.
std::vector<std::string> inheritedEnvironment();

}  // namespace olpager::gpunode
