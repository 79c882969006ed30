// The live screen's history of each program, and plots of it in characters.
//
// Thread-safety: one thread. Errors: none. Memory: a bounded number of points for each program that
// was in the last sample.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/olpagestat/sample.h"

namespace olpager::tools {

/// A program between two samples. Absent: not measured.
struct TrailPoint {
  double seconds = 0;              // CLOCK_MONOTONIC, of the later sample
  std::optional<double> traffic;   // bytes a second on every path
  std::optional<double> stalled;   // share of the time in which a launch waited for pages
  std::optional<double> hit_rate;  // of its launches
};

class Trails {
 public:
  static constexpr size_t kMost = 600;  // points of a program

  /// Programs that are not in `now` are forgotten.
  void add(const Sample& now, const Sample& before);
  /// The oldest first.
  const std::deque<TrailPoint>& of(const ProcessKey& key, const DeviceChoice& devices) const;

 private:
  static constexpr int kAll = -1;  // devices
  std::map<std::pair<ProcessKey, int>, std::deque<TrailPoint>> points_;
};

/// Columns from the bottom, the newest value at the right: `rows` lines of `columns` characters,
/// from the top. `most` fills a column. A value that was not measured is empty; others have a dot.
/// `braille`: two values and four steps in a character (UTF-8), else one value and two steps.
std::vector<std::string> plotLines(const std::vector<std::optional<double>>& values, double most,
                                   size_t columns, size_t rows, bool braille);

}  // namespace olpager::tools
