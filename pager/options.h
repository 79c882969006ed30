// Options of a pool.
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

/// Second copies of streamed extents, packed (residency/packed.h). The defaults are for programs;
/// tests give a larger share of less VRAM, and wait less.
struct Packing {
  bool on = true;
  uint64_t slots_share = 32;  // no more than one part in so many of the VRAM budget goes to slots
  // For so long nothing is packed or unpacked after the GPU did not come to it.
  uint64_t late_pause_ns = 10'000'000'000;
};

/// How long something is waited for that may never come. Tests give others.
struct Waits {
  uint64_t in_place_ns = 200'000'000;  // a launch for what is to come to VRAM; then used in place
  // A launch for a chunk of VRAM of the size that it lacks, which is about to come free. Then one
  // is made of others. Prefetches wait ten times as long.
  uint64_t chunk_ns = 2'000'000;
  uint64_t all_full_ns = 5'000'000'000;  // a launch for memory, where every tier is full
};

struct PoolOptions {
  uint64_t va_base = 0;  // 0: the built-in base (kDefaultVaBase)
  uint64_t va_size = 0;  // 0: 16 TiB
  Budget vram;           // of each device; not given: what the driver has free less a reserve
  Budget
      host;  // host tier; not given: 80 % of the smaller of available memory and the cgroup's limit
  Reach reach = Reach::kTraced;
  Report report = Report::kNode;
  Packing packing;
  bool stream_arenas = false;  // what launches name of arenas that copies fill comes to VRAM
  Waits waits;
  bool require_direct = false;       // a device whose VRAM network cards can't know is refused
  std::shared_ptr<LowerTier> lower;  // below host RAM; none: host RAM is the lowest tier
};

}  // namespace olpager::pager
