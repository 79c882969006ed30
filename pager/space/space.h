// The addresses of the global range [base, base + size): who owns which page, and which runs are
// free. Knows nothing of GPUs, contents or mappings.
//
// Thread-safety: PageMap is wait-free and may be used by any thread. RegionAddresses has no lock of
// its own: the caller's lock that guards allocation covers it. Units: addresses and sizes are bytes
// unless named `pages` (2 MiB each). Errors: nullopt when there is no room or no such thing;
// nothing here throws except for host memory exhaustion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "base/space/address_allocator.h"
#include "base/space/slab_allocator.h"
#include "pager/space/extents.h"

namespace olpager::space {

/// Index of a region (the caller's record of an allocation, a slab or a reservation). 0: no region.
using RegionIndex = uint32_t;

/// Page -> region, for each page of the range: one 32-bit atomic per page in an anonymous mapping
/// of its own, which costs memory only where it is touched and is MADV_DONTFORK (a forked child
/// must not use it).
class PageMap {
 public:
  /// `base` and `size` are multiples of a page; at most 64 TiB. Fails when the mapping can't be
  /// made.
  static Result<std::unique_ptr<PageMap>> create(uint64_t base, uint64_t size);
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  bool contains(uint64_t address) const { return address - base_ < size_; }

  /// Region of the page that holds `address`, which must lie in the range. Writes of the publisher
  /// before assign() are visible to a reader that sees its index here. One subtraction, one shift,
  /// one load.
  RegionIndex lookup(uint64_t address) const {
    return entries_[(address - base_) >> kPageShift].load(std::memory_order_acquire);
  }

  /// Names `region` (0: clears) as the owner of `pages` pages from `address`.
  void assign(uint64_t address, uint64_t pages, RegionIndex region) {
    std::atomic<RegionIndex>* entry = entries_ + ((address - base_) >> kPageShift);
    for (uint64_t i = 0; i < pages; ++i) entry[i].store(region, std::memory_order_release);
  }

 private:
  PageMap(uint64_t base, uint64_t size, std::atomic<RegionIndex>* entries)
      : base_(base), size_(size), entries_(entries) {}

  uint64_t base_;
  uint64_t size_;
  std::atomic<RegionIndex>* entries_;
};

/// The runs of the map's range, or of [base, + bytes) of it, whose owners the map names: of a run
/// and of its guard, so that a pointer to the end of an allocation names that allocation. Two steps
/// to publish: allocate() takes the addresses, publish() makes lookups see them once the caller's
/// record is ready.
class RegionAddresses : private AddressAllocator {
 public:
  /// `map` is borrowed.
  explicit RegionAddresses(PageMap& map) : RegionAddresses(map, map.base(), map.size()) {}
  RegionAddresses(PageMap& map, uint64_t base, uint64_t bytes)
      : AddressAllocator(base, bytes), map_(map), before_((base - map.base()) >> kPageShift) {}

  using AddressAllocator::allocate;
  using AddressAllocator::allocateAt;
  using AddressAllocator::contains;
  using AddressAllocator::runPages;
  using AddressAllocator::runs;
  using AddressAllocator::usedPages;

  /// Names `region` in the page map for the run at `address` (the base of a run given out) and its
  /// guard.
  void publish(uint64_t address, RegionIndex region) {
    if (const uint64_t pages = runPages(address)) map_.assign(address, pages + kGuardPages, region);
  }
  /// Clears the run's and its guard's page-map entries; the addresses stay taken (a second step,
  /// release(), frees them).
  void withdraw(uint64_t address) { publish(address, 0); }
  /// Withdraws, then gives the run and its guard back. False: `address` is no base of a run.
  bool release(uint64_t address) {
    withdraw(address);
    return AddressAllocator::release(address);
  }
  /// Pages from the map's start to the end of the highest run ever given out, 0 while there was
  /// none: what a scan has to know of.
  uint64_t highWaterPages() const {
    const uint64_t own = AddressAllocator::highWaterPages();
    return own == 0 ? 0 : before_ + own;
  }

 private:
  PageMap& map_;
  uint64_t before_;  // pages of the map below what is given out
};

}  // namespace olpager::space
