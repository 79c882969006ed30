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

/// The output at the program's end.
struct AtEnd {
  uint64_t token = 0;      // of keepCounters()
  bool elsewhere = false;  // its memory is another process's, which ends right after it
  bool stats = false;      // its counters
  bool why = false;        // what cost it time
};

/// Runs it as a child, hands signals on to it, then prints what is asked for of all processes that
/// it was on standard error. Returns its exit status, 128 + n when signal n ended it.
int runWithStats(const std::string& path, const std::vector<std::string>& arguments,
                 Environment environment, bool says_unused, const AtEnd& at_end);

}  // namespace olpager::tools
