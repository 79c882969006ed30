#include "gpunode/simgpu/modules/occupancy.h"

#include <algorithm>

#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {
namespace {

constexpr int kWarp = 32;
constexpr int kRegisterUnit = 256;  // registers are given to a warp in these
constexpr size_t kSharedUnit = 128;

int roundUp(int value, int unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

DeviceLimits::DeviceLimits(const Device& device) {
  const auto get = [&device](CUdevice_attribute attribute) {
    int value = 0;
    device.attribute(attribute, &value);
    return value;
  };
  multiprocessors = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  threads_per_block = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  threads_per_multiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  blocks_per_multiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  registers_per_multiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  registers_per_block = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  shared_per_multiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  shared_per_block = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  shared_reserved = get(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  block[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  block[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  block[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  grid[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  grid[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  grid[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
}

int activeBlocks(const DeviceLimits& limits, const ptx::KernelInfo& info, int threads,
                 size_t dynamic_shared) {
  if (threads <= 0 ||
      threads > std::min(limits.threads_per_block, static_cast<int>(info.max_threads)))
    return 0;
  const int warps = (threads + kWarp - 1) / kWarp;
  int blocks =
      std::min(limits.blocks_per_multiprocessor, limits.threads_per_multiprocessor / kWarp / warps);

  // A code generator keeps to the launch bounds, so what it would need at most is what they leave.
  int registers = std::clamp(static_cast<int>(info.registers), 8, 255);
  const int bounded_warps =
      (std::min(limits.threads_per_block, static_cast<int>(info.max_threads)) + kWarp - 1) / kWarp;
  registers = std::min(registers, limits.registers_per_block / (bounded_warps * kWarp));
  if (info.maxnreg != 0) registers = std::min(registers, static_cast<int>(info.maxnreg));
  const int per_warp = roundUp(std::max(registers, 1) * kWarp, kRegisterUnit);
  blocks = std::min(blocks, limits.registers_per_multiprocessor / per_warp / warps);

  const size_t asked = info.static_shared_bytes + dynamic_shared;
  if (asked > static_cast<size_t>(limits.shared_per_block)) return 0;
  const size_t shared = (asked + static_cast<size_t>(limits.shared_reserved) + kSharedUnit - 1) /
                        kSharedUnit * kSharedUnit;
  if (shared != 0) {
    blocks = static_cast<int>(
        std::min<size_t>(static_cast<size_t>(blocks),
                         static_cast<size_t>(limits.shared_per_multiprocessor) / shared));
  }
  return blocks;
}

}  // namespace olpager::simgpu
