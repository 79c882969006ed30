// How much of VRAM and host memory the pager may use.
#pragma once

#include <cstdint>

#include "pager/driver_api.h"
#include "pager/options.h"

namespace olpager::pager {

/// VRAM for the pool of the current context's device: as given, the device's memory at most, else
/// what the driver has free less a reserve for contexts, modules and libraries. Multiples of a
/// page, at least one.
uint64_t vramBudget(const Budget& given, const DriverApi& driver);
/// The same for a device with so much memory, of which so much is free.
uint64_t vramBudgetOf(const Budget& given, uint64_t free_bytes, uint64_t total_bytes);

/// Bytes of the host tier: as given, the machine's memory at most, else 80 % of the smaller of
/// available memory and what the cgroup and those above it leave (base/cgroup.h).
uint64_t hostLimit(const Budget& given);

}  // namespace olpager::pager
