// Pageable memory of the program's that copies in graphs read or write. The copy's node names a
// stand-in in its place: pinned memory at the session's worker. With each launch of an executable
// graph that has such copies the program's changes go to their stand-ins, behind all work of the
// stream, and the graph's come back behind the launch; other launches know nothing of it. So a
// source's bytes are those that are there when the graph is launched. Copies from or to the same
// memory share a stand-in, as far as it holds all of theirs.
//
// A stand-in lives as long as a graph (a user object of the driver's tells), an executable graph, a
// node that was changed to it, or a launch that is under way needs it. Then its memory at the
// worker serves another. Thread-safety: any thread. Locks: those of
// stand_in_table.h.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "forwarding/wire/runs.h"

namespace olpager::forward {

class Session;

struct StandIn;
using StandInPtr = std::shared_ptr<StandIn>;
using StandIns = std::vector<StandInPtr>;

/// One for [here, + bytes) of the program's memory; `there` is where the worker has `here`. The new
/// one is added to `all`, whose owner keeps it until its user is known.
CUresult standIn(Session* session, uint64_t here, uint64_t bytes, StandIns& all, uint64_t* there);
/// The graph, which is the program's or a capture's, needs them from now on.
CUresult graphNeeds(Session* session, CUgraph graph, const StandIns& all);
/// The graph is a conditional node's, in which the driver offers no such copies: it is refused what
/// it needs.
void noteBody(CUgraph graph);
/// A node of a graph that is not known needs these, and nothing that it needed before.
void nodeNeeds(CUgraphNode node, StandIns all);

/// `exec` was made of `graph`, or updated to it; its copy nodes were set to name these; a child
/// graph of it was changed to `child`.
void execMade(CUgraphExec exec, CUgraph graph);
void execNodeNeeds(CUgraphExec exec, CUgraphNode node, StandIns all);
void execChildMade(CUgraphExec exec, CUgraphNode node, CUgraph child);
StandIns standInsOf(CUgraphExec exec);

/// Before the launch of an executable graph that has them, or none. The program's changes go to the
/// stream. Host functions of the graph find the memory that the graph may change.
CUresult sendStandIns(Session* session, const StandIns& all, CUstream stream, bool per_thread);
/// Behind it: the worker's addresses of them, for changesBehind().
std::vector<uint64_t> launchedStandIns(Session* session, const StandIns& all);
/// After a host function: its changes of memory that launches under way use are there for what is
/// behind it.
void sendStandInsNow(Session* session);

/// The object is about to go; `graph` is asked for its nodes where nodes have been changed.
void standInsOfExecGone(CUgraphExec exec);
void standInsOfGraphGone(CUgraph graph);
void standInsOfNodeGone(CUgraphNode node);

/// True if [there, + bytes) lies in a stand-in; `here`: the program's address of it.
bool isOfStandIn(uint64_t there, uint64_t bytes, uint64_t* here);
/// The program's address for one of a stand-in's. Others stay as they are.
uint64_t hereOfStandIn(uint64_t there);
/// False: the run is of no stand-in.
bool takeStandIn(const Session& session, const Run& run);

}  // namespace olpager::forward
