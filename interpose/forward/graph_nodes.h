// Nodes of graphs that the program asks about. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace olpager::forward {

class Session;

/// The program's parameters for a function's number: a node of the session's may be asked for it.
struct NodeFunctions {
  std::mutex mutex;  // a leaf
  std::unordered_map<uint32_t, CUDA_HOST_NODE_PARAMS> of;
};

/// The host function of this number belongs to a node, or is captured into one:
/// cuGraphHostNodeGetParams tells the function.
void noteNodeFunction(const Session& session, uint32_t number, const CUDA_HOST_NODE_PARAMS& given);

}  // namespace olpager::forward
