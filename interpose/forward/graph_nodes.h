// Nodes of graphs that the program asks about. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

/// The host function of this number belongs to a node, or is captured into one:
/// cuGraphHostNodeGetParams tells what it is.
void noteNodeFunction(uint32_t number, const CUDA_HOST_NODE_PARAMS& given);

}  // namespace olpager::forward
