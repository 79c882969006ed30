// Helpers of the graph functions: handles to objects, parameter structs to nodes.
#pragma once

#include <cuda.h>

#include <memory>

#include "gpunode/simgpu/graphs/graph.h"

namespace olpager::simgpu {

/// CUDA_ERROR_NOT_INITIALIZED, or INVALID_VALUE for what is no graph or node.
CUresult requireGraph(CUgraph handle, std::shared_ptr<Graph>* graph);
CUresult requireNode(CUgraphNode handle, std::shared_ptr<GraphNode>* node);

// A node's contents from the driver's parameter structs, checked as the driver does. `context`
// null: the current one. `before`: what the node was, so that a kernel keeps the attributes that
// only other functions set.
CUresult kernelSpec(const CUDA_KERNEL_NODE_PARAMS_v2& params, const CaptureNode* before,
                    CaptureNode* out);
CUresult kernelSpec(const CUDA_KERNEL_NODE_PARAMS_v1& params, const CaptureNode* before,
                    CaptureNode* out);
CUresult memcpySpec(const CUDA_MEMCPY3D* params, CUcontext context, CaptureNode* out);
CUresult memsetSpec(const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context, CaptureNode* out);
CUresult hostSpec(const CUDA_HOST_NODE_PARAMS_v1* params, CaptureNode* out);
CUresult batchSpec(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params, CaptureNode* out);
CUresult eventSpec(CUgraphNodeType type, CUevent event, CaptureNode* out);
/// Looks at the memory of a copy or memset: CUDA_ERROR_INVALID_VALUE where it is not mapped (or the
/// parameters make no sense), else its `places` are what they are now. The driver does so when a
/// node gets parameters, in a graph or in an instance, and to memsets alone again when they become
/// executable. Nothing for nodes of other types.
CUresult lookUp(CaptureNode* spec);
/// Any of the above, by its type; children, allocations, frees and conditionals have functions of
/// their own.
CUresult specOf(const CUgraphNodeParams& params, const CaptureNode* before, CaptureNode* out);

}  // namespace olpager::simgpu
