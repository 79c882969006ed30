// Numbered slots that are used again.
#pragma once

#include <utility>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::directory {

template <typename T>
class Pool {
 public:
  uint32_t take(T value) {
    ++used_;
    if (free_.empty()) {
      slots_.push_back(std::move(value));
      return static_cast<uint32_t>(slots_.size() - 1);
    }
    const uint32_t at = free_.back();
    free_.pop_back();
    slots_[at] = std::move(value);
    return at;
  }
  void give(uint32_t at) {
    --used_;
    free_.push_back(at);
  }
  T& operator[](uint32_t at) { return slots_[at]; }
  const T& operator[](uint32_t at) const { return slots_[at]; }
  size_t used() const { return used_; }

 private:
  std::vector<T> slots_;
  std::vector<uint32_t> free_;
  size_t used_ = 0;
};

}  // namespace olpager::directory
