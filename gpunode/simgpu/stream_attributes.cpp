#include "gpunode/simgpu/stream_attributes.h"

#include <algorithm>

#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

StreamAttributes::StreamAttributes(int priority) {
  all_[CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW] = {};
  all_[CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN] = {};
  all_[CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY].value.syncPolicy = CU_SYNC_POLICY_AUTO;
  all_[CU_LAUNCH_ATTRIBUTE_PRIORITY].value.priority = priority;
  all_[CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP].value.memSyncDomainMap = {0, 1};
}

CUresult StreamAttributes::get(CUstreamAttrID id, CUstreamAttrValue* value) const {
  const std::scoped_lock lock(mutex_);
  const auto found = all_.find(id);
  if (found == all_.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second.value;
  return CUDA_SUCCESS;
}

CUresult StreamAttributes::set(CUstreamAttrID id, const CUstreamAttrValue& value) {
  const std::scoped_lock lock(mutex_);
  const auto found = all_.find(id);
  if (found == all_.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second = {value, true};
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
    found->second.value.priority = std::clamp(value.priority, kGreatestPriority, 0);
  return CUDA_SUCCESS;
}

void StreamAttributes::copyFrom(const StreamAttributes& other) {
  if (&other == this) return;
  const std::scoped_lock lock(mutex_, other.mutex_);
  all_ = other.all_;
}

int StreamAttributes::priority() const {
  const std::scoped_lock lock(mutex_);
  return all_.at(CU_LAUNCH_ATTRIBUTE_PRIORITY).value.priority;
}

std::vector<CUlaunchAttribute> StreamAttributes::ofKernels() const {
  std::vector<CUlaunchAttribute> found;
  const std::scoped_lock lock(mutex_);
  for (const auto& [id, attribute] : all_) {
    if (!attribute.set || id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) continue;
    CUlaunchAttribute& one = found.emplace_back();
    one.id = id;
    one.value = attribute.value;
  }
  return found;
}

}  // namespace olpager::simgpu
