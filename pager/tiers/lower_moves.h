// Extents on their way to or from the tier below host RAM. Under PoolState::mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "pager/space/region.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::pager {

struct LowerMoves {
  static constexpr uint64_t kMostSending = 256ull << 20;  // on its way at a time
  static constexpr uint64_t kRetryNs = 1'000'000'000;     // after memservers had no room
  std::shared_ptr<LowerTier> tier;                        // none: host RAM is the lowest tier
  /// Extents in state kSending or kReceiving, by the address that the tier knows them by
  /// (ProgramMappings::tierAddress).
  std::unordered_map<uint64_t, Extent*> under_way;
  // From host memory, and into it.
  uint64_t sending_bytes = 0, receiving_bytes = 0;
  uint64_t direct_sending_bytes = 0;  // from VRAM
  uint64_t retry_ns = 0;              // the tier had no room: it is not asked before
};

}  // namespace olpager::pager
