// A set of ages, as runs without gaps. So it is as large as what is under way, and where ages of
// others lie between, as the times that these took turns since the last addBelow(). An age may be
// any number: it comes from a peer.
#pragma once

#include <algorithm>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::directory {

class Ages {
 public:
  bool has(Age age) const {
    const auto behind = behindOf(age);
    return behind != runs_.begin() && age <= std::prev(behind)->last;
  }
  void add(Age age) { add(age, age); }
  /// All below `age` are in it from now on.
  void addBelow(Age age) {
    if (age != 0) add(0, age - 1);
  }
  size_t runs() const { return runs_.size(); }

 private:
  struct Run {
    Age first, last;
  };
  /// The first run that begins above `age`.
  std::vector<Run>::const_iterator behindOf(Age age) const {
    return std::upper_bound(runs_.begin(), runs_.end(), age,
                            [](Age wanted, const Run& run) { return wanted < run.first; });
  }
  // One that touches others becomes one with them.
  void add(Age first, Age last) {
    auto from = runs_.begin() + (behindOf(first) - runs_.cbegin());
    if (from != runs_.begin() && (first == 0 || std::prev(from)->last >= first - 1)) --from;
    auto to = from;
    for (; to != runs_.end() && (to->first == 0 || to->first - 1 <= last); ++to) {
      first = std::min(first, to->first);
      last = std::max(last, to->last);
    }
    if (from == to) {
      runs_.insert(from, {first, last});
    } else {
      *from = {first, last};
      runs_.erase(from + 1, to);
    }
  }

  std::vector<Run> runs_;  // ascending; between two of them an age is missing
};

}  // namespace olpager::directory
