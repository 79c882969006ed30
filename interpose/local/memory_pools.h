// The driver's memory pools. Their attributes stay the driver's; what is allocated from one on a device is the pager's.
// Thread-safety: any thread. Lock: MemoryPools::mutex, after every other lock of the interposer.
#pragma once

#include <cuda.h>

namespace olpager::local {

/// True when `pool` allocates memory of a device that the pager can serve, and which. A pool of host memory, or one
/// whose allocations can be exported, is the driver's.
bool poolDevice(CUmemoryPool pool, CUdevice* device);

/// The pool that cuMemAllocAsync allocates from on `device`, nullptr for the device's default.
CUmemoryPool currentPool(CUdevice device);

/// `address` was allocated from `pool`, as cuPointerGetAttribute will say.
void noteFromPool(CUdeviceptr address, CUmemoryPool pool);

/// The pool that `address` came from: as noted, else the default pool of its device.
CUmemoryPool poolOf(CUdeviceptr address, CUdevice device);

/// `address` was freed.
void forgetFromPool(CUdeviceptr address);

}  // namespace olpager::local
