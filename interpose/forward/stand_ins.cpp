#include "interpose/forward/stand_ins.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/own_memory.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/memory.h"
#include "interpose/forward/threads.h"
#include "interpose/forward/user_objects.h"

namespace olpager::forward {

namespace {

constexpr uint64_t kSpareBytes = 64ull << 20;  // of a session, kept for the next stand-ins
constexpr uint64_t kUnderWay = 256ull << 20;   // bytes that may wait in streams

constexpr std::chrono::microseconds kLook{200};

// Memory at a worker.
struct Place {
  Session* session = nullptr;
  uint64_t there = 0;
  uint64_t room = 0;
  std::vector<std::byte> agreed;  // what both last agreed on; as long as `room`
};

// Places that nobody needs any more. A launch may still use them: they serve again when none of the
// session's is under way.
struct Spares {
  std::mutex mutex;  // a leaf, under the table's
  std::vector<Place> all;
};
Spares& spares() {
  static auto* const instance = new Spares;
  return *instance;
}

}  // namespace

struct StandIn {
  StandIn(Place&& at, uint64_t address, uint64_t count)
      : place(std::move(at)), here(address), bytes(count) {}
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  Place place;
  const uint64_t here;
  const uint64_t bytes;
};

namespace {

using StreamOf = std::pair<CUstream, uint32_t>;  // with the thread whose default stream it is

struct Table {
  std::mutex send_mutex;  // what changed goes in the order in which it was seen
  std::mutex mutex;
  std::array<std::map<uint64_t, std::weak_ptr<StandIn>>, kMostSessions>
      there;  // one that is gone stays until its place serves another
  struct Exec {
    StandIns base;                            // of its graph
    std::map<CUgraphNode, StandIns> changed;  // by node
  };
  std::map<CUgraphExec, Exec> execs;
  std::map<CUgraphNode, StandIns> nodes;
  std::set<CUgraph> bodies;
  std::array<StandIns, kMostSessions> under_way;   // of launches
  std::array<uint64_t, kMostSessions> sent{};      // bytes, since none was under way
  std::array<StreamOf, kMostSessions> stream{};    // of the last launch
  std::atomic<uint32_t> live{0}, with{0}, set{0};  // stand-ins, entries of `execs`, of `nodes`

  void count() {
    with.store(static_cast<uint32_t>(execs.size()));
    set.store(static_cast<uint32_t>(nodes.size()));
  }
};
Table& table() {
  static auto* const instance = new Table;
  return *instance;
}

bool isQuiet(const Session& session) { return session.changesAnswered(session.changesExpected()); }

// What launches used that are over by now.
StandIns takeOver(Table& all, Session* session) {
  const std::lock_guard lock(all.mutex);
  if (!isQuiet(*session)) return {};
  all.sent[session->slot()] = 0;
  return std::exchange(all.under_way[session->slot()], {});
}

// Room for so many bytes; one that was used before where it can be had.
CUresult takePlace(Session* session, uint64_t bytes, Place* out) {
  if (isQuiet(*session)) {
    Spares& free = spares();
    const std::lock_guard lock(free.mutex);
    const auto found = std::find_if(free.all.begin(), free.all.end(), [&](const Place& place) {
      return place.session == session && place.room >= bytes && place.room / 4 <= bytes;
    });
    if (found != free.all.end()) {
      *out = std::move(*found);
      free.all.erase(found);
      return CUDA_SUCCESS;
    }
  }
  *out = {session, 0, 0, std::vector<std::byte>(bytes)};
  const CUresult result = mapThere(session, bytes, &out->there);
  if (result == CUDA_SUCCESS) out->room = bytes;
  return result;
}

// More than is worth keeping goes back, where nothing captures: the worker waits for the context.
void trimSpares(Table& all, Session* session) {
  if (capturing() || !isQuiet(*session)) return;
  std::vector<Place> out;
  {
    Spares& free = spares();
    const std::lock_guard lock(free.mutex);
    uint64_t kept = 0;
    for (auto one = free.all.begin(); one != free.all.end();) {
      if (one->session == session && (kept += one->room) > kSpareBytes) {
        out.push_back(std::move(*one));
        one = free.all.erase(one);
      } else {
        ++one;
      }
    }
  }
  for (const Place& place : out) {
    {
      const std::lock_guard lock(all.mutex);
      all.there[session->slot()].erase(place.there);
    }
    unmapThere(session, place.there);
  }
}

// Under the mutex: of the session's, that holds all of the memory.
StandInPtr find(Table& all, const Session& session, uint64_t here, uint64_t bytes) {
  for (const auto& [there, weak] : all.there[session.slot()]) {
    StandInPtr one = weak.lock();
    if (one != nullptr && here >= one->here && here - one->here <= one->bytes &&
        bytes <= one->bytes - (here - one->here))
      return one;
  }
  return nullptr;
}

// Under the mutex.
StandInPtr findThere(Table& all, unsigned slot, uint64_t there) {
  auto after = all.there[slot].upper_bound(there);
  if (after == all.there[slot].begin()) return nullptr;
  StandInPtr one = std::prev(after)->second.lock();
  return one != nullptr && there - one->place.there < one->bytes ? one : nullptr;
}

// Those that the copies in a graph name; the worker goes through its nodes.
StandIns standInsIn(CUgraph graph) {
  Table& all = table();
  if (all.live.load() == 0) return {};
  Call call(Operation::kGraphHostSides, Route().handle(graph));
  call.value(reinterpret_cast<uint64_t>(graph));
  call.ofOurOwn();
  (void)call.sync();
  StandIns found;
  if (!call.answered()) return found;
  const std::lock_guard lock(all.mutex);
  const auto side = [&](CUmemorytype type, const void* host, const CUDA_MEMCPY3D& box,
                        bool source) {
    if (type != CU_MEMORYTYPE_HOST) return;
    const auto first = reinterpret_cast<uint64_t>(rowsOf(host, box, source).first);
    StandInPtr one = findThere(all, call.session()->slot(), first);
    if (one != nullptr && std::find(found.begin(), found.end(), one) == found.end())
      found.push_back(std::move(one));
  };
  while (call.reply().ok() && call.reply().left() != 0) {
    const auto box = call.reply().value<CUDA_MEMCPY3D>();
    side(box.srcMemoryType, box.srcHost, box, true);
    side(box.dstMemoryType, box.dstHost, box, false);
  }
  return found;
}

// Under send_mutex: what the program changed, as runs.
std::vector<std::byte> changesOf(Table& all, const StandIns& of) {
  std::vector<std::byte> runs;
  const std::lock_guard lock(all.mutex);
  for (const StandInPtr& one : of)
    appendChangesUnlessGone(one->place.there, one->here,
                            std::span(one->place.agreed).first(one->bytes), runs);
  return runs;
}

// To the stream.
CUresult sendTo(Session* session, CUstream stream, bool per_thread,
                const std::vector<uint64_t>& blocks, std::span<const std::byte> runs) {
  CUresult result = CUDA_SUCCESS;
  eachPart(runs, [&](std::span<const std::byte> part) {
    Call call(Operation::kGraphBytes, session);
    call.ofOurOwn();
    call.value(reinterpret_cast<uint64_t>(stream));
    call.value(static_cast<uint8_t>(per_thread));
    call.value(static_cast<uint32_t>(blocks.size()));
    for (const uint64_t block : blocks) call.value(block);
    call.raw(part.data(), part.size());
    if (result == CUDA_SUCCESS) result = call.oneWay();
  });
  return result;
}

void release(void* data) { delete static_cast<StandInPtr*>(data); }

}  // namespace

// Whoever drops it may hold the table's mutex.
StandIn::~StandIn() {
  table().live.fetch_sub(1);
  Spares& free = spares();
  const std::lock_guard lock(free.mutex);
  free.all.push_back(std::move(place));
}

CUresult standIn(Session* session, uint64_t here, uint64_t bytes, StandIns& all, uint64_t* there) {
  *there = 0;
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (here == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  Table& known = table();
  (void)takeOver(known, session);
  trimSpares(known, session);
  StandInPtr one;
  {
    const std::lock_guard lock(known.mutex);
    one = find(known, *session, here, bytes);
  }
  if (one == nullptr) {
    Place place;
    if (const CUresult error = takePlace(session, bytes, &place); error != CUDA_SUCCESS)
      return error;
    one = std::make_shared<StandIn>(std::move(place), here, bytes);
    const std::lock_guard lock(known.mutex);
    known.there[session->slot()][one->place.there] = one;
    known.live.fetch_add(1);
  }
  *there = one->place.there + (here - one->here);
  all.push_back(std::move(one));
  return CUDA_SUCCESS;
}

void noteBody(CUgraph graph) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  all.bodies.insert(graph);
}

CUresult graphNeeds(Session* session, CUgraph graph, const StandIns& all) {
  if (!all.empty()) {
    const std::lock_guard lock(table().mutex);
    if (table().bodies.contains(graph))
      return refused(
          "a copy from or to memory that is not pinned, in the body of a conditional node,", false);
  }
  for (const StandInPtr& one : all) {
    auto held = std::make_unique<StandInPtr>(one);
    CUuserObject object = nullptr;
    CUresult result = createUserObject(session, &object, held.get(), release, 1,
                                       CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (result != CUDA_SUCCESS) return result;
    (void)held.release();  // the destructor's, whatever becomes of the graph
    result =
        ol_forward_generated_cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result == CUDA_SUCCESS) continue;
    (void)ol_forward_generated_cuUserObjectRelease(object, 1);
    return result;
  }
  return CUDA_SUCCESS;
}

void nodeNeeds(CUgraphNode node, StandIns all) {
  Table& known = table();
  if (all.empty() && known.set.load() == 0) return;
  const std::lock_guard lock(known.mutex);
  known.nodes[node].swap(all);
  if (known.nodes[node].empty()) known.nodes.erase(node);
  known.count();
}

void execMade(CUgraphExec exec, CUgraph graph) {
  Table& all = table();
  Table::Exec before;
  StandIns base = standInsIn(graph);
  if (base.empty() && all.with.load() == 0) return;
  const std::lock_guard lock(all.mutex);
  Table::Exec& now = all.execs[exec];
  std::swap(before, now);
  now.base = std::move(base);
  if (now.base.empty()) all.execs.erase(exec);
  all.count();
}

void execNodeNeeds(CUgraphExec exec, CUgraphNode node, StandIns needs) {
  Table& all = table();
  if (needs.empty() && all.with.load() == 0) return;
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(exec);
  if (needs.empty() && found == all.execs.end()) return;
  all.execs[exec].changed[node].swap(needs);
  all.count();
}

void execChildMade(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  execNodeNeeds(exec, node, standInsIn(child));
}

StandIns standInsOf(CUgraphExec exec) {
  Table& all = table();
  if (all.with.load(std::memory_order_relaxed) == 0) return {};
  const std::lock_guard lock(all.mutex);
  const auto found = all.execs.find(exec);
  if (found == all.execs.end()) return {};
  StandIns needs = found->second.base;
  for (const auto& [node, changed] : found->second.changed)
    for (const StandInPtr& one : changed)
      if (std::find(needs.begin(), needs.end(), one) == needs.end()) needs.push_back(one);
  return needs;
}

CUresult sendStandIns(Session* session, const StandIns& all, CUstream stream, bool per_thread) {
  if (all.empty()) {
    const std::vector<uint64_t> blocks =
        session->functionsInGraphs() ? namedBlocks(session) : std::vector<uint64_t>{};
    return blocks.empty() ? CUDA_SUCCESS : sendTo(session, stream, per_thread, blocks, {});
  }
  // What the program's functions before the launch in streams still change is read after them.
  if (const CUresult error = awaitFunctions(session, stream, per_thread); error != CUDA_SUCCESS)
    return error;
  Table& known = table();
  (void)takeOver(known, session);
  // Launches of one stream follow each other; what goes to a stand-in may not overtake another
  // stream's launch that reads it.
  const StreamOf in{stream, (per_thread && stream == nullptr) || stream == CU_STREAM_PER_THREAD
                                ? thisThread()
                                : 0};
  const unsigned slot = session->slot();
  const auto waits = [&] {
    const std::lock_guard lock(known.mutex);
    return !known.under_way[slot].empty() &&
           (known.stream[slot] != in || known.sent[slot] > kUnderWay);
  };
  while (waits()) {
    std::this_thread::sleep_for(kLook);  // the worker tells of it by itself
    (void)takeOver(known, session);
  }
  const std::lock_guard order(known.send_mutex);
  const std::vector<std::byte> runs = changesOf(known, all);
  std::vector<uint64_t> blocks = namedBlocks(session);
  for (const StandInPtr& one : all) blocks.push_back(one->place.there);
  CUresult result = CUDA_SUCCESS;
  if (!runs.empty() || session->functionsInGraphs())
    result = sendTo(session, stream, per_thread, blocks, runs);
  const std::lock_guard lock(known.mutex);
  known.stream[slot] = in;
  known.sent[slot] += runs.size();
  return result;
}

std::vector<uint64_t> launchedStandIns(Session* session, const StandIns& of) {
  std::vector<uint64_t> blocks;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  StandIns& under_way = all.under_way[session->slot()];
  for (const StandInPtr& one : of) {
    blocks.push_back(one->place.there);
    if (std::find(under_way.begin(), under_way.end(), one) == under_way.end())
      under_way.push_back(one);
  }
  return blocks;
}

void sendStandInsNow(Session* session) {
  Table& all = table();
  if (all.live.load(std::memory_order_relaxed) == 0) return;
  StandIns under_way;
  {
    const std::lock_guard lock(all.mutex);
    under_way = all.under_way[session->slot()];
  }
  if (under_way.empty()) return;
  const std::lock_guard order(all.send_mutex);
  if (const std::vector<std::byte> runs = changesOf(all, under_way); !runs.empty())
    sendRuns(session, runs);
}

void standInsOfExecGone(CUgraphExec exec) {
  Table& all = table();
  if (all.with.load() == 0) return;
  std::map<CUgraphExec, Table::Exec>::node_type gone;
  const std::lock_guard lock(all.mutex);
  gone = all.execs.extract(exec);
  all.count();
}

void standInsOfNodeGone(CUgraphNode node) { nodeNeeds(node, {}); }

void standInsOfGraphGone(CUgraph graph) {
  if (table().set.load() == 0) return;
  size_t count = 0;
  if (ol_forward_generated_cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0)
    return;
  std::vector<CUgraphNode> nodes(count);
  if (ol_forward_generated_cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (const CUgraphNode node : nodes) standInsOfNodeGone(node);
}

void forgetStandIns(unsigned slot) {
  Table& all = table();
  StandIns gone;
  const std::lock_guard lock(all.mutex);
  gone.swap(all.under_way[slot]);
}

uint64_t hereOfStandIn(uint64_t there) {
  Table& all = table();
  if (all.live.load(std::memory_order_relaxed) == 0) return there;
  StandInPtr one;
  const std::lock_guard lock(all.mutex);
  for (unsigned slot = 0; slot < kMostSessions && one == nullptr; ++slot)
    one = findThere(all, slot, there);
  return one != nullptr ? one->here + (there - one->place.there) : there;
}

bool takeStandIn(unsigned slot, const Run& run) {
  Table& all = table();
  if (all.live.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(all.mutex);
  const StandInPtr one = findThere(all, slot, run.address);
  if (one == nullptr) return false;
  const uint64_t offset = run.address - one->place.there;
  if (run.length > one->bytes - offset) return true;
  run.eachPiece([&](size_t at, std::span<const std::byte> bytes) {
    (void)base::writeUnlessGone(one->here + offset + at, bytes.data(), bytes.size());
  });
  run.copyTo(one->place.agreed.data() + offset);
  return true;
}

}  // namespace olpager::forward
