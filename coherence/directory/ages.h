// A set of ages. Those below a moving base are all in it, so that it is as large as what is under
// way.
#pragma once

#include <algorithm>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::directory {

class Ages {
 public:
  bool has(Age age) const {
    if (age < base_) return true;
    const uint64_t word = (age - base_) / 64;
    return word < words_.size() && (words_[word] >> (age % 64) & 1) != 0;
  }
  void add(Age age) {
    if (age < base_) return;
    const uint64_t word = (age - base_) / 64;
    if (word >= words_.size()) words_.resize(word + 1);
    words_[word] |= uint64_t{1} << (age % 64);
    drop(static_cast<size_t>(
        std::find_if(words_.begin(), words_.end(), [](uint64_t bits) { return ~bits != 0; }) -
        words_.begin()));
  }
  /// All below `age` are in it from now on.
  void addBelow(Age age) {
    if (age / 64 * 64 > base_) drop((age - base_) / 64);
    for (Age one = std::max(base_, age / 64 * 64); one < age; ++one) add(one);
  }

 private:
  void drop(size_t words) {
    base_ += words * 64;
    words_.erase(words_.begin(),
                 words_.begin() + static_cast<ptrdiff_t>(std::min(words, words_.size())));
  }

  Age base_ = 0;  // a multiple of 64
  std::vector<uint64_t> words_;
};

}  // namespace olpager::directory
