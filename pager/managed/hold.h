// How long a page that has come to the CPU stays there, so that the touch that it came for gets
// done. Pure; times in nanoseconds. Thread-safety: none.
//
// The hold is twice the time that the page took to come, within limits: a page that took longer has
// waited for a kernel, and to wait as long again would help nobody. A page that others take
// kBounces times within kBouncing is contended: its hold doubles, up to kMost. Once nobody has
// taken it for kCalm it is not any more.
#pragma once

#include <algorithm>
#include <cstdint>

namespace olpager::pager {

class Hold {
 public:
  static constexpr uint64_t kMicro = 1000, kMilli = 1000 * kMicro;
  static constexpr uint64_t kLeast = 100 * kMicro, kMostAtFirst = 500 * kMicro;
  static constexpr uint64_t kMost = 10 * kMilli;
  static constexpr unsigned kBounces = 3;
  static constexpr uint64_t kBouncing = 5 * kMilli, kCalm = 100 * kMilli;

  uint64_t after(uint64_t took) const {
    return std::min(std::clamp(2 * took, kLeast, kMostAtFirst) << longer_, kMost);
  }
  /// Another agent takes the page. True: its holds are longer from now on.
  bool taken(uint64_t now) {
    const uint64_t passed = now - since_;
    if (passed > kCalm) longer_ = 0;
    // Holds that are longer already keep takes apart.
    if (passed > std::max(kBouncing, longer_ == 0 ? 0 : 2 * kBounces * kMost)) {
      since_ = now;
      bounces_ = 0;
    }
    if (++bounces_ < kBounces) return false;
    since_ = now;
    bounces_ = 0;
    if (kLeast << longer_ >= kMost) return false;
    ++longer_;
    return true;
  }

 private:
  uint64_t since_ = 0;
  uint8_t bounces_ = 0;
  uint8_t longer_ = 0;  // doubled so many times
};

}  // namespace olpager::pager
