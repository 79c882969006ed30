// Long: one function for each call of the driver's graph API.
// Graphs made by the API, and their launches. Memory that a node's parameters name becomes part of
// what its graph reaches (captures.h); a launch makes all of it resident.
#include <vector>

#include "interpose/api/range_extractors.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/launch.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/root.h"
#include "interpose/local/runtime.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::Access;
using olpager::pager::Mode;
using olpager::pager::Pool;
using olpager::pager::ReachSet;
using olpager::pager::StreamKey;
namespace extract = olpager::api::extract;

namespace {

// The driver looks at the memory of a copy or memset when its node is added or gets parameters, in
// a graph or in an executable one; of memsets again when they are made executable. Cases that
// tests/conformance/graph_copies.cpp does not ask are taken to be looked at: a child graph that is
// added, and at an update of a whole graph what its nodes have and had. The memory has to be mapped
// then, and what an update brings has to be like what was there: all is in VRAM where that can be
// had. That it can't be mapped is no reason to refuse: the copy is made later, and the driver has
// the answer.
class Shown {
 public:
  explicit Shown(Pool& running) : access_(running, holdKey()) { access_.onlyShow(); }

  void add(uint64_t address, uint64_t bytes) { access_.addRange(address, bytes, Mode::kRead); }
  void add(const ReachSet& reach) {
    for (const ReachSet::Range& range : reach.ranges) add(range.address, range.bytes);
  }

  template <typename Native>
  CUresult during(Native native) {
    bool held = false;
    if (access_.any() && holdable_) {
      RelaxedCapture relaxed;
      held = access_.acquire() == CUDA_SUCCESS;
    }
    const CUresult result = native();
    if (held) access_.submitted(result);
    return result;
  }

 private:
  StreamKey holdKey() {
    const CUcontext context = currentContext();
    const CUstream stream = context != nullptr ? holdStream(context) : nullptr;
    holdable_ = stream != nullptr;
    return {context, stream, 0};
  }

  bool holdable_ = false;  // before the next: it is made by holdKey()
  Access access_;
};

// A node's operation, as an access that never runs: only what it names is wanted.
class NodeReach final : public extract::RangeSink {
 public:
  explicit NodeReach(Pool& running)
      : running_(running), access_(running, StreamKey{}), shown_(running) {}

  void add(uint64_t address, uint64_t bytes, extract::Use use) override {
    if (use == extract::Use::kRead && !running_.contains(address))
      access_.addHostSource(reinterpret_cast<const void*>(address), bytes, false);
    access_.addRange(address, bytes, static_cast<Mode>(use));
    shown_.add(address, bytes);
  }
  void addFrom(uint64_t address) override { add(address, 1, extract::Use::kReadWrite); }
  uint64_t arrayElementBytes(CUarray array) override {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    if (driver().cuArray3DGetDescriptor_v2(&descriptor, array) != CUDA_SUCCESS) return 1;
    return extract::arrayFormatBytes(descriptor.Format) * descriptor.NumChannels;
  }

  void kernel(CUfunction function, CUcontext context, void** parameters, void** extra) {
    if (function != nullptr)
      addKernel(access_, function, context != nullptr ? context : currentContext(), parameters,
                extra);
  }
  void memset(CUdeviceptr destination, uint64_t pitch, uint64_t element, uint64_t width,
              uint64_t height) {
    extract::fill2d(*this, destination, pitch, extract::saturatingProduct(width, element), height);
  }

  ReachSet reach() const {
    ReachSet set;
    access_.collect(set);
    return set;
  }

  template <typename Native>
  CUresult during(Native native) {
    return shown_.during(native);
  }

 private:
  Pool& running_;
  Access access_;
  Shown shown_;
};

enum class Looks : uint8_t { kAtAll, kAtMemsets };

// A call of the driver that is told of the nodes of `graph`, to which `updated` (may be null) is to
// be changed.
template <typename Native>
CUresult showGraph(CUgraph graph, CUgraphExec updated, Looks looks, Native native) {
  Pool* running = pool();
  if (running == nullptr) return native();
  ReachSet reach;
  graphReach(graph, reach);
  if (updated != nullptr) execReach(updated, reach);
  if (looks == Looks::kAtMemsets)
    std::erase_if(reach.ranges, [](const auto& range) { return !range.only_set; });
  if (reach.ranges.empty()) return native();
  Shown shown(*running);
  shown.add(reach);
  return shown.during(native);
}

// Each takes the parameters of one kind of node; NULL parameters are the driver's to refuse.
void describe(NodeReach& node, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  node.kernel(p->func, nullptr, p->kernelParams, p->extra);
}
void describe(NodeReach& node, const CUDA_KERNEL_NODE_PARAMS_v2* p) {
  node.kernel(p->func != nullptr ? p->func : reinterpret_cast<CUfunction>(p->kern), p->ctx,
              p->kernelParams, p->extra);
}
void describe(NodeReach& node, const CUDA_MEMCPY3D* p) { extract::copy3d(node, p); }
void describe(NodeReach& node, const CUDA_MEMSET_NODE_PARAMS_v1* p) {
  node.memset(p->dst, p->pitch, p->elementSize, p->width, p->height);
}
void describe(NodeReach& node, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* p) {
  extract::memOps(node, p->paramArray, p->count);
}
void describe(NodeReach& node, const CUgraphNodeParams* p) {
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      node.kernel(
          p->kernel.func != nullptr ? p->kernel.func : reinterpret_cast<CUfunction>(p->kernel.kern),
          p->kernel.ctx, p->kernel.kernelParams, p->kernel.extra);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      extract::copy3d(node, &p->memcpy.copyParams);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      node.memset(p->memset.dst, p->memset.pitch, p->memset.elementSize, p->memset.width,
                  p->memset.height);
      break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      extract::memOps(node, p->memOp.paramArray, p->memOp.count);
      break;
    default:
      break;
  }
}

// A node is added or changed: `native` is the driver's call, `done(reach)` what follows when it
// succeeded.
template <typename Params, typename Native, typename Done>
CUresult withNode(Params* params, Native native, Done done) {
  Pool* running = pool();
  if (running == nullptr || params == nullptr) return native();
  NodeReach node(*running);
  describe(node, params);
  const ReachSet reach = node.reach();  // before the call: the driver may write into the parameters
  const CUresult result = node.during(native);
  if (result == CUDA_SUCCESS) done(reach);
  return result;
}

template <typename Params, typename Native>
CUresult addNode(CUgraphNode* out, CUgraph graph, const Params* params, Native native) {
  if (pool() != nullptr) graphWillChange(graph);
  return withNode(params, native, [&](const ReachSet& reach) {
    if (out != nullptr) graphNodeReaches(graph, *out, reach);
  });
}

template <typename Params, typename Native>
CUresult setNode(CUgraphNode node, const Params* params, Native native) {
  if (pool() != nullptr) nodeWillChange(node);
  return withNode(params, native,
                  [&](const ReachSet& reach) { graphNodeReaches(nullptr, node, reach); });
}

template <typename Params, typename Native>
CUresult setExecNode(CUgraphExec exec, CUgraphNode node, const Params* params, Native native) {
  NodePtr work;
  const auto call = [&] {
    if (pool() != nullptr) work = Node::of(params);  // the driver may write into the parameters
    return native();
  };
  return withNode(params, call, [&](const ReachSet& reach) {
    execNodeReaches(exec, node, reach);
    execNodeSet(exec, node, work);
  });
}

// Memory that is there while the graph runs, or until another frees it: nobody else may look at it.
template <typename Params>
void noteGraphMemory(const Params& params) {
  if (Pool* running = pool(); running != nullptr && params.dptr != 0)
    running->addRoot(memoryContext(), params.dptr, params.bytesize,
                     olpager::pager::RootKind::kUnknown);
}

// A node that frees the pager's memory: an empty one, in whose place a launch of its graph does it.
template <typename Native>
CUresult addFreeNode(CUgraph graph, CUdeviceptr address, Native native) {
  if (!isGraphMemory(address)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = native();
  return result == CUDA_SUCCESS ? graphFrees(graph, address) : result;
}

// The form of adding nodes that takes every kind.
template <typename Native>
CUresult addAnyNode(CUgraphNode* out, CUgraph graph, CUgraphNodeParams* params, Native native) {
  if (pool() != nullptr) graphWillChange(graph);
  if (params != nullptr && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE && pool() != nullptr &&
      pool()->contains(params->free.dptr)) {
    CUgraphNodeParams empty{};
    empty.type = CU_GRAPH_NODE_TYPE_EMPTY;
    return addFreeNode(graph, params->free.dptr, [&] { return native(&empty); });
  }
  const bool is_child = params != nullptr && params->type == CU_GRAPH_NODE_TYPE_GRAPH;
  // Read now: the driver may put the node's copy there.
  const CUgraph child = is_child ? params->graph.graph : nullptr;
  const bool moved = is_child && params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  if (moved && pool() != nullptr) graphIsPart(child);
  const auto call = [&] { return native(params); };
  const auto shown = [&] {
    return is_child ? showGraph(child, nullptr, Looks::kAtAll, call) : call();
  };
  return withNode(params, shown, [&](const ReachSet& reach) {
    if (out == nullptr) return;
    if (is_child) {
      graphHasChild(graph, *out, child, moved);
      graphIsPart(params->graph.graph);  // the node's own
    } else if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      for (unsigned i = 0;
           params->conditional.phGraph_out != nullptr && i < params->conditional.size; ++i) {
        graphHasChild(graph, *out, params->conditional.phGraph_out[i], true);
      }
    } else if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      noteGraphMemory(params->alloc);
    } else {
      graphNodeReaches(graph, *out, reach);
    }
  });
}

// The nodes of a graph and of the graphs in it.
void addNodes(CUgraph graph, std::vector<CUgraphNode>& all) {
  size_t count = 0;
  if (driver().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return;
  const size_t first = all.size();
  all.resize(first + count);
  if (count != 0 && driver().cuGraphGetNodes(graph, all.data() + first, &count) != CUDA_SUCCESS)
    count = 0;
  all.resize(first + count);
  for (size_t i = first; i < first + count; ++i) {
    CUgraphNodeType type{};
    CUgraph child = nullptr;
    if (driver().cuGraphNodeGetType(all[i], &type) == CUDA_SUCCESS &&
        type == CU_GRAPH_NODE_TYPE_GRAPH &&
        driver().cuGraphChildGraphNodeGetGraph(all[i], &child) == CUDA_SUCCESS)
      addNodes(child, all);
  }
  for (CUgraph body : graphBodies(graph)) addNodes(body, all);
}

// Passes on the driver's answer.
CUresult destroyed(const LeavingPtr& leaving, CUresult result) {
  if (result != CUDA_SUCCESS) stays(*leaving);
  return result;
}

template <typename Native>
CUresult instantiate(CUgraphExec* out, CUgraph graph, unsigned long long flags, Native native) {
  const CUresult result = showGraph(graph, nullptr, Looks::kAtMemsets, native);
  if (result == CUDA_SUCCESS && pool() != nullptr) {
    execMade(*out, graph, flags);
    execTied(*out, graph, flags);
  }
  return result;
}

// An executable graph has been updated to another graph.
CUresult updated(CUgraphExec exec, CUgraph graph, CUresult result) {
  if (result == CUDA_SUCCESS && pool() != nullptr) {
    execMade(exec, graph, 0);
    execUpdated(exec, graph);
  }
  return result;
}

CUresult childSet(CUgraphExec exec, CUgraphNode node, CUgraph child, CUresult result) {
  if (result == CUDA_SUCCESS && pool() != nullptr) {
    execHasChild(exec, node, child);
    execChildSet(exec, node, child);
  }
  return result;
}

// A graph's nodes or edges change by a call that names no memory.
template <typename Native>
CUresult changeGraph(CUgraph graph, Native native) {
  if (pool() != nullptr) graphWillChange(graph);
  return native();
}
template <typename Native>
CUresult changeNode(CUgraphNode node, Native native) {
  if (pool() != nullptr) nodeWillChange(node);
  return native();
}
// Likewise a node of an executable graph, to what `work` makes: before the call, which may write
// into what it is given.
template <typename Work, typename Native>
CUresult changeExecNode(CUgraphExec exec, CUgraphNode node, Work work, Native native) {
  if (pool() == nullptr) return native();
  const NodePtr changed = work();
  const CUresult result = native();
  if (result == CUDA_SUCCESS) execNodeSet(exec, node, changed);
  return result;
}

// As one launch. CUDA_ERROR_OUT_OF_MEMORY where access.mustBeInParts(): nothing is launched.
template <typename Native>
CUresult launchWhole(Access& access, CUgraphExec exec, const StreamKey& key, const ReachSet& reach,
                     bool captured, Native native) {
  access.setFunction(exec);
  access.addReach(reach);
  const CUresult entered = enterLaunch(access, key);
  if (entered != CUDA_SUCCESS) return entered;
  CUresult result = captured ? CUDA_SUCCESS : launchesWhole(exec, key);
  if (result == CUDA_SUCCESS) result = native();
  leave(access, key, result);
  return result;
}

template <typename Native>
CUresult launchGraph(CUgraphExec exec, CUstream stream, bool per_thread, Native native) {
  Pool* running = pool();
  if (running == nullptr) return native();
  const StreamKey key = streamKey(stream, per_thread);
  if (key.context == nullptr) return native();
  reapExecs();
  const uint64_t capture = captureOf(key);
  const LaunchTurn turn(exec, capture == 0 && running->paging());
  MemoryLaunch memory;
  if (capture == 0) {
    bool auto_free = false;
    MemoryUse use = execMemory(exec, &auto_free);
    if (const CUresult refused = memory.begin(std::move(use), auto_free); refused != CUDA_SUCCESS)
      return refused;
  }
  ReachSet reach;
  LaunchBefore before;
  if (capture == 0)
    before = execLaunches(exec, reach);
  else
    execReach(exec, reach);
  Access access(*running, key);
  if (capture == 0 && running->paging() && mayBeInParts(exec)) access.inPartsBeyondVram();
  CUresult result = launchWhole(access, exec, key, reach, capture != 0, native);
  if (access.mustBeInParts()) {
    const GraphPartsPtr parts = takeApart(exec);
    bool whole = parts == nullptr;
    if (!whole) result = launchParts(exec, *parts, key, before, &whole);
    if (whole) {
      Access all_of_it(*running, key);
      result = launchWhole(all_of_it, exec, key, reach, false, native);
    } else if (result == CUDA_SUCCESS) {
      access.madeInParts();
    }
  }
  if (result != CUDA_SUCCESS) return result;
  if (capture != 0)
    captureLaunches(capture, exec);
  else
    execLaunched(exec, key, before);
  for (const CUdeviceptr address : memory.done()) {
    RelaxedCapture relaxed;
    forgetPointerState(address);
    (void)running->freeAsync(address, key);
  }
  return result;
}

}  // namespace

// --- nodes ---------------------------------------------------------------------------------------

OLPAGER_HOOK(cuGraphAddKernelNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return addNode(out, graph, params,
                 [&] { return driver().cuGraphAddKernelNode(out, graph, from, count, params); });
}
OLPAGER_HOOK(cuGraphAddKernelNode_v2)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return addNode(out, graph, params,
                 [&] { return driver().cuGraphAddKernelNode_v2(out, graph, from, count, params); });
}
OLPAGER_HOOK(cuGraphAddMemcpyNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_MEMCPY3D* params, CUcontext context) {
  return addNode(out, graph, params, [&] {
    return driver().cuGraphAddMemcpyNode(out, graph, from, count, params, context);
  });
}
OLPAGER_HOOK(cuGraphAddMemsetNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context) {
  return addNode(out, graph, params, [&] {
    return driver().cuGraphAddMemsetNode(out, graph, from, count, params, context);
  });
}
OLPAGER_HOOK(cuGraphAddBatchMemOpNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params) {
  return addNode(out, graph, params, [&] {
    return driver().cuGraphAddBatchMemOpNode(out, graph, from, count, params);
  });
}
OLPAGER_HOOK(cuGraphAddNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 CUgraphNodeParams* params) {
  return addAnyNode(out, graph, params, [&](CUgraphNodeParams* given) {
    return driver().cuGraphAddNode(out, graph, from, count, given);
  });
}
OLPAGER_HOOK(cuGraphAddNode_v2)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
 size_t count, CUgraphNodeParams* params) {
  return addAnyNode(out, graph, params, [&](CUgraphNodeParams* given) {
    return driver().cuGraphAddNode_v2(out, graph, from, edges, count, given);
  });
}

OLPAGER_HOOK(cuGraphAddChildGraphNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count, CUgraph child) {
  if (pool() != nullptr) graphWillChange(graph);
  const CUresult result = showGraph(child, nullptr, Looks::kAtAll, [&] {
    return driver().cuGraphAddChildGraphNode(out, graph, from, count, child);
  });
  if (result == CUDA_SUCCESS && pool() != nullptr) graphHasChild(graph, *out, child, false);
  return result;
}

OLPAGER_HOOK(cuGraphAddMemAllocNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 CUDA_MEM_ALLOC_NODE_PARAMS_v1* params) {
  if (pool() != nullptr) graphWillChange(graph);
  const CUresult result = driver().cuGraphAddMemAllocNode(out, graph, from, count, params);
  if (result == CUDA_SUCCESS && params != nullptr) noteGraphMemory(*params);
  return result;
}
OLPAGER_HOOK(cuGraphAddMemFreeNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count, CUdeviceptr address) {
  const Pool* running = pool();
  if (running != nullptr) graphWillChange(graph);
  if (running == nullptr || !running->contains(address))
    return driver().cuGraphAddMemFreeNode(out, graph, from, count, address);
  return addFreeNode(graph, address,
                     [&] { return driver().cuGraphAddEmptyNode(out, graph, from, count); });
}

OLPAGER_HOOK(cuGraphKernelNodeSetParams)
(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return setNode(node, params, [&] { return driver().cuGraphKernelNodeSetParams(node, params); });
}
OLPAGER_HOOK(cuGraphKernelNodeSetParams_v2)
(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return setNode(node, params,
                 [&] { return driver().cuGraphKernelNodeSetParams_v2(node, params); });
}
OLPAGER_HOOK(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return setNode(node, params, [&] { return driver().cuGraphMemcpyNodeSetParams(node, params); });
}
OLPAGER_HOOK(cuGraphMemsetNodeSetParams)
(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS_v1* params) {
  return setNode(node, params, [&] { return driver().cuGraphMemsetNodeSetParams(node, params); });
}
OLPAGER_HOOK(cuGraphBatchMemOpNodeSetParams)
(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params) {
  return setNode(node, params,
                 [&] { return driver().cuGraphBatchMemOpNodeSetParams(node, params); });
}
OLPAGER_HOOK(cuGraphNodeSetParams)(CUgraphNode node, CUgraphNodeParams* params) {
  return setNode(node, params, [&] { return driver().cuGraphNodeSetParams(node, params); });
}

// Nodes that reach nothing, and edges. Such changes matter where a graph is launched as its nodes
// (graph_parts.h).
OLPAGER_HOOK(cuGraphAddEmptyNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count) {
  return changeGraph(graph, [&] { return driver().cuGraphAddEmptyNode(out, graph, from, count); });
}
OLPAGER_HOOK(cuGraphAddHostNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_HOST_NODE_PARAMS_v1* params) {
  return changeGraph(graph,
                     [&] { return driver().cuGraphAddHostNode(out, graph, from, count, params); });
}
OLPAGER_HOOK(cuGraphAddEventRecordNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count, CUevent event) {
  return changeGraph(
      graph, [&] { return driver().cuGraphAddEventRecordNode(out, graph, from, count, event); });
}
OLPAGER_HOOK(cuGraphAddEventWaitNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count, CUevent event) {
  return changeGraph(
      graph, [&] { return driver().cuGraphAddEventWaitNode(out, graph, from, count, event); });
}
OLPAGER_HOOK(cuGraphAddExternalSemaphoresSignalNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params) {
  return changeGraph(graph, [&] {
    return driver().cuGraphAddExternalSemaphoresSignalNode(out, graph, from, count, params);
  });
}
OLPAGER_HOOK(cuGraphAddExternalSemaphoresWaitNode)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* from, size_t count,
 const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params) {
  return changeGraph(graph, [&] {
    return driver().cuGraphAddExternalSemaphoresWaitNode(out, graph, from, count, params);
  });
}
OLPAGER_HOOK(cuGraphAddDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return changeGraph(graph,
                     [&] { return driver().cuGraphAddDependencies(graph, from, to, count); });
}
OLPAGER_HOOK(cuGraphAddDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges,
 size_t count) {
  return changeGraph(
      graph, [&] { return driver().cuGraphAddDependencies_v2(graph, from, to, edges, count); });
}
OLPAGER_HOOK(cuGraphRemoveDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return changeGraph(graph,
                     [&] { return driver().cuGraphRemoveDependencies(graph, from, to, count); });
}
OLPAGER_HOOK(cuGraphRemoveDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* edges,
 size_t count) {
  return changeGraph(
      graph, [&] { return driver().cuGraphRemoveDependencies_v2(graph, from, to, edges, count); });
}
OLPAGER_HOOK(cuGraphHostNodeSetParams)(CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1* params) {
  return changeNode(node, [&] { return driver().cuGraphHostNodeSetParams(node, params); });
}
OLPAGER_HOOK(cuGraphEventRecordNodeSetEvent)(CUgraphNode node, CUevent event) {
  return changeNode(node, [&] { return driver().cuGraphEventRecordNodeSetEvent(node, event); });
}
OLPAGER_HOOK(cuGraphEventWaitNodeSetEvent)(CUgraphNode node, CUevent event) {
  return changeNode(node, [&] { return driver().cuGraphEventWaitNodeSetEvent(node, event); });
}
OLPAGER_HOOK(cuGraphKernelNodeSetAttribute)
(CUgraphNode node, CUkernelNodeAttrID attribute, const CUkernelNodeAttrValue* value) {
  return changeNode(node,
                    [&] { return driver().cuGraphKernelNodeSetAttribute(node, attribute, value); });
}
OLPAGER_HOOK(cuGraphKernelNodeCopyAttributes)(CUgraphNode to, CUgraphNode from) {
  return changeNode(to, [&] { return driver().cuGraphKernelNodeCopyAttributes(to, from); });
}
// Objects that come to a graph after something was made of it go with the graph alone.
OLPAGER_HOOK(cuGraphRetainUserObject)
(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return changeGraph(graph,
                     [&] { return driver().cuGraphRetainUserObject(graph, object, count, flags); });
}
OLPAGER_HOOK(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph* graph) {
  const CUresult result = driver().cuGraphChildGraphNodeGetGraph(node, graph);
  if (result == CUDA_SUCCESS && graph != nullptr && pool() != nullptr) graphIsPart(*graph);
  return result;
}

OLPAGER_HOOK(cuGraphDestroyNode)(CUgraphNode node) {
  if (pool() == nullptr) return driver().cuGraphDestroyNode(node);
  nodeWillGo(node);
  const LeavingPtr leaving = nodeLeaves(node);
  return destroyed(leaving, driver().cuGraphDestroyNode(node));
}

OLPAGER_HOOK(cuGraphClone)(CUgraph* out, CUgraph original) {
  const CUresult result = driver().cuGraphClone(out, original);
  if (result == CUDA_SUCCESS && pool() != nullptr) graphCloned(*out, original);
  return result;
}

OLPAGER_HOOK(cuGraphDestroy)(CUgraph graph) {
  if (pool() == nullptr) return driver().cuGraphDestroy(graph);
  std::vector<CUgraphNode> nodes;
  if (anyNodeOfUnknownGraph()) addNodes(graph, nodes);
  const LeavingPtr leaving = graphLeaves(graph, nodes);
  CUresult result = CUDA_SUCCESS;
  if (keepsGraph(graph, &result)) return destroyed(leaving, result);
  graphGone(graph);  // before: its handle may be another's at once
  return destroyed(leaving, driver().cuGraphDestroy(graph));
}

// --- executable graphs ---------------------------------------------------------------------------

OLPAGER_HOOK(cuGraphInstantiate)
(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char* log, size_t bytes) {
  return instantiate(out, graph, 0,
                     [&] { return driver().cuGraphInstantiate(out, graph, error, log, bytes); });
}
OLPAGER_HOOK(cuGraphInstantiate_v2)
(CUgraphExec* out, CUgraph graph, CUgraphNode* error, char* log, size_t bytes) {
  return instantiate(out, graph, 0,
                     [&] { return driver().cuGraphInstantiate_v2(out, graph, error, log, bytes); });
}
OLPAGER_HOOK(cuGraphInstantiateWithFlags)
(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return instantiate(out, graph, flags,
                     [&] { return driver().cuGraphInstantiateWithFlags(out, graph, flags); });
}
OLPAGER_HOOK(cuGraphInstantiateWithParams)
(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate(out, graph, params != nullptr ? params->flags : 0,
                     [&] { return driver().cuGraphInstantiateWithParams(out, graph, params); });
}
OLPAGER_HOOK(cuGraphInstantiateWithParams_ptsz)
(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate(out, graph, params != nullptr ? params->flags : 0, [&] {
    return driver().cuGraphInstantiateWithParams_ptsz(out, graph, params);
  });
}

OLPAGER_HOOK(cuGraphExecDestroy)(CUgraphExec exec) {
  if (pool() == nullptr) return driver().cuGraphExecDestroy(exec);
  const LeavingPtr leaving = execLeaves(exec);
  if (!execMayGo(exec)) return CUDA_SUCCESS;
  return destroyed(leaving, driver().cuGraphExecDestroy(exec));
}

OLPAGER_HOOK(cuGraphExecUpdate)
(CUgraphExec exec, CUgraph graph, CUgraphNode* error, CUgraphExecUpdateResult* outcome) {
  return updated(exec, graph, showGraph(graph, exec, Looks::kAtAll, [&] {
                   return driver().cuGraphExecUpdate(exec, graph, error, outcome);
                 }));
}
OLPAGER_HOOK(cuGraphExecUpdate_v2)
(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* outcome) {
  return updated(exec, graph, showGraph(graph, exec, Looks::kAtAll, [&] {
                   return driver().cuGraphExecUpdate_v2(exec, graph, outcome);
                 }));
}

OLPAGER_HOOK(cuGraphExecKernelNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return setExecNode(exec, node, params,
                     [&] { return driver().cuGraphExecKernelNodeSetParams(exec, node, params); });
}
OLPAGER_HOOK(cuGraphExecKernelNodeSetParams_v2)
(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return setExecNode(exec, node, params, [&] {
    return driver().cuGraphExecKernelNodeSetParams_v2(exec, node, params);
  });
}
OLPAGER_HOOK(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext context) {
  return setExecNode(exec, node, params, [&] {
    return driver().cuGraphExecMemcpyNodeSetParams(exec, node, params, context);
  });
}
OLPAGER_HOOK(cuGraphExecMemsetNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context) {
  return setExecNode(exec, node, params, [&] {
    return driver().cuGraphExecMemsetNodeSetParams(exec, node, params, context);
  });
}
OLPAGER_HOOK(cuGraphExecBatchMemOpNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* params) {
  return setExecNode(exec, node, params, [&] {
    return driver().cuGraphExecBatchMemOpNodeSetParams(exec, node, params);
  });
}
OLPAGER_HOOK(cuGraphExecNodeSetParams)
(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (params != nullptr && params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    const CUgraph child = params->graph.graph;
    return childSet(exec, node, child, showGraph(child, exec, Looks::kAtAll, [&] {
                      return driver().cuGraphExecNodeSetParams(exec, node, params);
                    }));
  }
  return setExecNode(exec, node, params,
                     [&] { return driver().cuGraphExecNodeSetParams(exec, node, params); });
}
OLPAGER_HOOK(cuGraphExecChildGraphNodeSetParams)
(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return childSet(exec, node, child, showGraph(child, exec, Looks::kAtAll, [&] {
                    return driver().cuGraphExecChildGraphNodeSetParams(exec, node, child);
                  }));
}

OLPAGER_HOOK(cuGraphExecHostNodeSetParams)
(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1* params) {
  return changeExecNode(
      exec, node, [&] { return Node::of(params); },
      [&] { return driver().cuGraphExecHostNodeSetParams(exec, node, params); });
}
OLPAGER_HOOK(cuGraphExecEventRecordNodeSetEvent)
(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return changeExecNode(
      exec, node, [&] { return Node::ofEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event); },
      [&] { return driver().cuGraphExecEventRecordNodeSetEvent(exec, node, event); });
}
OLPAGER_HOOK(cuGraphExecEventWaitNodeSetEvent)
(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return changeExecNode(
      exec, node, [&] { return Node::ofEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event); },
      [&] { return driver().cuGraphExecEventWaitNodeSetEvent(exec, node, event); });
}
OLPAGER_HOOK(cuGraphNodeSetEnabled)(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  const CUresult result = driver().cuGraphNodeSetEnabled(exec, node, enabled);
  if (result == CUDA_SUCCESS && pool() != nullptr) execNodeEnabled(exec, node, enabled != 0);
  return result;
}

OLPAGER_HOOK(cuGraphLaunch)(CUgraphExec exec, CUstream stream) {
  return launchGraph(exec, stream, false, [&] { return driver().cuGraphLaunch(exec, stream); });
}
OLPAGER_HOOK(cuGraphLaunch_ptsz)(CUgraphExec exec, CUstream stream) {
  return launchGraph(exec, stream, true, [&] { return driver().cuGraphLaunch_ptsz(exec, stream); });
}
