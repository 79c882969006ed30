// Finds the folder for modules that clients have sent. Thread-safety: pure but for the file system.
#pragma once

#include <string>

#include "base/result.h"

namespace olpager::gpunode {

/// Makes the folder that has one for each key: `wanted`, or, where that is "", the usual place. The
/// Error is one line.
Result<std::string> makeCacheFolder(const std::string& wanted);

}  // namespace olpager::gpunode
