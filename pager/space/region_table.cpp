#include "pager/space/region_table.h"

#include <sys/mman.h>

namespace olpager::pager {

namespace {
constexpr size_t kMaxRegions = 8u << 20;  // one for each page of the range
}

Status RegionTable::create() {
  void* memory = mmap(nullptr, kMaxRegions * sizeof(std::atomic<Region*>), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{"cannot reserve 64 MiB of address space for the table of regions"};
  entries_ = static_cast<std::atomic<Region*>*>(memory);
  return {};
}

RegionTable::~RegionTable() {
  if (entries_ != nullptr) munmap(entries_, kMaxRegions * sizeof(std::atomic<Region*>));
}

Region* RegionTable::take() {
  Region* region = nullptr;
  if (!dead_.empty() && Hazards::passed(dead_.front().hazards)) {
    region = dead_.front().region;
    dead_.pop_front();
  } else {
    if (next_ >= kMaxRegions) return nullptr;
    owned_.push_back(std::make_unique<Region>());
    region = owned_.back().get();
    region->id = next_++;
    entries_[region->id].store(region, std::memory_order_release);
  }
  resetRegion(*region);
  return region;
}

void RegionTable::give(Region* region) {
  region->dead = true;
  dead_.push_back({region, {}});
  hazards().snapshot(dead_.back().hazards);
}

}  // namespace olpager::pager
