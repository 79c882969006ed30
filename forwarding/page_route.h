// How the worker of an executor's session is reached for the pages of a unified view, beside its
// calls (wire/pages_wire.h).
#pragma once

#include <cstdint>
#include <string>

#include "coherence/transport/options.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::forward {

struct PageRoute {
  std::string gpunode;         // its address
  uint64_t session = 0;        // the route to the worker there
  transport::NamedKey key;     // pagesKey() of the session's
  transport::Options options;  // without keys
  uint32_t grace_ms = 0;       // for which a lost connection is tried again
};

}  // namespace olpager::forward
