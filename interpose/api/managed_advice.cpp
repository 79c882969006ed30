#include "interpose/api/managed_advice.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace olpager::api {

namespace {

bool same(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && a.id == b.id;
}

int deviceAt(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

}  // namespace

CUmemLocation ManagedAdvice::locationOf(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult ManagedAdvice::checkLocation(const CUmemLocation& location, int devices) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult ManagedAdvice::checkLocations(const CUmemLocation* locations, const size_t* indices,
                                       size_t location_count, size_t count, int devices) {
  if (locations == nullptr || indices == nullptr || location_count == 0 || location_count > count ||
      indices[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; at < location_count; ++at) {
    if (indices[at] >= count || (at > 0 && indices[at] <= indices[at - 1]))
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult told = checkLocation(locations[at], devices); told != CUDA_SUCCESS)
      return told;
  }
  return CUDA_SUCCESS;
}

// The range that begins at `address`, which is cut off from the one that it lies in.
ManagedAdvice::Ranges::iterator ManagedAdvice::cut(Ranges& ranges, uint64_t address) {
  const auto within = std::prev(ranges.upper_bound(address));
  return within->first == address ? within
                                  : ranges.emplace_hint(std::next(within), address, within->second);
}

template <typename Change>
void ManagedAdvice::change(const ManagedPart& part, Change what) {
  std::lock_guard lock(mutex_);
  Ranges& ranges = allocations_[part.base];
  if (ranges.empty()) ranges.emplace(part.base, Advice{});
  const auto end = cut(ranges, part.end);
  for (auto range = cut(ranges, part.begin); range != end; ++range) what(range->second);
}

CUresult ManagedAdvice::advise(const ManagedPart& part, CUmem_advise advice,
                               const CUmemLocation& location, int devices) {
  const bool places = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                      advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (places) {
    if (const CUresult result = checkLocation(location, devices); result != CUDA_SUCCESS)
      return result;
  }
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      change(part, [&](Advice& at) { at.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      change(part, [&](Advice& at) {
        at.preferred = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? location : kNowhere;
      });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      change(part, [&](Advice& at) { at.accessed_by.insert(deviceAt(location)); });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      change(part, [&](Advice& at) { at.accessed_by.erase(deviceAt(location)); });
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void ManagedAdvice::prefetched(const ManagedPart& part, const CUmemLocation& location) {
  change(part, [&](Advice& at) { at.prefetched = location; });
}

void ManagedAdvice::forget(uint64_t base) {
  std::lock_guard lock(mutex_);
  allocations_.erase(base);
}

// The values that all of a part has in common.
ManagedAdvice::Advice ManagedAdvice::commonOf(const ManagedPart& part) const {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(part.base);
  if (found == allocations_.end()) return {};
  const Ranges& ranges = found->second;
  auto range = std::prev(ranges.upper_bound(part.begin));
  Advice common = range->second;
  for (const auto end = ranges.lower_bound(part.end); range != end; ++range) {
    const Advice& at = range->second;
    common.read_mostly = common.read_mostly && at.read_mostly;
    if (!same(common.preferred, at.preferred)) common.preferred = kNowhere;
    if (!same(common.prefetched, at.prefetched)) common.prefetched = kNowhere;
    std::erase_if(common.accessed_by, [&](int device) { return !at.accessed_by.contains(device); });
  }
  return common;
}

CUresult ManagedAdvice::attribute(void* data, size_t size, CUmem_range_attribute attribute,
                                  const ManagedPart& part) const {
  const Advice common = commonOf(part);
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = common.read_mostly ? 1 : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      value = deviceAt(common.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      value = deviceAt(common.prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      value = static_cast<int>(common.preferred.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      value = common.preferred.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      value = static_cast<int>(common.prefetched.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      value = common.prefetched.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (size == 0 || size % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      auto next = common.accessed_by.begin();
      for (size_t i = 0; i < size / sizeof(int); ++i) {
        const int device = next != common.accessed_by.end() ? *next++ : CU_DEVICE_INVALID;
        std::memcpy(static_cast<std::byte*>(data) + i * sizeof device, &device, sizeof device);
      }
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (size != sizeof value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

}  // namespace olpager::api
