#include "pager/space/region.h"

namespace olpager::pager {

ExtentRange extentsAt(const Region& region, uint64_t address, uint64_t bytes) {
  const auto first = std::partition_point(
      region.extents.begin(), region.extents.end(),
      [address](const auto& extent) { return extent->address + extent->bytes() <= address; });
  const auto last = std::partition_point(first, region.extents.end(), [&](const auto& extent) {
    return extent->address - address < bytes || extent->address < address;
  });
  return {static_cast<size_t>(first - region.extents.begin()),
          static_cast<size_t>(last - region.extents.begin())};
}

void resetRegion(Region& region) {
  region.stamp.store(0);
  region.blocked.store(0);
  region.placement = Placement::kUnplanned;
  region.density = {};
  region.tiny = region.published = region.dead = region.host_written = region.names_itself = false;
  region.by_pieces = region.whole_due = region.divisible = false;
  region.whole_stamp = region.fetch_after = region.fetch_pause = 0;
  region.host_writes = 0;
  region.followed = 0;
  region.swap_after = region.swap_pause = 0;
  region.swap_asked = region.swapping = false;
  region.arena.reset();
  region.root.reset();
  region.managed.reset();
  region.away.reset();
  region.fixed = 0;
  region.scans = 0;
  region.piece_edges.clear();
  region.exporting = region.exports_lent = false;
  region.wanted = 0;
  region.pins = region.ahead = region.in_place = region.remote = region.unusable = 0;
  region.slot_bytes = 0;
  region.engine = nullptr;
  region.context = nullptr;
  region.edges.clear();
  region.extents.clear();
}

}  // namespace olpager::pager
