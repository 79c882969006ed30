// Confines a worker. Once its driver has started it can't, whatever its client makes it run: start
// programs or processes, look into others, signal or limit them, type into a terminal, change its
// rights or name spaces, load code into the kernel, and, where it needs neither memservers nor
// other gpunodes, open connections, to sockets of this machine as well.
//
// Thread-safety: confine() once, from any thread; it holds for all threads, those that exist as
// well. There is no way back. Errors: one line.
#pragma once

#include "base/result.h"

namespace olpager::gpunode {

struct Confinement {
  bool connects = false;  // it may open connections: to memservers, and to workers of the program's
                          // other gpunodes
};

/// Before there is a second thread. If the kernel has Landlock, this process can look into no other
/// one from now on, and signal none where that has version 6. Root's capability to look into any
/// process is given up for good, where this process has it, so that keepFromOthers()
/// (base/process.h) of its supervisor and of other workers holds for it as well: for their memory
/// and descriptors. Root's other rights stay.
void giveUpTracing();

/// Calls of the kernel that are not allowed fail with EPERM.
Status confine(const Confinement& allowed);

}  // namespace olpager::gpunode
