// Graphs: nodes and their dependencies, made by calls or by stream capture.
//
// Life of a graph: created (or being captured) -> destroyed; an instance (GraphExec) and a child
// node hold copies of their own. All structure of all graphs is under one mutex, graphMutex():
// graphs are built rarely and launched from their instances, which have locks of their own.
// graphMutex() may be taken under CaptureSession::mutex and takes only the locks of Memory and of
// handle tables under it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/graphs/user_object.h"
#include "gpunode/simgpu/handles.h"

namespace olpager::simgpu {

class Context;
class Graph;
class GraphExec;
class GraphNode;

std::mutex& graphMutex();

/// A graph inside a captured node, for a graph that is launched into a stream in capture.
class ChildGraph final : public KernelLaunchBase {
 public:
  explicit ChildGraph(std::shared_ptr<Graph> child) : graph(std::move(child)) {}
  const std::shared_ptr<Graph> graph;
};

/// Device memory of an allocation node (one that is captured with no address gets it there). The
/// address is taken for as long as a graph or an instance has the node; launches allocate it, and
/// frees of the program or of free nodes, of whichever graph, free it. Allocated memory outlives
/// its graph.
///
/// States, under a lock of its own (a leaf but for Memory's):
///   idle       made, or freed              -> allocated (a launch), gone (its last owner)
///   allocated  by a launch                 -> idle (a free), left (its last owner)
///   left       plain device memory by now  -> gone (a free)
class GraphMemory {
 public:
  static CUresult make(Context& context, size_t bytes, std::shared_ptr<GraphMemory>* out);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  CUdeviceptr address() const { return address_; }

  /// True if a graph's allocation begins there, also one that is left.
  static bool isAt(CUdeviceptr address);
  /// The state in which the program's own free finds it.
  enum class Found : uint8_t {
    kOther,  // nothing of a graph's
    kIdle,   // nothing that could be freed
    kFreed,  // by this call; its graph keeps it
    kLeft,   // as kFreed, but nobody has it any more: the caller gives the memory back
  };
  /// `owner`: of what is freed, so that it stays until the stream has come to the free.
  static Found free(CUdeviceptr address, std::shared_ptr<GraphMemory>* owner);
  /// A node's effect on such memory.
  struct Step {
    CUdeviceptr address;
    bool frees;
  };
  /// A launch: its steps in their order. CUDA_ERROR_INVALID_VALUE, and nothing done, where one
  /// would allocate what is allocated (unless what was so before the launch is freed by it,
  /// `auto_free`) or free what is not. `owners`: of what is freed, to be kept until the launch is
  /// over; `left`: what has none, and is given back then.
  static CUresult launch(std::span<const Step> steps, bool auto_free,
                         std::vector<std::shared_ptr<GraphMemory>>* owners,
                         std::vector<CUdeviceptr>* left);

  /// Bytes that are allocated in a device's graphs, and that are set aside for them, now and at
  /// most (cuDeviceGetGraphMemAttribute).
  struct Usage {
    uint64_t used = 0;
    uint64_t used_high = 0;
    uint64_t reserved = 0;
    uint64_t reserved_high = 0;
  };
  static Usage usage(int device_ordinal);
  static void resetUsedHigh(int device_ordinal);
  static void resetReservedHigh(int device_ordinal);

 private:
  GraphMemory() = default;
  CUdeviceptr address_ = 0;
  uint64_t buffer_id_ = 0;  // of this allocation, not of one that came after it
};

struct Edge {
  GraphNode* node;
  CUgraphEdgeData data;
};

/// One node. Under graphMutex(); `handle` and `graph` never change.
class GraphNode {
 public:
  CUgraphNode handle = nullptr;
  std::weak_ptr<Graph> graph;
  CaptureNode spec;
  std::shared_ptr<Graph> child;         ///< of a child graph node
  std::shared_ptr<GraphMemory> memory;  ///< of an allocation node
  std::vector<Edge> before;             ///< what it depends on
  std::vector<Edge> after;              ///< what depends on it
};

/// A graph. Members under graphMutex() unless they say otherwise.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  static std::shared_ptr<Graph> create();
  ~Graph();

  CUgraph handle() const { return handle_; }
  const std::vector<std::shared_ptr<GraphNode>>& nodes() const { return nodes_; }

  /// CUDA_ERROR_INVALID_VALUE for a dependency that is not a node of this graph or is named twice.
  /// `edges` may be empty.
  CUresult addNode(CaptureNode spec, std::span<const CUgraphNode> dependencies,
                   std::span<const CUgraphEdgeData> edges, std::shared_ptr<GraphNode>* out);
  CUresult addEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
  CUresult removeEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
  void removeNode(GraphNode& node);
  /// A copy with handles of its own; remembers which node each of its nodes was copied from.
  std::shared_ptr<Graph> clone() const;
  /// The clone's node for a node of the graph that it was cloned from; null when there is none.
  std::shared_ptr<GraphNode> cloneOf(CUgraphNode original) const;
  /// Positions of nodes() so that each comes after what it depends on; false when there is a
  /// circle.
  bool topologicalOrder(std::vector<size_t>* order) const;
  UserObjectReferences& userObjects() { return user_objects_; }
  /// The graph became a node's of another graph, which it goes with: the program neither destroys
  /// nor instantiates it, nor adds it again.
  bool moved() const { return moved_.load(); }
  void move() { moved_.store(true); }

 private:
  CUgraph handle_ = nullptr;
  std::vector<std::shared_ptr<GraphNode>> nodes_;
  std::unordered_map<CUgraphNode, std::weak_ptr<GraphNode>> clones_;
  UserObjectReferences user_objects_;
  std::atomic<bool> moved_{false};
};

/// The process's handles of graphs.
struct GraphRegistry {
  static GraphRegistry& get();

  HandleTable<Graph> graphs{HandleKind::kGraph};
  HandleTable<GraphNode> nodes{HandleKind::kGraphNode};
  HandleTable<GraphExec> execs{HandleKind::kGraphExec};
  HandleTable<UserObject> user_objects{HandleKind::kUserObject};
};

/// The operation that runs a node; null for nodes that do nothing when run (empty, allocation,
/// free). Child graph nodes have none of their own.
std::unique_ptr<StreamOp> makeGraphNodeOp(const CaptureNode& spec);

}  // namespace olpager::simgpu
