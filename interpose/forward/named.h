// Memory that an operation names, for the choice of its executor (group.h).
#pragma once

#include <cstdint>

namespace olpager::forward {

/// Device memory that an operation names: `bytes` from the address on, or with 0 all of the region
/// that the address is in. An address in no region is left out.
struct Named {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

}  // namespace olpager::forward
