// Tells the supervisor what the session uses, twice a second, and does what the supervisor orders.
// A thread of its own: a worker whose calls all wait for the GPU still reports. Thread-safety:
// start() once, before the worker serves; the thread runs until the process ends.
#pragma once

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

/// `fd`: the supervisor's socket. The worker has started.
void startReporter(Worker& worker, int fd);

}  // namespace olpager::gpunode
