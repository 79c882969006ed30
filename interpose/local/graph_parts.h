// A graph that does not fit: a launch of an executable graph that reaches more memory than VRAM has
// room for (Access::inPartsBeyondVram) is made as its nodes (graph_nodes.h), one after the other,
// in the launch's stream. Each node then has its own memory in VRAM when it runs, asked for ahead
// in the learned order, instead of all nodes using the same memory in place over the link.
//
// The split is right since a graph promises an order along its edges and nothing else. The nodes
// are made in a topological order, which a stream keeps; child graphs in the place of their nodes.
// Two branches that natively might run side by side run one after the other. The order taken is the
// one nearest to how the nodes were added or captured, with nodes that may wait for something
// outside of the graph (events, memory operations) as late as they may be. Later operations of the
// stream are behind all nodes, and a launch of the same executable graph in another stream waits
// for this one, as natively.
//
// Values are those that the executable graph has: of its graph when it was instantiated or last
// updated, and what calls have set in it since. The driver tells the nodes of graphs, and nothing
// of executable ones. So:
//
//   state     what holds                                                  left by
//   tied      its graph is there, and has its nodes and edges. If the     a launch that does not
//             program has set values in nodes of the graph since, those   fit, a change of the
//             before are in Ties::before. A graph that the program        graph's nodes or edges:
//             destroys is kept from the driver until nothing is tied to   apart or whole; an
//             it.                                                         update: tied again
//   apart     the nodes have been read; the graph is not needed           an update: tied
//   whole     it holds something that no stream can be given, which was   an update: tied
//             said once, or nobody knows its nodes: it is launched as
//             natively
//
// The cost for a program whose graphs fit: an entry in a map for each executable graph; for each
// value that is set in one a copy of that value; where a value is set in a node of a graph after
// the graph was instantiated, a read of the node before; and the memory of graphs that it destroys,
// as long as the executable graphs live (natively what is made of a graph holds about as much
// again). Nothing is walked, cloned or asked of the driver when a graph is instantiated or updated:
// a snapshot then would be paid by every program, at every update.
//
// When a launch fails in the middle. Before its first node is made, a launch fails as natively: by
// its error, and nothing has run. After that what has run can't be taken back, and a program that
// saw an error would take it that nothing has. So the context ends, with one line that says why, as
// it does natively when a node fails while its graph runs.
//
// User objects that the program ties to an executable graph stay until its nodes have run: where it
// is destroyed before, the driver destroys it at a later call (reapExecs).
//
// Order among launches of one executable graph: the driver keeps it where all are whole. Behind
// parts an event is recorded, for which a launch in another stream waits. Behind a whole launch in
// another stream one is recorded there when parts follow; where that can't be done (the stream is
// gone, captures, or is another thread's own) this launch is made whole too.
//
// Ownership: an executable graph's state lives until it is destroyed. Thread-safety: any thread;
// executable graphs and graphs are used by one thread at a time each, by the driver's rules, but an
// executable graph and the graph that it was made of by two. Lock: Ties::mutex (locks.h). The lock
// is held while the driver tells of nodes, never while something is launched, waited for or
// destroyed.
#pragma once

#include <cuda.h>

#include <memory>

#include "interpose/local/graph_nodes.h"
#include "pager/pool.h"

namespace olpager::local {

/// The nodes of an executable graph, in the order in which they are made.
struct GraphParts;
using GraphPartsPtr = std::shared_ptr<const GraphParts>;

// --- executable graphs. After the driver's call, when it succeeded. -----------------------------
void execTied(CUgraphExec exec, CUgraph graph, unsigned long long flags);
void execUpdated(CUgraphExec exec, CUgraph graph);
/// `node` does `work` from now on; nullptr: what it does is not known.
void execNodeSet(CUgraphExec exec, CUgraphNode node, const NodePtr& work);
void execChildSet(CUgraphExec exec, CUgraphNode node, CUgraph child);
void execNodeEnabled(CUgraphExec exec, CUgraphNode node, bool enabled);
/// Before the driver's call. False: the driver is not to be called, it is destroyed later.
bool execMayGo(CUgraphExec exec);
/// Drops kept objects that are no longer needed. A load where there is nothing.
void reapExecs();

// --- graphs. Before the driver's call. ----------------------------------------------------------
/// Its nodes or edges change.
void graphWillChange(CUgraph graph);
/// The node, of a graph that is not known, is destroyed.
void nodeWillGo(CUgraphNode node);
/// The node's values change.
void nodeWillChange(CUgraphNode node);
/// The graph is part of another, and goes with it: nothing may be tied to it.
void graphIsPart(CUgraph graph);
/// The program destroys the graph. True: `result` is the answer, and the driver is not to be
/// called. Else graphGone() comes next, and the driver's call.
bool keepsGraph(CUgraph graph, CUresult* result);
void graphGone(CUgraph graph);

// --- launches -----------------------------------------------------------------------------------
/// Launches of one executable graph are made one at a time, in the order in which they came: while
/// it lives, or waits, no other thread makes one. By the driver's rules threads meet only where the
/// calls of one program are made by several, as in a gpunode's worker.
class LaunchTurn {
 public:
  /// `needed`: else nothing is done.
  LaunchTurn(CUgraphExec exec, bool needed);
  ~LaunchTurn();
  LaunchTurn(const LaunchTurn&) = delete;
  LaunchTurn& operator=(const LaunchTurn&) = delete;

 private:
  CUgraphExec exec_;
  bool has_ = false;
  uint64_t number_ = 0;
};
/// True if it may be launched in parts, as far as is known. A lookup under the lock.
bool mayBeInParts(CUgraphExec exec);
/// Takes it apart. nullptr: it stays whole; one line says why.
GraphPartsPtr takeApart(CUgraphExec exec);

/// The launch of an executable graph before this one.
struct LaunchBefore {
  pager::StreamKey stream;
  bool any = false;   // there was one
  bool gone = false;  // its stream has been destroyed since
};
/// Makes the nodes in the stream, which does not capture. `whole`: it has to be launched whole this
/// time, and nothing has been done; the result means nothing then.
CUresult launchParts(CUgraphExec exec, const GraphParts& parts, const pager::StreamKey& stream,
                     const LaunchBefore& before, bool* whole);
/// The graph is about to be launched whole, in the stream: behind its parts in another one. A load
/// while nothing has been launched in parts.
CUresult launchesWhole(CUgraphExec exec, const pager::StreamKey& stream);

}  // namespace olpager::local
