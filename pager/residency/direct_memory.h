// VRAM chunks that network cards know, so that pages move between VRAM and memservers without host
// memory between (GPUDirect). A card knows a chunk by a dma-buf of the chunk's alias, from when the
// chunk is made until it is released.
//
// Thread-safety: begin() before all else; the rest from any thread, without PoolState::mutex, since
// cards and the driver take milliseconds.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "pager/driver_api.h"
#include "pager/space/region.h"

namespace olpager::pager {

class LowerTier;

/// Why the driver and this GPU give no dma-bufs of VRAM, in one line that says what it takes; "":
/// they do, as far as they say.
std::string whyNoDmaBufs(const DriverApi& driver, CUdevice device);

/// The line that refuses `require = gpudirect`.
std::string requireDirectError(const std::string& why);

/// Why a chunk is not known; "": it is.
struct NotKnown {
  std::string why;
  bool for_good = false;  // no further one would be either
};

class DirectMemory {
 public:
  DirectMemory(const DriverApi& driver, CUdevice device) : driver_(driver), device_(device) {}

  /// From now on chunks are made known, where driver, GPU and cards allow it: "", or why not.
  std::string begin(const std::shared_ptr<LowerTier>& tier);
  /// Chunks that are made now are to be known.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// No further one.
  void giveUp() { on_.store(false); }
  /// A chunk that is mapped at its alias. False: a card can't have this one, which is told once and
  /// counted; or the driver gives no dma-bufs after all, and no further one is tried.
  bool makeKnown(const VramChunk& chunk);
  /// As makeKnown(); nothing is told.
  NotKnown tryMakeKnown(const VramChunk& chunk);
  /// Makes what cards have written into VRAM visible to what is launched from now on. In the
  /// device's context.
  CUresult flush() const {
    return flushes_ ? driver_.cuFlushGPUDirectRDMAWrites(
                          CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                          CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
                    : CUDA_SUCCESS;
  }
  /// Before a chunk that is known is released.
  void letGo(const VramChunk& chunk);

 private:
  const DriverApi& driver_;
  const CUdevice device_;
  std::weak_ptr<LowerTier> tier_;
  bool flushes_ = false;  // the GPU does not order what cards write by itself
  std::atomic<bool> on_{false};
};

}  // namespace olpager::pager
