#include "pager/space/address_book.h"

namespace olpager::pager {

Status AddressBook::create(uint64_t base, uint64_t size) {
  auto map = space::PageMap::create(base, size);
  if (!map) return map.error();
  map_ = std::move(map).value();
  addresses_ = std::make_unique<space::RegionAddresses>(*map_);
  return regions.create();
}

Extent* AddressBook::extentAt(uint64_t address) const {
  if (!map_->contains(address)) return nullptr;
  const Region* const region = find(address);
  if (region == nullptr || region->dead) return nullptr;
  const ExtentRange range = pager::extentsAt(*region, address, 1);
  if (range.first == range.last) return nullptr;
  Extent* const extent = region->extents[range.first].get();
  return extent->address == address ? extent : nullptr;
}

bool AddressBook::setPlaced(uint64_t bytes) {
  if (placed_ != nullptr || addresses_->highWaterPages() != 0) return false;
  const uint64_t base = map_->base();
  placed_ = std::make_unique<space::RegionAddresses>(*map_, base, bytes);
  addresses_ = std::make_unique<space::RegionAddresses>(*map_, base + bytes, map_->size() - bytes);
  return true;
}

std::optional<uint64_t> AddressBook::take(uint64_t pages, uint64_t at) {
  if (at == 0) return addresses_->allocate(pages);
  if (placed_ == nullptr || !placed_->allocateAt(at, pages)) return std::nullopt;
  return at;
}

}  // namespace olpager::pager
