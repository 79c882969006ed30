// The memory that captures and graphs reach. An operation that a stream captures does not run now:
// what it names is gathered for the capture, goes to the graph that ends it, from there to every
// executable graph made of it, and is made resident at each launch. Every way in which a node gets
// into a graph passes here (a captured call, cuGraphAdd*, SetParams, a child graph, a clone), so a
// graph is never walked.
//
// So does what becomes of memory that is allocated inside captures (graph_memory.h).
//
// Thread-safety: everything may be called from any thread. Lock: Captures::mutex, except where
// nothing captures.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <vector>

#include "interpose/local/graph_memory.h"
#include "interpose/local/graph_parts.h"
#include "pager/pool.h"

namespace olpager::local {

namespace detail {
extern std::atomic<int> g_captures;
}

/// True while some stream of the process captures. One load.
inline bool anyCapture() { return detail::g_captures.load(std::memory_order_relaxed) != 0; }

/// The id of the capture that `stream` takes part in (also by waiting for an event of another
/// stream), 0 when none.
uint64_t captureOf(const pager::StreamKey& stream);
/// In place of an id: the capture was invalidated, and waits for its end. All that is put into it
/// is refused (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), as natively, before its memory is looked at.
inline constexpr uint64_t kInvalidatedCapture = UINT64_MAX;

// --- captures ------------------------------------------------------------------------------------
/// A capture has begun on `stream`.
void captureBegan(const pager::StreamKey& stream);
/// The capture has ended: `graph` is its result, nullptr when it failed.
void captureEnded(const pager::StreamKey& stream, uint64_t id, CUgraph graph);
/// The stream is about to be destroyed, with the capture that began on it. The capture's memory is
/// freed with the pointer, which is dropped once the driver has destroyed the stream: a free waits
/// for the context, which a stream that captures forbids.
struct GoneCaptures;
using GoneCapturesPtr = std::shared_ptr<GoneCaptures>;
GoneCapturesPtr captureStreamGone(const pager::StreamKey& stream);
/// The operation of `access` is part of capture `id`.
void captureAdd(uint64_t id, const pager::Access& access);
void captureAdd(uint64_t id, const pager::ReachSet& reach);
/// `address` was allocated for capture `id`, or is memory of a graph that capture `id` frees.
void captureAllocates(uint64_t id, CUdeviceptr address);
CUresult captureFrees(uint64_t id, CUdeviceptr address);
/// The launch of `exec` is part of capture `id`.
void captureLaunches(uint64_t id, CUgraphExec exec);
/// The context is gone for the pager, with all of its memory: so are the captures in it.
void capturesOfContextGone(CUcontext context);

// --- graphs --------------------------------------------------------------------------------------
/// What a node of `graph` reaches, when the node is new or its parameters changed. `graph` may be
/// nullptr (not known).
void graphNodeReaches(CUgraph graph, CUgraphNode node, const pager::ReachSet& reach);
/// `child` became a node of `graph`. `shared`: it is the node's, to which more may come: a
/// conditional node's body, or a graph that was moved there; else it was copied.
void graphHasChild(CUgraph graph, CUgraphNode node, CUgraph child, bool shared);
void graphCloned(CUgraph clone, CUgraph original);
/// Adds to `into` everything that `graph` reaches, with its child graphs.
void graphReach(CUgraph graph, pager::ReachSet& into);
/// A node of `graph` frees memory of a graph.
CUresult graphFrees(CUgraph graph, CUdeviceptr address);
/// The bodies of its conditional nodes.
std::vector<CUgraph> graphBodies(CUgraph graph);

// --- executable graphs ---------------------------------------------------------------------------
/// `exec` was made of `graph`, with these flags, or updated to it (0). A graph that kernels may
/// launch stays all in VRAM.
void execMade(CUgraphExec exec, CUgraph graph, unsigned long long flags);
void execNodeReaches(CUgraphExec exec, CUgraphNode node, const pager::ReachSet& reach);
void execHasChild(CUgraphExec exec, CUgraphNode node, CUgraph child);
/// Adds to `into` everything that `exec` reaches.
void execReach(CUgraphExec exec, pager::ReachSet& into);
/// The same for a launch of it. Returns what is known of the one before.
LaunchBefore execLaunches(CUgraphExec exec, pager::ReachSet& into);
/// `exec` was launched in `stream`. `before`: from execLaunches().
void execLaunched(CUgraphExec exec, const pager::StreamKey& stream, const LaunchBefore& before);
/// The stream is about to be destroyed.
void launchStreamGone(const pager::StreamKey& stream);
MemoryUse execMemory(CUgraphExec exec, bool* auto_free);

// --- what goes -----------------------------------------------------------------------------------
/// What is known of a graph, a node or an executable graph is taken away before the driver destroys
/// it: its handle may be another's as soon as it is gone, in another thread. Dropped with the
/// pointer, which no lock is held over; stays() puts it back where the driver has refused.
struct Leaving;
using LeavingPtr = std::shared_ptr<Leaving>;
/// With the bodies of its conditional nodes. `nodes`: its own, those of its child graphs and of the
/// bodies; may be left empty when anyNodeOfUnknownGraph() is false.
LeavingPtr graphLeaves(CUgraph graph, const std::vector<CUgraphNode>& nodes);
LeavingPtr nodeLeaves(CUgraphNode node);
LeavingPtr execLeaves(CUgraphExec exec);
void stays(Leaving& leaving);
/// True if something is known of nodes whose graph is not: captured ones, and those of clones and
/// child graphs, that were changed.
bool anyNodeOfUnknownGraph();

/// The answer of native CUDA to an allocation or a free by this thread while some stream captures:
/// in a mode that forbids such calls an error, and the capture is spoiled. CUDA_SUCCESS, without a
/// call of the driver, while nothing captures.
CUresult refusedByCapture();

/// Frees memory of the pager's. While a stream captures, in whichever mode, it is freed when none
/// does any more: a free waits for the context, which would spoil the capture.
CUresult freeMemory(CUdeviceptr address);

/// While it lives, calls of the driver by this thread are no part of captures and not refused
/// because of one.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

}  // namespace olpager::local
