#include "gpunode/worker/device_resources.h"

#include <cstring>

#include "forwarding/wire/device_resources.h"
#include "forwarding/wire/wire.h"

namespace olpager::gpunode {
namespace {

std::string bytesOf(const CUdevResource& resource) {
  return {reinterpret_cast<const char*>(&resource), sizeof resource};
}

// The resource that the client sees: all that cuda.h declares, and the number.
CUdevResource shown(const CUdevResource& resource, uint64_t number) {
  CUdevResource out{};
  out.type = resource.type;
  out.sm = resource.sm;
  forward::setResourceNumber(out, number);
  return out;
}

}  // namespace

void DeviceResources::hide(CUdevResource* resource) {
  if (resource->type == CU_DEV_RESOURCE_TYPE_INVALID) {
    *resource = {};
    return;
  }
  std::lock_guard lock(mutex_);
  const auto [found, fresh] = numbers_.try_emplace(bytesOf(*resource), next_);
  const uint64_t serial = found->second;
  if (fresh) {
    by_number_[next_++] = *resource;
    if (by_number_.size() > kMost) {
      const auto first = by_number_.find(oldest_++);
      numbers_.erase(bytesOf(first->second));
      by_number_.erase(first);
    }
  }
  *resource = shown(*resource, forward::kHandleMark | forward::kWorkersHandle |
                                   forward::slotBits(slot_) | serial);
}

bool DeviceResources::restore(CUdevResource* resource) const {
  const uint64_t number = forward::resourceNumber(resource);
  const uint64_t mark = forward::kHandleMark | forward::kWorkersHandle | forward::slotBits(slot_);
  std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number ^ mark);
  if (found == by_number_.end() || bytesOf(shown(found->second, number)) != bytesOf(*resource))
    return false;
  *resource = found->second;
  return true;
}

size_t DeviceResources::size() const {
  std::lock_guard lock(mutex_);
  return by_number_.size();
}

}  // namespace olpager::gpunode
