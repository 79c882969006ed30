// The program's linkers (cuLink*). Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interpose/forward/jit_options.h"

namespace olpager::forward {

struct Linker {
  JitOptions options;                         // does not change
  std::mutex mutex;                           // a leaf
  std::deque<std::vector<std::byte>> images;  // that the program was given
};

/// The linkers of a session.
struct Linkers {
  std::mutex mutex;  // a leaf
  std::map<CUlinkState, std::shared_ptr<Linker>> all;
};

}  // namespace olpager::forward
