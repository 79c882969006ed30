// The program that olrun is to run: finding it as a shell would, and what a preloaded library can't
// do for it.
#pragma once

#include <string>

#include "base/result.h"

namespace olpager::tools {

struct Program {
  std::string path;     // "" when not found
  int exit_code = 0;    // 127 not found, 126 not to be run
  std::string problem;  // one line, for a path that can't be run
  std::string
      warning;  // one line: it will run, but without us (statically linked, set-uid, 32-bit)
};

/// Looks `name` up in `search_path` (PATH) when it holds no slash.
Program findProgram(const std::string& name, const std::string& search_path);

}  // namespace olpager::tools
