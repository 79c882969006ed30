// The driver's memory pools. Pools' attributes stay the driver's; memory that is allocated from one
// on a device is the pager's. Thread-safety: any thread. Lock: MemoryPools::mutex, after every
// other lock of the interposer, before the pager's.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::local {

/// True when `pool` allocates memory of a device that the pager can serve, and which. A pool of
/// host memory, or one whose allocations can be exported, is the driver's.
bool poolDevice(CUmemoryPool pool, CUdevice* device);

/// The pool that cuMemAllocAsync allocates from on `device`, nullptr for the device's default.
CUmemoryPool currentPool(CUdevice device);

/// Counts an allocation that is being made against its pool's largest size, until it is freed, or
/// the share ends without one.
class PoolShare {
 public:
  PoolShare(CUmemoryPool pool, uint64_t bytes);
  ~PoolShare();
  PoolShare(const PoolShare&) = delete;
  PoolShare& operator=(const PoolShare&) = delete;
  /// False: the pool would be larger than it may be.
  bool fits() const { return fits_; }
  /// The memory was allocated there: cuPointerGetAttribute will say from which pool.
  void becomes(CUdeviceptr address);

 private:
  const CUmemoryPool pool_;
  const uint64_t bytes_;
  bool fits_ = true;
  bool counted_ = false;
};

/// The pool that `address` came from: as noted, else the default pool of its device.
CUmemoryPool poolOf(CUdeviceptr address, CUdevice device);

/// `address` was freed.
void forgetFromPool(CUdeviceptr address);

/// A context went, and all memory allocated in it.
void forgetFromPools();

}  // namespace olpager::local
