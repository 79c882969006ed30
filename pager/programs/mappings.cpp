#include "pager/programs/mappings.h"

#include <cassert>
#include <iterator>

namespace olpager::pager {

VmmHandle& ProgramMappings::make(uint64_t bytes) {
  auto handle = std::make_unique<VmmHandle>();
  handle->id = kFirstHandle + next_handle_++;
  handle->bytes = bytes;
  handle->home = next_home_;
  next_home_ += bytes;
  homes_[handle->home] = handle.get();
  VmmHandle& made = *handle;
  handles[made.id] = std::move(handle);
  return made;
}

VmmHandle* ProgramMappings::find(CUmemGenericAllocationHandle id) const {
  const auto found = handles.find(id);
  return found != handles.end() ? found->second.get() : nullptr;
}

VmmMapping* ProgramMappings::mappingAt(uint64_t address) {
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return nullptr;
  --it;
  return address < it->first + it->second.handle->bytes ? &it->second : nullptr;
}

uint64_t ProgramMappings::tierAddress(const Extent& extent) const {
  if (extent.region == nullptr || extent.region->kind != RegionKind::kReservation ||
      extent.address >= kFirstHome)
    return extent.address;
  // An extent in a reservation belongs to the handle's primary mapping there (vmm.cpp).
  const auto after = mappings.upper_bound(extent.address);
  assert(after != mappings.begin());
  const VmmHandle& handle = *std::prev(after)->second.handle;
  return handle.home + (extent.address - handle.primary);
}

uint64_t ProgramMappings::addressOf(uint64_t tier_address) const {
  if (tier_address < kFirstHome) return tier_address;
  const auto after = homes_.upper_bound(tier_address);
  if (after == homes_.begin()) return 0;
  const VmmHandle& handle = *std::prev(after)->second;
  const uint64_t offset = tier_address - handle.home;
  return offset < handle.bytes && handle.primary != 0 ? handle.primary + offset : 0;
}

void ProgramMappings::erase(const VmmHandle& handle) {
  homes_.erase(handle.home);
  handles.erase(handle.id);
}

}  // namespace olpager::pager
