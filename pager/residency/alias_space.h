// Addresses of the aliases through which the engine copies chunks. The addresses are reserved once,
// when the engine starts: chunks come and go as they are needed, and each reservation of its own
// would move what the driver places next. Variables of modules have to lie at the same addresses in
// all workers of a unified view (gpunode/worker/address_space.h).
//
// States: none (no reservation: each alias is reserved by itself) -> reserved (begin) -> none (end,
// when nothing of it is given out). Thread-safety: take() and give() from any thread, the others
// while no thread uses it. Lock: a leaf, not held across driver calls.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>

#include "base/space/address_allocator.h"
#include "pager/driver_api.h"
#include "pager/locks.h"

namespace olpager::pager {

class AliasSpace {
 public:
  AliasSpace(const DriverApi& driver, CUdevice device) : driver_(driver), device_(device) {}
  AliasSpace(const AliasSpace&) = delete;
  AliasSpace& operator=(const AliasSpace&) = delete;

  void begin();
  void end();
  /// Whole pages. 0: there are none.
  CUdeviceptr take(uint64_t bytes);
  /// Nothing is mapped at `alias` any more.
  void give(CUdeviceptr alias, uint64_t bytes);

 private:
  const DriverApi& driver_;
  const CUdevice device_;
  CUdeviceptr base_ = 0;
  base::RankedMutex mutex_{kAliasSpaceMutex};
  std::optional<space::AddressAllocator> addresses_;
};

}  // namespace olpager::pager
