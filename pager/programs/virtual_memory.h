// The program's own virtual memory management: cuMemAddressReserve, cuMemCreate, cuMemMap,
// cuMemSetAccess and what belongs to them, for memory that the pager moves.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "pager/types.h"

namespace olpager::pager {

struct PoolState;  // private

/// Numbers of handles begin here: the driver's own are small.
inline constexpr uint64_t kFirstHandle = 1ull << 62;

/// A part of Pool. Each function answers as the driver's of that name. Thread-safety: any thread.
class VirtualMemory {
 public:
  CUresult reserveAddress(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr* out);
  CUresult releaseAddress(CUdeviceptr address, uint64_t bytes);
  /// A physical allocation of ours; `handle` is unique and never one of the driver's (they are
  /// small; ours start at 2^62).
  CUresult createHandle(CUcontext context, CUdevice device, uint64_t bytes,
                        const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* handle);
  CUresult releaseHandle(CUmemGenericAllocationHandle handle);
  bool ownsHandle(CUmemGenericAllocationHandle handle) const { return handle >= kFirstHandle; }
  CUresult handleProperties(CUmemGenericAllocationHandle handle,
                            CUmemAllocationProp* properties) const;
  CUresult retainHandle(CUdeviceptr address, CUmemGenericAllocationHandle* handle);
  CUresult map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, uint64_t bytes);
  CUresult setAccess(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* descriptors,
                     size_t count);
  CUresult getAccess(CUdeviceptr address, const CUmemLocation& location,
                     unsigned long long* flags) const;

 protected:
  explicit VirtualMemory(PoolState& state) : state_(&state) {}
  ~VirtualMemory() = default;

 private:
  PoolState* state_;
};

}  // namespace olpager::pager
