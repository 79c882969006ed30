// Running the program: in place of olrun, or as its child when something is to be printed at its
// end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/olrun/environment.h"

namespace olpager::tools {

/// Replaces olrun by the program. Returns only when that fails: 126, with a line printed.
/// `says_unused`: the program's process says at its end if it used no CUDA.
int replaceBy(const std::string& path, const std::vector<std::string>& arguments,
              Environment environment, bool says_unused);

/// Has the counters of the processes with this environment kept for runWithStats(). The number that
/// they are known by.
uint64_t keepCounters(Environment& environment);

/// Runs it as a child, hands signals on to it, then prints the counters of all processes that it
/// was on standard error. `elsewhere`: its memory is another process's, which ends right after it.
/// Returns its exit status, 128 + n when signal n ended it.
int runWithStats(const std::string& path, const std::vector<std::string>& arguments,
                 Environment environment, bool says_unused, uint64_t kept, bool elsewhere);

}  // namespace olpager::tools
