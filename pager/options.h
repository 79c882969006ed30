// What a pool is made with.
#pragma once

#include <cstdint>
#include <memory>

#include "base/size.h"
#include "pager/types.h"

namespace olpager::pager {

class LowerTier;  // tiers/lower_tier.h

/// A size that the user gives: bytes, or a percentage of what there is.
using Budget = base::Budget;

using space::kDefaultVaBase;
using space::kDefaultVaSize;

struct PoolOptions {
  uint64_t va_base = 0;  // 0: the built-in base (kDefaultVaBase)
  uint64_t va_size = 0;  // 0: 16 TiB
  Budget vram;           // of each device; not given: what the driver has free less a reserve
  Budget
      host;  // host tier; not given: 80 % of the smaller of available memory and the cgroup's limit
  Reach reach = Reach::kTraced;
  Report report = Report::kNode;
  bool pack = true;                  // what streams also as packed images (packed.h)
  std::shared_ptr<LowerTier> lower;  // below host RAM; none: host RAM is the lowest tier
};

}  // namespace olpager::pager
