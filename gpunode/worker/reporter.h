// Tells the supervisor what the session uses, twice a second, and does what the supervisor orders.
// A thread of its own: a worker whose calls all wait for the GPU still reports. Thread-safety:
// startReporter() once, before the worker serves; the thread runs until the process ends. report()
// from any thread.
#pragma once

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

/// `fd`: the supervisor's socket. The worker has started.
void startReporter(Worker& worker, int fd);

/// One report at once: the last one, of a worker that is about to end. The report is lost if the
/// supervisor is gone or does not read.
void report(Worker& worker, int fd);

}  // namespace olpager::gpunode
