// A program's own physical memory (cuMemCreate) and where it has mapped it (cuMemMap). Tables only:
// vmm.cpp moves their extents. Everything runs under PoolState::mutex.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "pager/programs/virtual_memory.h"
#include "pager/space/region.h"

namespace olpager::pager {

/// Homes of handles begin here: no pointer has such an address.
inline constexpr uint64_t kFirstHome = 1ull << 63;

/// Physical memory of the program's own (cuMemCreate). The extents are here while it is mapped
/// nowhere with access.
struct VmmHandle {
  CUmemGenericAllocationHandle id = 0;
  uint64_t bytes = 0;
  /// The address of its extents while no reservation has them: the lower tier knows them by these
  /// addresses, wherever the program maps them. From kFirstHome on, never used again.
  uint64_t home = 0;
  CUmemAllocationProp properties{};
  Engine* engine = nullptr;
  CUcontext context = nullptr;
  uint32_t references = 0;
  uint32_t mappings = 0;
  uint64_t primary = 0;     // where its extents are mapped and move; 0: they rest here
  uint32_t fixed = 0;       // further mappings: while there are any the extents stay in VRAM
  Region* aside = nullptr;  // a reservation of the pager's own, for a primary mapping where the
                            // program's can't be one
  std::vector<std::unique_ptr<Extent>> extents;
};

struct VmmMapping {
  VmmHandle* handle = nullptr;
  Region* region = nullptr;
  /// The access of devices that have any, as the program gave it.
  std::map<CUdevice, CUmemAccess_flags> access;
  bool fixed = false;  // the driver has it mapped, beside the handle's primary mapping

  /// No device may write. If one may, all that have access can: an extent is mapped alike for all
  /// devices.
  bool isReadOnly() const {
    return std::none_of(access.begin(), access.end(), [](const auto& entry) {
      return entry.second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    });
  }
};

class ProgramMappings {
 public:
  /// A new handle, with its number and its home.
  VmmHandle& make(uint64_t bytes);
  /// nullptr: there is none with that number.
  VmmHandle* find(CUmemGenericAllocationHandle id) const;
  /// The mapping that holds `address`; nullptr: there is none.
  VmmMapping* mappingAt(uint64_t address);

  /// The address by which the lower tier knows an extent, attached or not: where it lies, or where
  /// its handle's home is.
  uint64_t tierAddress(const Extent& extent) const;
  /// The address of the extent that the lower tier knows by that one; 0: it has none.
  uint64_t addressOf(uint64_t tier_address) const;

  /// Calls visit(primary) for each fixed mapping that overlaps [begin, end): where the handle's
  /// primary mapping is; 0: nowhere.
  template <typename Visit>
  void forFixedIn(uint64_t begin, uint64_t end, Visit visit) const {
    auto it = mappings.upper_bound(begin);
    if (it != mappings.begin()) --it;  // it may begin before
    for (; it != mappings.end() && it->first < end; ++it) {
      const VmmMapping& mapping = it->second;
      if (mapping.fixed && it->first + mapping.handle->bytes > begin)
        visit(mapping.handle->primary);
    }
  }

  void erase(const VmmHandle& handle);

  std::unordered_map<CUmemGenericAllocationHandle, std::unique_ptr<VmmHandle>> handles;
  std::map<uint64_t, VmmMapping> mappings;  // by address

 private:
  std::map<uint64_t, VmmHandle*> homes_;
  uint64_t next_handle_ = 1;
  uint64_t next_home_ = kFirstHome;
};

}  // namespace olpager::pager
