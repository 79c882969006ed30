#include "gpunode/simgpu/graphs/graph.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/graph_access.h"

namespace olpager::simgpu {
namespace {

bool sameData(const CUgraphEdgeData& a, const CUgraphEdgeData& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

bool validData(const CUgraphEdgeData& data) {
  return data.from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER && data.to_port == 0 &&
         data.type <= CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
}

// Memory of all graphs, by its address.
struct GraphMemories {
  struct One {
    size_t bytes = 0;
    int device = 0;
    uint64_t buffer_id = 0;
    std::weak_ptr<GraphMemory> owner;  // expired: it is left
    bool allocated = false;
  };
  std::mutex mutex;
  std::unordered_map<CUdeviceptr, One> all;
  std::array<GraphMemory::Usage, 64> devices;

  GraphMemory::Usage& usageOf(int ordinal) {
    return devices.at(static_cast<size_t>(ordinal) % devices.size());
  }
  // One whose context is gone is none: another allocation may be at its address.
  One* find(CUdeviceptr address) {
    const auto found = all.find(address);
    if (found == all.end()) return nullptr;
    if (isThere(address, found->second)) return &found->second;
    if (found->second.owner.expired()) remove(address);
    return nullptr;
  }
  static bool isThere(CUdeviceptr address, const One& one) {
    const auto allocation = Driver::get().memory.find(address);
    return allocation != nullptr && allocation->base == address &&
           allocation->buffer_id == one.buffer_id;
  }
  void setAllocated(One& one, bool allocated) {
    if (one.allocated == allocated) return;
    one.allocated = allocated;
    GraphMemory::Usage& usage = usageOf(one.device);
    usage.used = allocated ? usage.used + one.bytes : usage.used - one.bytes;
    usage.used_high = std::max(usage.used_high, usage.used);
  }
  void remove(CUdeviceptr address) {
    const auto found = all.find(address);
    setAllocated(found->second, false);
    usageOf(found->second.device).reserved -= found->second.bytes;
    all.erase(found);
  }
};

GraphMemories& graphMemories() {
  static auto* const memories = new GraphMemories;
  return *memories;
}

}  // namespace

std::mutex& graphMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

GraphRegistry& GraphRegistry::get() {
  static auto* const registry = new GraphRegistry;
  return *registry;
}

// --- GraphMemory ---------------------------------------------------------------------------------

CUresult GraphMemory::make(Context& context, size_t bytes, std::shared_ptr<GraphMemory>* out) {
  Memory& memory = Driver::get().memory;
  std::shared_ptr<GraphMemory> made(new GraphMemory);
  if (const CUresult error =
          memory.allocate(context, bytes, AllocationKind::kDevice, &made->address_);
      error != CUDA_SUCCESS) {
    return error;
  }
  if (const auto allocation = memory.find(made->address_)) made->buffer_id_ = allocation->buffer_id;
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  const int device = context.device().ordinal;
  if (memories.all.contains(made->address_))
    memories.remove(made->address_);  // its context is gone
  memories.all[made->address_] = {bytes, device, made->buffer_id_, made};
  Usage& usage = memories.usageOf(device);
  usage.reserved += bytes;
  usage.reserved_high = std::max(usage.reserved_high, usage.reserved);
  *out = std::move(made);
  return CUDA_SUCCESS;
}

GraphMemory::~GraphMemory() {
  if (address_ == 0) return;
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  const auto found = memories.all.find(address_);
  if (found == memories.all.end() || found->second.buffer_id != buffer_id_) return;
  const bool there = GraphMemories::isThere(address_, found->second);
  if (there && found->second.allocated) return;
  memories.remove(address_);
  if (there) (void)Driver::get().memory.free(address_, AllocationKind::kDevice);
}

bool GraphMemory::isAt(CUdeviceptr address) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  return memories.find(address) != nullptr;
}

GraphMemory::Found GraphMemory::free(CUdeviceptr address, std::shared_ptr<GraphMemory>* owner) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  GraphMemories::One* const one = memories.find(address);
  if (one == nullptr) return Found::kOther;
  if (!one->allocated) return Found::kIdle;
  memories.setAllocated(*one, false);
  *owner = one->owner.lock();
  if (*owner != nullptr) return Found::kFreed;
  memories.remove(address);
  return Found::kLeft;
}

CUresult GraphMemory::launch(std::span<const Step> steps, bool auto_free,
                             std::vector<std::shared_ptr<GraphMemory>>* owners,
                             std::vector<CUdeviceptr>* left) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  std::unordered_map<CUdeviceptr, bool> allocated;  // by the steps so far
  for (const Step& step : steps) {
    const GraphMemories::One* const one = memories.find(step.address);
    if (one == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto [now, first] = allocated.try_emplace(step.address, one->allocated);
    const bool freed_first = first && auto_free && !step.frees;
    if (now->second != step.frees && !freed_first) return CUDA_ERROR_INVALID_VALUE;
    now->second = !step.frees;
  }
  for (const Step& step : steps) memories.setAllocated(*memories.find(step.address), !step.frees);
  for (const auto& [address, is_allocated] : allocated) {
    if (is_allocated) continue;
    const GraphMemories::One& one = *memories.find(address);
    if (auto owner = one.owner.lock(); owner != nullptr) {
      owners->push_back(std::move(owner));
      continue;
    }
    memories.remove(address);
    left->push_back(address);
  }
  return CUDA_SUCCESS;
}

GraphMemory::Usage GraphMemory::usage(int ordinal) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  return memories.usageOf(ordinal);
}

void GraphMemory::resetUsedHigh(int ordinal) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  Usage& own = memories.usageOf(ordinal);
  own.used_high = own.used;
}

void GraphMemory::resetReservedHigh(int ordinal) {
  GraphMemories& memories = graphMemories();
  const std::lock_guard lock(memories.mutex);
  Usage& own = memories.usageOf(ordinal);
  own.reserved_high = own.reserved;
}

// --- Graph ---------------------------------------------------------------------------------------

std::shared_ptr<Graph> Graph::create() {
  auto graph = std::make_shared<Graph>();
  graph->handle_ = reinterpret_cast<CUgraph>(GraphRegistry::get().graphs.add(graph));
  return graph;
}

// Runs without graphMutex(): nobody else refers to the graph any more.
Graph::~Graph() {
  for (const auto& node : nodes_) {
    GraphRegistry::get().nodes.remove(node->handle);
    if (node->child != nullptr) GraphRegistry::get().graphs.remove(node->child->handle());
  }
}

CUresult Graph::addNode(CaptureNode spec, std::span<const CUgraphNode> dependencies,
                        std::span<const CUgraphEdgeData> edges, std::shared_ptr<GraphNode>* out) {
  std::vector<std::shared_ptr<GraphNode>> before;
  for (size_t i = 0; i < dependencies.size(); ++i) {
    auto node = GraphRegistry::get().nodes.find(dependencies[i]);
    if (node == nullptr || node->graph.lock().get() != this) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(before.begin(), before.end(), node) != before.end())
      return CUDA_ERROR_INVALID_VALUE;
    if (!edges.empty() && !validData(edges[i])) return CUDA_ERROR_INVALID_VALUE;
    before.push_back(std::move(node));
  }
  auto node = std::make_shared<GraphNode>();
  node->graph = weak_from_this();
  node->spec = std::move(spec);
  if (const auto* launch = std::get_if<std::shared_ptr<KernelLaunchBase>>(&node->spec.params)) {
    if (const auto child = std::dynamic_pointer_cast<ChildGraph>(*launch)) {
      node->child = child->graph;
      node->spec.params = std::monostate{};
    }
  }
  node->handle = reinterpret_cast<CUgraphNode>(GraphRegistry::get().nodes.add(node));
  for (size_t i = 0; i < before.size(); ++i) {
    const CUgraphEdgeData data = edges.empty() ? CUgraphEdgeData{} : edges[i];
    node->before.push_back({before[i].get(), data});
    before[i]->after.push_back({node.get(), data});
  }
  nodes_.push_back(node);
  *out = std::move(node);
  return CUDA_SUCCESS;
}

CUresult Graph::addEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  if (&from == &to || !validData(data)) return CUDA_ERROR_INVALID_VALUE;
  for (const Edge& edge : to.before) {
    if (edge.node == &from && sameData(edge.data, data)) return CUDA_ERROR_INVALID_VALUE;
  }
  from.after.push_back({&to, data});
  to.before.push_back({&from, data});
  return CUDA_SUCCESS;
}

CUresult Graph::removeEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data) {
  const auto remove = [&data](std::vector<Edge>& edges, const GraphNode& node) {
    const auto it = std::find_if(edges.begin(), edges.end(), [&](const Edge& edge) {
      return edge.node == &node && sameData(edge.data, data);
    });
    if (it == edges.end()) return false;
    edges.erase(it);
    return true;
  };
  if (!remove(from.after, to)) return CUDA_ERROR_INVALID_VALUE;
  remove(to.before, from);
  return CUDA_SUCCESS;
}

void Graph::removeNode(GraphNode& node) {
  for (const Edge& edge : node.before) {
    std::erase_if(edge.node->after, [&](const Edge& other) { return other.node == &node; });
  }
  for (const Edge& edge : node.after) {
    std::erase_if(edge.node->before, [&](const Edge& other) { return other.node == &node; });
  }
  GraphRegistry::get().nodes.remove(node.handle);
  std::erase_if(nodes_, [&](const auto& other) { return other.get() == &node; });
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = create();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : nodes_) {
    std::shared_ptr<GraphNode> made;
    (void)copy->addNode(node->spec, {}, {}, &made);
    made->memory = node->memory;
    if (node->child != nullptr) made->child = node->child->clone();
    copies.emplace(node.get(), made.get());
    copy->clones_.emplace(node->handle, made);
  }
  for (const auto& node : nodes_) {
    GraphNode* made = copies.at(node.get());
    for (const Edge& edge : node->before) made->before.push_back({copies.at(edge.node), edge.data});
    for (const Edge& edge : node->after) made->after.push_back({copies.at(edge.node), edge.data});
  }
  copy->user_objects_.retainAll(user_objects_);
  return copy;
}

std::shared_ptr<GraphNode> Graph::cloneOf(CUgraphNode original) const {
  const auto it = clones_.find(original);
  return it == clones_.end() ? nullptr : it->second.lock();
}

// Kahn's algorithm, earliest created first.
bool Graph::topologicalOrder(std::vector<size_t>* order) const {
  std::unordered_map<const GraphNode*, size_t> position;
  for (size_t i = 0; i < nodes_.size(); ++i) position.emplace(nodes_[i].get(), i);
  std::vector<size_t> missing(nodes_.size());
  std::vector<size_t> ready;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    missing[i] = nodes_[i]->before.size();
    if (missing[i] == 0) ready.push_back(i);
  }
  order->clear();
  for (size_t next = 0; next < ready.size(); ++next) {
    order->push_back(ready[next]);
    for (const Edge& edge : nodes_[ready[next]]->after) {
      const size_t at = position.at(edge.node);
      if (--missing[at] == 0) ready.push_back(at);
    }
  }
  return order->size() == nodes_.size();
}

// --- capture -------------------------------------------------------------------------------------

namespace {

class GraphSink final : public CaptureSink {
 public:
  GraphSink(std::shared_ptr<Graph> graph, bool own) : graph_(std::move(graph)), own_(own) {}

  CUresult addNode(const CaptureNode& node, std::span<const CUgraphNode> dependencies,
                   CUgraphNode* out) override {
    CaptureNode spec = node;
    std::shared_ptr<GraphMemory> memory;
    (void)lookUp(&spec);  // the call that is captured has checked it
    if (auto* alloc = std::get_if<AllocNode>(&spec.params);
        alloc != nullptr && alloc->params.dptr == 0) {
      // The caller reads the address from the node (cuGraphMemAllocNodeGetParams).
      const auto context = Driver::get().contexts.find(spec.context);
      if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
      if (const CUresult error = GraphMemory::make(*context, alloc->params.bytesize, &memory);
          error != CUDA_SUCCESS) {
        return error;
      }
      alloc->params.dptr = memory->address();
    }
    const std::lock_guard lock(graphMutex());
    std::shared_ptr<GraphNode> made;
    if (const CUresult error = graph_->addNode(std::move(spec), dependencies, {}, &made);
        error != CUDA_SUCCESS) {
      return error;
    }
    made->memory = std::move(memory);
    *out = made->handle;
    return CUDA_SUCCESS;
  }

  CUgraph graph() override { return graph_->handle(); }

  void finish(bool keep) override {
    if (!keep && own_) GraphRegistry::get().graphs.remove(graph_->handle());
    graph_.reset();
  }

 private:
  std::shared_ptr<Graph> graph_;
  const bool own_;
};

}  // namespace

std::unique_ptr<CaptureSink> newCaptureSink(CUgraph existing) {
  if (existing == nullptr) return std::make_unique<GraphSink>(Graph::create(), true);
  auto graph = GraphRegistry::get().graphs.find(existing);
  return graph == nullptr ? nullptr : std::make_unique<GraphSink>(std::move(graph), false);
}

}  // namespace olpager::simgpu
