#include "interpose/forward/stand_ins.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/own_memory.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/stand_in_table.h"
#include "interpose/forward/threads.h"
#include "interpose/forward/user_objects.h"

namespace olpager::forward {

namespace {

constexpr uint64_t kSpareBytes = 64ull << 20;  // of a session, kept for the next stand-ins
constexpr uint64_t kUnderWay = 256ull << 20;   // bytes that may wait in streams

constexpr std::chrono::microseconds kLook{200};

using Place = StandInPlace;
using StreamOf = StandInTable::StreamOf;

StandInTable& tableOf(const Session& session) { return *session.parts().stand_ins; }
// The table of the session of a graph, an executable graph or a node; null: there is none.
template <typename Handle>
StandInTable* tableFor(Handle handle) {
  const Session* const session = Route().handle(handle).session();
  return session != nullptr ? &tableOf(*session) : nullptr;
}

// Takes the stand-ins of launches that are over by now.
StandIns takeOver(StandInTable& all, Session* session) {
  const auto there = session->parts().whileThere();
  const std::lock_guard lock(all.mutex);
  if (session->arrivals().changesOutstanding()) return {};
  all.sent = 0;
  return std::exchange(there->launched, {});
}

// Room for so many bytes; one that was used before where it can be had.
CUresult takePlace(Session* session, uint64_t bytes, Place* out) {
  if (!session->arrivals().changesOutstanding()) {
    SpareStandIns& free = tableOf(*session).spare;
    const std::lock_guard lock(free.mutex);
    const auto found = std::find_if(free.all.begin(), free.all.end(), [&](const Place& place) {
      return place.room >= bytes && place.room / 4 <= bytes;
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
void trimSpares(StandInTable& all, Session* session) {
  if (capturing() || session->arrivals().changesOutstanding()) return;
  std::vector<Place> out;
  {
    SpareStandIns& free = all.spare;
    const std::lock_guard lock(free.mutex);
    uint64_t kept = 0;
    for (auto one = free.all.begin(); one != free.all.end();) {
      if ((kept += one->room) > kSpareBytes) {
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
      all.there.erase(place.there);
    }
    unmapThere(session, place.there);
  }
}

// Under the mutex: one that holds all of the memory.
StandInPtr find(StandInTable& all, uint64_t here, uint64_t bytes) {
  for (const auto& [there, weak] : all.there) {
    StandInPtr one = weak.lock();
    if (one != nullptr && here >= one->here && here - one->here <= one->bytes &&
        bytes <= one->bytes - (here - one->here))
      return one;
  }
  return nullptr;
}

// Under the mutex.
StandInPtr findThere(StandInTable& all, uint64_t there) {
  auto after = all.there.upper_bound(there);
  if (after == all.there.begin()) return nullptr;
  StandInPtr one = std::prev(after)->second.lock();
  return one != nullptr && there - one->place.there < one->bytes ? one : nullptr;
}

// Those that the copies in a graph name; the worker goes through its nodes.
StandIns standInsIn(CUgraph graph) {
  StandInTable* const table = tableFor(graph);
  if (table == nullptr || table->live.load() == 0) return {};
  StandInTable& all = *table;
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
    StandInPtr one = findThere(all, first);
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
std::vector<std::byte> changesOf(StandInTable& all, const StandIns& of) {
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

StandIn::~StandIn() {
  StandInTable& all = tableOf(*place.session);
  all.live.fetch_sub(1);
  const std::lock_guard lock(all.spare.mutex);
  all.spare.all.push_back(std::move(place));
}

CUresult standIn(Session* session, uint64_t here, uint64_t bytes, StandIns& all, uint64_t* there) {
  *there = 0;
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (here == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  StandInTable& known = tableOf(*session);
  (void)takeOver(known, session);
  trimSpares(known, session);
  StandInPtr one;
  {
    const std::lock_guard lock(known.mutex);
    one = find(known, here, bytes);
  }
  if (one == nullptr) {
    Place place;
    if (const CUresult error = takePlace(session, bytes, &place); error != CUDA_SUCCESS)
      return error;
    one = std::make_shared<StandIn>(std::move(place), here, bytes);
    const std::lock_guard lock(known.mutex);
    known.there[one->place.there] = one;
    known.live.fetch_add(1);
  }
  *there = one->place.there + (here - one->here);
  all.push_back(std::move(one));
  return CUDA_SUCCESS;
}

void noteBody(CUgraph graph) {
  StandInTable* const all = tableFor(graph);
  if (all == nullptr) return;
  const std::lock_guard lock(all->mutex);
  all->bodies.insert(graph);
}

CUresult graphNeeds(Session* session, CUgraph graph, const StandIns& all) {
  if (!all.empty()) {
    StandInTable& table = tableOf(*session);
    const std::lock_guard lock(table.mutex);
    if (table.bodies.contains(graph))
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
  StandInTable* const known = tableFor(node);
  if (known == nullptr || (all.empty() && known->set.load() == 0)) return;
  const std::lock_guard lock(known->mutex);
  known->nodes[node].swap(all);
  if (known->nodes[node].empty()) known->nodes.erase(node);
  known->count();
}

void execMade(CUgraphExec exec, CUgraph graph) {
  StandInTable* const table = tableFor(exec);
  if (table == nullptr) return;
  StandInTable& all = *table;
  StandInTable::Exec before;
  StandIns base = standInsIn(graph);
  if (base.empty() && all.with.load() == 0) return;
  const std::lock_guard lock(all.mutex);
  StandInTable::Exec& now = all.execs[exec];
  std::swap(before, now);
  now.base = std::move(base);
  if (now.base.empty()) all.execs.erase(exec);
  all.count();
}

void execNodeNeeds(CUgraphExec exec, CUgraphNode node, StandIns needs) {
  StandInTable* const table = tableFor(exec);
  if (table == nullptr || (needs.empty() && table->with.load() == 0)) return;
  StandInTable& all = *table;
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
  StandInTable* const table = tableFor(exec);
  if (table == nullptr || table->with.load(std::memory_order_relaxed) == 0) return {};
  StandInTable& all = *table;
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
        session->functions().inGraphs() ? namedBlocks(session) : std::vector<uint64_t>{};
    return blocks.empty() ? CUDA_SUCCESS : sendTo(session, stream, per_thread, blocks, {});
  }
  // Changes that the program's functions before the launch in streams still make are read after
  // them.
  if (const CUresult error = awaitFunctions(session, stream, per_thread); error != CUDA_SUCCESS)
    return error;
  StandInTable& known = tableOf(*session);
  (void)takeOver(known, session);
  // Launches of one stream follow each other; what goes to a stand-in may not overtake another
  // stream's launch that reads it.
  const StreamOf in{stream, (per_thread && stream == nullptr) || stream == CU_STREAM_PER_THREAD
                                ? thisThread()
                                : 0};
  const auto waits = [&] {
    const auto there = session->parts().whileThere();
    const std::lock_guard lock(known.mutex);
    return !there->launched.empty() && (known.stream != in || known.sent > kUnderWay);
  };
  while (!session->ended() && waits()) {
    std::this_thread::sleep_for(kLook);  // the worker tells of it by itself
    (void)takeOver(known, session);
  }
  const std::lock_guard order(known.send_mutex);
  const std::vector<std::byte> runs = changesOf(known, all);
  std::vector<uint64_t> blocks = namedBlocks(session);
  for (const StandInPtr& one : all) blocks.push_back(one->place.there);
  CUresult result = CUDA_SUCCESS;
  if (!runs.empty() || session->functions().inGraphs())
    result = sendTo(session, stream, per_thread, blocks, runs);
  const std::lock_guard lock(known.mutex);
  known.stream = in;
  known.sent += runs.size();
  return result;
}

std::vector<uint64_t> launchedStandIns(Session* session, const StandIns& of) {
  std::vector<uint64_t> blocks;
  StandInTable& all = tableOf(*session);
  const auto there = session->parts().whileThere();
  const std::lock_guard lock(all.mutex);
  StandIns& under_way = there->launched;
  for (const StandInPtr& one : of) {
    blocks.push_back(one->place.there);
    if (std::find(under_way.begin(), under_way.end(), one) == under_way.end())
      under_way.push_back(one);
  }
  return blocks;
}

void sendStandInsNow(Session* session) {
  StandInTable& all = tableOf(*session);
  if (all.live.load(std::memory_order_relaxed) == 0) return;
  StandIns under_way;
  {
    const auto there = session->parts().whileThere();
    const std::lock_guard lock(all.mutex);
    under_way = there->launched;
  }
  if (under_way.empty()) return;
  const std::lock_guard order(all.send_mutex);
  if (const std::vector<std::byte> runs = changesOf(all, under_way); !runs.empty())
    sendRuns(session, session->side(), runs);
}

void standInsOfExecGone(CUgraphExec exec) {
  StandInTable* const all = tableFor(exec);
  if (all == nullptr || all->with.load() == 0) return;
  std::map<CUgraphExec, StandInTable::Exec>::node_type gone;
  const std::lock_guard lock(all->mutex);
  gone = all->execs.extract(exec);
  all->count();
}

void standInsOfNodeGone(CUgraphNode node) { nodeNeeds(node, {}); }

void standInsOfGraphGone(CUgraph graph) {
  const StandInTable* const all = tableFor(graph);
  if (all == nullptr || all->set.load() == 0) return;
  size_t count = 0;
  if (ol_forward_generated_cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0 ||
      count > kMostBytes / sizeof(CUgraphNode))
    return;
  std::vector<CUgraphNode> nodes(count);
  if (ol_forward_generated_cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (const CUgraphNode node : nodes) standInsOfNodeGone(node);
}

bool isOfStandIn(uint64_t there, uint64_t bytes, uint64_t* here) {
  for (const Session* const session : existingSessions()) {
    StandInTable& all = tableOf(*session);
    if (all.live.load(std::memory_order_relaxed) == 0) continue;
    const std::lock_guard lock(all.mutex);
    const StandInPtr one = findThere(all, there);
    if (one == nullptr) continue;
    *here = one->here + (there - one->place.there);
    return bytes <= one->bytes - (there - one->place.there);
  }
  return false;
}

uint64_t hereOfStandIn(uint64_t there) {
  for (const Session* const session : existingSessions()) {
    StandInTable& all = tableOf(*session);
    if (all.live.load(std::memory_order_relaxed) == 0) continue;
    const std::lock_guard lock(all.mutex);
    if (const StandInPtr one = findThere(all, there); one != nullptr)
      return one->here + (there - one->place.there);
  }
  return there;
}

bool takeStandIn(const Session& session, const Run& run) {
  StandInTable& all = tableOf(session);
  if (all.live.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(all.mutex);
  const StandInPtr one = findThere(all, run.address);
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
