// cuGraph* functions that add nodes and read and change what is in them.
#include "gpunode/simgpu/api.h"

#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/graph.h"
#include "gpunode/simgpu/graphs/graph_access.h"
#include "gpunode/simgpu/modules/launch.h"
#include "gpunode/simgpu/modules/library.h"

using namespace olpager::simgpu;

namespace {

// The place of a new node.
struct Place {
  CUgraphNode* out;
  CUgraph graph;
  const CUgraphNode* dependencies;
  size_t count;
  const CUgraphEdgeData* edges = nullptr;
};

CUresult add(const Place& place, CaptureNode spec, std::shared_ptr<GraphMemory> memory = nullptr,
             const std::shared_ptr<Graph>& child = nullptr, bool moves = false) {
  if (place.out == nullptr || (place.count != 0 && place.dependencies == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(place.graph, &graph); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  std::shared_ptr<GraphNode> node;
  const size_t edges = place.edges != nullptr ? place.count : 0;
  if (const CUresult error = graph->addNode(std::move(spec), {place.dependencies, place.count},
                                            {place.edges, edges}, &node);
      error != CUDA_SUCCESS) {
    return error;
  }
  node->memory = std::move(memory);
  if (child != nullptr) node->child = moves ? child : child->clone();
  if (moves) child->move();
  *place.out = node->handle;
  return CUDA_SUCCESS;
}

// Runs `make(spec to fill)` and adds the node that comes of it.
template <typename Make>
CUresult addMade(const Place& place, Make make) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  CaptureNode spec;
  if (const CUresult error = make(&spec); error != CUDA_SUCCESS) return error;
  return add(place, std::move(spec));
}

CUresult addChild(const Place& place, CUgraph handle, bool moves = false) {
  std::shared_ptr<Graph> child;
  if (const CUresult error = requireGraph(handle, &child); error != CUDA_SUCCESS) return error;
  if (handle == place.graph || child->moved()) return CUDA_ERROR_INVALID_VALUE;
  return add(place, {CU_GRAPH_NODE_TYPE_GRAPH, nullptr, {}}, nullptr, child, moves);
}

template <typename Params>
CUresult addAlloc(const Place& place, Params* params) {
  if (params == nullptr || params->bytesize == 0 ||
      params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  Device* device = Driver::get().device(params->poolProps.location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context = currentContext();
  if (context == nullptr || &context->device() != device) context = device->primary;
  if (!context->active) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<GraphMemory> memory;
  if (const CUresult error = GraphMemory::make(*context, params->bytesize, &memory);
      error != CUDA_SUCCESS) {
    return error;
  }
  params->dptr = memory->address();
  AllocNode node;
  node.params.poolProps = params->poolProps;
  node.params.bytesize = params->bytesize;
  node.params.dptr = params->dptr;
  return add(place, {CU_GRAPH_NODE_TYPE_MEM_ALLOC, context->handle(), node}, std::move(memory));
}

CUresult addFree(const Place& place, CUdeviceptr address) {
  if (!GraphMemory::isAt(address)) return CUDA_ERROR_INVALID_VALUE;
  return addMade(place, [&](CaptureNode* spec) {
    *spec = {CU_GRAPH_NODE_TYPE_MEM_FREE, nullptr, FreeNode{address}};
    return CUDA_SUCCESS;
  });
}

// Reads a node of one type: `read(spec)` under the lock.
template <typename Read>
CUresult readNode(CUgraphNode handle, CUgraphNodeType type, const void* out, Read read) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  if (node->spec.type != type) return CUDA_ERROR_INVALID_VALUE;
  read(node->spec);
  return CUDA_SUCCESS;
}

// Replaces a node's contents by what `make(old, &new)` makes.
template <typename Make>
CUresult changeNode(CUgraphNode handle, CUgraphNodeType type, Make make) {
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  CaptureNode before;
  {
    const std::lock_guard lock(graphMutex());
    if (node->spec.type != type) return CUDA_ERROR_INVALID_VALUE;
    before = node->spec;
  }
  CaptureNode spec;
  if (const CUresult error = make(before, &spec); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(graphMutex());
  node->spec = std::move(spec);
  return CUDA_SUCCESS;
}

const KernelLaunch& launchOf(const CaptureNode& spec) {
  return static_cast<const KernelLaunch&>(
      *std::get<std::shared_ptr<KernelLaunchBase>>(spec.params));
}

CUDA_KERNEL_NODE_PARAMS_v2 kernelParams(const CaptureNode& spec) {
  const KernelLaunch& launch = launchOf(spec);
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  params.func = launch.function->handle;
  // The runtime knows its kernels by these.
  if (const auto origin = launch.function->origin.lock()) params.kern = origin->handle;
  params.gridDimX = launch.grid.x;
  params.gridDimY = launch.grid.y;
  params.gridDimZ = launch.grid.z;
  params.blockDimX = launch.block.x;
  params.blockDimY = launch.block.y;
  params.blockDimZ = launch.block.z;
  params.sharedMemBytes = launch.dynamic_shared;
  params.kernelParams = const_cast<void**>(launch.parameter_pointers.data());
  params.ctx = launch.function->context_handle;
  return params;
}

CUresult getAllocParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, [out](const CaptureNode& spec) {
    *out = {};
    std::memcpy(static_cast<void*>(out), &std::get<AllocNode>(spec.params).params, sizeof(*out));
  });
}

CUresult addAny(const Place& place, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      const bool moves = params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
      if (const CUresult error = addChild(place, params->graph.graph, moves); error != CUDA_SUCCESS)
        return error;
      // The caller learns the handle of the copy that the node owns.
      return cuGraphChildGraphNodeGetGraph(*place.out, &params->graph.graph);
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return addAlloc(place, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return addFree(place, params->free.dptr);
    default:
      return addMade(place, [params](CaptureNode* spec) { return specOf(*params, nullptr, spec); });
  }
}

// Replaces a kernel node's launch by a copy that `change(launch)` has altered.
template <typename Change>
CUresult changeLaunch(CUgraphNode handle, Change change) {
  return changeNode(
      handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](const CaptureNode& before, CaptureNode* spec) {
        const KernelLaunch& old = launchOf(before);
        auto launch = std::make_shared<KernelLaunch>(old);
        launch->parameter_pointers.clear();
        for (const auto& param : launch->function->info().params) {
          launch->parameter_pointers.push_back(launch->parameters.data() + param.offset);
        }
        if (const CUresult error = change(*launch); error != CUDA_SUCCESS) return error;
        *spec = {before.type, before.context, std::shared_ptr<KernelLaunchBase>(std::move(launch))};
        return CUDA_SUCCESS;
      });
}

}  // namespace

extern "C" {

#define NODE_ARGUMENTS \
  CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count
#define NODE_PLACE \
  Place { out, graph, dependencies, count }

// --- adding --------------------------------------------------------------------------------------

CUresult CUDAAPI cuGraphAddKernelNode(NODE_ARGUMENTS, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return addMade(NODE_PLACE,
                 [params](CaptureNode* spec) { return kernelSpec(*params, nullptr, spec); });
}

CUresult CUDAAPI cuGraphAddKernelNode_v2(NODE_ARGUMENTS, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return addMade(NODE_PLACE,
                 [params](CaptureNode* spec) { return kernelSpec(*params, nullptr, spec); });
}

CUresult CUDAAPI cuGraphAddMemcpyNode(NODE_ARGUMENTS, const CUDA_MEMCPY3D* params,
                                      CUcontext context) {
  return addMade(NODE_PLACE, [&](CaptureNode* spec) { return memcpySpec(params, context, spec); });
}

CUresult CUDAAPI cuGraphAddMemsetNode(NODE_ARGUMENTS, const CUDA_MEMSET_NODE_PARAMS* params,
                                      CUcontext context) {
  return addMade(NODE_PLACE, [&](CaptureNode* spec) { return memsetSpec(params, context, spec); });
}

CUresult CUDAAPI cuGraphAddHostNode(NODE_ARGUMENTS, const CUDA_HOST_NODE_PARAMS* params) {
  return addMade(NODE_PLACE, [params](CaptureNode* spec) { return hostSpec(params, spec); });
}

CUresult CUDAAPI cuGraphAddChildGraphNode(NODE_ARGUMENTS, CUgraph child) {
  return addChild(NODE_PLACE, child);
}

CUresult CUDAAPI cuGraphAddEmptyNode(NODE_ARGUMENTS) {
  return addMade(NODE_PLACE, [](CaptureNode*) { return CUDA_SUCCESS; });
}

CUresult CUDAAPI cuGraphAddEventRecordNode(NODE_ARGUMENTS, CUevent event) {
  return addMade(NODE_PLACE, [event](CaptureNode* spec) {
    return eventSpec(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, spec);
  });
}

CUresult CUDAAPI cuGraphAddEventWaitNode(NODE_ARGUMENTS, CUevent event) {
  return addMade(NODE_PLACE, [event](CaptureNode* spec) {
    return eventSpec(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, spec);
  });
}

CUresult CUDAAPI cuGraphAddBatchMemOpNode(NODE_ARGUMENTS,
                                          const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return addMade(NODE_PLACE, [params](CaptureNode* spec) { return batchSpec(params, spec); });
}

CUresult CUDAAPI cuGraphAddMemAllocNode(NODE_ARGUMENTS, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return addAlloc(NODE_PLACE, params);
}

CUresult CUDAAPI cuGraphAddMemFreeNode(NODE_ARGUMENTS, CUdeviceptr address) {
  return addFree(NODE_PLACE, address);
}

CUresult CUDAAPI cuGraphAddNode(NODE_ARGUMENTS, CUgraphNodeParams* params) {
  return addAny(NODE_PLACE, params);
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* edges, size_t count,
                                   CUgraphNodeParams* params) {
  return addAny({out, graph, dependencies, count, edges}, params);
}

// --- reading -------------------------------------------------------------------------------------

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_KERNEL, out,
                  [out](const CaptureNode& spec) { *out = kernelParams(spec); });
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_KERNEL, out, [out](const CaptureNode& spec) {
    const CUDA_KERNEL_NODE_PARAMS_v2 params = kernelParams(spec);
    std::memcpy(out, &params, sizeof(*out));
  });
}

CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_MEMCPY, out,
                  [out](const CaptureNode& spec) { *out = std::get<CUDA_MEMCPY3D>(spec.params); });
}

CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_MEMSET, out, [out](const CaptureNode& spec) {
    *out = std::get<CUDA_MEMSET_NODE_PARAMS>(spec.params);
  });
}

CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_HOST, out, [out](const CaptureNode& spec) {
    *out = std::get<CUDA_HOST_NODE_PARAMS>(spec.params);
  });
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphNode> node;
  if (const CUresult error = requireNode(handle, &node); error != CUDA_SUCCESS) return error;
  if (node->child == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = node->child->handle();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, out, [out](const CaptureNode& spec) {
    *out = std::get<EventNode>(spec.params).event;
  });
}

CUresult CUDAAPI cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, out, [out](const CaptureNode& spec) {
    *out = std::get<EventNode>(spec.params).event;
  });
}

CUresult CUDAAPI cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                                CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, out, [out](const CaptureNode& spec) {
    const auto& ops = std::get<BatchNode>(spec.params).ops;
    *out = {spec.context, static_cast<unsigned>(ops.size()),
            const_cast<CUstreamBatchMemOpParams*>(ops.data()), 0};
  });
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return getAllocParams(node, out);
}

CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_MEM_FREE, out, [out](const CaptureNode& spec) {
    *out = std::get<FreeNode>(spec.params).address;
  });
}

// --- changing ------------------------------------------------------------------------------------

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return changeNode(node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return kernelSpec(*params, &before, spec);
                    });
}

CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return changeNode(node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return kernelSpec(*params, &before, spec);
                    });
}

CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return changeNode(node, CU_GRAPH_NODE_TYPE_MEMCPY,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return memcpySpec(params, before.context, spec);
                    });
}

CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode node,
                                            const CUDA_MEMSET_NODE_PARAMS* params) {
  return changeNode(node, CU_GRAPH_NODE_TYPE_MEMSET,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return memsetSpec(params, before.context, spec);
                    });
}

CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return changeNode(node, CU_GRAPH_NODE_TYPE_HOST, [params](const CaptureNode&, CaptureNode* spec) {
    return hostSpec(params, spec);
  });
}

CUresult CUDAAPI cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return changeNode(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [event](const CaptureNode& before, CaptureNode* spec) {
                      return eventSpec(before.type, event, spec);
                    });
}

CUresult CUDAAPI cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return changeNode(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [event](const CaptureNode& before, CaptureNode* spec) {
                      return eventSpec(before.type, event, spec);
                    });
}

CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return changeNode(
      node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      [params](const CaptureNode&, CaptureNode* spec) { return batchSpec(params, spec); });
}

CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return changeNode(node, params->type, [params](const CaptureNode& before, CaptureNode* spec) {
    const bool kernel = before.type == CU_GRAPH_NODE_TYPE_KERNEL;
    return specOf(*params, kernel ? &before : nullptr, spec);
  });
}

CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                               CUkernelNodeAttrValue* out) {
  return readNode(node, CU_GRAPH_NODE_TYPE_KERNEL, out, [id, out](const CaptureNode& spec) {
    const KernelLaunch& launch = launchOf(spec);
    std::memset(out, 0, sizeof(*out));
    for (const CUlaunchAttribute& attribute : launch.attributes) {
      if (attribute.id == id) *out = attribute.value;
    }
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) out->cooperative = launch.cooperative ? 1 : 0;
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      out->clusterDim.x = launch.cluster.x;
      out->clusterDim.y = launch.cluster.y;
      out->clusterDim.z = launch.cluster.z;
    }
  });
}

CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                               const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUlaunchAttribute attribute{};
  attribute.id = id;
  attribute.value = *value;
  return changeLaunch(node, [&attribute](KernelLaunch& launch) {
    // Seen on an H200: a node whose parameters came as a block does not become cooperative.
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0 &&
        launch.as_block)
      return CUDA_ERROR_INVALID_VALUE;
    return applyAttribute(launch, attribute);
  });
}

CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  std::vector<CUlaunchAttribute> attributes;
  bool cooperative = false;
  const CUresult read =
      readNode(from, CU_GRAPH_NODE_TYPE_KERNEL, &attributes, [&](const CaptureNode& spec) {
        attributes = launchOf(spec).attributes;
        cooperative = launchOf(spec).cooperative;
      });
  if (read != CUDA_SUCCESS) return read;
  return changeLaunch(to, [&](KernelLaunch& launch) {
    launch.cooperative = cooperative;
    for (const CUlaunchAttribute& attribute : attributes) {
      if (const CUresult error = applyAttribute(launch, attribute); error != CUDA_SUCCESS)
        return error;
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
