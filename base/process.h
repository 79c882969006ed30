// This process beside the others of its machine. Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/fd.h"

namespace olpager::base {

/// Set by olrun: the number of the process that the program is. At its end it says whether it used
/// no CUDA.
inline constexpr const char* kProgramVariable = "OL_PROGRAM";

/// Names the name space that this process's process numbers are in, on this machine; 0: unknown.
uint64_t processNamespace();

/// A descriptor that is readable (poll) once the process has ended; empty where there is no such
/// process or the kernel has none.
UniqueFd watchProcess(pid_t pid);

/// The soft limit on a resource (RLIMIT_...) is the hard one from now on, as far as it can be.
void raiseLimit(int resource);

/// From now on no process of the same user can look into this one (memory, descriptors,
/// environment), take its descriptors or trace it, and it leaves no core. A process with
/// CAP_SYS_PTRACE still can. /proc/PID belongs to root then: of its files there, this process opens
/// those that everybody may read. A program that it starts (exec) is not kept so.
void keepFromOthers();

}  // namespace olpager::base
