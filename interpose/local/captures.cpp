#include "interpose/local/captures.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.h"
#include "interpose/local/locks.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace detail {
std::atomic<int> g_captures{0};
}

namespace {

using pager::ReachSet;

// For a free beside a capture that the pager knows of and does not tell of yet, or no more: half a
// second or more.
constexpr unsigned kMostRefusals = 5000;
// Beside one that it does not know of: the driver may have answered just before it ended.
constexpr unsigned kMostStrangers = 20;

// The memory that a graph, or a capture on its way to one, is known to reach.
struct Content {
  ReachSet captured;                      // by captured calls: of no node by name
  std::map<CUgraphNode, ReachSet> nodes;  // by nodes added through the API
  std::map<CUgraphNode, std::shared_ptr<Content>>
      copies;  // of child graphs, as they were when added
  std::map<CUgraphNode, std::vector<CUgraph>>
      bodies;  // of conditional nodes, and graphs that were moved
  MemoryUse memory;
};

struct Capture {
  pager::StreamKey stream;
  Content content;
};

// Memory that is pinned, and as what: Pool::pin.
struct Pin {
  uint64_t address;
  uint64_t pinned;
};

struct Executable {
  std::map<CUgraphNode, ReachSet> overrides;  // set by cuGraphExec*SetParams
  ReachSet base;                              // of the graph, when it was instantiated or updated
  ReachSet all;                               // base and overrides
  MemoryUse memory;
  bool auto_free = false;
  std::vector<Pin> pinned;
  bool device_launched = false;
  LaunchBefore launched;  // the last one
};

struct Captures {
  base::RankedMutex mutex{kCapturesMutex};
  std::map<uint64_t, Capture> running;
  std::map<CUgraph, std::shared_ptr<Content>> graphs;
  std::map<CUgraphNode, ReachSet> changed;  // parameters set in a node whose graph is not known
  std::map<CUgraphExec, Executable> executables;
  std::vector<CUdeviceptr> to_free;  // when no stream captures any more
};

// Never destroyed: graphs are launched in destructors of the program too.
Captures& allCaptures() {
  static auto* instance = new Captures;
  return *instance;
}

std::shared_ptr<Content>& contentOf(Captures& all, CUgraph graph) {
  std::shared_ptr<Content>& content = all.graphs[graph];
  if (content == nullptr) content = std::make_shared<Content>();
  return content;
}

void gather(const Captures& all, const Content& content, ReachSet& reach, MemoryUse& memory) {
  reach.add(content.captured);
  for (const auto& [node, set] : content.nodes) reach.add(set);
  for (const auto& [node, copy] : content.copies) gather(all, *copy, reach, memory);
  for (const auto& [node, bodies] : content.bodies) {
    for (CUgraph body : bodies) {
      const auto found = all.graphs.find(body);
      if (found != all.graphs.end()) gather(all, *found->second, reach, memory);
    }
  }
  memory.add(content.memory);
}

// As the driver: a graph frees nothing twice.
CUresult addFree(Content& content, CUdeviceptr address) {
  std::vector<CUdeviceptr>& frees = content.memory.frees;
  if (std::find(frees.begin(), frees.end(), address) != frees.end())
    return CUDA_ERROR_INVALID_VALUE;
  frees.push_back(address);
  return CUDA_SUCCESS;
}

void rebuild(Executable& executable) {
  executable.all = executable.base;
  for (const auto& [node, set] : executable.overrides) executable.all.add(set);
}

CUresult captureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  const api::DriverTable& functions = driver();
  if (functions.cuStreamGetCaptureInfo_v2 != nullptr) {
    const CUresult result =
        functions.cuStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  if (functions.cuStreamGetCaptureInfo_v3 != nullptr) {
    const CUresult result =
        functions.cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr);
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  if (functions.cuStreamGetCaptureInfo == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return functions.cuStreamGetCaptureInfo(stream, status, id);
}

void oneCaptureLess() {
  const bool last = detail::g_captures.fetch_sub(1, std::memory_order_relaxed) == 1;
  pager::Pool* running = pool();
  if (running == nullptr) return;
  running->captureEnded();
  if (!last) return;
  std::vector<CUdeviceptr> waiting;
  {
    std::lock_guard lock(allCaptures().mutex);
    waiting.swap(allCaptures().to_free);
  }
  for (CUdeviceptr address : waiting) (void)freeMemory(address);  // another capture may have begun
}

// Captures that have ended, as soon as the mutex is released: also where memory was refused before
// all was noted.
struct Ended {
  size_t captures = 0;
  Ended() = default;
  ~Ended() {
    try {
      for (; captures > 0; --captures) oneCaptureLess();
    } catch (const std::exception& failure) {
      base::logError("what a capture has kept from being freed stays: %s", failure.what());
    }
  }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
};

// The pins of an executable graph that is launched from the device: the new ones, and those that it
// had. Under the mutex; then applyPins without it.
struct Repin {
  std::vector<uint64_t> addresses;
  std::vector<Pin> before;
};
Repin repin(Executable& executable) {
  if (!executable.device_launched) return {};
  return {executable.all.addresses, std::exchange(executable.pinned, {})};
}

void unpinAll(const std::vector<Pin>& pins) {
  pager::Pool* running = pool();
  for (const Pin& pin : pins)
    if (running != nullptr) (void)running->unpin(pin.address, pin.pinned);
}

// Pins are counted by the pager: the old ones are dropped after the new ones are there.
void applyPins(CUgraphExec exec, const Repin& change) {
  pager::Pool* running = pool();
  if (running == nullptr) return;
  std::vector<Pin> pins;
  for (const uint64_t address : change.addresses) {
    Pin pin{address, 0};
    const CUresult result = running->pin(address, &pin.pinned);
    if (result == CUDA_SUCCESS) pins.push_back(pin);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      base::logError(
          "a graph that is launched from the device uses more memory than VRAM has room for: it "
          "will touch memory that "
          "is "
          "not there");
  }
  unpinAll(change.before);
  Captures& all = allCaptures();
  {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.executables.find(exec); found != all.executables.end()) {
      found->second.pinned.insert(found->second.pinned.end(), pins.begin(), pins.end());
      return;
    }
  }
  unpinAll(pins);
}

}  // namespace

// The driver knows the modes of all captures and threads: a smallest allocation of its own tells,
// and does to the capture what the program's would have done.
CUresult refusedByCapture() {
  if (!anyCapture()) return CUDA_SUCCESS;
  CUdeviceptr probe = 0;
  const CUresult result = driver().cuMemAlloc_v2(&probe, 1);
  if (result == CUDA_SUCCESS) return driver().cuMemFree_v2(probe);
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

CUresult freeMemory(CUdeviceptr address) {
  for (unsigned refused = 0, strangers = 0;; ++refused) {
    if (anyCapture()) {
      std::lock_guard lock(allCaptures().mutex);
      if (anyCapture()) {  // else the last one's end has taken what was there
        allCaptures().to_free.push_back(address);
        return CUDA_SUCCESS;
      }
    }
    pager::Pool* running = pool();
    if (running == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    const CUresult result = running->free(address);
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || refused == kMostRefusals) return result;
    // The pager knows of a capture a moment earlier than anyCapture(), and longer. One that was
    // begun past us nobody here can wait for.
    if (!running->capturing() && ++strangers == kMostStrangers) return result;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

RelaxedCapture::RelaxedCapture() {
  if (anyCapture()) exchanged_ = driver().cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
}
RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) (void)driver().cuThreadExchangeStreamCaptureMode(&mode_);
}

uint64_t captureOf(const pager::StreamKey& stream) {
  if (!anyCapture()) return 0;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  if (captureInfo(stream.stream, &status, &id) != CUDA_SUCCESS) return 0;
  // The driver gives no id of one that is invalidated.
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return kInvalidatedCapture;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

void captureBegan(const pager::StreamKey& stream) {
  detail::g_captures.fetch_add(1, std::memory_order_relaxed);
  uint64_t id = captureOf(stream);
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  if (id == kInvalidatedCapture)  // already, by another thread: it is found by its stream
    while (all.running.contains(id)) --id;
  Capture& capture = all.running[id];
  capture.stream = stream;
}

void captureEnded(const pager::StreamKey& stream, uint64_t id, CUgraph graph) {
  Captures& all = allCaptures();
  Ended ended;
  Content content;  // what of it is dropped goes after the lock
  {
    std::lock_guard lock(all.mutex);
    auto found = id == kInvalidatedCapture ? all.running.end() : all.running.find(id);
    // One that was invalidated has no id any more.
    if (found == all.running.end()) {
      found = std::find_if(all.running.begin(), all.running.end(),
                           [&](const auto& entry) { return entry.second.stream == stream; });
    }
    if (found != all.running.end()) {
      ended.captures = 1;
      content = std::move(found->second.content);
      all.running.erase(found);
    }
    if (ended.captures != 0 && graph != nullptr) {
      Content& into = *contentOf(all, graph);
      into.captured.add(content.captured);
      into.memory.add(content.memory);
    }
  }
}

// Captures that are gone without a graph, and what they had: dropped without the mutex.
struct GoneCaptures {
  Ended ended;  // after the others are gone
  std::map<uint64_t, Capture> dropped;
};

namespace {

// Those that `goes` tells of.
template <typename Goes>
GoneCapturesPtr endCaptures(Captures& all, Goes goes) {
  GoneCapturesPtr gone = std::make_shared<GoneCaptures>();
  std::lock_guard lock(all.mutex);
  for (auto it = all.running.begin(); it != all.running.end();) {
    const auto here = it++;
    if (!goes(here->second)) continue;
    gone->dropped.insert(all.running.extract(here));
    ++gone->ended.captures;
  }
  return gone;
}

}  // namespace

GoneCapturesPtr captureStreamGone(const pager::StreamKey& stream) {
  if (!anyCapture()) return nullptr;
  return endCaptures(allCaptures(), [&](const auto& capture) { return capture.stream == stream; });
}

void captureAdd(uint64_t id, const pager::Access& access) {
  ReachSet reach;
  access.collect(reach);
  captureAdd(id, reach);
}

void captureAdd(uint64_t id, const ReachSet& reach) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.running.find(id);
  if (found != all.running.end()) found->second.content.captured.add(reach);
}

void captureAllocates(uint64_t id, CUdeviceptr address) {
  auto memory = newGraphMemory(address);
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.running.find(id);
  if (found == all.running.end()) return;
  found->second.content.memory.allocates.push_back(std::move(memory));
  found->second.content.captured.add(address);
}

CUresult captureFrees(uint64_t id, CUdeviceptr address) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.running.find(id);
  if (found == all.running.end()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return addFree(found->second.content, address);
}

void captureLaunches(uint64_t id, CUgraphExec exec) {
  MemoryUse kept;  // until after the lock
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto launched = all.executables.find(exec);
  const auto found = all.running.find(id);
  if (launched == all.executables.end() || found == all.running.end()) return;
  found->second.content.memory.add(launched->second.memory);
}

CUresult graphFrees(CUgraph graph, CUdeviceptr address) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  return addFree(*contentOf(all, graph), address);
}

void capturesOfContextGone(CUcontext context) {
  (void)endCaptures(allCaptures(),
                    [&](const auto& capture) { return capture.stream.context == context; });
  graphMemoryOfContextGone();
}

void graphNodeReaches(CUgraph graph, CUgraphNode node, const ReachSet& reach) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  if (graph != nullptr) {
    if (!reach.empty()) contentOf(all, graph)->nodes[node] = reach;
    return;
  }
  for (auto& [handle, content] : all.graphs) {
    const auto found = content->nodes.find(node);
    if (found == content->nodes.end()) continue;
    found->second = reach;
    return;
  }
  all.changed[node] = reach;
}

void graphHasChild(CUgraph graph, CUgraphNode node, CUgraph child, bool shared) {
  std::shared_ptr<Content> copy;  // holds what was there before until after the lock
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  if (shared) {
    contentOf(all, graph)->bodies[node].push_back(child);
    return;
  }
  const auto found = all.graphs.find(child);
  if (found == all.graphs.end()) return;
  copy = std::make_shared<Content>();
  gather(all, *found->second, copy->captured, copy->memory);
  contentOf(all, graph)->copies[node].swap(copy);
}

void graphCloned(CUgraph clone, CUgraph original) {
  std::shared_ptr<Content> copy;
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.graphs.find(original);
  if (found == all.graphs.end()) return;
  // The clone's nodes reach the same, but by handles of their own: a change of the original's is
  // none of theirs.
  copy = std::make_shared<Content>();
  gather(all, *found->second, copy->captured, copy->memory);
  all.graphs[clone].swap(copy);
}

void graphReach(CUgraph graph, ReachSet& into) {
  MemoryUse kept;  // until after the lock
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.graphs.find(graph);
  if (found != all.graphs.end()) gather(all, *found->second, into, kept);
  for (const auto& [node, set] : all.changed) into.add(set);
}

// The record of something that is about to go. Destroyed without the mutex: it frees memory of
// graphs.
struct Leaving {
  struct Node {
    std::shared_ptr<Content> of;
    std::map<CUgraphNode, ReachSet>::node_type reach;
    std::map<CUgraphNode, std::shared_ptr<Content>>::node_type copy;
    std::map<CUgraphNode, std::vector<CUgraph>>::node_type bodies;
  };
  std::map<CUgraph, std::shared_ptr<Content>> graphs;
  std::map<CUgraphExec, Executable> executables;
  std::map<CUgraphNode, ReachSet> changed;
  std::vector<Node> nodes;

  Leaving() = default;
  ~Leaving() {
    for (const auto& [exec, executable] : executables) unpinAll(executable.pinned);
  }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;
};

namespace {

// Under the mutex. With the bodies of its conditional nodes.
void takeGraph(Captures& all, CUgraph graph, Leaving& leaving) {
  auto taken = all.graphs.extract(graph);
  if (taken.empty()) return;
  const std::shared_ptr<Content> content = taken.mapped();
  leaving.graphs.insert(std::move(taken));
  for (const auto& [node, bodies] : content->bodies)
    for (CUgraph body : bodies) takeGraph(all, body, leaving);
}

void takeChanged(Captures& all, CUgraphNode node, Leaving& leaving) {
  if (auto taken = all.changed.extract(node); !taken.empty())
    leaving.changed.insert(std::move(taken));
}

}  // namespace

bool anyNodeOfUnknownGraph() {
  std::lock_guard lock(allCaptures().mutex);
  return !allCaptures().changed.empty();
}

std::vector<CUgraph> graphBodies(CUgraph graph) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.graphs.find(graph);
  std::vector<CUgraph> all_bodies;
  if (found != all.graphs.end())
    for (const auto& [node, bodies] : found->second->bodies)
      all_bodies.insert(all_bodies.end(), bodies.begin(), bodies.end());
  return all_bodies;
}

LeavingPtr graphLeaves(CUgraph graph, const std::vector<CUgraphNode>& nodes) {
  LeavingPtr leaving = std::make_shared<Leaving>();
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  takeGraph(all, graph, *leaving);
  for (CUgraphNode node : nodes) takeChanged(all, node, *leaving);
  return leaving;
}

LeavingPtr nodeLeaves(CUgraphNode node) {
  LeavingPtr leaving = std::make_shared<Leaving>();
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  takeChanged(all, node, *leaving);
  for (auto& [handle, content] : all.graphs) {
    // The place is made first: the taken entry may not go under the mutex, which the end of a
    // graph's memory takes.
    Leaving::Node& taken = leaving->nodes.emplace_back();
    taken.of = content;
    taken.reach = content->nodes.extract(node);
    taken.copy = content->copies.extract(node);
    taken.bodies = content->bodies.extract(node);
    if (taken.reach.empty() && taken.copy.empty() && taken.bodies.empty())
      leaving->nodes.pop_back();
  }
  for (const Leaving::Node& taken : leaving->nodes)
    if (!taken.bodies.empty())
      for (CUgraph body : taken.bodies.mapped()) takeGraph(all, body, *leaving);
  return leaving;
}

LeavingPtr execLeaves(CUgraphExec exec) {
  LeavingPtr leaving = std::make_shared<Leaving>();
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  if (auto taken = all.executables.extract(exec); !taken.empty())
    leaving->executables.insert(std::move(taken));
  return leaving;
}

void stays(Leaving& leaving) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  all.graphs.merge(leaving.graphs);
  all.executables.merge(leaving.executables);
  all.changed.merge(leaving.changed);
  for (Leaving::Node& node : leaving.nodes) {
    node.of->nodes.insert(std::move(node.reach));
    node.of->copies.insert(std::move(node.copy));
    node.of->bodies.insert(std::move(node.bodies));
  }
}

void execMade(CUgraphExec exec, CUgraph graph, unsigned long long flags) {
  Captures& all = allCaptures();
  MemoryUse dropped;
  Repin change;
  {
    std::lock_guard lock(all.mutex);
    Executable& executable = all.executables[exec];
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) executable.device_launched = true;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0) executable.auto_free = true;
    executable.overrides.clear();
    executable.base = {};
    dropped = std::exchange(executable.memory, {});
    const auto found = all.graphs.find(graph);
    if (found != all.graphs.end()) gather(all, *found->second, executable.base, executable.memory);
    for (const auto& [node, set] : all.changed) executable.base.add(set);
    rebuild(executable);
    change = repin(executable);
  }
  applyPins(exec, change);
}

void execNodeReaches(CUgraphExec exec, CUgraphNode node, const ReachSet& reach) {
  Captures& all = allCaptures();
  Repin change;
  {
    std::lock_guard lock(all.mutex);
    Executable& executable = all.executables[exec];
    ReachSet& present = executable.overrides[node];
    if (present == reach) return;
    present = reach;
    rebuild(executable);
    change = repin(executable);
  }
  applyPins(exec, change);
}

void execHasChild(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  ReachSet reach;
  MemoryUse memory;
  {
    Captures& all = allCaptures();
    std::lock_guard lock(all.mutex);
    const auto found = all.graphs.find(child);
    if (found != all.graphs.end()) gather(all, *found->second, reach, memory);
    all.executables[exec].memory.add(memory);
  }
  execNodeReaches(exec, node, reach);
}

void execReach(CUgraphExec exec, ReachSet& into) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.executables.find(exec);
  if (found != all.executables.end()) into.add(found->second.all);
}

LaunchBefore execLaunches(CUgraphExec exec, ReachSet& into) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.executables.find(exec);
  if (found == all.executables.end()) return {};
  into.add(found->second.all);
  return found->second.launched;
}

void execLaunched(CUgraphExec exec, const pager::StreamKey& stream, const LaunchBefore& before) {
  if (before.any && before.stream == stream && !before.gone) return;
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.executables.find(exec);
  if (found != all.executables.end()) found->second.launched = {stream, true, false};
}

void launchStreamGone(const pager::StreamKey& stream) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  for (auto& [exec, executable] : all.executables)
    executable.launched.gone |= executable.launched.any && executable.launched.stream == stream;
}

MemoryUse execMemory(CUgraphExec exec, bool* auto_free) {
  Captures& all = allCaptures();
  std::lock_guard lock(all.mutex);
  const auto found = all.executables.find(exec);
  if (found == all.executables.end()) return {};
  *auto_free = found->second.auto_free;
  return found->second.memory;
}

}  // namespace olpager::local
