// Tells where the time goes while launches wait: the engine's account of each moment in which at
// least one launch or copy waits at it, for `olpagestat --why` (pager/counters/why_counters.h).
//
// The engine's thread closes a stretch of time wherever what it does changes: at each turn of its
// loop, before and after its calls of the driver, before and after it sleeps. A stretch belongs to
// the copies to VRAM that were under way when it began, whatever the thread did meanwhile; else to
// what the thread says that it did. Nothing is read from the clock while nothing waits and no copy
// is under way.
//
// Also the rate of the link: the time in which copies to VRAM are under way, and the best rate of a
// window of it.
//
// Thread-safety: the engine's thread alone, under PoolState::mutex.
#pragma once

#include <cstdint>

#include "pager/clock.h"
#include "pager/counters/busy_time.h"

namespace olpager::pager {

class WaitAccount {
 public:
  explicit WaitAccount(DeviceWhy& why) : why_(why) {}

  /// A stretch ends here, which went for `what`; the next one begins. `waits`: something waits now;
  /// `copies`: copies to VRAM are under way now.
  void turn(Limit what, bool waits, bool copies) {
    if (!waits && !waited_) return;
    const uint64_t now = nowNs();
    if (waited_) {
      const uint64_t ns = now - since_ns_;
      const Limit limit = copied_ ? Limit::kLinkIn : what;
      add(why_.waiting_ns, ns);
      add(why_.limited_ns[static_cast<unsigned>(limit)], ns);
    }
    since_ns_ = now;
    waited_ = waits;
    copied_ = copies;
  }

  /// A copy to VRAM was queued; none was under way: `first`.
  void copyBegins(bool first) { link_.begins(first); }
  /// One has ended, which took so many bytes over the link.
  void copyEnds(uint64_t bytes) { link_.ends(bytes, why_.link_in_bytes, why_.link_in_ns); }
  /// Those that are under way still have not ended.
  void noCopyEnded() { link_.noticedAll(why_.link_in_best); }

 private:
  DeviceWhy& why_;
  uint64_t since_ns_ = 0;
  bool waited_ = false, copied_ = false;
  BusyTime link_;
};

}  // namespace olpager::pager
