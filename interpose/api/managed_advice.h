// The advice that a program gave for ranges of its managed memory (cuMemAdvise,
// cuMemPrefetchAsync), and the answers about it (cuMemRangeGetAttribute). As the driver keeps it:
// advice is of ranges, an attribute of a range is the value that all of the range shares.
//
// Thread-safety: any thread; one lock, a leaf. Errors are CUresults as the driver gives them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace olpager::api {

/// Part of one managed allocation, not empty: addresses [begin, end) of the one at `base`.
struct ManagedPart {
  uint64_t base = 0, begin = 0, end = 0;
};

/// Allocations up to this are not paged: they are flags and mailboxes, which CPU and kernel use at
/// one time.
inline constexpr size_t kMostUnpaged = size_t{64} << 10;

class ManagedAdvice {
 public:
  /// CUDA_ERROR_INVALID_VALUE: no such advice; CUDA_ERROR_INVALID_DEVICE: no such device of
  /// `devices`.
  CUresult advise(const ManagedPart& part, CUmem_advise advice, const CUmemLocation& location,
                  int devices);
  void prefetched(const ManagedPart& part, const CUmemLocation& location);
  /// Writes `size` bytes to `data`. CUDA_ERROR_INVALID_VALUE: not that many, or no such attribute.
  CUresult attribute(void* data, size_t size, CUmem_range_attribute attribute,
                     const ManagedPart& part) const;
  /// The allocation is freed.
  void forget(uint64_t base);

  static CUresult checkLocation(const CUmemLocation& location, int devices);
  /// For a batch of `count` ranges: location number l is that of the ranges from indices[l] on.
  static CUresult checkLocations(const CUmemLocation* locations, const size_t* indices,
                                 size_t location_count, size_t count, int devices);
  /// Calls visit(range, location) for each range of such a batch, by number, until it does not
  /// return CUDA_SUCCESS. Returns the result of its last call.
  template <typename Visit>
  static CUresult forEachLocation(const CUmemLocation* locations, const size_t* indices,
                                  size_t location_count, size_t count, Visit visit) {
    size_t which = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
      while (which + 1 < location_count && indices[which + 1] <= i) ++which;
      result = visit(i, locations[which]);
    }
    return result;
  }
  /// The location that the older functions name by a device, or CU_DEVICE_CPU.
  static CUmemLocation locationOf(CUdevice device);

 private:
  static constexpr CUmemLocation kNowhere{CU_MEM_LOCATION_TYPE_INVALID, 0};
  struct Advice {
    bool read_mostly = false;
    CUmemLocation preferred = kNowhere, prefetched = kNowhere;
    std::set<int> accessed_by;  // devices; CU_DEVICE_CPU for the host
  };
  /// The ranges of one allocation: by first address, each up to the next one's.
  using Ranges = std::map<uint64_t, Advice>;

  static Ranges::iterator cut(Ranges& ranges, uint64_t address);
  template <typename Change>
  void change(const ManagedPart& part, Change what);
  Advice commonOf(const ManagedPart& part) const;

  mutable std::mutex mutex_;
  std::map<uint64_t, Ranges> allocations_;  // by address; those that were advised
};

}  // namespace olpager::api
