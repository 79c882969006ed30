#include "interpose/forward/context_failures.h"

namespace olpager::forward {

ContextFailures::~ContextFailures() {
  counts_.to_tell.fetch_sub(static_cast<uint32_t>(failed_.size()) +
                            (broken_ != CUDA_SUCCESS ? 1 : 0));
  if (fault_ != CUDA_SUCCESS) counts_.faults.fetch_sub(1);
}

void ContextFailures::failed(uint32_t thread, CUresult why) {
  if (failed_.emplace(thread, why).second) counts_.to_tell.fetch_add(1);
}

bool ContextFailures::breaks(CUresult why) {
  if (broken_ != CUDA_SUCCESS) return false;
  broken_ = why;
  counts_.to_tell.fetch_add(1);
  return true;
}

void ContextFailures::faulted(CUresult fault) {
  if (fault_ != CUDA_SUCCESS || fault == CUDA_SUCCESS) return;
  fault_ = fault;
  counts_.faults.fetch_add(1);
}

CUresult ContextFailures::take(uint32_t thread) {
  const auto found = failed_.find(thread);
  if (found == failed_.end()) return CUDA_SUCCESS;
  const CUresult why = found->second;
  failed_.erase(found);
  counts_.to_tell.fetch_sub(1);
  return why;
}

CUresult ContextFailures::takeAny() {
  if (failed_.empty()) return CUDA_SUCCESS;
  const CUresult why = failed_.begin()->second;
  failed_.erase(failed_.begin());
  counts_.to_tell.fetch_sub(1);
  return why;
}

}  // namespace olpager::forward
