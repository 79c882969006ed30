// Debts of a device's VRAM to others than launches: to the driver, which is out of memory, and to a
// budget that was lowered. Under PoolState::mutex.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pager/residency/wants.h"

namespace olpager::pager {

/// The driver is short of VRAM, and a thread waits for some of the pager's. Listed in VramDebts;
/// shared, since either may go first.
struct Relief {
  uint64_t bytes = 0;  // still to be given
  uint64_t given = 0;  // to the driver, and taken off the budget
};

struct VramDebts {
  /// As Engine::start() or setVramBudget() said; reliefs and what the driver withholds come off it.
  uint64_t budget = 0;
  uint64_t most = 0;     // the largest that it can be: the device's VRAM
  uint64_t surplus = 0;  // bytes by which VRAM is still to shrink
  /// How long launches wait for VRAM that is owed before they take it back, and from when on the
  /// next time that this is in vain makes it longer.
  Patience patience;
  std::vector<std::shared_ptr<Relief>> reliefs;

  bool any() const { return surplus > 0 || !reliefs.empty(); }
};

}  // namespace olpager::pager
