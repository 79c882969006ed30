// VRAM for others. The driver's own needs (arrays, modules, managed memory): what it is short of,
// the pager gives up, and takes back when it is free again. Other processes: the budget is changed
// while the program runs.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/size.h"
#include "pager/clock.h"
#include "pager/pool.h"
#include "pager/pool_state.h"
#include "pager/residency/budgets.h"
#include "pager/residency/fetches.h"

namespace olpager::pager {

namespace {
constexpr uint64_t kReliefPatienceNs = 5'000'000'000;
}  // namespace

uint64_t Pool::relieve(CUdevice device, uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load() || bytes == 0) return 0;
  Lock lock(state.mutex);
  Engine* const engine = state.devices.engineOf(device);
  if (engine == nullptr || engine->broken() || state.stopped || bytes > engine->chunks().vramMade())
    return 0;
  uint64_t until = nowNs() + kReliefPatienceNs;
  const auto relief = std::make_shared<Relief>(Relief{bytes, 0});
  engine->addRelief(relief);
  engine->fetching().expectNot(UINT64_MAX);  // no chunk takes what the driver is to have
  bool there = true;
  uint64_t left = relief->bytes + engine->chunks().vramMade();
  // Memory that is given counts when the driver has got it: a pass that reads chunks puts that off.
  while (there && (relief->bytes > 0 || engine->chunks().releasing()) && !engine->broken() &&
         !state.stopped && nowNs() < until) {
    state.changed.wait_for(lock, std::chrono::milliseconds(1));
    there = state.devices.engineOf(device) == engine;
    if (!there) break;
    // Only what makes no progress ends by the clock.
    if (const uint64_t now_left = relief->bytes + engine->chunks().vramMade(); now_left < left) {
      left = now_left;
      until = nowNs() + kReliefPatienceNs;
    }
  }
  if (!there) return 0;
  engine->removeRelief(relief);
  if (relief->bytes > 0) {  // less than was asked for is of no use
    engine->chunks().takeBack(relief->given);
    set(engine->figures().vram_budget_bytes, engine->chunks().vramBudget());
    return 0;
  }
  base::logInfo("device %d: %s of VRAM given back to the driver, which was out of memory", device,
                base::formatSize(relief->given).c_str());
  return relief->given;
}

void Pool::regain(CUdevice device, uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return;
  Lock lock(state.mutex);
  Engine* const engine = state.devices.engineOf(device);
  if (engine == nullptr) return;
  engine->chunks().takeBack(bytes);
  set(engine->figures().vram_budget_bytes, engine->chunks().vramBudget());
  engine->wake();
}

uint64_t Pool::setVramBudget(CUdevice device, uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return 0;
  Lock lock(state.mutex);
  state.devices.vram_set.insert(device);
  if (Engine* const engine = state.devices.engineOf(device); engine != nullptr)
    return engine->setVramBudget(bytes);
  const uint64_t budget = std::max(kPageBytes, bytes / kPageBytes * kPageBytes);
  state.devices.vram_budgets[device] = budget;
  return budget;
}

uint64_t Pool::setHostLimit(uint64_t bytes) {
  PoolState& state = *state_;
  if (state.forked.load()) return 0;
  const uint64_t given = hostLimit(state.options.host);
  Lock lock(state.mutex);
  HostBudget& host = state.devices.host;
  if (!host.known) host.limit = host.most = given;
  host.known = true;
  uint64_t least = 0;
  for (const auto& engine : state.devices.engines) least += engine->leastBelow();
  const uint64_t remote = lowerCapacity(state);
  least = std::min(host.limit,
                   (least - std::min(least, remote) + kPageBytes - 1) / kPageBytes * kPageBytes);
  host.limit = std::max(std::min(bytes / kPageBytes * kPageBytes, host.most), least);
  set(counters().host_limit_bytes, host.limit);
  for (const auto& engine : state.devices.engines) engine->wake();
  return host.limit;
}

}  // namespace olpager::pager
