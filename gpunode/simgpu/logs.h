// The driver's log: messages are kept for cuLogsDumpTo*, the oldest are lost, and told to listeners
// (cuLogsRegisterCallback). Thread-safety: any thread. Locks: `calling` (while functions of the
// program's run, and while one is taken out), then `mutex`, a leaf.
#pragma once

#include <cuda.h>

#include <string>

namespace olpager::simgpu {

void logMessage(CUlogLevel level, std::string message);

}  // namespace olpager::simgpu
