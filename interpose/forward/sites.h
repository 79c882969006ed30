// Finds the sites of a program's executors: each a gpunode, and some of its GPUs. Thread-safety:
// any thread. Blocks while gpunodes are asked, for some seconds at most.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/settings.h"

namespace olpager::forward {

/// One executor's.
struct Site {
  std::string gpunode;  // its address, as the settings name it
  // UUID of the one GPU that it has. "": it has several, of which the program's side, or of one
  // gpunode the gpunode, shows what CUDA_VISIBLE_DEVICES names.
  std::string gpu;
  // For people and for the setting route: the address, with "/" and the GPU's number there where
  // the gpunode has several.
  std::string name;
  unsigned beside = 0;  // other sites of the program's at this gpunode
};

/// Each gpunode, with all its GPUs.
std::vector<Site> gpunodesOf(const base::Settings& settings);

/// Each GPU of each gpunode, in the order of the settings, or those that CUDA_VISIBLE_DEVICES
/// names, in its order: the GPUs of the unified view. A gpunode that knows of no GPU so far is a
/// site without one. Asks the gpunodes, all at once. The Error is one line.
Result<std::vector<Site>> gpusOf(const base::Settings& settings);

}  // namespace olpager::forward
