// Device memory at addresses that the caller chooses: for olgpunode's worker, whose client gives
// out addresses by itself so that it waits for nobody (docs/internals/forwarding.md). Found by
// dlsym in libolpager.so; the program's own calls know nothing of it. Thread-safety: any thread.
// Errors: CUDA's; CUDA_ERROR_NOT_SUPPORTED where the driver is used without a pager.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

/// Sets a part of the global range aside. Before the first allocation, once.
CUresult olpager_set_placed(CUdeviceptr* base, size_t* bytes);
/// As cuMemAlloc, at `address` in that part (Pool::allocateAt says which addresses are free for
/// what). *room_bytes, *room_largest: what may be allocated now on the current device, in all and
/// in one piece; may be null.
CUresult olpager_allocate_at(CUdeviceptr address, size_t bytes, size_t* room_bytes,
                             size_t* room_largest);
/// A device's room, in bytes.
struct OlpagerRoom {
  uint64_t vram;       // that programs may use of its VRAM
  uint64_t told;       // that they are told of in all
  uint64_t all;        // that they may allocate, with memservers in any case
  uint64_t lent;       // of `all`, what memservers and disks have room for
  uint64_t told_lent;  // of `told`
  uint64_t lenders;    // equal where the memservers are the same, by their names; 0: there are none
};
/// Needs no context.
CUresult olpager_room(CUdevice device, struct OlpagerRoom* room);
}
#pragma GCC visibility pop

namespace olpager::forward {
using SetPlaced = decltype(&olpager_set_placed);
using AllocateAt = decltype(&olpager_allocate_at);
using RoomOf = decltype(&olpager_room);
}  // namespace olpager::forward
