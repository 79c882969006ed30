// Runs a program and collects what it wrote.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace olpager::test {

struct Outcome {
  int status = 0;  // exit status, or 128 + signal
  std::string out;
  std::string err;
};

/// `environment`: NAME=value entries over those of this process. Ended after 30 seconds.
Outcome runChild(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment = {}, const std::string& folder = {});

}  // namespace olpager::test
