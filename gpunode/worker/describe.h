// Describes this node's devices. The driver itself is asked, in a process that ends afterwards: the
// supervisor never loads a driver. Thread-safety: one call in a process. Blocks as long as the
// driver takes to start.
#pragma once

#include "gpunode/worker/setup.h"

namespace olpager::gpunode {

/// `driver`: path of a libcuda, or the name by which the loader finds it.
NodeDescription describeNode(const char* driver);

}  // namespace olpager::gpunode
