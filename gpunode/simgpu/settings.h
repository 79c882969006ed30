// The OL_SIM_* environment; README.md lists it.
#pragma once

#include <string>

#include "base/result.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

/// Reads the environment. The error names the variable, its value, and what it takes.
Result<Settings> readSettings();

}  // namespace olpager::simgpu
