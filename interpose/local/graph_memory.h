// Memory that a program allocates inside captures. The memory has its address for as long as the
// capture's graph, or what was made of it, is there; launches allocate it, and frees of the program
// or of graphs free it. Allocated memory outlives its graph. Memory of nodes that are added by the
// API is the driver's own, and nothing of it is known here.
//
// States, under GraphMemories::mutex:
//   idle       captured, or freed          -> allocated (a launch), gone (its last owner)
//   allocated  by a launch                 -> idle (a free), left (its last owner)
//   left       plain memory of the pager's -> gone (a free)
//
// Thread-safety: any thread. Lock: GraphMemories::mutex (locks.h), under which the pager is asked
// and nothing else is called.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace olpager::local {

/// An owner. The last one frees the memory, unless it is allocated, or its context went first.
class GraphMemory {
 public:
  GraphMemory(CUdeviceptr address, uint64_t buffer_id) : address_(address), buffer_id_(buffer_id) {}
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_;
  uint64_t buffer_id_;  // of this allocation, not of one that came after it
};

/// A graph's allocations and frees of such memory.
struct MemoryUse {
  std::vector<std::shared_ptr<GraphMemory>> allocates;
  std::vector<CUdeviceptr> frees;

  bool empty() const { return allocates.empty() && frees.empty(); }
  void add(const MemoryUse& other);
};

/// `address` was allocated inside a capture.
std::shared_ptr<GraphMemory> newGraphMemory(CUdeviceptr address);
/// True if such memory begins there, also such that is left.
bool isGraphMemory(CUdeviceptr address);

/// The state in which the program's own free finds it.
enum class GraphFree : uint8_t {
  kOther,  // no such memory
  kIdle,   // it is not allocated
  kFreed,  // by this call; its graph keeps the address
  kLeft,   // nobody has it any more: the caller frees it as any memory
};
GraphFree freeGraphMemory(CUdeviceptr address);

/// A launch of a graph as far as such memory is concerned. Without done() it has not been made: all
/// is as it was.
class MemoryLaunch {
 public:
  MemoryLaunch() = default;
  ~MemoryLaunch();
  MemoryLaunch(const MemoryLaunch&) = delete;
  MemoryLaunch& operator=(const MemoryLaunch&) = delete;

  /// CUDA_ERROR_INVALID_VALUE where the graph would allocate what is allocated (unless `auto_free`,
  /// which frees it), or free what is not.
  CUresult begin(MemoryUse use, bool auto_free);
  /// The driver has taken the launch. Returns what the graph frees that nobody has any more: the
  /// caller frees it behind the launch.
  std::vector<CUdeviceptr> done();

 private:
  struct Before {
    CUdeviceptr address;
    bool allocated;
  };
  std::vector<Before> before_;
  MemoryUse use_;
};

/// Bytes of a device that are allocated, and that graphs have, now and at most.
struct GraphMemoryUsage {
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t reserved = 0;
  uint64_t reserved_high = 0;
};
GraphMemoryUsage graphMemoryUsage(CUdevice device);

/// Forgets the memory that went with a context.
void graphMemoryOfContextGone();

}  // namespace olpager::local
