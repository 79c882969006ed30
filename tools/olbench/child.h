// A measurement in a child process: this program again, with the pager preloaded or without it, or
// forwarded, its result read from a pipe. Thread-safety: one caller at a time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

enum class With : unsigned char { kNative, kPager, kForward };

/// Runs the measurement that the hidden option --child names, and writes its JSON to descriptor 3.
int runAsChild(const std::string& measurement, const Options& options);

/// Runs `measurement` in a child and waits for it. Throws std::runtime_error with what the child
/// said when it fails.
nlohmann::json runChild(With with, const std::string& measurement, const Options& options);

}  // namespace olpager::tools::bench
