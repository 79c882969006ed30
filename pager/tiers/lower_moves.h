// Extents on their way to or from the tier below host RAM. Under PoolState::mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "pager/space/region.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::pager {

struct LowerMoves {
  std::shared_ptr<LowerTier> tier;  // none: host RAM is the lowest tier
  /// Extents in state kSending or kReceiving, by the address that the tier knows them by
  /// (ProgramMappings::tierAddress).
  std::unordered_map<uint64_t, Extent*> under_way;
  uint64_t sending_bytes = 0, receiving_bytes = 0;
  uint64_t retry_ns = 0;  // the tier had no room: it is not asked before
};

}  // namespace olpager::pager
