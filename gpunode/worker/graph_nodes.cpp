// Nodes of graphs whose parameters a client sends: kernels with their block of parameters, copies,
// its own functions.
#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/block_ranges.h"
#include "gpunode/worker/node_target.h"
#include "gpunode/worker/parameters.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/structures.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
using forward::NodeCall;

CUresult graphKernelNode(Invocation& in) {
  const NodeTarget target = readTarget(in);
  const auto head = in.value<forward::KernelNodeHead>();
  const auto sent = in.arguments().raw(head.parameter_bytes);
  if (head.parameter_bytes > forward::kMostParameterBytes) in.arguments().fail();
  const ParameterPlaces* places = nullptr;
  const auto function = in.kernel(head.function, &places);
  const auto context = in.translated<CUcontext>(head.context);
  if (!in.ok()) return in.refusal();
  if (head.by_pointers != 0 && places == nullptr) places = placesNow(in, head.function, function);
  Parameters parameters(sent, head.by_pointers != 0 ? places : nullptr);
  CUDA_KERNEL_NODE_PARAMS params{};
  if (head.as_kernel != 0) {
    params.kern = reinterpret_cast<CUkernel>(function);
  } else {
    params.func = function;
  }
  params.ctx = context;
  params.gridDimX = head.grid[0], params.gridDimY = head.grid[1], params.gridDimZ = head.grid[2];
  params.blockDimX = head.block[0], params.blockDimY = head.block[1],
  params.blockDimZ = head.block[2];
  params.sharedMemBytes = head.shared;
  params.kernelParams = parameters.pointers();
  params.extra = parameters.extra();
  const api::DriverTable& driver = in.driver();
  // The driver does not take a kernel's handle in the place of a function's here.
  CUfunction loaded = nullptr;
  if (head.as_kernel == 0 && driver.cuKernelGetFunction != nullptr &&
      driver.cuKernelGetFunction(&loaded, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS)
    params.func = loaded;
  CUgraphNode node = nullptr;
  switch (target.what) {
    case NodeCall::kAdd:
      return made(in, target,
                  driver.cuGraphAddKernelNode_v2(&node, target.graph, target.dependencies,
                                                 target.count, &params),
                  node);
    case NodeCall::kSet:
      return driver.cuGraphKernelNodeSetParams_v2(target.node, &params);
    case NodeCall::kSetExec:
      return driver.cuGraphExecKernelNodeSetParams_v2(target.exec, target.node, &params);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult graphHostNode(Invocation& in) {
  const NodeTarget target = readTarget(in);
  const auto number = in.value<uint32_t>();
  if (!in.ok()) return in.refusal();
  const CUDA_HOST_NODE_PARAMS params{clientFunction(), clientFunctionData(in.worker(), number)};
  CUgraphNode node = nullptr;
  const api::DriverTable& driver = in.driver();
  switch (target.what) {
    case NodeCall::kAdd:
      return made(in, target,
                  driver.cuGraphAddHostNode(&node, target.graph, target.dependencies, target.count,
                                            &params),
                  node);
    case NodeCall::kSet:
      return driver.cuGraphHostNodeSetParams(target.node, &params);
    case NodeCall::kSetExec:
      return driver.cuGraphExecHostNodeSetParams(target.exec, target.node, &params);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult graphMemcpyNode(Invocation& in) {
  const NodeTarget target = readTarget(in);
  auto box = in.value<CUDA_MEMCPY3D>();
  const auto context = in.handle<CUcontext>();
  if (!in.ok()) return in.refusal();
  box.reserved0 = nullptr;
  box.reserved1 = nullptr;
  if (!settleSide(in, box.srcMemoryType, CU_MEMORYTYPE_HOST, box.srcArray) ||
      !settleSide(in, box.dstMemoryType, CU_MEMORYTYPE_HOST, box.dstArray) ||
      !inBlocks(in.worker().hostMemory(), box))
    return CUDA_ERROR_INVALID_VALUE;
  const api::DriverTable& driver = in.driver();
  CUgraphNode node = nullptr;
  switch (target.what) {
    case NodeCall::kAdd:
      return made(in, target,
                  driver.cuGraphAddMemcpyNode(&node, target.graph, target.dependencies,
                                              target.count, &box, context),
                  node);
    case NodeCall::kSet:
      return driver.cuGraphMemcpyNodeSetParams(target.node, &box);
    case NodeCall::kSetExec:
      return driver.cuGraphExecMemcpyNodeSetParams(target.exec, target.node, &box, context);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

namespace {

// Appends the boxes of copies that have a side in host memory; arrays are not told.
void addHostSides(Invocation& in, CUgraph graph) {
  const api::DriverTable& driver = in.driver();
  size_t count = 0;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> nodes(count);
  if (driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) continue;
    CUgraph child = nullptr;
    CUDA_MEMCPY3D box{};
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
      addHostSides(in, child);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY &&
               driver.cuGraphMemcpyNodeGetParams(node, &box) == CUDA_SUCCESS &&
               (box.srcMemoryType == CU_MEMORYTYPE_HOST ||
                box.dstMemoryType == CU_MEMORYTYPE_HOST)) {
      box.srcArray = box.dstArray = nullptr;
      in.results().value(box);
    }
  }
}

}  // namespace

CUresult graphHostSides(Invocation& in) {
  const auto graph = in.handle<CUgraph>();
  if (!in.ok()) return in.refusal();
  addHostSides(in, graph);
  return CUDA_SUCCESS;
}

CUresult graphAllocNode(Invocation& in) {
  const NodeTarget target = readTarget(in);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps = in.value<CUmemPoolProps>();
  params.poolProps.win32SecurityAttributes = nullptr;
  params.bytesize = in.value<uint64_t>();
  params.accessDescCount = in.value<uint64_t>();
  params.accessDescs = in.array<CUmemAccessDesc>(params.accessDescCount);
  if (target.what != NodeCall::kAdd ||
      (params.accessDescs == nullptr && params.accessDescCount != 0))
    in.arguments().fail();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuGraphAddMemAllocNode == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUgraphNode node = nullptr;
  const CUresult result = made(in, target,
                               in.driver().cuGraphAddMemAllocNode(
                                   &node, target.graph, target.dependencies, target.count, &params),
                               node);
  if (result == CUDA_SUCCESS) in.results().value(params.dptr);
  return result;
}

CUresult graphConditionalNode(Invocation& in) {
  constexpr uint32_t kMostBodies = 4096;
  const NodeTarget target = readTarget(in);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = in.value<uint64_t>();
  params.conditional.type = static_cast<CUgraphConditionalNodeType>(in.value<int32_t>());
  params.conditional.size = in.value<uint32_t>();
  params.conditional.ctx = in.handle<CUcontext>();
  if (target.what != NodeCall::kAdd) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  if (params.conditional.size > kMostBodies) return CUDA_ERROR_INVALID_VALUE;
  if (in.driver().cuGraphAddNode_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUgraphNode node = nullptr;
  const CUresult result =
      made(in, target,
           in.driver().cuGraphAddNode_v2(&node, target.graph, target.dependencies, nullptr,
                                         target.count, &params),
           node);
  for (uint32_t i = 0; result == CUDA_SUCCESS && i < params.conditional.size; ++i)
    in.results().value(in.numberFor(params.conditional.phGraph_out[i]));
  return result;
}

namespace {

// One block, whichever way the driver tells it.
CUresult putParameters(Invocation& in, const CUDA_KERNEL_NODE_PARAMS& params) {
  std::vector<std::byte> block;
  if (params.kernelParams != nullptr) {
    ParameterPlaces places;
    const auto function =
        params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
    if (const CUresult error = parameterPlaces(in, function, places); error != CUDA_SUCCESS)
      return error;
    for (size_t i = 0; i < places.size(); ++i) {
      const auto& [offset, bytes] = places[i];
      if (block.size() < size_t{offset} + bytes) block.resize(size_t{offset} + bytes);
      std::memcpy(block.data() + offset, params.kernelParams[i], bytes);
    }
  } else if (params.extra != nullptr) {
    const void* from = nullptr;
    size_t bytes = 0;
    for (void** item = params.extra; item[0] != CU_LAUNCH_PARAM_END; item += 2) {
      if (item[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = item[1];
      if (item[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(item[1]);
    }
    if (from != nullptr && bytes <= forward::kMostParameterBytes) {
      block.resize(bytes);
      if (bytes != 0) std::memcpy(block.data(), from, bytes);
    }
  }
  in.results().raw(block.data(), block.size());
  return CUDA_SUCCESS;
}

CUresult kernelParameters(Invocation& in, CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS params{};
  const CUresult result = in.driver().cuGraphKernelNodeGetParams_v2(node, &params);
  if (result != CUDA_SUCCESS) return result;
  forward::KernelNodeHead head;
  head.function = params.func != nullptr ? in.numberFor(params.func) : 0;
  head.context = params.ctx != nullptr ? in.numberFor(params.ctx) : 0;
  head.grid[0] = params.gridDimX, head.grid[1] = params.gridDimY, head.grid[2] = params.gridDimZ;
  head.block[0] = params.blockDimX, head.block[1] = params.blockDimY,
  head.block[2] = params.blockDimZ;
  head.shared = params.sharedMemBytes;
  head.by_pointers = params.kernelParams != nullptr ? 1 : 0;
  in.results().value(head);
  in.results().value(params.kern != nullptr ? in.numberFor(params.kern) : uint64_t{0});
  return putParameters(in, params);
}

CUresult allocParameters(Invocation& in, CUgraphNode node) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  if (in.driver().cuGraphMemAllocNodeGetParams == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = in.driver().cuGraphMemAllocNodeGetParams(node, &params);
  if (result != CUDA_SUCCESS) return result;
  in.results().value(params.poolProps);
  in.results().value(static_cast<uint64_t>(params.bytesize));
  in.results().value(params.dptr);
  for (size_t i = 0; params.accessDescs != nullptr && i < params.accessDescCount; ++i)
    in.results().value(params.accessDescs[i]);
  return result;
}

}  // namespace

CUresult graphNodeParameters(Invocation& in) {
  const auto node = in.handle<CUgraphNode>();
  const auto kind = in.value<forward::NodeKind>();
  if (kind > forward::NodeKind::kBatch) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  if (kind == forward::NodeKind::kKernel) return kernelParameters(in, node);
  if (kind == forward::NodeKind::kAlloc) return allocParameters(in, node);
  if (kind == forward::NodeKind::kBatch) return batchParameters(in, node);
  if (kind == forward::NodeKind::kHost) {
    CUDA_HOST_NODE_PARAMS params{};
    const CUresult result = driver.cuGraphHostNodeGetParams(node, &params);
    if (result != CUDA_SUCCESS) return result;
    if (params.fn != clientFunction()) return CUDA_ERROR_NOT_SUPPORTED;
    in.results().value(clientFunctionNumber(params.userData));
    return result;
  }
  CUDA_MEMCPY3D box{};
  const CUresult result = driver.cuGraphMemcpyNodeGetParams(node, &box);
  if (result != CUDA_SUCCESS) return result;
  const auto numbered = [&](CUmemorytype type, CUarray& array) {
    array = type == CU_MEMORYTYPE_ARRAY ? handleFrom<CUarray>(in.numberFor(array)) : nullptr;
  };
  numbered(box.srcMemoryType, box.srcArray);
  numbered(box.dstMemoryType, box.dstArray);
  in.results().value(box);
  return result;
}

CUresult graphKernelNodeAttribute(Invocation& in) {
  const auto node = in.handle<CUgraphNode>();
  const auto attribute = static_cast<CUlaunchAttributeID>(in.value<int32_t>());
  const bool is_set = in.value<uint8_t>() != 0;
  auto value = is_set ? in.value<CUlaunchAttributeValue>() : CUlaunchAttributeValue{};
  if (!isPlain(attribute)) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  if (is_set) return in.driver().cuGraphKernelNodeSetAttribute(node, attribute, &value);
  const CUresult result = in.driver().cuGraphKernelNodeGetAttribute(node, attribute, &value);
  if (result == CUDA_SUCCESS) in.results().value(value);
  return result;
}

}  // namespace olpager::gpunode
