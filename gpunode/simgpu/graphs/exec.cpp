#include "gpunode/simgpu/graphs/exec.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/graphs/graph_access.h"
#include "gpunode/simgpu/modules/launch.h"

namespace olpager::simgpu {
namespace {

struct BoundOp {
  CUcontext context;  // null: the one that the graph is launched in
  std::unique_ptr<StreamOp> op;
  const CaptureNode* event = nullptr;  // of an event node, which has no operation
};

// A run of an instance. Keeps the memory of its allocation nodes, and what the program has tied to
// it, until it is done.
class GraphOp final : public StreamOp {
 public:
  GraphOp(std::vector<BoundOp> ops, std::vector<std::shared_ptr<GraphMemory>> memory,
          std::vector<CUdeviceptr> left, std::shared_ptr<UserObjectReferences> user_objects)
      : ops_(std::move(ops)),
        memory_(std::move(memory)),
        left_(std::move(left)),
        user_objects_(std::move(user_objects)) {}

  const char* name() const override { return "graph"; }

  CUresult execute(Context& context) override {
    for (BoundOp& bound : ops_) {
      std::shared_ptr<Context> other;
      if (bound.context != nullptr && bound.context != context.handle()) {
        other = Driver::get().contexts.find(bound.context);
        if (other == nullptr || !other->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      }
      Context& where = other != nullptr ? *other : context;
      if (const CUresult error = where.error(); error != CUDA_SUCCESS) return error;
      if (const CUresult error = bound.op->execute(where); error != CUDA_SUCCESS) {
        if (other != nullptr) other->fail(error);
        return error;
      }
      bound.op.reset();
    }
    for (const CUdeviceptr address : left_)
      (void)Driver::get().memory.free(address, AllocationKind::kDevice);
    return CUDA_SUCCESS;
  }

 private:
  std::vector<BoundOp> ops_;
  std::vector<std::shared_ptr<GraphMemory>> memory_;
  std::vector<CUdeviceptr> left_;  // by other graphs, and freed by this one
  std::shared_ptr<UserObjectReferences> user_objects_;
};

bool oneDimensional(const CUDA_MEMCPY3D& copy) { return copy.Height <= 1 && copy.Depth <= 1; }
bool oneDimensional(const CUDA_MEMSET_NODE_PARAMS& set) { return set.height <= 1; }

auto members(const CUDA_MEMCPY3D& c) {
  return std::tie(c.srcXInBytes, c.srcY, c.srcZ, c.srcLOD, c.srcMemoryType, c.srcHost, c.srcDevice,
                  c.srcArray, c.srcPitch, c.srcHeight, c.dstXInBytes, c.dstY, c.dstZ, c.dstLOD,
                  c.dstMemoryType, c.dstHost, c.dstDevice, c.dstArray, c.dstPitch, c.dstHeight,
                  c.WidthInBytes, c.Height, c.Depth);
}
auto shape(const CUDA_MEMSET_NODE_PARAMS& s) {
  return std::tie(s.pitch, s.elementSize, s.width, s.height);
}

// True for equal copies or memsets.
bool same(const CaptureNode& a, const CaptureNode& b) {
  if (a.context != b.context) return false;
  if (const auto* copy = std::get_if<CUDA_MEMCPY3D>(&a.params))
    return members(*copy) == members(std::get<CUDA_MEMCPY3D>(b.params));
  const auto& x = std::get<CUDA_MEMSET_NODE_PARAMS>(a.params);
  const auto& y = std::get<CUDA_MEMSET_NODE_PARAMS>(b.params);
  return shape(x) == shape(y) && x.dst == y.dst && x.value == y.value;
}

// To a memset, device memory is what it is, mapped by the program or allocated.
bool alikeForMemset(const OperandPlace& a, const OperandPlace& b) {
  using Kind = OperandPlace::Kind;
  if (a.kind == b.kind) return a == b;
  const auto ofDevice = [](const OperandPlace& place) {
    return place.kind == Kind::kVmm ||
           (place.kind == Kind::kAllocation && place.allocation == AllocationKind::kDevice);
  };
  return ofDevice(a) && ofDevice(b) && a.devices == b.devices;
}

// Under graphMutex().
CUresult build(const Graph& graph, std::vector<ExecNode>* nodes, std::vector<size_t>* order) {
  if (!graph.topologicalOrder(order)) return CUDA_ERROR_INVALID_VALUE;
  std::unordered_map<const GraphNode*, size_t> position;
  for (size_t i = 0; i < graph.nodes().size(); ++i) position.emplace(graph.nodes()[i].get(), i);
  for (const auto& node : graph.nodes()) {
    ExecNode made;
    made.origin = node->handle;
    made.spec = node->spec;
    if (node->memory != nullptr) made.memory.push_back(node->memory);
    for (const Edge& edge : node->before) made.before.push_back(position.at(edge.node));
    std::sort(made.before.begin(), made.before.end());
    if (node->child != nullptr) {
      if (const CUresult error = build(*node->child, &made.children, &made.child_order);
          error != CUDA_SUCCESS) {
        return error;
      }
    }
    nodes->push_back(std::move(made));
  }
  return CUDA_SUCCESS;
}

// The checks when a graph becomes executable. `culprit`: the node that an error is about.
CUresult lookAtMemsets(std::vector<ExecNode>& nodes, CUgraphNode* culprit) {
  for (ExecNode& node : nodes) {
    *culprit = node.origin;
    const CUresult error = node.spec.type == CU_GRAPH_NODE_TYPE_MEMSET
                               ? lookUp(&node.spec)
                               : lookAtMemsets(node.children, culprit);
    if (error != CUDA_SUCCESS) return error;
  }
  *culprit = nullptr;
  return CUDA_SUCCESS;
}

// The operations of a launch, and its effect on memory of graphs.
struct Run {
  std::vector<BoundOp> ops;
  std::vector<std::shared_ptr<GraphMemory>> memory;
  std::vector<GraphMemory::Step> steps;
};

void collect(const std::vector<ExecNode>& nodes, const std::vector<size_t>& order, Run* run) {
  for (const size_t at : order) {
    const ExecNode& node = nodes[at];
    for (const auto& memory : node.memory) {
      run->memory.push_back(memory);
      run->steps.push_back({memory->address(), false});
    }
    if (const auto* const freed = std::get_if<FreeNode>(&node.spec.params))
      run->steps.push_back({freed->address, true});
    if (!node.enabled) continue;
    if (!node.children.empty()) collect(node.children, node.child_order, run);
    if (std::holds_alternative<EventNode>(node.spec.params))
      run->ops.push_back({nullptr, nullptr, &node.spec});
    if (auto op = makeGraphNodeOp(node.spec))
      run->ops.push_back({node.spec.context, std::move(op)});
  }
}

// An event node, at this place in the stream. The event's meaning is that of the graph's launch.
CUresult putEvent(const CaptureNode& node, Context& context, Stream& stream) {
  const auto event = Driver::get().events.find(std::get<EventNode>(node.params).event);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (node.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    return recordEvent(*event, context, stream, false);
  return event->state().recorded ? waitEvent(*event, context, stream, false) : CUDA_SUCCESS;
}

// The graph that a captured launch leaves behind. Under graphMutex().
std::shared_ptr<Graph> graphOf(const std::vector<ExecNode>& nodes,
                               const std::vector<size_t>& order) {
  auto graph = Graph::create();
  std::vector<CUgraphNode> handles(nodes.size());
  for (const size_t at : order) {
    const ExecNode& node = nodes[at];
    std::vector<CUgraphNode> before;
    for (const size_t dependency : node.before) before.push_back(handles[dependency]);
    CaptureNode spec = node.spec;
    // A disabled node keeps its place and does nothing.
    if (!node.enabled) spec = {CU_GRAPH_NODE_TYPE_EMPTY, nullptr, {}};
    std::shared_ptr<GraphNode> made;
    (void)graph->addNode(std::move(spec), before, {}, &made);
    if (!node.memory.empty()) made->memory = node.memory.front();
    if (node.spec.type == CU_GRAPH_NODE_TYPE_GRAPH)
      made->child = graphOf(node.children, node.child_order);
    handles[at] = made->handle;
  }
  return graph;
}

const KernelLaunch& launchOf(const CaptureNode& spec) {
  return static_cast<const KernelLaunch&>(
      *std::get<std::shared_ptr<KernelLaunchBase>>(spec.params));
}

// Checks if an instance's `have` can become `want`; looks at the memory of what changed.
UpdateResult compare(const std::vector<ExecNode>& have, std::vector<ExecNode>& want) {
  if (have.size() != want.size()) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
  for (size_t i = 0; i < have.size(); ++i) {
    const CUgraphNode node = want[i].origin;
    if (have[i].spec.type != want[i].spec.type)
      return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node};
    if (have[i].before != want[i].before) {
      // Name one edge that is new, or else only the node.
      for (const size_t from : want[i].before) {
        if (!std::binary_search(have[i].before.begin(), have[i].before.end(), from)) {
          return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, want[from].origin};
        }
      }
      return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node};
    }
    switch (want[i].spec.type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        if (launchOf(have[i].spec).function->context_handle !=
            launchOf(want[i].spec).function->context_handle) {
          return {CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE, node};
        }
        if (launchOf(have[i].spec).cooperative != launchOf(want[i].spec).cooperative) {
          return {CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, node};
        }
        break;
      case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, node};
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
        if (same(have[i].spec, want[i].spec)) break;
        if (have[i].spec.context != want[i].spec.context || lookUp(&want[i].spec) != CUDA_SUCCESS ||
            !canReplace(have[i].spec, want[i].spec)) {
          return {CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, node};
        }
        break;
      case CU_GRAPH_NODE_TYPE_GRAPH: {
        const UpdateResult inside = compare(have[i].children, want[i].children);
        if (inside.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return inside;
        break;
      }
      default:
        break;
    }
  }
  return {};
}

void take(std::vector<ExecNode>& have, std::vector<ExecNode>& want) {
  for (size_t i = 0; i < have.size(); ++i) {
    have[i].spec = std::move(want[i].spec);
    if (!have[i].children.empty()) take(have[i].children, want[i].children);
  }
}

}  // namespace

bool canReplace(const CaptureNode& before, const CaptureNode& spec) {
  if (const auto* copy = std::get_if<CUDA_MEMCPY3D>(&spec.params)) {
    const auto& old = std::get<CUDA_MEMCPY3D>(before.params);
    return oneDimensional(old) && oneDimensional(*copy) && copy->WidthInBytes != 0 &&
           before.places == spec.places && old.srcMemoryType == copy->srcMemoryType &&
           old.dstMemoryType == copy->dstMemoryType;
  }
  if (const auto* set = std::get_if<CUDA_MEMSET_NODE_PARAMS>(&spec.params)) {
    const auto& old = std::get<CUDA_MEMSET_NODE_PARAMS>(before.params);
    return ((oneDimensional(old) && oneDimensional(*set)) || shape(old) == shape(*set)) &&
           set->width != 0 && alikeForMemset(before.places.to, spec.places.to);
  }
  return true;
}

CUresult GraphExec::instantiate(Graph& graph, cuuint64_t flags, std::shared_ptr<GraphExec>* out,
                                CUgraphNode* culprit) {
  auto exec = std::make_shared<GraphExec>();
  exec->flags_ = flags;
  {
    const std::lock_guard lock(graphMutex());
    if (const CUresult error = build(graph, &exec->nodes_, &exec->order_); error != CUDA_SUCCESS)
      return error;
  }
  if (const CUresult error = lookAtMemsets(exec->nodes_, culprit); error != CUDA_SUCCESS)
    return error;
  exec->user_objects_->retainAll(graph.userObjects());
  exec->handle_ = reinterpret_cast<CUgraphExec>(GraphRegistry::get().execs.add(exec));
  *out = std::move(exec);
  return CUDA_SUCCESS;
}

CUresult GraphExec::launch(Context& context, Stream& stream) {
  if (stream.inCapture()) {
    std::shared_ptr<Graph> child;
    {
      const std::scoped_lock lock(graphMutex(), mutex_);
      child = graphOf(nodes_, order_);
    }
    const CaptureNode node{CU_GRAPH_NODE_TYPE_GRAPH, context.handle(),
                           std::shared_ptr<KernelLaunchBase>(std::make_shared<ChildGraph>(child))};
    const CUresult error = captureNode(stream, node);
    if (error != CUDA_SUCCESS) GraphRegistry::get().graphs.remove(child->handle());
    return error;
  }
  if (stream.handle() == CU_STREAM_LEGACY) {
    if (const CUresult error = context.checkLegacyCapture(); error != CUDA_SUCCESS) return error;
  }
  const std::lock_guard lock(mutex_);
  Run run;
  collect(nodes_, order_, &run);
  std::vector<CUdeviceptr> left;
  const bool auto_free = (flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  if (const CUresult error = GraphMemory::launch(run.steps, auto_free, &run.memory, &left);
      error != CUDA_SUCCESS)
    return error;
  std::vector<StreamPoint> dependencies;
  if (last_.stream != nullptr && last_.stream.get() != &stream && !last_.complete())
    dependencies.push_back(last_);
  std::vector<BoundOp> part;
  const auto submit = [&](std::vector<CUdeviceptr> free) {
    last_ = context.submit(stream,
                           std::make_unique<GraphOp>(std::exchange(part, {}), run.memory,
                                                     std::move(free), user_objects_),
                           std::exchange(dependencies, {}));
  };
  for (BoundOp& bound : run.ops) {
    if (bound.event == nullptr) {
      part.push_back(std::move(bound));
      continue;
    }
    submit({});
    if (const CUresult error = putEvent(*bound.event, context, stream); error != CUDA_SUCCESS)
      return error;
  }
  submit(std::move(left));
  return CUDA_SUCCESS;
}

CUresult GraphExec::update(Graph& graph, UpdateResult* result) {
  std::vector<ExecNode> want;
  std::vector<size_t> order;
  {
    const std::lock_guard lock(graphMutex());
    if (build(graph, &want, &order) != CUDA_SUCCESS) {
      *result = {CU_GRAPH_EXEC_UPDATE_ERROR};
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
  }
  const std::lock_guard lock(mutex_);
  *result = compare(nodes_, want);
  if (result->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  take(nodes_, want);
  return CUDA_SUCCESS;
}

CUresult GraphExec::updateChild(CUgraphNode origin, Graph& child) {
  std::vector<ExecNode> want;
  std::vector<size_t> order;
  {
    const std::lock_guard lock(graphMutex());
    if (const CUresult error = build(child, &want, &order); error != CUDA_SUCCESS) return error;
  }
  return changeNode(origin, [&want](ExecNode& node) {
    if (node.spec.type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    if (compare(node.children, want).result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
      return CUDA_ERROR_INVALID_VALUE;
    take(node.children, want);
    return CUDA_SUCCESS;
  });
}

ExecNode* GraphExec::find(std::vector<ExecNode>& nodes, CUgraphNode origin) {
  for (ExecNode& node : nodes) {
    if (node.origin == origin) return &node;
    if (ExecNode* inside = find(node.children, origin)) return inside;
  }
  return nullptr;
}

}  // namespace olpager::simgpu
