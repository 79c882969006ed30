// Copies and memsets: what they are checked for, and the operations that do them.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "gpunode/simgpu/memory.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class Context;
class Device;

/// A one-dimensional copy as the general form has it.
CUDA_MEMCPY3D linearCopy(CUmemorytype dst_type, CUdeviceptr dst, CUmemorytype src_type,
                         CUdeviceptr src, size_t bytes);

enum class CopyWait : uint8_t {
  kAsync,  // the *Async functions: waits only where memory is pageable
  kSync,   // returns when done, but for copies between device memory, which only take their turn
};

/// Checks `copy` as the driver does, and submits it (or captures it). `stream` is as the caller
/// gave it.
CUresult submitCopy(const CUDA_MEMCPY3D& copy, CUstream stream, bool per_thread, CopyWait wait);
/// The same for memset; sync memsets of device memory do not wait.
CUresult submitMemset(const CUDA_MEMSET_NODE_PARAMS& set, CUstream stream, bool per_thread,
                      CopyWait wait);

/// The operations alone; parameters checked by checkCopy / checkMemset. `staged` (may be null)
/// replaces the source: the bytes of a small pageable source as they were when the call was made,
/// tightly packed.
std::unique_ptr<StreamOp> makeCopyOp(const CUDA_MEMCPY3D& copy,
                                     std::shared_ptr<std::vector<std::byte>> staged = nullptr);
std::unique_ptr<StreamOp> makeMemsetOp(const CUDA_MEMSET_NODE_PARAMS& set);
/// The program's function on the callback thread.
std::unique_ptr<StreamOp> makeHostOp(const CUDA_HOST_NODE_PARAMS& host);
/// cuStreamWriteValue, cuStreamWaitValue and their batches.
std::unique_ptr<StreamOp> makeBatchOp(std::vector<CUstreamBatchMemOpParams> ops);

/// As the driver checks them when the call is made, for the device that does them.
CUresult checkCopy(const Device& device, const CUDA_MEMCPY3D& copy);
CUresult checkMemset(const Device& device, const CUDA_MEMSET_NODE_PARAMS& set);

/// The facts about an operand that count when a copy or memset of an executable graph changes: its
/// kind of memory, the devices that map it, and the context that it was allocated in (null where
/// memory has none).
struct OperandPlace {
  enum class Kind : uint8_t { kPageable, kAllocation, kVmm } kind = Kind::kPageable;
  AllocationKind allocation = AllocationKind::kDevice;
  uint64_t devices = 0;  // a bit for each
  CUcontext context = nullptr;
  bool operator==(const OperandPlace&) const = default;
};
/// Destination and source. For parameters that checkCopy / checkMemset has just accepted.
struct OperandPlaces {
  OperandPlace to, from;
  bool operator==(const OperandPlaces&) const = default;
};
OperandPlaces placesOf(const CUDA_MEMCPY3D& copy);
OperandPlaces placesOf(const CUDA_MEMSET_NODE_PARAMS& set);

}  // namespace olpager::simgpu
