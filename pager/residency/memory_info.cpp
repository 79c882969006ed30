// The room that a pool has, and what the program is told of it.
#include <algorithm>
#include <utility>

#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/residency/budgets.h"

namespace olpager::pager {

// VRAM budget of a device and host limit of all together, found out once: what the program was
// told before the first allocation is what it gets. Without the mutex; a context of the device is
// current.
std::pair<uint64_t, uint64_t> budgetsOf(PoolState& state, CUdevice device) {
  {
    Lock lock(state.mutex);
    if (const auto known = state.devices.vram_budgets.find(device);
        known != state.devices.vram_budgets.end() && state.devices.host.known)
      return {known->second, state.devices.host.limit};
  }
  uint64_t vram = vramBudget(state.options.vram, state.driver);
  const uint64_t host = hostLimit(state.options.host);
  size_t free_bytes = 0, total_bytes = 0;
  // Without a context there is nothing to keep yet.
  const bool keep = state.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS;
  Lock lock(state.mutex);
  if (!state.devices.host.known) {
    state.devices.host.known = true;
    state.devices.host.limit = state.devices.host.most = host;
  }
  if (const auto known = state.devices.vram_budgets.find(device);
      known != state.devices.vram_budgets.end())
    vram = known->second;
  return {keep ? state.devices.vram_budgets.try_emplace(device, vram).first->second : vram,
          state.devices.host.limit};
}

namespace {

// By the Report option: what can be mapped on this node (of VRAM and of host memory), or this and
// what memservers have. `used` bytes of it are not free.
MemoryInfo reported(const PoolState& state, CUdevice device, uint64_t vram, uint64_t host,
                    uint64_t used) {
  const bool tells = state.options.report == Report::kPool;
  const uint64_t lent = lowerCapacity(state), all = vram + host + (tells ? lent : 0);
  return {
      all - std::min(all, used), all, vram, lent, tells, state.devices.vram_set.contains(device)};
}

}  // namespace

MemoryInfo Pool::memoryInfo(CUcontext context, CUdevice device) {
  PoolState& state = *state_;
  if (state.forked.load()) return {};
  Lock lock(state.mutex);
  // Memory whose frees streams have come to is free. A caller without a context can't ask the
  // driver about that.
  while (context != nullptr && reapDeferred(state, 0, lock)) {
  }
  if (const Engine* engine = state.devices.engineOf(device); engine != nullptr)
    return reported(state, device, engine->chunks().vramBudget(), engine->chunks().hostLimit(),
                    engine->named() + engine->usedByOthers());
  lock.unlock();
  const auto [vram, host] = budgetsOf(state, device);
  lock.lock();
  uint64_t others = 0;
  for (const auto& engine : state.devices.engines) others += engine->beyondVram();
  return reported(state, device, vram, host, others);
}

}  // namespace olpager::pager
