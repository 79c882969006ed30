// VRAM that is owed to the driver or taken off the budget (vram_debts.h).
#include <algorithm>

#include "pager/pool_state.h"
#include "pager/residency/eviction.h"

namespace olpager::pager {

namespace {
// Beyond what just holds all: pages change place.
constexpr uint64_t kChangeBytes = kPageBytes * space::kLargestExtentPages;
}  // namespace

// Before any launch gets what becomes free: a launch can use host memory in place, the driver
// can't.
bool Engine::serveReliefs(Lock& lock) {
  wants_.serving = 0;
  uint64_t wanted = 0;
  bool progress = false;
  for (size_t r = 0; r < debts_.reliefs.size(); ++r) {
    const std::shared_ptr<Relief> relief = debts_.reliefs[r];
    if (relief->bytes == 0) continue;
    const uint64_t lent = chunks_.lend(relief->bytes, lock);
    if (r >= debts_.reliefs.size() ||
        debts_.reliefs[r] != relief) {  // it left while the mutex was released
      chunks_.takeBack(lent);
      return true;
    }
    relief->given += lent;
    relief->bytes -= std::min(relief->bytes, lent);
    progress |= lent > 0;
    wanted += relief->bytes;
  }
  if (progress) {
    set(figures_->vram_budget_bytes, chunks_.vramBudget());
    pool_.changed.notify_all();
  }
  if (wanted > flight_.freesSoon() && eviction_->retire(wanted - flight_.freesSoon(), 0, true))
    progress = true;
  return progress;
}

uint64_t Engine::leastBelow() const {
  const uint64_t above = std::min(debts_.budget, chunks_.vramBudget()),
                 held = counts_.held + kChangeBytes;
  return counts_.held == 0 ? 0 : held - std::min(held, above);
}

uint64_t Engine::setVramBudget(uint64_t bytes) {
  const uint64_t below = chunks_.hostLimit() + lowerCapacity(pool_);
  const uint64_t room = below - std::min(below, usedByOthers());
  const uint64_t held = counts_.held + kChangeBytes;
  const uint64_t least = std::min(debts_.budget, held - std::min(held, room));
  const uint64_t wanted = std::max(std::min(bytes, debts_.most), least);
  const uint64_t budget = std::max(kPageBytes, (wanted + kPageBytes - 1) / kPageBytes * kPageBytes);
  if (budget < debts_.budget) {
    debts_.surplus += debts_.budget - budget;
  } else {
    const uint64_t kept = std::min(debts_.surplus, budget - debts_.budget);
    debts_.surplus -= kept;
    chunks_.grow(budget - debts_.budget - kept);
  }
  debts_.budget = budget;
  wake();
  return budget;
}

// Before launches as well: who is to have it may be waiting.
bool Engine::giveSurplus(Lock& lock) {
  if (debts_.surplus == 0) debts_.patience.ns = 0;
  if (debts_.surplus == 0 || life_.broken) return false;
  wants_.serving = 0;
  const uint64_t given = chunks_.shrink(
      debts_.surplus, lock);  // releases the mutex: the budget may be raised meanwhile
  if (given > debts_.surplus) chunks_.grow(given - debts_.surplus);
  debts_.surplus -= std::min(debts_.surplus, given);
  const bool leaving = debts_.surplus > flight_.freesSoon() &&
                       eviction_->retire(debts_.surplus - flight_.freesSoon(), 0, true);
  return given > 0 || leaving;
}

}  // namespace olpager::pager
