// The counts of the pager in this process while something is measured. One thread measures. All
// throw std::runtime_error.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "pager/counters/files.h"

namespace olpager::tools::bench {

double secondsSince(std::chrono::steady_clock::time_point begin);

/// A measurement from its making on: of device 0, with what the process's threads used.
class Counted {
 public:
  Counted();
  /// Seconds, bytes and extents that moved, launches, what they waited, and `busiest_thread`: the
  /// share of a core that a thread of the process used, the one that makes the measurement left
  /// out. The pager's engine is a thread.
  nlohmann::json sinceThen() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  pager::CountersReading before_;
  std::map<std::string, double> threads_;  // seconds of each
};

}  // namespace olpager::tools::bench
