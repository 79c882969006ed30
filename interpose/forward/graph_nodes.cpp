// Nodes that a program adds to a graph by hand, as far as their parameters name memory or code of
// the program.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/copy_steps.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/graph_nodes.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/node_calls.h"
#include "interpose/forward/registered.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/stand_ins.h"

namespace olpager::forward {
namespace {

CUresult kernelNode(const Target& target, const CUDA_KERNEL_NODE_PARAMS* given, CUgraphNode* made) {
  if (given == nullptr || (target.what == NodeCall::kAdd && made == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  const auto function =
      given->func != nullptr ? given->func : reinterpret_cast<CUfunction>(given->kern);
  ParameterBlock block;
  if (const CUresult error = packParameters(function, given->kernelParams, given->extra, block);
      error != CUDA_SUCCESS)
    return error;
  // Pinned memory that it names is exchanged at each launch of the graph.
  noteAddresses(sessionOf(target), block.data(), block.bytes());
  KernelNodeHead head;
  head.function = reinterpret_cast<uint64_t>(function);
  head.context = reinterpret_cast<uint64_t>(given->ctx);
  head.grid[0] = given->gridDimX, head.grid[1] = given->gridDimY, head.grid[2] = given->gridDimZ;
  head.block[0] = given->blockDimX, head.block[1] = given->blockDimY,
  head.block[2] = given->blockDimZ;
  head.shared = given->sharedMemBytes;
  head.parameter_bytes = static_cast<uint32_t>(block.bytes());
  head.by_pointers = given->kernelParams != nullptr ? 1 : 0;
  head.as_kernel = given->func == nullptr ? 1 : 0;
  Call call(Operation::kGraphKernelNode, sessionOf(target));
  call.names(1);
  call.runs(head.function, head.context != 0 ? head.context : currentContext());
  call.usesAddresses(block.data(), block.bytes());
  put(call, target);
  call.value(head);
  call.raw(block.data(), block.bytes());
  return finish(call, made);
}

// Finds the worker's address of a side in the program's memory. Pinned memory it has as a block; of
// pageable memory it gets a stand-in. All that the copy can touch is looked at.
CUresult settleSide(Session* session, const CUDA_MEMCPY3D& box, bool source, StandIns& needed,
                    const void** side) {
  const void* const host = *side;
  const Rows rows = rowsOf(host, box, source);
  if (host == nullptr || rows.bytes() == 0 || rows.isBeyondAddresses())
    return CUDA_ERROR_INVALID_VALUE;
  const auto first = reinterpret_cast<uint64_t>(rows.first);
  uint64_t there = 0;
  if (const CUresult error = pinnedThere(first, rows.extent(), &there); error != CUDA_SUCCESS)
    return error;
  if (there != 0) {
    noteNamed(session, there);
  } else if (const CUresult error = standIn(session, first, rows.extent(), needed, &there);
             error != CUDA_SUCCESS) {
    return error;
  }
  *side = reinterpret_cast<const void*>(reinterpret_cast<uint64_t>(host) + (there - first));
  return CUDA_SUCCESS;
}

// Finds the program's address of a side of a copy that the worker tells of. False: it has not named
// all of that memory.
bool namedSide(const CUDA_MEMCPY3D& box, bool source, uint64_t* host) {
  const Rows rows = rowsOf(reinterpret_cast<const void*>(*host), box, source);
  if (rows.bytes() == 0 || rows.isBeyondAddresses()) return false;
  const auto first = reinterpret_cast<uint64_t>(rows.first);
  uint64_t here = 0;
  if (!isNamedThere(first, rows.extent(), &here)) return false;
  *host += here - first;
  return true;
}

CUresult memcpyNode(const Target& target, const CUDA_MEMCPY3D* given, CUcontext context,
                    CUgraphNode* made) {
  if (given == nullptr || (target.what == NodeCall::kAdd && made == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D box = *given;
  const auto unify = [](CUmemorytype& type, const void* host, CUdeviceptr& device) {
    if (type == CU_MEMORYTYPE_UNIFIED)
      type = isDeviceMemory(device) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    if (type != CU_MEMORYTYPE_HOST || !isAtWorker(host)) return;
    type = CU_MEMORYTYPE_DEVICE;
    device = reinterpret_cast<CUdeviceptr>(host);
  };
  if (box.srcMemoryType == CU_MEMORYTYPE_UNIFIED)
    box.srcHost = reinterpret_cast<const void*>(box.srcDevice);
  if (box.dstMemoryType == CU_MEMORYTYPE_UNIFIED)
    box.dstHost = reinterpret_cast<void*>(box.dstDevice);
  unify(box.srcMemoryType, box.srcHost, box.srcDevice);
  unify(box.dstMemoryType, box.dstHost, box.dstDevice);
  if (!pitchHoldsRow(box.srcMemoryType, box.srcPitch, box) ||
      !pitchHoldsRow(box.dstMemoryType, box.dstPitch, box))
    return CUDA_ERROR_INVALID_VALUE;
  Session* const session = sessionOf(target);
  StandIns needed;
  const CUDA_MEMCPY3D shape = box;
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST) {
    if (const CUresult error = settleSide(session, shape, true, needed, &box.srcHost);
        error != CUDA_SUCCESS)
      return error;
  }
  if (box.dstMemoryType == CU_MEMORYTYPE_HOST) {
    const void* destination = box.dstHost;
    if (const CUresult error = settleSide(session, shape, false, needed, &destination);
        error != CUDA_SUCCESS)
      return error;
    box.dstHost = const_cast<void*>(destination);
  }
  if (target.what == NodeCall::kAdd) {
    if (const CUresult error = graphNeeds(session, target.graph, needed); error != CUDA_SUCCESS)
      return error;
  }
  Call call(Operation::kGraphMemcpyNode, session);
  call.names(1);
  put(call, target);
  call.sides(box);
  call.value(box);
  call.value(reinterpret_cast<uint64_t>(context));
  const CUresult result = finish(call, made);
  if (!call.answered()) return result;
  if (target.what == NodeCall::kSet) {
    nodeNeeds(target.node, std::move(needed));
  } else if (target.what == NodeCall::kSetExec) {
    execNodeNeeds(target.exec, target.node, std::move(needed));
  }
  return result;
}

// Memory of a graph's own, outside of the pool: it is known as device memory from now on.
CUresult allocNode(CUgraph graph, const CUgraphNode* dependencies, size_t count,
                   CUDA_MEM_ALLOC_NODE_PARAMS* given, CUgraphNode* made) {
  if (given == nullptr || made == nullptr ||
      (given->accessDescCount != 0 && given->accessDescs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  const Target target{NodeCall::kAdd, graph, dependencies, count};
  Session* const session = sessionOf(target);
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(Operation::kGraphAllocNode, session);
  call.names(1);
  put(call, target);
  call.devices(given->poolProps);
  call.value(static_cast<uint64_t>(given->bytesize));
  call.value(static_cast<uint64_t>(given->accessDescCount));
  call.devices(given->accessDescs, given->accessDescCount);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  *made = call.takeHandle<CUgraphNode>();
  given->dptr = call.reply().value<CUdeviceptr>();
  session->parts().driver_memory->note(given->dptr, given->bytesize);
  noteAllocates(*session, graph);
  return call.taken(result);
}

bool nodeFunction(const Session& session, uint32_t number, CUDA_HOST_NODE_PARAMS* out) {
  NodeFunctions& all = *session.parts().node_functions;
  const std::lock_guard lock(all.mutex);
  const auto found = all.of.find(number);
  if (found != all.of.end()) *out = found->second;
  return found != all.of.end();
}

CUresult hostNode(const Target& target, const CUDA_HOST_NODE_PARAMS* given, CUgraphNode* made) {
  Session* const session = sessionOf(target);
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (given == nullptr || given->fn == nullptr ||
      (target.what == NodeCall::kAdd && made == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphHostNode, session);
  call.names(1);
  put(call, target);
  const CUDA_HOST_NODE_PARAMS params = *given;
  const uint32_t number = session->functions().expect(
      [params](CUresult) { params.fn(params.userData); }, FunctionKind::kInGraph);
  noteNodeFunction(*session, number, params);
  call.value(number);
  return finish(call, made);
}

// The graphs of its bodies are the driver's; the program reads their handles where it is told, as
// long as the graph lives.
CUresult conditionalNode(const Target& target, CUDA_CONDITIONAL_NODE_PARAMS* given,
                         CUgraphNode* made) {
  if (made == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Session* const session = sessionOf(target);
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Call call(Operation::kGraphConditionalNode, session);
  call.names(uint64_t{1} + given->size);
  put(call, target);
  call.value(static_cast<uint64_t>(given->handle));
  call.value(static_cast<int32_t>(given->type));
  call.value(static_cast<uint32_t>(given->size));
  call.value(reinterpret_cast<uint64_t>(given->ctx));
  const CUresult result = finish(call, made);
  if (!call.answered()) return result;
  const auto bodies = call.reply().raw(given->size * sizeof(uint64_t));
  if (!call.reply().ok()) return CUDA_ERROR_UNKNOWN;
  auto told = std::make_unique<ToldParameters>();
  told->block.assign(bodies.begin(), bodies.end());
  given->phGraph_out = reinterpret_cast<CUgraph*>(told->block.data());
  for (size_t i = 0; i < given->size; ++i) noteBody(given->phGraph_out[i]);
  keepTold(*session, *made, std::move(told));
  return result;
}

CUresult kernelParameters(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphNodeParameters, Route().handle(node));
  const CUresult result = ask(call, node, NodeKind::kKernel);
  if (!call.answered()) return result;
  const auto head = call.reply().value<KernelNodeHead>();
  const auto kernel = call.reply().value<uint64_t>();
  const auto block = call.reply().raw(call.reply().left());
  if (!call.reply().ok()) return CUDA_ERROR_UNKNOWN;
  const uint64_t function = head.function != 0 ? head.function : kernel;
  std::shared_ptr<const ParameterLayout> layout;
  if (const CUresult error = layoutOf(reinterpret_cast<CUfunction>(function), &layout);
      error != CUDA_SUCCESS)
    return error;
  auto made = std::make_unique<ToldParameters>();
  made->block.assign(block.begin(), block.end());
  made->bytes = block.size();
  const bool as_block = head.by_pointers == 0 && made->bytes != 0;
  made->block.resize(std::max<size_t>(made->block.size(), layout->bytes));
  if (as_block) {
    made->pointers = {CU_LAUNCH_PARAM_BUFFER_POINTER, made->block.data(),
                      CU_LAUNCH_PARAM_BUFFER_SIZE, &made->bytes, CU_LAUNCH_PARAM_END};
  } else {
    for (const ParameterPlace& place : layout->places)
      made->pointers.push_back(made->block.data() + place.offset);
  }
  *out = {};
  out->func = reinterpret_cast<CUfunction>(head.function);
  out->kern = reinterpret_cast<CUkernel>(kernel);
  out->ctx = reinterpret_cast<CUcontext>(head.context);
  out->gridDimX = head.grid[0], out->gridDimY = head.grid[1], out->gridDimZ = head.grid[2];
  out->blockDimX = head.block[0], out->blockDimY = head.block[1], out->blockDimZ = head.block[2];
  out->sharedMemBytes = head.shared;
  void** const told = made->pointers.empty() ? nullptr : made->pointers.data();
  (as_block ? out->extra : out->kernelParams) = told;
  keepTold(*call.session(), node, std::move(made));
  return result;
}

CUresult allocParameters(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphNodeParameters, Route().handle(node));
  const CUresult result = ask(call, node, NodeKind::kAlloc);
  if (!call.answered()) return result;
  Reader& reply = call.reply();
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps = reply.value<CUmemPoolProps>();
  fromWorker(*call.session(), params.poolProps.location);
  params.bytesize = reply.value<uint64_t>();
  params.dptr = reply.value<CUdeviceptr>();
  auto made = std::make_unique<ToldParameters>();
  while (reply.ok() && reply.left() >= sizeof(CUmemAccessDesc)) {
    auto access = reply.value<CUmemAccessDesc>();
    fromWorker(*call.session(), access.location);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&access);
    made->block.insert(made->block.end(), bytes, bytes + sizeof access);
  }
  if (!reply.ok()) return CUDA_ERROR_UNKNOWN;
  params.accessDescCount = made->block.size() / sizeof(CUmemAccessDesc);
  if (params.accessDescCount != 0)
    params.accessDescs = reinterpret_cast<const CUmemAccessDesc*>(made->block.data());
  *out = params;
  keepTold(*call.session(), node, std::move(made));
  return result;
}

CUresult kernelAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                         const CUkernelNodeAttrValue* value, CUkernelNodeAttrValue* out) {
  CUlaunchAttribute whole{};
  whole.id = attribute;
  if (!travels(whole))
    return refused("an attribute of a kernel node that names an event or a node", false);
  Call call(Operation::kGraphKernelNodeAttribute, Route().handle(node));
  call.value(reinterpret_cast<uint64_t>(node));
  call.value(static_cast<int32_t>(attribute));
  call.value(static_cast<uint8_t>(value != nullptr));
  if (value != nullptr) call.value(*value);
  const CUresult result = call.sync();
  if (out == nullptr || !call.answered()) return result;
  *out = call.reply().value<CUkernelNodeAttrValue>();
  return call.taken(result);
}

// The form of CUDA 10 and 11: its bytes are those that the newer one begins with, and nothing
// behind them is the program's to give.
CUDA_KERNEL_NODE_PARAMS paramsOf(const CUDA_KERNEL_NODE_PARAMS_v1& from) {
  CUDA_KERNEL_NODE_PARAMS params{};
  static_assert(sizeof from == offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
  std::memcpy(&params, &from, sizeof from);
  return params;
}
CUDA_KERNEL_NODE_PARAMS paramsOf(const CUDA_KERNEL_NODE_PARAMS_v3& from) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = from.func;
  params.kern = from.kern;
  params.ctx = from.ctx;
  params.gridDimX = from.gridDimX, params.gridDimY = from.gridDimY, params.gridDimZ = from.gridDimZ;
  params.blockDimX = from.blockDimX, params.blockDimY = from.blockDimY,
  params.blockDimZ = from.blockDimZ;
  params.sharedMemBytes = from.sharedMemBytes;
  params.kernelParams = from.kernelParams;
  params.extra = from.extra;
  return params;
}
CUDA_MEM_ALLOC_NODE_PARAMS paramsOf(const CUDA_MEM_ALLOC_NODE_PARAMS_v2& from) {
  return {from.poolProps, from.accessDescs, from.accessDescCount, from.bytesize, from.dptr};
}
CUDA_BATCH_MEM_OP_NODE_PARAMS paramsOf(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& from) {
  return {from.ctx, from.count, from.paramArray, from.flags};
}
CUDA_MEMSET_NODE_PARAMS paramsOf(const CUDA_MEMSET_NODE_PARAMS_v2& from) {
  return {from.dst, from.pitch, from.value, from.elementSize, from.width, from.height};
}
CUcontext contextOf(const CUDA_MEMSET_NODE_PARAMS_v2& from) {
  return from.ctx != nullptr ? from.ctx : reinterpret_cast<CUcontext>(currentContext());
}

}  // namespace

void noteNodeFunction(const Session& session, uint32_t number, const CUDA_HOST_NODE_PARAMS& given) {
  NodeFunctions& all = *session.parts().node_functions;
  const std::lock_guard lock(all.mutex);
  all.of[number] = given;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                            const CUgraphNode* dependencies, size_t count,
                                            const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kAdd, graph, dependencies, count}, given, node);
}
CUresult ol_forward_cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr);
}
CUresult ol_forward_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                      const CUDA_KERNEL_NODE_PARAMS* given) {
  return kernelNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, nullptr);
}
CUresult ol_forward_cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         const CUDA_KERNEL_NODE_PARAMS_v1* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS params = paramsOf(*given);
  return ol_forward_cuGraphAddKernelNode_v2(node, graph, dependencies, count, &params);
}
CUresult ol_forward_cuGraphKernelNodeSetParams(CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS_v1* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS params = paramsOf(*given);
  return ol_forward_cuGraphKernelNodeSetParams_v2(node, &params);
}
CUresult ol_forward_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS_v1* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS params = paramsOf(*given);
  return ol_forward_cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
}

CUresult ol_forward_cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph,
                                         const CUgraphNode* dependencies, size_t count,
                                         const CUDA_MEMCPY3D* given, CUcontext context) {
  return memcpyNode({NodeCall::kAdd, graph, dependencies, count}, given, context, node);
}
CUresult ol_forward_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* given) {
  return memcpyNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr, nullptr);
}
CUresult ol_forward_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_MEMCPY3D* given, CUcontext context) {
  return memcpyNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, context, nullptr);
}

CUresult ol_forward_cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph,
                                           const CUgraphNode* dependencies, size_t count,
                                           CUDA_MEM_ALLOC_NODE_PARAMS* given) {
  return allocNode(graph, dependencies, count, given, node);
}
CUresult ol_forward_cuGraphMemAllocNodeGetParams(CUgraphNode node,
                                                 CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return allocParameters(node, out);
}

CUresult ol_forward_cuGraphAddHostNode(CUgraphNode* node, CUgraph graph,
                                       const CUgraphNode* dependencies, size_t count,
                                       const CUDA_HOST_NODE_PARAMS* given) {
  return hostNode({NodeCall::kAdd, graph, dependencies, count}, given, node);
}
CUresult ol_forward_cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* given) {
  return hostNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr);
}
CUresult ol_forward_cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_HOST_NODE_PARAMS* given) {
  return hostNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, nullptr);
}

CUresult ol_forward_cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  return kernelParameters(node, out);
}
CUresult ol_forward_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS params{};
  if (const CUresult error = kernelParameters(node, &params); error != CUDA_SUCCESS) return error;
  static_assert(sizeof *out == offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
  std::memcpy(out, &params, sizeof *out);
  return CUDA_SUCCESS;
}
CUresult ol_forward_cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphNodeParameters, Route().handle(node));
  const CUresult result = ask(call, node, NodeKind::kMemcpy);
  if (!call.answered()) return result;
  const auto box = call.reply().value<CUDA_MEMCPY3D>();
  if (!call.reply().ok()) return call.taken(result);
  *out = box;
  // The worker has another address of registered and pageable memory. A program may set the node to
  // what it is told: that is memory that the program gave to a copy before.
  uint64_t source = reinterpret_cast<uint64_t>(box.srcHost),
           target = reinterpret_cast<uint64_t>(box.dstHost);
  const bool is_known =
      (box.srcMemoryType != CU_MEMORYTYPE_HOST || namedSide(box, true, &source)) &&
      (box.dstMemoryType != CU_MEMORYTYPE_HOST || namedSide(box, false, &target));
  if (!is_known) call.reply().fail();
  out->srcHost = reinterpret_cast<const void*>(source);
  out->dstHost = reinterpret_cast<void*>(target);
  return call.taken(result);
}
CUresult ol_forward_cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphNodeParameters, Route().handle(node));
  const CUresult result = ask(call, node, NodeKind::kHost);
  if (!call.answered()) return result;
  return nodeFunction(*call.session(), call.reply().value<uint32_t>(), out) ? result
                                                                            : CUDA_ERROR_UNKNOWN;
}

CUresult ol_forward_cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                                  CUkernelNodeAttrValue* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return kernelAttribute(node, attribute, nullptr, out);
}
CUresult ol_forward_cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                                  const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return kernelAttribute(node, attribute, value, nullptr);
}

// The general form, by the kinds that have a function of their own. With data of its edges a node
// is added without them at first.
CUresult ol_forward_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                      size_t count, CUgraphNodeParams* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto says = [](const CUgraphEdgeData& edge) {
    return edge.from_port != 0 || edge.to_port != 0 || edge.type != 0;
  };
  if (edges != nullptr && dependencies != nullptr && std::any_of(edges, edges + count, says)) {
    if (const CUresult error =
            ol_forward_cuGraphAddNode_v2(node, graph, nullptr, nullptr, 0, given);
        error != CUDA_SUCCESS)
      return error;
    const std::vector<CUgraphNode> to(count, *node);
    const CUresult result = ol_forward_generated_cuGraphAddDependencies_v2(graph, dependencies,
                                                                           to.data(), edges, count);
    if (result != CUDA_SUCCESS) (void)ol_forward_generated_cuGraphDestroyNode(*node);
    return result;
  }
  switch (given->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS params = paramsOf(given->kernel);
      return ol_forward_cuGraphAddKernelNode_v2(node, graph, dependencies, count, &params);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return ol_forward_cuGraphAddMemcpyNode(node, graph, dependencies, count,
                                             &given->memcpy.copyParams, given->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS params = paramsOf(given->memset);
      return ol_forward_generated_cuGraphAddMemsetNode(node, graph, dependencies, count, &params,
                                                       contextOf(given->memset));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS params{given->host.fn, given->host.userData};
      return ol_forward_cuGraphAddHostNode(node, graph, dependencies, count, &params);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (given->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
        return refused("cuGraphAddNode of a child graph that is moved", false);
      return ol_forward_generated_cuGraphAddChildGraphNode(node, graph, dependencies, count,
                                                           given->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return ol_forward_generated_cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ol_forward_generated_cuGraphAddEventWaitNode(node, graph, dependencies, count,
                                                          given->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ol_forward_generated_cuGraphAddEventRecordNode(node, graph, dependencies, count,
                                                            given->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS params = paramsOf(given->alloc);
      const CUresult result = allocNode(graph, dependencies, count, &params, node);
      if (result == CUDA_SUCCESS) given->alloc.dptr = params.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return ol_forward_generated_cuGraphAddMemFreeNode(node, graph, dependencies, count,
                                                        given->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return conditionalNode({NodeCall::kAdd, graph, dependencies, count}, &given->conditional,
                             node);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params = paramsOf(given->memOp);
      return ol_forward_cuGraphAddBatchMemOpNode(node, graph, dependencies, count, &params);
    }
    default:
      return refused("cuGraphAddNode of this kind of node", false);
  }
}
CUresult ol_forward_cuGraphAddNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count,
                                   CUgraphNodeParams* given) {
  return ol_forward_cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, given);
}

CUresult ol_forward_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (given->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS params = paramsOf(given->kernel);
      return ol_forward_cuGraphKernelNodeSetParams_v2(node, &params);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return ol_forward_cuGraphMemcpyNodeSetParams(node, &given->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS params = paramsOf(given->memset);
      return ol_forward_generated_cuGraphMemsetNodeSetParams(node, &params);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS params{given->host.fn, given->host.userData};
      return ol_forward_cuGraphHostNodeSetParams(node, &params);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ol_forward_generated_cuGraphEventWaitNodeSetEvent(node, given->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ol_forward_generated_cuGraphEventRecordNodeSetEvent(node, given->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params = paramsOf(given->memOp);
      return ol_forward_cuGraphBatchMemOpNodeSetParams(node, &params);
    }
    default:
      return refused("cuGraphNodeSetParams of this kind of node", false);
  }
}
CUresult ol_forward_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             CUgraphNodeParams* given) {
  if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (given->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS params = paramsOf(given->kernel);
      return ol_forward_cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return ol_forward_cuGraphExecMemcpyNodeSetParams(exec, node, &given->memcpy.copyParams,
                                                       given->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS params = paramsOf(given->memset);
      return ol_forward_generated_cuGraphExecMemsetNodeSetParams(exec, node, &params,
                                                                 contextOf(given->memset));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS params{given->host.fn, given->host.userData};
      return ol_forward_cuGraphExecHostNodeSetParams(exec, node, &params);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ol_forward_generated_cuGraphExecEventWaitNodeSetEvent(exec, node,
                                                                   given->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ol_forward_generated_cuGraphExecEventRecordNodeSetEvent(exec, node,
                                                                     given->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params = paramsOf(given->memOp);
      return ol_forward_cuGraphExecBatchMemOpNodeSetParams(exec, node, &params);
    }
    default:
      return refused("cuGraphExecNodeSetParams of this kind of node", false);
  }
}

}  // extern "C"
