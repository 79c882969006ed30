// Long: one graph is cut, tied and launched by the same tables.
#include "interpose/local/graph_parts.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/kernel_faults.h"
#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/green_contexts.h"
#include "interpose/local/local_runtime.h"
#include "interpose/local/locks.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/root.h"

namespace olpager::local {

struct GraphParts {
  struct Part {
    NodePtr work;
    CUgraphNode node = nullptr;
    bool enabled = true;
  };
  // The place of a node, or of all that is in a child graph.
  struct Place {
    size_t first = 0;
    size_t count = 0;
  };
  std::vector<Part> parts;
  std::unordered_map<CUgraphNode, Place> places;
  std::vector<CUgraphNode> listing;  // all nodes as the driver lists them, children behind theirs
  bool priorities = false;           // the nodes' count
};

namespace {

using pager::StreamKey;
using Part = GraphParts::Part;

// Set in an executable graph since it was made or updated, in this order.
struct Change {
  uint64_t number = 0;
  NodePtr work;
  std::shared_ptr<const GraphParts> child;  // in place of `work`: all that is in the child graph
};

// The order of launches in parts.
struct Order {
  CUevent behind = nullptr;
  StreamKey stream;   // of the last one
  bool last = false;  // that was the last launch at all
};

struct Exec {
  CUgraph made_of = nullptr;  // nullptr: it is gone
  CUgraph source = nullptr;   // what it is tied to; nullptr: nothing
  uint64_t tied = 0;          // when
  bool is_updated = false;    // its source is another graph than it was made of
  bool priorities = false;
  bool from_device = false;
  const char* whole = nullptr;  // why it can't be taken apart
  std::shared_ptr<GraphParts> parts;
  // By nodes of the source.
  std::map<CUgraphNode, Change> changes;
  std::set<CUgraphNode> disabled;
  Order order;
  uint64_t came = 0, over = 0;  // LaunchTurns
  bool is_told = false;         // that it was taken apart
};

struct Source {
  size_t tied = 0;
  bool destroyed = false;  // by the program
};

// A node's operation until it was changed.
struct Before {
  uint64_t until = 0;
  NodePtr work;
  const char* why = nullptr;  // where there is none
};

struct Retired {
  CUgraphExec exec;
  CUevent behind;
};

struct Ties {
  base::RankedMutex mutex{kTiesMutex};
  std::condition_variable_any launched;  // some LaunchTurn is over
  std::map<CUgraphExec, Exec> execs;
  std::map<CUgraph, Source> sources;
  std::map<uint64_t, CUgraphExec> tied;  // by when
  std::unordered_map<CUgraphNode, std::vector<Before>> before;
  std::set<CUgraph> of_others;  // graphs that are part of another
  std::vector<Retired> retired;
  uint64_t clock = 0;
};

std::atomic<bool> g_any_tied{false};
std::atomic<bool> g_any_in_parts{false};
std::atomic<bool> g_any_retired{false};

// Never destroyed: graphs are launched in destructors of the program too.
Ties& ties() {
  static auto* instance = new Ties;
  return *instance;
}

// Graphs that nothing needs any more: destroyed without the lock.
class Unneeded {
 public:
  Unneeded() = default;
  ~Unneeded() {
    for (CUgraph graph : graphs_) static_cast<void>(driver().cuGraphDestroy(graph));
  }
  Unneeded(const Unneeded&) = delete;
  Unneeded& operator=(const Unneeded&) = delete;
  void add(CUgraph graph) { graphs_.push_back(graph); }

 private:
  std::vector<CUgraph> graphs_;
};

std::vector<CUgraphNode> nodesOf(CUgraph graph) {
  size_t count = 0;
  if (driver().cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return {};
  std::vector<CUgraphNode> nodes(count);
  if (driver().cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return {};
  nodes.resize(std::min(count, nodes.size()));
  return nodes;
}

CUgraphNodeType typeOf(CUgraphNode node) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  static_cast<void>(driver().cuGraphNodeGetType(node, &type));
  return type;
}

CUgraph childOf(CUgraphNode node) {
  CUgraph child = nullptr;
  return typeOf(node) == CU_GRAPH_NODE_TYPE_GRAPH &&
                 driver().cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS
             ? child
             : nullptr;
}

// The graph, or the node, goes with all that is part of it.
void forgetPart(Ties& all, CUgraphNode node);
void forgetParts(Ties& all, CUgraph graph) {
  if (all.of_others.empty()) return;
  for (CUgraphNode node : nodesOf(graph)) forgetPart(all, node);
}
void forgetPart(Ties& all, CUgraphNode node) {
  CUgraph child = all.of_others.empty() ? nullptr : childOf(node);
  if (child == nullptr) return;
  all.of_others.erase(child);
  forgetParts(all, child);
}

void forgetOrigin(Ties& all, CUgraph graph) {
  for (auto& [handle, exec] : all.execs)
    if (exec.made_of == graph) exec.made_of = nullptr;
}

void untie(Ties& all, Exec& exec, Unneeded& unneeded) {
  if (exec.source == nullptr) return;
  all.tied.erase(exec.tied);
  if (all.tied.empty()) {
    all.before.clear();
    g_any_tied.store(false, std::memory_order_relaxed);
  }
  const auto found = all.sources.find(exec.source);
  if (found != all.sources.end() && --found->second.tied == 0) {
    if (found->second.destroyed) {
      forgetOrigin(all, exec.source);
      forgetParts(all, exec.source);
      unneeded.add(exec.source);
    }
    all.sources.erase(found);
  }
  exec.source = nullptr;
}

void list(CUgraph graph, std::vector<CUgraphNode>& into) {
  for (CUgraphNode node : nodesOf(graph)) {
    into.push_back(node);
    if (CUgraph child = childOf(node); child != nullptr) list(child, into);
  }
}

struct Edges {
  std::vector<CUgraphNode> from, to;
  bool known = false;
};

Edges edgesOf(CUgraph graph) {
  const api::DriverTable& real = driver();
  Edges edges;
  size_t count = 0;
  std::vector<CUgraphEdgeData> data;
  const auto ask = [&](bool all) {
    CUgraphNode* const from = all ? edges.from.data() : nullptr;
    CUgraphNode* const to = all ? edges.to.data() : nullptr;
    return real.cuGraphGetEdges_v2 != nullptr
               ? real.cuGraphGetEdges_v2(graph, from, to, all ? data.data() : nullptr, &count)
               : real.cuGraphGetEdges(graph, from, to, &count);
  };
  if (ask(false) != CUDA_SUCCESS) return edges;
  edges.from.resize(count);
  edges.to.resize(count);
  data.resize(count);
  edges.known = count == 0 || ask(true) == CUDA_SUCCESS;
  return edges;
}

// Nodes that may wait for what is outside of the graph.
bool mayWait(CUgraphNode node) {
  const CUgraphNodeType type = typeOf(node);
  return type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
}

// In the order in which they are made; empty: the driver does not tell.
std::vector<CUgraphNode> inOrder(CUgraph graph, const std::vector<CUgraphNode>& nodes) {
  const Edges edges = edgesOf(graph);
  if (!edges.known) return {};
  std::unordered_map<CUgraphNode, size_t> index;
  for (size_t i = 0; i < nodes.size(); ++i) index.emplace(nodes[i], i);
  std::vector<std::vector<size_t>> after(nodes.size());
  std::vector<size_t> before(nodes.size(), 0);
  for (size_t e = 0; e < edges.from.size(); ++e) {
    const auto from = index.find(edges.from[e]), to = index.find(edges.to[e]);
    if (from == index.end() || to == index.end()) return {};
    after[from->second].push_back(to->second);
    ++before[to->second];
  }
  using Ready = std::pair<bool, size_t>;  // the smallest first
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  const auto put = [&](size_t i) { ready.emplace(mayWait(nodes[i]), i); };
  for (size_t i = 0; i < nodes.size(); ++i)
    if (before[i] == 0) put(i);
  std::vector<CUgraphNode> order;
  while (!ready.empty()) {
    const size_t at = ready.top().second;
    ready.pop();
    order.push_back(nodes[at]);
    for (const size_t next : after[at])
      if (--before[next] == 0) put(next);
  }
  return order.size() == nodes.size() ? order : std::vector<CUgraphNode>();
}

constexpr const char* kNotTold = "nodes that the driver does not tell";

// Reads the nodes of graphs, as they were for an executable graph, or as they are. Under the lock.
class Reader {
 public:
  Reader(const Ties& all, const Exec* exec) : all_(all), exec_(exec) {}

  /// False: `why()`.
  bool read(CUgraph graph, GraphParts& into) {
    list(graph, into.listing);
    return add(graph, into);
  }
  const char* why() const { return why_; }

 private:
  bool add(CUgraph graph, GraphParts& into) {
    const std::vector<CUgraphNode> nodes = nodesOf(graph);
    const std::vector<CUgraphNode> order = inOrder(graph, nodes);
    if (order.size() != nodes.size()) return fails(kNotTold);
    for (CUgraphNode node : order) {
      const size_t first = into.parts.size();
      CUgraph child = childOf(node);
      if (child != nullptr ? !add(child, into) || !replaceChild(node, first, into)
                           : !addOne(node, into))
        return false;
      into.places[node] = {first, into.parts.size() - first};
    }
    return true;
  }

  bool addOne(CUgraphNode node, GraphParts& into) {
    const char* why = nullptr;
    NodePtr work = asItWas(node, &why);
    const Change* const change = changeOf(node);
    if (work == nullptr) return fails(why);
    if (change != nullptr) work = Node::withAttributesOf(change->work, *work);
    into.parts.push_back({std::move(work), node, !isDisabled(node)});
    return true;
  }

  // Values that the program has set for all of a child graph hold for those that it has not set
  // later.
  bool replaceChild(CUgraphNode node, size_t first, GraphParts& into) {
    const Change* const change = changeOf(node);
    if (change == nullptr) return true;
    const std::vector<Part>& set = change->child->parts;
    if (set.size() != into.parts.size() - first) return fails(kNotTold);
    for (size_t i = 0; i < set.size(); ++i) {
      Part& part = into.parts[first + i];
      const Change* const own = changeOf(part.node);
      if (own == nullptr || own->number < change->number) part.work = set[i].work;
    }
    return true;
  }

  NodePtr asItWas(CUgraphNode node, const char** why) const {
    if (exec_ != nullptr) {
      if (const auto found = all_.before.find(node); found != all_.before.end()) {
        for (const Before& before : found->second) {
          if (before.until < exec_->tied) continue;
          *why = before.why;
          return before.work;
        }
      }
    }
    return Node::read(node, why);
  }

  const Change* changeOf(CUgraphNode node) const {
    if (exec_ == nullptr) return nullptr;
    const auto found = exec_->changes.find(node);
    return found != exec_->changes.end() ? &found->second : nullptr;
  }
  bool isDisabled(CUgraphNode node) const {
    return exec_ != nullptr && exec_->disabled.contains(node);
  }
  bool fails(const char* why) {
    why_ = why;
    return false;
  }

  const Ties& all_;
  const Exec* exec_;
  const char* why_ = nullptr;
};

void read(Ties& all, Exec& exec, Unneeded& unneeded) {
  if (exec.source == nullptr) return;
  auto parts = std::make_shared<GraphParts>();
  parts->priorities = exec.priorities;
  Reader reader(all, &exec);
  if (reader.read(exec.source, *parts))
    exec.parts = std::move(parts);
  else
    exec.whole = reader.why();
  exec.changes.clear();
  untie(all, exec, unneeded);
}

void readAll(Ties& all, Unneeded& unneeded) {
  while (!all.tied.empty()) read(all, all.execs.at(all.tied.begin()->second), unneeded);
}

void tie(Ties& all, CUgraphExec handle, Exec& exec, CUgraph graph, Unneeded& unneeded) {
  exec.whole = exec.from_device ? "kernels may launch it" : nullptr;
  exec.parts = nullptr;
  exec.changes.clear();
  if (exec.whole != nullptr) return;
  exec.source = graph;
  exec.tied = ++all.clock;
  all.tied[exec.tied] = handle;
  ++all.sources[graph].tied;
  g_any_tied.store(true, std::memory_order_relaxed);
  // The nodes go when another graph goes, which nobody tells of.
  if (all.of_others.contains(graph)) read(all, exec, unneeded);
}

// The node of the present source that stands where `node` does in the graph that the executable
// graph was made of. nullptr: nobody knows.
CUgraphNode nodeInSource(const Exec& exec, CUgraphNode node) {
  if (!exec.is_updated) return node;
  std::vector<CUgraphNode> now;
  if (exec.source != nullptr)
    list(exec.source, now);
  else if (exec.parts != nullptr)
    now = exec.parts->listing;
  std::vector<CUgraphNode> made;
  if (exec.made_of != nullptr) list(exec.made_of, made);
  const auto at = std::find(made.begin(), made.end(), node);
  if (at == made.end())
    return std::find(now.begin(), now.end(), node) != now.end() ? node : nullptr;
  return made.size() == now.size() ? now[static_cast<size_t>(at - made.begin())] : nullptr;
}

void staysWhole(Ties& all, Exec& exec, const char* why, Unneeded& unneeded) {
  exec.whole = why;
  exec.parts = nullptr;
  untie(all, exec, unneeded);
}

constexpr const char* kNodesLost = "nodes that were set by the handles of another graph";

// `change(exec, node)` with the executable graph and its source's node, under the lock, where that
// is known.
template <typename To>
void changeNode(CUgraphExec handle, CUgraphNode node, To change) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(handle);
  if (found == all.execs.end() || found->second.whole != nullptr) return;
  Exec& exec = found->second;
  CUgraphNode own = nodeInSource(exec, node);
  if (own == nullptr) return staysWhole(all, exec, kNodesLost, unneeded);
  // A launch may have them: by the driver's rules it has not, but they are shared.
  if (exec.parts != nullptr && exec.parts.use_count() > 1)
    exec.parts = std::make_shared<GraphParts>(*exec.parts);
  if (!change(all, exec, own)) staysWhole(all, exec, kNotTold, unneeded);
}

CUresult fails(CUcontext context, CUresult result, size_t made, size_t of) {
  if (base::isKernelFault(result)) return result;  // which the driver keeps
  base::logError(
      "a graph that does not fit VRAM was launched as its nodes, and one of them was refused with "
      "error %d after %zu of %zu had been: what has run can't be taken back, and the context ends "
      "(CUDA_ERROR_LAUNCH_FAILED)",
      static_cast<int>(result), made, of);
  contextEnds(context, CUDA_ERROR_LAUNCH_FAILED);
  return CUDA_ERROR_LAUNCH_FAILED;
}

// True if an event can be recorded behind what the stream has been given.
bool canRecord(const StreamKey& stream, const StreamKey& by) {
  return (stream.thread == 0 || stream.thread == by.thread) && captureOf(stream) == 0;
}

CUresult newEvent(CUcontext context, CUevent* event) {
  const Within within(context);
  if (within.result() != CUDA_SUCCESS) return within.result();
  const RelaxedCapture relaxed;
  return driver().cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

// The stream waits for what `before` has been given by now.
CUresult follow(const StreamKey& before, const StreamKey& stream) {
  CUevent event = nullptr;
  CUresult result = newEvent(before.context, &event);
  if (result != CUDA_SUCCESS) return result;
  {
    const Within within(before.context);
    result = within.result() != CUDA_SUCCESS ? within.result()
                                             : driver().cuEventRecord(event, before.stream);
  }
  if (result == CUDA_SUCCESS) result = driver().cuStreamWaitEvent(stream.stream, event, 0);
  static_cast<void>(driver().cuEventDestroy_v2(event));
  return result;
}

// `after`: of others that have been made.
CUresult launchOne(const Node& node, const StreamKey& stream, bool priorities, bool after) {
  if (!after) return node.launch(stream, priorities);
  try {
    return node.launch(stream, priorities);
  } catch (const std::exception& failure) {
    return failed("cuGraphLaunch", failure);
  }
}

// The order that launches before this one leave.
Order orderOf(CUgraphExec exec) {
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(exec);
  return found != all.execs.end() ? found->second.order : Order{};
}

// Behind the parts that have been made. If no event can be had there is nothing to wait for but the
// parts themselves.
void endParts(CUgraphExec exec, const StreamKey& stream) {
  CUevent event = nullptr;
  bool recorded = newEvent(stream.context, &event) == CUDA_SUCCESS &&
                  driver().cuEventRecord(event, stream.stream) == CUDA_SUCCESS;
  if (!recorded) static_cast<void>(driver().cuStreamSynchronize(stream.stream));
  {
    Ties& all = ties();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.execs.find(exec); found != all.execs.end()) {
      Order& order = found->second.order;
      std::swap(order.behind, event);
      order.stream = stream;
      order.last = true;
    }
  }
  if (event != nullptr) static_cast<void>(driver().cuEventDestroy_v2(event));
}

}  // namespace

void execTied(CUgraphExec handle, CUgraph graph, unsigned long long flags) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  Exec& exec = all.execs[handle];
  untie(all, exec, unneeded);
  exec = {};
  exec.made_of = graph;
  exec.priorities = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0;
  exec.from_device = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
  tie(all, handle, exec, graph, unneeded);
}

void execUpdated(CUgraphExec handle, CUgraph graph) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(handle);
  if (found == all.execs.end()) return;
  Exec& exec = found->second;
  // Nodes that are disabled stay so.
  std::set<CUgraphNode> disabled;
  bool lost = false;
  if (!exec.disabled.empty()) {
    std::vector<CUgraphNode> now, then;
    list(graph, now);
    if (exec.source != nullptr)
      list(exec.source, then);
    else if (exec.parts != nullptr)
      then = exec.parts->listing;
    for (size_t i = 0; i < then.size() && i < now.size(); ++i)
      if (exec.disabled.contains(then[i])) disabled.insert(now[i]);
    lost = then.size() != now.size() || disabled.size() != exec.disabled.size();
  }
  untie(all, exec, unneeded);
  exec.is_updated = exec.made_of != graph;
  exec.disabled = std::move(disabled);
  tie(all, handle, exec, graph, unneeded);
  if (lost) staysWhole(all, exec, kNodesLost, unneeded);
}

void execNodeSet(CUgraphExec handle, CUgraphNode node, const NodePtr& work) {
  changeNode(handle, node, [&](Ties& all, Exec& exec, CUgraphNode own) {
    if (work == nullptr) return false;
    if (exec.parts == nullptr) {
      exec.changes[own] = {++all.clock, work, nullptr};
      return true;
    }
    const auto place = exec.parts->places.find(own);
    if (place == exec.parts->places.end() || place->second.count != 1) return false;
    NodePtr& part = exec.parts->parts[place->second.first].work;
    part = Node::withAttributesOf(work, *part);
    return true;
  });
}

void execChildSet(CUgraphExec handle, CUgraphNode node, CUgraph child) {
  changeNode(handle, node, [&](Ties& all, Exec& exec, CUgraphNode own) {
    auto set = std::make_shared<GraphParts>();
    if (!Reader(all, nullptr).read(child, *set)) return false;
    if (exec.parts == nullptr) {
      exec.changes[own] = {++all.clock, nullptr, std::move(set)};
      return true;
    }
    const auto place = exec.parts->places.find(own);
    if (place == exec.parts->places.end() || place->second.count != set->parts.size()) return false;
    for (size_t i = 0; i < set->parts.size(); ++i)
      exec.parts->parts[place->second.first + i].work = set->parts[i].work;
    return true;
  });
}

void execNodeEnabled(CUgraphExec handle, CUgraphNode node, bool enabled) {
  changeNode(handle, node, [&](Ties&, Exec& exec, CUgraphNode own) {
    if (enabled)
      exec.disabled.erase(own);
    else
      exec.disabled.insert(own);
    if (exec.parts == nullptr) return true;
    const auto place = exec.parts->places.find(own);
    if (place == exec.parts->places.end() || place->second.count != 1) return false;
    exec.parts->parts[place->second.first].enabled = enabled;
    return true;
  });
}

bool execMayGo(CUgraphExec handle) {
  reapExecs();
  Unneeded unneeded;
  std::shared_ptr<GraphParts> parts;  // go after the lock
  CUevent behind = nullptr;
  {
    Ties& all = ties();
    const std::lock_guard lock(all.mutex);
    const auto found = all.execs.find(handle);
    if (found == all.execs.end()) return true;
    untie(all, found->second, unneeded);
    parts = std::move(found->second.parts);
    behind = found->second.order.behind;
    all.execs.erase(found);
  }
  if (behind == nullptr) return true;
  // While something captures an event may not be looked at.
  if (!anyCapture() && driver().cuEventQuery(behind) != CUDA_ERROR_NOT_READY) {
    static_cast<void>(driver().cuEventDestroy_v2(behind));
    return true;
  }
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  all.retired.push_back({handle, behind});
  g_any_retired.store(true, std::memory_order_relaxed);
  return false;
}

void reapExecs() {
  if (!g_any_retired.load(std::memory_order_relaxed) || anyCapture()) return;
  std::vector<Retired> kept, gone;
  {
    Ties& all = ties();
    const std::lock_guard lock(all.mutex);
    for (const Retired& one : std::exchange(all.retired, {}))
      (driver().cuEventQuery(one.behind) == CUDA_ERROR_NOT_READY ? kept : gone).push_back(one);
    all.retired = std::move(kept);
    g_any_retired.store(!all.retired.empty(), std::memory_order_relaxed);
  }
  for (const Retired& one : gone) {
    static_cast<void>(driver().cuGraphExecDestroy(one.exec));
    static_cast<void>(driver().cuEventDestroy_v2(one.behind));
  }
}

void graphWillChange(CUgraph graph) {
  if (!g_any_tied.load(std::memory_order_relaxed)) return;
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  if (all.of_others.contains(graph)) return readAll(all, unneeded);
  if (!all.sources.contains(graph)) return;
  std::vector<CUgraphExec> tied;
  for (const auto& [when, exec] : all.tied)
    if (all.execs.at(exec).source == graph) tied.push_back(exec);
  for (CUgraphExec exec : tied) read(all, all.execs.at(exec), unneeded);
}

void nodeWillGo(CUgraphNode node) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  readAll(all, unneeded);
  forgetPart(all, node);
}

void nodeWillChange(CUgraphNode node) {
  if (!g_any_tied.load(std::memory_order_relaxed)) return;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  if (all.tied.empty()) return;
  std::vector<Before>& known = all.before[node];
  // Nothing has been tied since it was read last.
  if (!known.empty() && known.back().until > all.tied.rbegin()->first) return;
  // Drops the values that nothing tied needs any more.
  uint64_t since = 0;
  std::erase_if(known, [&](const Before& before) {
    const auto first = all.tied.upper_bound(std::exchange(since, before.until));
    return first == all.tied.end() || first->first > before.until;
  });
  Before before;
  before.work = Node::read(node, &before.why);
  before.until = ++all.clock;
  known.push_back(std::move(before));
}

void graphIsPart(CUgraph graph) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  all.of_others.insert(graph);
  if (all.sources.contains(graph)) readAll(all, unneeded);
}

bool keepsGraph(CUgraph graph, CUresult* result) {
  if (!g_any_tied.load(std::memory_order_relaxed)) return false;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.sources.find(graph);
  if (found == all.sources.end()) return false;
  *result = std::exchange(found->second.destroyed, true) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  return true;
}

void graphGone(CUgraph graph) {
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  all.of_others.erase(graph);
  forgetParts(all, graph);
  forgetOrigin(all, graph);
}

LaunchTurn::LaunchTurn(CUgraphExec exec, bool needed) : exec_(exec) {
  if (!needed) return;
  Ties& all = ties();
  std::unique_lock lock(all.mutex);
  const auto mine = [&] {
    const auto found = all.execs.find(exec_);
    return found == all.execs.end() || found->second.over >= number_;
  };
  const auto found = all.execs.find(exec_);
  if (found == all.execs.end()) return;
  has_ = true;
  number_ = found->second.came++;
  if (mine()) return;
  lock.unlock();
  pager::tellOfWait();
  lock.lock();
  all.launched.wait(lock, mine);
}

LaunchTurn::~LaunchTurn() {
  if (!has_) return;
  Ties& all = ties();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.execs.find(exec_); found != all.execs.end()) ++found->second.over;
  }
  all.launched.notify_all();
}

bool mayBeInParts(CUgraphExec handle) {
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(handle);
  return found != all.execs.end() && found->second.whole == nullptr;
}

GraphPartsPtr takeApart(CUgraphExec handle) {
  Unneeded unneeded;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(handle);
  if (found == all.execs.end()) return nullptr;
  Exec& exec = found->second;
  read(all, exec, unneeded);
  if (exec.parts != nullptr && !std::exchange(exec.is_told, true))
    base::logInfo(
        "a graph reaches more memory than VRAM has room for: it is launched as its %zu "
        "nodes",
        exec.parts->parts.size());
  if (exec.whole != nullptr)
    base::warnOnce(exec.whole,
                   "a graph that does not fit VRAM is launched whole, and uses in place what does "
                   "not fit: it holds %s",
                   exec.whole);
  return exec.parts;
}

CUresult launchParts(CUgraphExec exec, const GraphParts& parts, const StreamKey& stream,
                     const LaunchBefore& before, bool* whole) {
  *whole = false;
  for (const Part& part : parts.parts) {
    const CUcontext context = part.work->context();
    if (context == nullptr || context == stream.context ||
        memoryOwner(context) == memoryOwner(stream.context))
      continue;
    base::warnOnce("graph of several contexts",
                   "a graph that does not fit VRAM is launched whole, and uses in place what does "
                   "not fit: its kernels run in another context than that of the stream");
    *whole = true;
    return CUDA_SUCCESS;
  }
  const Order order = orderOf(exec);
  if (order.last ? order.stream != stream : before.any && before.stream != stream) {
    if (!order.last && (before.gone || !canRecord(before.stream, stream))) {
      *whole = true;
      return CUDA_SUCCESS;
    }
    const CUresult result = order.last ? driver().cuStreamWaitEvent(stream.stream, order.behind, 0)
                                       : follow(before.stream, stream);
    if (result != CUDA_SUCCESS) return result;
  }
  g_any_in_parts.store(true, std::memory_order_relaxed);
  size_t made = 0;
  for (const Part& part : parts.parts) {
    if (!part.enabled) continue;
    const CUresult result = launchOne(*part.work, stream, parts.priorities, made != 0);
    if (result != CUDA_SUCCESS) {
      if (made != 0) endParts(exec, stream);
      return made == 0 ? result : fails(stream.context, result, made, parts.parts.size());
    }
    ++made;
  }
  endParts(exec, stream);
  return CUDA_SUCCESS;
}

CUresult launchesWhole(CUgraphExec exec, const StreamKey& stream) {
  if (!g_any_in_parts.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  const Order order = orderOf(exec);
  if (!order.last) return CUDA_SUCCESS;
  if (order.stream != stream)
    if (const CUresult result = driver().cuStreamWaitEvent(stream.stream, order.behind, 0);
        result != CUDA_SUCCESS)
      return result;
  Ties& all = ties();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.execs.find(exec); found != all.execs.end())
    found->second.order.last = false;
  return CUDA_SUCCESS;
}

}  // namespace olpager::local
