// How much launches touch of an allocation, or of a tensor in an arena: the learned answer
// (residency/sparse.h says how).
#pragma once

#include <cstdint>

namespace olpager::pager {

enum class Density : uint8_t { kUnknown, kSparse, kDense };

/// A record of how launches use it. Under PoolState::mutex.
struct DensityRecord {
  Density verdict = Density::kUnknown;
  uint8_t fast = 0;     // in a row
  uint8_t slow = 0;     // in a row
  uint8_t samples = 0;  // while unknown
  uint16_t uses = 0;    // in place, since it is sparse
};

}  // namespace olpager::pager
