// Managed allocations. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace olpager::forward {

/// What the program was advised of ranges of its managed allocations.
struct Advice {
  static constexpr CUmemLocation kNowhere{CU_MEM_LOCATION_TYPE_INVALID, 0};

  bool read_mostly = false;
  CUmemLocation preferred = kNowhere, prefetched = kNowhere;
  std::set<int> accessed_by;  // devices; CU_DEVICE_CPU for the host
};
struct ManagedAdvice {
  /// Of one allocation: by first address, each up to the next one's.
  using Ranges = std::map<uint64_t, Advice>;

  std::mutex mutex;
  std::map<uint64_t, Ranges> allocations;  // by address; those that were advised
};

bool isManaged(CUdeviceptr address);
/// What cuMemFree does with a managed allocation.
CUresult freeManaged(CUdeviceptr address);

}  // namespace olpager::forward
