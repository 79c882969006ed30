// Whether streams of the program capture, and what that forbids which of its threads: the worker
// makes all calls by threads of its own. There a capture is global or relaxed; each call says
// whether its thread may do as it likes. Thread-safety: any thread. Locks: one of its own, with
// that of threads.h below it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

namespace olpager::forward {

class Session;

/// Some stream of the process captures: what is enqueued may become part of a graph, and then
/// happens at each of its launches.
bool capturing();
/// What captures forbids this thread calls that can't be part of a graph: one of its own that is
/// not relaxed, or any that is global, unless the thread has exchanged its mode.
bool captureForbids();
/// This one does; asks the worker. Also one that has joined the capture of another by an event.
bool captures(CUstream stream, bool per_thread);

/// What ends captures that nobody ends: their streams go with their context or their session, and
/// with a thread its default ones.
void forgetCapturesOf(uint64_t context);
void forgetCapturesIn(unsigned slot);
void endCapturesOfThread();

/// A node of the graph allocates memory, or its capture does: launches of what is made of it may be
/// refused, and are waited for.
void noteAllocates(CUgraph graph);
/// The graph that the stream's capture adds to; null: it does not capture. Asks the worker.
CUgraph capturedGraph(CUstream stream, bool per_thread);

/// What is before it in the stream may have changed exchanged memory that kernels reach (memory.h),
/// and these blocks, which only it uses: that comes back.
void changesBehind(Session* session, CUstream stream, bool per_thread,
                   std::span<const uint64_t> own = {});

}  // namespace olpager::forward
