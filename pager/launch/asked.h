// The wants of one waiting operation at the engines, and the regions that it holds meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "pager/reach/closure.h"
#include "pager/residency/wants.h"

namespace olpager::pager {

/// Every member runs under PoolState::mutex, the destructor too unless everything is let go.
class Asked {
 public:
  explicit Asked(Closure& closure) : closure_(closure) {}
  ~Asked() { letGo(); }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  /// Regions that the closure reaches by now are no victims, and stay though they are freed.
  void hold();
  /// Asks for what the closure needs by now. The closure is held.
  void ask();
  template <typename Visit>
  void forEach(Visit visit) {
    for (auto& [engine, want] : wants_) visit(want);
  }
  /// No scan is waited for any more.
  void scansNoMore();
  void letGo();

 private:
  Want& wantOf(Engine& engine);

  Closure& closure_;
  std::deque<std::pair<Engine*, Want>> wants_;  // the engines keep pointers to them
  size_t extents_ = 0;                          // of what is needed, that are in wants
  size_t regions_ = 0;                          // of what is reached, that are in wants
  size_t held_ = 0;                             // regions that are no victims meanwhile
  size_t held_pieces_ = 0;
  uint64_t since_ns_ = 0;  // of the oldest want that was let go; 0: none was
};

}  // namespace olpager::pager
