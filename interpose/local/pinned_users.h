// Users of addresses that pass no launch: textures and surfaces, exported handles, SYNC_MEMOPS,
// RDMA registration. Memory that they use stays in VRAM as long as they live. Thread-safety: any
// thread. Lock: PinnedUsers::mutex.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::local {

/// Pins the allocation that holds `address` for as long as it lives (or forgetPointerState); once
/// for each allocation.
CUresult pinForLife(CUdeviceptr address);

/// The allocation with this base is about to be freed: its pins and flags are gone with it.
void forgetPointerState(CUdeviceptr base);

/// `address`, which is pinned (Pool::pin, which says as what), stays so until objectGone, or until
/// its allocation is freed.
void pinForObject(unsigned long long object, CUdeviceptr address, uint64_t pinned);
/// The texture or surface object is destroyed: what it pinned may go once the launches of before
/// have ended.
void objectGone(unsigned long long object);

}  // namespace olpager::local
