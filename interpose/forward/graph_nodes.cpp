// Nodes that a program adds to a graph by hand, as far as their parameters name memory or code of the program.
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/memory.h"

namespace olpager::forward {
namespace {

// Where in a graph: for kAdd the graph and what it depends on, for the others the node.
struct Target {
  NodeCall what;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
};

void put(Call& call, const Target& target) {
  call.value(target.what);
  call.value(reinterpret_cast<uint64_t>(target.graph));
  call.value(reinterpret_cast<uint64_t>(target.node));
  call.value(reinterpret_cast<uint64_t>(target.exec));
  call.value(static_cast<uint64_t>(target.dependencies != nullptr ? target.count : 0));
  call.array(target.dependencies, target.count);
}

CUresult finish(Call& call, CUgraphNode* made) {
  const CUresult result = call.sync();
  if (call.answered() && made != nullptr) *made = reinterpret_cast<CUgraphNode>(call.reply().value<uint64_t>());
  return result;
}

CUresult kernelNode(const Target& target, const CUDA_KERNEL_NODE_PARAMS* given, CUgraphNode* made) {
  if (given == nullptr || (target.what == NodeCall::kAdd && made == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const auto function = given->func != nullptr ? given->func : reinterpret_cast<CUfunction>(given->kern);
  ParameterBlock block;
  if (const CUresult error = packParameters(function, given->kernelParams, given->extra, block); error != CUDA_SUCCESS)
    return error;
  // Pinned memory that it names is exchanged at each launch of the graph.
  noteAddresses(block.data(), block.bytes());
  KernelNodeHead head;
  head.function = reinterpret_cast<uint64_t>(function);
  head.context = reinterpret_cast<uint64_t>(given->ctx);
  head.grid[0] = given->gridDimX, head.grid[1] = given->gridDimY, head.grid[2] = given->gridDimZ;
  head.block[0] = given->blockDimX, head.block[1] = given->blockDimY, head.block[2] = given->blockDimZ;
  head.shared = given->sharedMemBytes;
  head.parameter_bytes = static_cast<uint32_t>(block.bytes());
  Call call(Operation::kGraphKernelNode);
  put(call, target);
  call.value(head);
  call.raw(block.data(), block.bytes());
  return finish(call, made);
}

// Sides in the client's memory have to be pinned: the worker copies to and from what it has at the same address.
CUresult settleSide(CUmemorytype type, const void* host, uint64_t bytes) {
  if (type != CU_MEMORYTYPE_HOST) return CUDA_SUCCESS;
  const uint64_t block = blockOf(reinterpret_cast<uint64_t>(host), bytes);
  if (block == 0) return refused("a copy from or to memory in a graph that is not of cuMemHostAlloc", false);
  noteNamed(block);
  return CUDA_SUCCESS;
}

CUresult memcpyNode(const Target& target, const CUDA_MEMCPY3D* given, CUcontext context, CUgraphNode* made) {
  if (given == nullptr || (target.what == NodeCall::kAdd && made == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = *given;
  const auto unify = [](CUmemorytype& type, uint64_t device) {
    if (type == CU_MEMORYTYPE_UNIFIED) type = isDeviceMemory(device) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  };
  if (box.srcMemoryType == CU_MEMORYTYPE_UNIFIED) box.srcHost = reinterpret_cast<const void*>(box.srcDevice);
  if (box.dstMemoryType == CU_MEMORYTYPE_UNIFIED) box.dstHost = reinterpret_cast<void*>(box.dstDevice);
  unify(box.srcMemoryType, box.srcDevice);
  unify(box.dstMemoryType, box.dstDevice);
  // The worker looks at all that the copy can touch; here it is to find the block.
  if (const CUresult error = settleSide(box.srcMemoryType, box.srcHost, 1); error != CUDA_SUCCESS) return error;
  if (const CUresult error = settleSide(box.dstMemoryType, box.dstHost, 1); error != CUDA_SUCCESS) return error;
  Call call(Operation::kGraphMemcpyNode);
  put(call, target);
  call.value(box);
  call.value(reinterpret_cast<uint64_t>(context));
  return finish(call, made);
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

CUresult ol_forward_cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                            size_t count, const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kAdd, graph, dependencies, count}, given, node);
}
CUresult ol_forward_cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr);
}
CUresult ol_forward_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                      const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, nullptr);
}

CUresult ol_forward_cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                         size_t count, const CUDA_MEMCPY3D* given, CUcontext context) {
  return memcpyNode({NodeCall::kAdd, graph, dependencies, count}, given, context, node);
}
CUresult ol_forward_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* given) {
  return memcpyNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr, nullptr);
}
CUresult ol_forward_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* given,
                                                   CUcontext context) {
  return memcpyNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, context, nullptr);
}

CUresult ol_forward_cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                       const CUDA_HOST_NODE_PARAMS* given) {
  Session* const session = Session::get();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (given == nullptr || given->fn == nullptr || node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphHostNode);
  put(call, {NodeCall::kAdd, graph, dependencies, count});
  const CUhostFn function = given->fn;
  void* const data = given->userData;
  call.value(session->expectFunction([function, data](CUresult) { function(data); }, true));
  return finish(call, node);
}

// The general form, by the kinds that have a function of their own.
CUresult ol_forward_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                      const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; edges != nullptr && i < count; ++i) {
    if (edges[i].from_port != 0 || edges[i].to_port != 0 || edges[i].type != 0)
      return refused("cuGraphAddNode with data of edges", false);
  }
  switch (given->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3& from = given->kernel;
      CUDA_KERNEL_NODE_PARAMS params{};
      params.func = from.func;
      params.kern = from.kern;
      params.ctx = from.ctx;
      params.gridDimX = from.gridDimX, params.gridDimY = from.gridDimY, params.gridDimZ = from.gridDimZ;
      params.blockDimX = from.blockDimX, params.blockDimY = from.blockDimY, params.blockDimZ = from.blockDimZ;
      params.sharedMemBytes = from.sharedMemBytes;
      params.kernelParams = from.kernelParams;
      params.extra = from.extra;
      return ol_forward_cuGraphAddKernelNode_v2(node, graph, dependencies, count, &params);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return ol_forward_cuGraphAddMemcpyNode(node, graph, dependencies, count, &given->memcpy.copyParams,
                                             given->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& from = given->memset;
      const CUDA_MEMSET_NODE_PARAMS params{from.dst, from.pitch, from.value, from.elementSize, from.width, from.height};
      CUcontext context = from.ctx;
      if (context == nullptr) context = reinterpret_cast<CUcontext>(currentContext());
      return ol_forward_generated_cuGraphAddMemsetNode(node, graph, dependencies, count, &params, context);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS params{given->host.fn, given->host.userData};
      return ol_forward_cuGraphAddHostNode(node, graph, dependencies, count, &params);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return ol_forward_generated_cuGraphAddChildGraphNode(node, graph, dependencies, count, given->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return ol_forward_generated_cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ol_forward_generated_cuGraphAddEventWaitNode(node, graph, dependencies, count, given->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ol_forward_generated_cuGraphAddEventRecordNode(node, graph, dependencies, count, given->eventRecord.event);
    default:
      return refused("cuGraphAddNode of this kind of node", false);
  }
}
CUresult ol_forward_cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUgraphNodeParams* given) {
  return ol_forward_cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, given);
}

}  // extern "C"
