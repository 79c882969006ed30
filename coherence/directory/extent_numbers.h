// Numbers of extents, in runs: a region has one run, and gives it back when it is freed. Numbers
// index tables, at the home and at agents, so they are used again, and stay dense. Thread-safety:
// none.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>

#include "coherence/directory/types.h"

namespace olpager::directory {

class ExtentNumbers {
 public:
  /// The first free run that is large enough, else a new one at the end.
  ExtentId take(ExtentId count) {
    const auto run = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& one) { return one.second >= count; });
    if (run == free_.end()) {
      end_ += count;
      return end_ - count;
    }
    const auto [first, found] = *run;
    free_.erase(run);
    if (found != count) free_[first + count] = found - count;
    return first;
  }
  /// The numbers of this run are unknown everywhere by now.
  void give(ExtentId first, ExtentId count) {
    auto run = free_.emplace(first, count).first;
    if (const auto next = std::next(run);
        next != free_.end() && next->first == first + run->second) {
      run->second += next->second;
      free_.erase(next);
    }
    if (run == free_.begin()) return;
    const auto before = std::prev(run);
    if (before->first + before->second != first) return;
    before->second += run->second;
    free_.erase(run);
  }
  /// Every number that was ever taken is below.
  ExtentId end() const { return end_; }

 private:
  std::map<ExtentId, ExtentId> free_;  // first and count; no two runs touch
  ExtentId end_ = 0;
};

}  // namespace olpager::directory
