// A set of ages. Those below a moving base are all in it, so that it is as large as what is under
// way. An age may be any number: it comes from a peer.
#pragma once

#include <algorithm>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::directory {

class Ages {
 public:
  bool has(Age age) const {
    if (age < base_) return true;
    const auto word = find(age / 64);
    return word != words_.end() && word->index == age / 64 && (word->bits >> (age % 64) & 1) != 0;
  }
  void add(Age age) {
    if (age < base_) return;
    auto word = words_.begin() + (find(age / 64) - words_.cbegin());
    if (word == words_.end() || word->index != age / 64)
      word = words_.insert(word, {.index = age / 64});
    word->bits |= uint64_t{1} << (age % 64);
    size_t full = 0;
    for (; full < words_.size() && words_[full].index == base_ / 64 && ~words_[full].bits == 0;
         ++full)
      base_ += 64;
    words_.erase(words_.begin(), words_.begin() + static_cast<ptrdiff_t>(full));
  }
  /// All below `age` are in it from now on.
  void addBelow(Age age) {
    if (age < base_) return;
    base_ = age / 64 * 64;
    words_.erase(words_.begin(), words_.begin() + (find(age / 64) - words_.cbegin()));
    for (Age one = age / 64 * 64; one < age; ++one) add(one);
  }

 private:
  struct Word {
    uint64_t index;
    uint64_t bits = 0;
  };
  std::vector<Word>::const_iterator find(uint64_t index) const {
    return std::lower_bound(words_.begin(), words_.end(), index,
                            [](const Word& word, uint64_t wanted) { return word.index < wanted; });
  }

  Age base_ = 0;             // a multiple of 64
  std::vector<Word> words_;  // that have some, ascending
};

}  // namespace olpager::directory
