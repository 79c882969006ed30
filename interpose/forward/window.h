// The window: a range of addresses that is the same here and at every worker. Blocks of host memory
// get their places in it, with a guard behind each, and what workers have for memory that is
// elsewhere here (registered.h, stand_ins.h). Thread-safety: any thread. Lock: one of its own, a
// leaf.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "forwarding/wire/wire.h"
#include "interpose/forward/program.h"

namespace olpager::forward {

inline bool inWindow(uint64_t address) { return address - kWindow < kWindowBytes; }

class Window {
 public:
  /// A place for so many bytes; 0: there is none. A place is not given out again soon.
  uint64_t take(uint64_t bytes);
  void give(uint64_t address);

 private:
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;  // from, to, with the guards behind
  uint64_t next_ = kWindow;             // where places are looked for first
};

inline Window& window() { return *program().parts().window; }

}  // namespace olpager::forward
