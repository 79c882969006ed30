// Whether streams of the program capture. Thread-safety: any thread.
#pragma once

#include <cuda.h>

namespace olpager::forward {

class Session;

/// Some stream of the process captures: what is enqueued may become part of a graph, and then happens at each of its launches.
bool capturing();
/// This one does; asks the worker.
bool captures(CUstream stream, bool per_thread);

/// What is before it in the stream may have changed exchanged memory that kernels reach (memory.h): that comes back.
void changesBehind(Session* session, CUstream stream, bool per_thread);

}  // namespace olpager::forward
