// How long something is busy, and its best rate: of a link, of a memserver. Thread-safety: one
// thread at a time; what it adds to are counters, which anybody reads.
//
// The best rate is that of a window: of the time in which something was under way, at least
// kWindowNs of it, with the end of kLeastEnds transfers and more in it. A window ends only at a
// moment when all ends that there are have been noticed. An end that is noticed late would count
// for the next window else, and one transfer that had begun before its window is a small part of
// it.
#pragma once

#include <cstdint>

#include "pager/clock.h"
#include "pager/counters/counters.h"

namespace olpager::pager {

class BusyTime {
 public:
  /// A transfer begins; `first`: none was under way.
  void begins(bool first) {
    if (first) since_ns_ = nowNs();
  }
  /// One has ended that moved so many bytes.
  void ends(uint64_t moved, Counter& bytes, Counter& ns) {
    const uint64_t now = nowNs();
    const uint64_t busy = now - since_ns_;
    add(bytes, moved);
    add(ns, busy);
    since_ns_ = now;
    window_ns_ += busy;
    window_bytes_ += moved;
    ++window_ends_;
  }
  /// No other end is to be noticed now. `best`: bytes a second, of the best window so far.
  void noticedAll(Counter& best) {
    if (window_ends_ < kLeastEnds || window_ns_ < kWindowNs) return;
    const double rate = static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(window_ns_);
    if (rate > static_cast<double>(valueOf(best))) set(best, static_cast<uint64_t>(rate));
    window_ns_ = window_bytes_ = window_ends_ = 0;
  }

 private:
  static constexpr uint64_t kWindowNs = 10'000'000;
  static constexpr uint64_t kLeastEnds = 8;

  uint64_t since_ns_ = 0;
  uint64_t window_ns_ = 0, window_bytes_ = 0, window_ends_ = 0;
};

}  // namespace olpager::pager
