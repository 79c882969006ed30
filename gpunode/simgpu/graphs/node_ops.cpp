#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/modules/launch.h"

namespace olpager::simgpu {

std::unique_ptr<StreamOp> makeGraphNodeOp(const CaptureNode& spec) {
  switch (spec.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return makeLaunchOp(std::static_pointer_cast<KernelLaunch>(
          std::get<std::shared_ptr<KernelLaunchBase>>(spec.params)));
    // A launch says for all of its nodes what of the memory is allocated (GraphMemory::launch), and
    // where in the stream its events are.
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return nullptr;
    default:
      return makeNodeOp(spec);
  }
}

}  // namespace olpager::simgpu
