// Memory of which launches touch little: found by the times of launches (sparse.h), and then read
// in place.
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <cstdint>

#include "pager/residency/engine.h"

namespace olpager::pager {

class SparseUse {
 public:
  explicit SparseUse(Engine& engine) : engine_(engine), pool_(engine.pool_) {}

  /// Measures launches that are to be judged.
  LaunchTimer& timer() { return timer_; }
  /// Bytes of VRAM that the device reads in a second. Before the engine's threads.
  void setVramBandwidth(uint64_t bytes) { vram_bandwidth_ = bytes; }
  /// Judges regions by the times of the launches that used them. Releases the mutex.
  void judgeTimed(Lock& lock);
  /// A verdict on the region has been found.
  void countSparse(const Region& region, bool was_sparse);
  /// The region is better fetched from now on, or better read in place.
  void treatAnew(Region& region);
  /// Bytes of VRAM that memory has which is better read in place, and gives up.
  uint64_t sparseInVram() const;

 private:
  Engine& engine_;
  PoolState& pool_;
  LaunchTimer timer_;
  uint64_t vram_bandwidth_ = 0;
};

}  // namespace olpager::pager
