// The allocations of a pool: made, freed, and asked about.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "pager/types.h"

namespace olpager::pager {

struct PoolState;  // private

/// A part of Pool. Thread-safety: any thread.
class Allocations {
 public:
  /// Starts the engine of `device` in `context`, unless it is there. For before the first kernel
  /// runs: what a start loads, the driver loads only when no kernel runs, and whoever allocates
  /// beside a kernel does not expect to wait for it. allocate() starts what this could not.
  void prepare(CUcontext context, CUdevice device);
  /// Device memory in `context` (current device `device`). CUDA_ERROR_OUT_OF_MEMORY beyond the
  /// pool, after some seconds at most while memory freed in stream order is still in use;
  /// CUDA_ERROR_INVALID_VALUE for 0 bytes. Contents undefined, as with cuMemAlloc. Starts the
  /// device's engine if prepare() has not.
  CUresult allocate(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                    CUdeviceptr* out);
  /// Sets the first `bytes` of the range aside for allocateAt(): nothing else is allocated there.
  /// Before the first allocation and once, else CUDA_ERROR_NOT_PERMITTED; CUDA_ERROR_INVALID_VALUE
  /// when it is no number of pages or more than half of the range.
  CUresult setPlaced(uint64_t bytes);
  /// As allocate(), of kind kDevice, at `address`, which lies in the part that was set aside. From
  /// 2 MiB on an allocation has pages of its own with a guard page behind them
  /// (space::AddressAllocator), below it a slot of its slab (space::SlabAllocator): who chooses
  /// addresses by these two, for each context and device slabs of its own, finds them free here.
  /// CUDA_ERROR_INVALID_VALUE when the address is not free for it.
  CUresult allocateAt(CUcontext context, CUdevice device, CUdeviceptr address, uint64_t bytes);
  /// The most that may be allocated on a device, in all and in one piece. As of the call; 0 before
  /// its engine has started.
  struct Room {
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  Room room(CUdevice device) const;
  /// True if the device has an engine. As of the call.
  bool hasEngine(CUdevice device) const;
  /// Frees what `address` is the base of, once all work that reaches it is done (waits for it, as
  /// cuMemFree does). CUDA_ERROR_INVALID_VALUE when it is no base of a live allocation.
  CUresult free(CUdeviceptr address);
  /// Frees in stream order: returns at once, memory is reused when all work now in `stream` is
  /// done.
  CUresult freeAsync(CUdeviceptr address, const StreamKey& stream);
  /// True if `address` is that of an allocation that was not freed, in stream order either.
  bool isAllocated(CUdeviceptr address) const;
  /// The allocation that holds `address` (its guard and end excluded). False when there is none.
  bool describe(uint64_t address, AllocationInfo* out) const;
  /// For the region (an allocation, a slab of small ones, a reservation) that holds `address`; as
  /// of the call.
  Residency residency(uint64_t address) const;

 protected:
  explicit Allocations(PoolState& state) : state_(&state) {}
  ~Allocations() = default;

 private:
  CUresult allocateOne(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                       uint64_t at, CUdeviceptr* out);

  PoolState* state_;
};

}  // namespace olpager::pager
