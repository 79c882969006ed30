// The linkers of a session (cuLink*), by their numbers. The driver keeps pointers as long as a
// linker lives, so what they point to is kept here: the options' values and logs, and the image
// that it made.
//
// States of a linker: there -> gone (destroyed; who is in a call of it meanwhile finds it gone).
// A linker's mutex is held while the driver is called for it: a client's threads may use one linker
// at once, and no other lock is taken below it. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "gpunode/worker/jit_options.h"

namespace olpager::gpunode {

struct Link {
  std::mutex mutex;
  CUlinkState state = nullptr;       // null: gone
  JitOptions options;                // of cuLinkCreate
  const std::byte* image = nullptr;  // the driver's, once it is complete
  size_t image_bytes = 0;
};

class Links {
 public:
  /// False: there is one of that number.
  bool add(uint64_t number, const std::shared_ptr<Link>& link);
  std::shared_ptr<Link> find(uint64_t number) const;
  std::shared_ptr<Link> take(uint64_t number);

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Link>> all_;
};

}  // namespace olpager::gpunode
