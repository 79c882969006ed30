// How many blocks of a kernel a multiprocessor holds at once, from the device's limits: threads,
// registers, shared memory. The rules are those of NVIDIA's published occupancy calculator for
// compute capability 9.0. Thread-safety: pure functions.
#pragma once

#include <cuda.h>

#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu {

class Device;

/// The limits that occupancy and launches are checked against. Bytes, threads, registers.
struct DeviceLimits {
  explicit DeviceLimits(const Device& device);

  int multiprocessors = 0;
  int threads_per_block = 0;
  int threads_per_multiprocessor = 0;
  int blocks_per_multiprocessor = 0;
  int registers_per_multiprocessor = 0;
  int registers_per_block = 0;
  int shared_per_multiprocessor = 0;
  int shared_per_block = 0;  // with opt-in
  int shared_reserved = 0;   // of each block, by the system
  int block[3] = {};
  int grid[3] = {};
};

/// Blocks of `threads` threads with `dynamic_shared` bytes that one multiprocessor runs at once; 0
/// when not even one.
int activeBlocks(const DeviceLimits& limits, const ptx::KernelInfo& info, int threads,
                 size_t dynamic_shared);

}  // namespace olpager::simgpu
