// Stream-ordered memory pools. A pool takes device memory in chunks of whole 2 MiB pages and cuts
// them into blocks; a block given back in a stream is reused at once by that stream, and by others
// when the work before the free is done.
//
// States of a block: in use -> freed (behind a place in a stream) -> in use again. A chunk without
// blocks in use goes back to the device when the pool is trimmed: by a call, at synchronization
// above the release threshold, or when somebody runs out of memory. Moved under MemPool::mutex.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/memory.h"
#include "gpunode/simgpu/stream.h"

namespace olpager::simgpu {

class Context;
class Device;

class MemPool : public std::enable_shared_from_this<MemPool> {
 public:
  MemPool(Device& device, CUmemoryPool handle, const CUmemPoolProps& properties);
  ~MemPool();

  /// The device's default pool, made by the first call.
  static std::shared_ptr<MemPool> defaultOf(Device& device);
  /// The pool that cuMemAllocAsync uses on the device: the default or that of cuDeviceSetMemPool.
  static std::shared_ptr<MemPool> currentOf(Device& device);
  static void setCurrent(Device& device, std::shared_ptr<MemPool> pool);
  /// Gives what the device's pools hold but do not use back to it; false when there was nothing.
  static bool releaseUnused(Device& device);
  /// cuMemFree of a stream-ordered allocation; the caller has waited for its users.
  static CUresult freeNow(const Allocation& allocation);

  /// An address that `stream` may use from its next operation on.
  CUresult allocate(Context& context, Stream& stream, uint64_t bytes, CUdeviceptr* out);
  /// Gives it back when what is in `stream` now is done.
  CUresult free(Context& context, Stream& stream, CUdeviceptr address);
  /// The allocation's address is free from now on, its block usable when `after` is complete.
  bool giveBack(CUdeviceptr address, StreamPoint after);
  /// cuMemPoolDestroy: no new allocations; gone with the last one that is given back.
  void retire();
  bool retired() const;
  /// Releases free chunks until at most `keep` bytes are held.
  void trim(uint64_t keep);
  /// Called where the program synchronizes: releases what is above the threshold.
  static void trimAll(Device& device);

  CUmemoryPool handle() const { return handle_; }
  Device& device() const { return device_; }
  CUresult attribute(CUmemPool_attribute attribute, void* value) const;
  CUresult setAttribute(CUmemPool_attribute attribute, const void* value);
  CUresult setAccess(int viewer, CUmemAccess_flags flags);
  CUmemAccess_flags access(int viewer) const;
  const CUmemPoolProps properties;

 private:
  struct Block {
    uint64_t bytes = 0;
    uint64_t chunk = 0;  // base of the chunk it lies in
    bool used = false;
    uint64_t requested = 0;
    StreamPoint free_after;
  };
  using Blocks = std::map<CUdeviceptr, Block>;
  Blocks::iterator findFree(const Stream& stream, uint64_t bytes);
  void joinFree();
  uint64_t releaseLocked(uint64_t keep);
  uint64_t takeChunk(uint64_t bytes);

  Device& device_;
  const CUmemoryPool handle_;
  mutable std::mutex mutex_;
  Blocks blocks_;
  std::map<uint64_t, uint64_t> chunks_;  // base -> bytes
  bool retired_ = false;
  uint64_t threshold_ = 0;
  uint64_t reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
  int follow_events_ = 1, opportunistic_ = 1, internal_dependencies_ = 1;
  std::map<int, CUmemAccess_flags> access_;
};

}  // namespace olpager::simgpu
