// The addresses of the global range [base, base + size): who owns which page, which runs are free,
// how small requests share a page, how an allocation is cut into extents. Knows nothing of GPUs,
// contents or mappings.
//
// Thread-safety: PageMap is wait-free and may be used by any thread. AddressAllocator and
// SlabAllocator have no lock of their own: the caller's lock that guards allocation covers them.
// The functions on extents are pure. Units: addresses and sizes are bytes unless named `pages` (2
// MiB each). Errors: nullopt when there is no room or no such thing; nothing here throws except for
// host memory exhaustion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/result.h"
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

  /// Region of the page that holds `address`, which must lie in the range. What the publisher wrote
  /// before assign() is visible to who sees its index here. One subtraction, one shift, one load.
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

/// Free and used runs of pages in the range. Each run given out is followed by one guard page,
/// which stays unmapped and whose page-map entry names the run's region: a pointer to the end of an
/// allocation names that allocation. Best fit, lowest address first among equals, so that the used
/// part of the range stays short and at its start. O(log n) in the number of runs. Two steps to
/// publish: allocate() takes the addresses, publish() makes lookups see them once the caller's
/// record is ready.
class AddressAllocator {
 public:
  /// `map` is borrowed. What is given out is all of its range, or [base, + bytes) of it, in whole
  /// pages.
  explicit AddressAllocator(PageMap& map) : AddressAllocator(map, map.base(), map.size()) {}
  AddressAllocator(PageMap& map, uint64_t base, uint64_t bytes);

  /// Whether the address is in what is given out.
  bool contains(uint64_t address) const { return address - base_ < total_pages_ << kPageShift; }

  /// A run of `pages` pages (and its guard behind it). `alignment` is a power of two, in bytes, at
  /// least a page (smaller values count as a page). `hint` != 0: exactly there when it is free,
  /// page-aligned and aligned as asked, else anywhere. nullopt: 0 pages, or no such run is free.
  std::optional<uint64_t> allocate(uint64_t pages, uint64_t alignment = kPageBytes,
                                   uint64_t hint = 0);
  /// The run of `pages` pages at just `address` (and its guard behind it). False: it is not free,
  /// not all in the range, or not at a page's start.
  bool allocateAt(uint64_t address, uint64_t pages);
  /// Names `region` in the page map for the run at `address` (the base of a run given out) and its
  /// guard.
  void publish(uint64_t address, RegionIndex region);
  /// Clears the run's and its guard's page-map entries; the addresses stay taken (a second step,
  /// release(), frees them).
  void withdraw(uint64_t address);
  /// Withdraws, then gives the run and its guard back. False: `address` is no base of a run.
  bool release(uint64_t address);

  /// Pages of the run whose base is `address`, without the guard; 0: no run starts there.
  uint64_t runPages(uint64_t address) const;
  /// Pages given out, guards included.
  uint64_t usedPages() const { return used_pages_; }
  uint64_t runs() const { return used_.size(); }
  /// Pages from the map's start to the end of the highest run ever given out, 0 while there was
  /// none: what a scan has to know of.
  uint64_t highWaterPages() const { return high_water_; }

 private:
  using Page = uint64_t;  // page number in what is given out
  using FreeMap = std::map<Page, uint64_t>;

  std::optional<Page> findFree(uint64_t pages, uint64_t alignment_pages) const;
  bool isFree(Page first, uint64_t pages) const;
  uint64_t takeRun(Page first, uint64_t with_guard);
  void take(FreeMap::iterator free, Page first, uint64_t pages);
  void give(Page first, uint64_t pages);
  void insertFree(Page first, uint64_t pages);
  void eraseFree(FreeMap::iterator free);

  PageMap& map_;
  uint64_t base_;
  uint64_t total_pages_;
  uint64_t base_page_;                         // page number of the base itself, for alignment
  FreeMap free_;                               // first page -> pages
  std::set<std::pair<uint64_t, Page>> sizes_;  // (pages, first page) of the same runs
  std::unordered_map<Page, uint64_t> used_;    // first page -> pages with guard
  uint64_t used_pages_ = 0;
  uint64_t high_water_ = 0;
};

/// Requests below 2 MiB, packed by size class into slabs of one page, each a region of its own that
/// the caller makes. Slots are aligned to 512 bytes. A request above 1 MiB gets a slab to itself.
/// Addresses may be asked about with any pointer into a slot, the slab's end included (the guard
/// page names the last slot).
class SlabAllocator {
 public:
  static constexpr uint64_t kAlignment = 512;
  static constexpr uint64_t kLargestShared = 1ull << 20;

  struct Callbacks {
    /// Makes a slab, at `address` or, for 0, anywhere: the address of one page, or nullopt (the
    /// request then fails).
    std::function<std::optional<uint64_t>(uint64_t address)> make;
    /// The slab is empty and forgotten; its page can go.
    std::function<void(uint64_t address)> drop;
  };

  struct Slot {
    uint64_t address = 0;    // as given out
    uint64_t requested = 0;  // bytes asked for
    uint64_t capacity = 0;   // bytes of the slot
    uint64_t slab = 0;       // address of the slab
  };

  /// What becomes of slabs that are empty.
  enum class Empty : uint8_t {
    kDrop,     // they go at once
    kKeepOne,  // one of each size class stays: who allocates and frees in turn makes no slab each
               // time
  };

  explicit SlabAllocator(Callbacks callbacks, Empty empty = Empty::kDrop);
  ~SlabAllocator();
  SlabAllocator(const SlabAllocator&) = delete;
  SlabAllocator& operator=(const SlabAllocator&) = delete;

  /// A slot for `bytes`, 1 to below 2 MiB. nullopt: out of that range, or no slab could be made.
  std::optional<uint64_t> allocate(uint64_t bytes);
  /// The slot at just `address` for `bytes`, which may make a slab at its page. False: the slab
  /// there has another size class, the address is no slot of it or used, or the slab could not be
  /// made.
  bool allocateAt(uint64_t address, uint64_t bytes);
  /// False: `address` is no slot that was given out. May call drop, once.
  bool release(uint64_t address);
  /// The used slot that holds `address`; an address in a slab behind the last byte of a slot counts
  /// as that slot's (end pointers), as does the slab's guard page for its last slot. nullopt: not
  /// in a slab, or the slot is free.
  std::optional<Slot> find(uint64_t address) const;
  /// True when `address` is a slab of this allocator.
  bool ownsSlab(uint64_t address) const { return slabs_.contains(address >> kPageShift); }
  /// Calls `visitor` for each used slot of the slab at `address`, ascending.
  void forEachSlot(uint64_t slab, const std::function<void(const Slot&)>& visitor) const;
  /// Drops the slabs that are kept empty.
  void dropKept();
  /// Forgets every slab without calling drop: the caller drops their regions itself (a context that
  /// is gone).
  void forgetAll();

  uint64_t slabs() const { return slabs_.size(); }
  /// Of these, kept though they are empty.
  uint64_t emptySlabs() const { return empty_slabs_; }
  uint64_t usedSlots() const { return used_slots_; }

  /// Bytes of the slot that a request of `bytes` gets. At most a quarter of it is wasted on
  /// requests of 2 KiB and more, except between 683 KiB and 768 KiB (a third), where a slab holds
  /// two either way.
  static uint64_t slotBytes(uint64_t bytes);

 private:
  struct Slab;
  static unsigned classOf(uint64_t bytes);
  Slab& add(uint64_t address, unsigned size_class);
  void take(Slab& slab, uint32_t slot, uint64_t bytes);
  void drop(const Slab& slab);
  const Slab* slabAt(uint64_t address) const;

  Callbacks callbacks_;
  const Empty empty_;
  std::unordered_map<uint64_t, std::unique_ptr<Slab>>
      slabs_;                                // by page number (address >> kPageShift)
  std::vector<std::set<uint64_t>> partial_;  // for each class: slabs with a free slot, by address
  std::vector<uint64_t> kept_;               // for each class: the slab that is kept empty; 0: none
  uint64_t empty_slabs_ = 0;
  uint64_t used_slots_ = 0;
};

}  // namespace olpager::space
