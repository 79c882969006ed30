#include "pager/away/executor_memory.h"

#include <exception>
#include <vector>

#include "base/log.h"
#include "coherence/pages/batch.h"
#include "pager/pool_state.h"

namespace olpager::pager {

CUresult ExecutorMemory::becomeExecutor(AwayLink& link, uint8_t agent) try {
  PoolState& state = *state_;
  if (state.forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (agent >= directory::kMostAgents) return CUDA_ERROR_INVALID_VALUE;
  auto away = std::make_unique<Away>(state, agent, link);
  const Lock lock(state.mutex);
  if (state.agent() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  state.away = std::move(away);
  state.is_executor.store(true);
  state.updateSlow();
  return CUDA_SUCCESS;
} catch (const std::exception& error) {  // no thread
  base::logError("the unified view: %s", error.what());
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult ExecutorMemory::addRegion(CUcontext context, CUdevice device, uint64_t base,
                                   uint32_t pages, uint32_t first) {
  PoolState& state = *state_;
  if (pages == 0 || base % kPageBytes != 0 || first + pages < first)
    return CUDA_ERROR_INVALID_VALUE;
  Lock lock(state.mutex);
  return addAway(state, context, device, base, pages, first, lock);
}

CUresult ExecutorMemory::receive(std::span<const std::byte> batch) {
  PoolState& state = *state_;
  std::vector<directory::Message> messages;
  Lock lock(state.mutex);
  if (const auto decoded = pages::decode(batch, state.away->extents(), messages); !decoded.ok()) {
    base::logError("the unified view: %s", decoded.error().message.c_str());
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.away->receive(messages, lock);
  return CUDA_SUCCESS;
}

void ExecutorMemory::landed(uint32_t extent, uint64_t number, std::optional<ContentHash> hash) {
  Lock lock(state_->mutex);
  state_->away->landed(extent, number, hash, lock);
}

uint64_t ExecutorMemory::retainedBytes() const { return state_->away->retained() * kPageBytes; }

bool ExecutorMemory::operationOver(ToldOperation& operation) {
  return state_->away->over(operation);
}

}  // namespace olpager::pager
