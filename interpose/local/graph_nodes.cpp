#include "interpose/local/graph_nodes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interpose/api/local_functions.h"
#include "interpose/api/range_extractors.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/launch.h"
#include "interpose/local/local_runtime.h"
#include "interpose/local/param_layout.h"
#include "interpose/local/root.h"
#include "interpose/local/runtime.h"

namespace olpager::local {

namespace {

namespace extract = api::extract;
using pager::Access;
using pager::Mode;
using pager::StreamKey;

constexpr unsigned kMostParameterBytes = 32764;  // of any device

// Attributes that a launch in a stream takes from a node.
constexpr CUlaunchAttributeID kAttributes[] = {
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING,
};

// True if a node without the attribute would read otherwise. A launch is told nothing that it would
// do anyway: a kernel may have been compiled with a cluster size, and drivers differ in what they
// take.
bool says(const CUlaunchAttribute& attribute) {
  const CUlaunchAttributeValue& value = attribute.value;
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      return value.accessPolicyWindow.num_bytes != 0;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return value.cooperative != 0;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return value.clusterDim.x > 1 || value.clusterDim.y > 1 || value.clusterDim.z > 1;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return value.clusterSchedulingPolicyPreference != CU_CLUSTER_SCHEDULING_POLICY_DEFAULT;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      return true;  // where priorities count, zero is one
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      return value.memSyncDomainMap.remote > 1 || value.memSyncDomainMap.default_ != 0;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      return value.preferredClusterDim.x > 1 || value.preferredClusterDim.y > 1 ||
             value.preferredClusterDim.z > 1;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return static_cast<int>(value.sharedMemCarveout) > 0;
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return value.nvlinkUtilCentricScheduling != 0;
    default:
      return false;
  }
}

std::vector<CUlaunchAttribute> attributesOf(CUgraphNode node) {
  std::vector<CUlaunchAttribute> attributes;
  for (const CUlaunchAttributeID id : kAttributes) {
    CUlaunchAttribute attribute{};
    attribute.id = id;
    if (driver().cuGraphKernelNodeGetAttribute(node, id, &attribute.value) == CUDA_SUCCESS &&
        says(attribute))
      attributes.push_back(attribute);
  }
  return attributes;
}

bool isUpdatedFromDevice(CUgraphNode node) {
  CUlaunchAttributeValue value{};
  return driver().cuGraphKernelNodeGetAttribute(
             node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value) == CUDA_SUCCESS &&
         value.deviceUpdatableKernelNode.deviceUpdatable != 0;
}

// Memory of the program's that is neither the driver's nor registered there.
bool isPageable(uint64_t address) {
  const pager::Pool* const running = pool();
  if (address == 0 || (running != nullptr && running->contains(address))) return false;
  unsigned type = 0;
  return driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
         CUDA_SUCCESS;
}

uint64_t hostSide(CUmemorytype type, const void* host, CUdeviceptr address) {
  if (type == CU_MEMORYTYPE_HOST) return reinterpret_cast<uint64_t>(host);
  return type == CU_MEMORYTYPE_UNIFIED ? address : 0;
}

bool isLinear(CUmemorytype type) { return type != CU_MEMORYTYPE_ARRAY; }

// The start of the one row of a copy.
CUdeviceptr firstByte(CUmemorytype type, const void* host, CUdeviceptr address, size_t x, size_t y,
                      size_t z, size_t pitch, size_t height) {
  const CUdeviceptr base =
      type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : address;
  return base + (z * height + y) * pitch + x;
}

// Names what a copy reads and writes to its access.
class CopyReach final : public extract::RangeSink {
 public:
  CopyReach(Access& access, const pager::Pool& running) : access_(access), running_(running) {}
  void add(uint64_t address, uint64_t bytes, extract::Use use) override {
    bytes = std::min(bytes, uint64_t{1} << 62);
    if (use == extract::Use::kRead && !running_.contains(address))
      access_.addHostSource(reinterpret_cast<const void*>(address), bytes, false);
    else
      access_.addRange(address, bytes, static_cast<Mode>(use));
  }
  void addFrom(uint64_t address) override { access_.addParameter(&address, sizeof address); }
  uint64_t arrayElementBytes(CUarray array) override {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    if (driver().cuArray3DGetDescriptor_v2(&descriptor, array) != CUDA_SUCCESS) return 1;
    return extract::arrayFormatBytes(descriptor.Format) * descriptor.NumChannels;
  }

 private:
  Access& access_;
  const pager::Pool& running_;
};

struct ParameterBlock {
  const void* from = nullptr;
  size_t bytes = 0;
};

ParameterBlock blockIn(void* const* extra) {
  ParameterBlock block;
  for (; extra != nullptr && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) block.from = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != nullptr)
      std::memcpy(&block.bytes, extra[1], sizeof(block.bytes));
  }
  return block;
}

constexpr size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

// The driver frees an executable graph that still runs when it has run.
Node::~Node() {
  if (const auto* const copy = std::get_if<Copy>(&values_); copy != nullptr && copy->own != nullptr)
    if (copy->own->exec != nullptr) static_cast<void>(driver().cuGraphExecDestroy(copy->own->exec));
}

NodePtr Node::make(CUgraphNodeType type, Values values) {
  return NodePtr(new Node(type, std::move(values)));
}

NodePtr Node::of(const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return nullptr;
  Kernel kernel;
  kernel.function =
      params->func != nullptr ? params->func : reinterpret_cast<CUfunction>(params->kern);
  if (params->func == nullptr) kernel.context = params->ctx;
  kernel.grid[0] = params->gridDimX, kernel.grid[1] = params->gridDimY;
  kernel.grid[2] = params->gridDimZ;
  kernel.block[0] = params->blockDimX, kernel.block[1] = params->blockDimY;
  kernel.block[2] = params->blockDimZ;
  kernel.shared = params->sharedMemBytes;
  if (params->kernelParams != nullptr) {
    const CUcontext context = params->ctx != nullptr ? params->ctx : currentContext();
    const ParamLayout* layout = findParamLayout(kernel.function, context);
    if (layout == nullptr) layout = loadParamLayout(kernel.function, context);
    if (layout == nullptr) return nullptr;
    size_t bytes = 0;
    for (const uint32_t size : layout->sizes) bytes += aligned(size);
    kernel.values.resize(bytes);
    kernel.offsets.reserve(layout->sizes.size());
    for (size_t i = 0, at = 0; i < layout->sizes.size(); at += aligned(layout->sizes[i++])) {
      std::memcpy(kernel.values.data() + at, params->kernelParams[i], layout->sizes[i]);
      kernel.offsets.push_back(at);
    }
  } else if (const ParameterBlock block = blockIn(params->extra); block.from != nullptr) {
    if (block.bytes > kMostParameterBytes) return nullptr;
    const auto* const from = static_cast<const std::byte*>(block.from);
    kernel.values.assign(from, from + block.bytes);
    kernel.as_block = true;
  }
  return make(CU_GRAPH_NODE_TYPE_KERNEL, std::move(kernel));
}

NodePtr Node::of(const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return nullptr;
  CUDA_KERNEL_NODE_PARAMS_v2 newer{};
  newer.func = params->func;
  newer.gridDimX = params->gridDimX, newer.gridDimY = params->gridDimY;
  newer.gridDimZ = params->gridDimZ;
  newer.blockDimX = params->blockDimX, newer.blockDimY = params->blockDimY;
  newer.blockDimZ = params->blockDimZ;
  newer.sharedMemBytes = params->sharedMemBytes;
  newer.kernelParams = params->kernelParams;
  newer.extra = params->extra;
  return of(&newer);
}

NodePtr Node::of(const CUDA_MEMCPY3D* params) {
  if (params == nullptr) return nullptr;
  Copy copy;
  copy.params = *params;
  if (isPageable(hostSide(params->srcMemoryType, params->srcHost, params->srcDevice)) ||
      isPageable(hostSide(params->dstMemoryType, params->dstHost, params->dstDevice)))
    copy.own = std::make_unique<OwnGraph>();
  return make(CU_GRAPH_NODE_TYPE_MEMCPY, std::move(copy));
}

NodePtr Node::of(const CUDA_MEMSET_NODE_PARAMS_v1* params) {
  return params != nullptr ? make(CU_GRAPH_NODE_TYPE_MEMSET, *params) : nullptr;
}

NodePtr Node::of(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params) {
  if (params == nullptr || (params->paramArray == nullptr && params->count != 0)) return nullptr;
  Batch batch;
  batch.operations.assign(params->paramArray, params->paramArray + params->count);
  batch.flags = params->flags;
  return make(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, std::move(batch));
}

NodePtr Node::of(const CUDA_HOST_NODE_PARAMS_v1* params) {
  return params != nullptr ? make(CU_GRAPH_NODE_TYPE_HOST, *params) : nullptr;
}

NodePtr Node::ofEvent(CUgraphNodeType type, CUevent event) { return make(type, event); }

NodePtr Node::of(const CUgraphNodeParams* params) {
  if (params == nullptr) return nullptr;
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
      static_assert(sizeof(kernel) == sizeof(params->kernel));
      std::memcpy(&kernel, &params->kernel, sizeof(kernel));
      return of(&kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return of(&params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v1 set{params->memset.dst,   params->memset.pitch,
                                           params->memset.value, params->memset.elementSize,
                                           params->memset.width, params->memset.height};
      return of(&set);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 batch{params->memOp.ctx, params->memOp.count,
                                                   params->memOp.paramArray, params->memOp.flags};
      return of(&batch);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS_v1 host{params->host.fn, params->host.userData};
      return of(&host);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ofEvent(params->type, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return ofEvent(params->type, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return make(params->type, std::monostate());
    default:
      return nullptr;
  }
}

NodePtr Node::withAttributesOf(const NodePtr& node, const Node& from) {
  const auto* const changed = std::get_if<Kernel>(&node->values_);
  const auto* const before = std::get_if<Kernel>(&from.values_);
  if (changed == nullptr || before == nullptr) return node;
  Kernel kernel = *changed;
  kernel.attributes = before->attributes;
  if (kernel.context == nullptr) kernel.context = before->context;
  return make(CU_GRAPH_NODE_TYPE_KERNEL, std::move(kernel));
}

CUcontext Node::context() const {
  const auto* const kernel = std::get_if<Kernel>(&values_);
  return kernel != nullptr ? kernel->context : nullptr;
}

NodePtr Node::read(CUgraphNode node, const char** why) {
  const api::DriverTable& real = driver();
  *why = "a node that the driver does not tell";
  CUgraphNodeType type{};
  if (real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return nullptr;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS_v2 params{};
      if (real.cuGraphKernelNodeGetParams_v2(node, &params) != CUDA_SUCCESS) return nullptr;
      *why = "a kernel that is updated from the device";
      if (isUpdatedFromDevice(node)) return nullptr;
      *why = "a kernel whose parameters the driver does not tell";
      const NodePtr plain = of(&params);
      if (plain == nullptr) return nullptr;
      Kernel kernel = std::get<Kernel>(plain->values_);
      kernel.context = params.ctx;
      kernel.attributes = attributesOf(node);
      return make(type, std::move(kernel));
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CUDA_MEMCPY3D params{};
      return real.cuGraphMemcpyNodeGetParams(node, &params) == CUDA_SUCCESS ? of(&params) : nullptr;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS_v1 params{};
      return real.cuGraphMemsetNodeGetParams(node, &params) == CUDA_SUCCESS ? of(&params) : nullptr;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS_v1 params{};
      return real.cuGraphHostNodeGetParams(node, &params) == CUDA_SUCCESS ? of(&params) : nullptr;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 params{};
      return real.cuGraphBatchMemOpNodeGetParams(node, &params) == CUDA_SUCCESS ? of(&params)
                                                                                : nullptr;
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return make(type, std::monostate());
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
      CUevent event = nullptr;
      const CUresult result = type == CU_GRAPH_NODE_TYPE_WAIT_EVENT
                                  ? real.cuGraphEventWaitNodeGetEvent(node, &event)
                                  : real.cuGraphEventRecordNodeGetEvent(node, &event);
      return result == CUDA_SUCCESS ? ofEvent(type, event) : nullptr;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      *why = "a conditional node";
      return nullptr;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      *why = "a memory node";
      return nullptr;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      *why = "a node of an external semaphore";
      return nullptr;
    default:
      *why = "a node of a kind that is not known";
      return nullptr;
  }
}

CUresult Node::launchKernel(const Kernel& kernel, const StreamKey& stream, bool priorities) {
  std::vector<CUlaunchAttribute> attributes;
  for (const CUlaunchAttribute& attribute : kernel.attributes)
    if (priorities || attribute.id != CU_LAUNCH_ATTRIBUTE_PRIORITY) attributes.push_back(attribute);
  CUlaunchConfig config{};
  config.gridDimX = kernel.grid[0], config.gridDimY = kernel.grid[1];
  config.gridDimZ = kernel.grid[2];
  config.blockDimX = kernel.block[0], config.blockDimY = kernel.block[1];
  config.blockDimZ = kernel.block[2];
  config.sharedMemBytes = kernel.shared;
  config.hStream = stream.stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  // The driver reads values, and changes none.
  auto* const values = const_cast<std::byte*>(kernel.values.data());
  if (kernel.as_block) {
    size_t bytes = kernel.values.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return ol_local_cuLaunchKernelEx(&config, kernel.function, nullptr, extra);
  }
  std::vector<void*> parameters;
  parameters.reserve(kernel.offsets.size() + 1);
  for (const size_t offset : kernel.offsets) parameters.push_back(values + offset);
  parameters.push_back(nullptr);  // there is an array, also for a kernel without any
  return ol_local_cuLaunchKernelEx(&config, kernel.function, parameters.data(), nullptr);
}

// The copy's graph is made while its memory is mapped, at which the driver looks then.
CUresult Node::launchOwn(const CUDA_MEMCPY3D& params, OwnGraph& own, const StreamKey& stream) {
  pager::Pool* const running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  Access access(*running, stream);
  CopyReach reach(access, *running);
  extract::copy3d(reach, &params);
  if (const CUresult entered = enter(access, stream); entered != CUDA_SUCCESS) return entered;
  const api::DriverTable& real = driver();
  CUresult result = CUDA_SUCCESS;
  if (own.exec != nullptr && own.context != stream.context) {
    static_cast<void>(real.cuGraphExecDestroy(own.exec));
    own.exec = nullptr;
  }
  if (own.exec == nullptr) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    result = real.cuGraphCreate(&graph, 0);
    if (result == CUDA_SUCCESS)
      result = real.cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &params, stream.context);
    if (result == CUDA_SUCCESS) result = real.cuGraphInstantiateWithFlags(&own.exec, graph, 0);
    if (result != CUDA_SUCCESS) own.exec = nullptr;
    own.context = stream.context;
    if (graph != nullptr) static_cast<void>(real.cuGraphDestroy(graph));
  }
  if (result == CUDA_SUCCESS) result = real.cuGraphLaunch(own.exec, stream.stream);
  leave(access, stream, result);
  return result;
}

CUresult Node::launchCopy(const Copy& copy, const StreamKey& stream) {
  const CUDA_MEMCPY3D& p = copy.params;
  if (p.WidthInBytes == 0) return CUDA_SUCCESS;
  if (copy.own != nullptr) return launchOwn(p, *copy.own, stream);
  const bool one_row = p.Height <= 1 && p.Depth <= 1;
  // One row may be longer than the widest pitch.
  if (one_row && isLinear(p.srcMemoryType) && isLinear(p.dstMemoryType))
    return ol_local_cuMemcpyAsync(firstByte(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes,
                                            p.dstY, p.dstZ, p.dstPitch, p.dstHeight),
                                  firstByte(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes,
                                            p.srcY, p.srcZ, p.srcPitch, p.srcHeight),
                                  p.WidthInBytes, stream.stream);
  return ol_local_cuMemcpy3DAsync_v2(&p, stream.stream);
}

CUresult Node::launch(const StreamKey& stream, bool priorities) const {
  switch (type_) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return launchKernel(std::get<Kernel>(values_), stream, priorities);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return launchCopy(std::get<Copy>(values_), stream);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& set = std::get<CUDA_MEMSET_NODE_PARAMS_v1>(values_);
      const bool one_row = set.height <= 1;
      if (set.width == 0) return CUDA_SUCCESS;
      if (set.elementSize == 1) {
        const auto value = static_cast<unsigned char>(set.value);
        return one_row ? ol_local_cuMemsetD8Async(set.dst, value, set.width, stream.stream)
                       : ol_local_cuMemsetD2D8Async(set.dst, set.pitch, value, set.width,
                                                    set.height, stream.stream);
      }
      if (set.elementSize == 2) {
        const auto value = static_cast<unsigned short>(set.value);
        return one_row ? ol_local_cuMemsetD16Async(set.dst, value, set.width, stream.stream)
                       : ol_local_cuMemsetD2D16Async(set.dst, set.pitch, value, set.width,
                                                     set.height, stream.stream);
      }
      return one_row ? ol_local_cuMemsetD32Async(set.dst, set.value, set.width, stream.stream)
                     : ol_local_cuMemsetD2D32Async(set.dst, set.pitch, set.value, set.width,
                                                   set.height, stream.stream);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const auto& host = std::get<CUDA_HOST_NODE_PARAMS_v1>(values_);
      return ol_local_cuLaunchHostFunc(stream.stream, host.fn, host.userData);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto& batch = std::get<Batch>(values_);
      // The driver reads them, and changes none.
      auto* const operations = const_cast<CUstreamBatchMemOpParams*>(batch.operations.data());
      return ol_local_cuStreamBatchMemOp_v2(
          stream.stream, static_cast<unsigned>(batch.operations.size()), operations, batch.flags);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return ol_local_cuStreamWaitEvent(stream.stream, std::get<CUevent>(values_), 0);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return driver().cuEventRecord(std::get<CUevent>(values_), stream.stream);
    default:
      return CUDA_SUCCESS;
  }
}

}  // namespace olpager::local
