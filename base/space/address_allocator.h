// Finds and gives out free runs of pages in a range of addresses. Knows nothing of GPUs, contents
// or mappings.
//
// Thread-safety: no lock of its own: the caller's lock that guards allocation covers it. Units:
// bytes unless named `pages` (2 MiB each). Errors: nullopt when there is no room or no such thing;
// nothing here throws except for host memory exhaustion.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/space/pages.h"

namespace olpager::space {

/// Free and used runs of pages in [base, + bytes). Each run given out is followed by one guard
/// page, which stays unmapped: a pointer to the end of an allocation is in no other one. Best fit,
/// lowest address first among equals, so that the used part of the range stays short and at its
/// start. O(log n) in the number of runs.
class AddressAllocator {
 public:
  static constexpr uint64_t kGuardPages = 1;

  /// `base` and `bytes` are multiples of a page.
  AddressAllocator(uint64_t base, uint64_t bytes);

  /// True if the address is in the range.
  bool contains(uint64_t address) const { return address - base_ < total_pages_ << kPageShift; }

  /// A run of `pages` pages (and its guard behind it). `alignment` is a power of two, in bytes, at
  /// least a page (smaller values count as a page). `hint` != 0: exactly there when it is free,
  /// page-aligned and aligned as asked, else anywhere. nullopt: 0 pages, or no such run is free.
  std::optional<uint64_t> allocate(uint64_t pages, uint64_t alignment = kPageBytes,
                                   uint64_t hint = 0);
  /// The run of `pages` pages at just `address` (and its guard behind it). False: it is not free,
  /// not all in the range, or not at a page's start.
  bool allocateAt(uint64_t address, uint64_t pages);
  /// Gives the run and its guard back. False: `address` is no base of a run.
  bool release(uint64_t address);

  /// Pages of the run whose base is `address`, without the guard; 0: no run starts there.
  uint64_t runPages(uint64_t address) const;
  /// Pages given out, guards included.
  uint64_t usedPages() const { return used_pages_; }
  uint64_t runs() const { return used_.size(); }
  /// Pages from `base` to the end of the highest run ever given out, 0 while there was none.
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

  uint64_t base_;
  uint64_t total_pages_;
  uint64_t base_page_;                         // page number of the base itself, for alignment
  FreeMap free_;                               // first page -> pages
  std::set<std::pair<uint64_t, Page>> sizes_;  // (pages, first page) of the same runs
  std::unordered_map<Page, uint64_t> used_;    // first page -> pages with guard
  uint64_t used_pages_ = 0;
  uint64_t high_water_ = 0;
};

}  // namespace olpager::space
