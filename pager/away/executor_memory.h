// The pool as an executor of a unified view: the interface for its worker.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pager/away/link.h"

namespace olpager::pager {

struct ToldOperation;  // private
struct PoolState;      // private

/// A part of Pool. Thread-safety: any thread. All but start() after it.
class ExecutorMemory {
 public:
  /// From now on the pool is that agent of a directory elsewhere. Before the first allocation,
  /// once; after setPlaced(). `link` stays.
  CUresult becomeExecutor(AwayLink& link, uint8_t agent);
  /// A region of the directory's, in the placed part: nobody has its pages yet. Starts the engine
  /// of `device` in `context`, which is current, where it has not started.
  CUresult addRegion(CUcontext context, CUdevice device, uint64_t base, uint32_t pages,
                     uint32_t first);
  /// CUDA_ERROR_INVALID_VALUE: no batch of messages to an executor.
  CUresult receive(std::span<const std::byte> batch);
  void landed(uint32_t extent, uint64_t number, std::optional<ContentHash> hash);
  /// Bytes of pages that are kept for when they come back.
  uint64_t retainedBytes() const;
  /// The operation has been made. True: the directory was told of it.
  bool operationOver(ToldOperation& operation);

 protected:
  explicit ExecutorMemory(PoolState& state) : state_(&state) {}
  ~ExecutorMemory() = default;

 private:
  PoolState* state_;
};

}  // namespace olpager::pager
