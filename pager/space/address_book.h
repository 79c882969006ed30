// The address book of a pool: the addresses of the global range that are given out, and what each
// of them names. The book knows regions, pieces of arenas and small allocations; it knows nothing
// of where bytes are, nor of who reaches them.
//
// Locks: find() and map() are wait-free; every other member runs under PoolState::mutex.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "pager/predict/predict.h"
#include "pager/space/arena.h"
#include "pager/space/region.h"
#include "pager/space/region_table.h"
#include "pager/space/space.h"

namespace olpager::pager {

/// One unit of the learned order: a region, or a piece of an arena that moves by pieces or is
/// streamed. Valid while the mutex is held.
struct UnitRef {
  Region* region = nullptr;
  Piece* piece = nullptr;

  uint64_t begin() const { return piece != nullptr ? piece->begin : region->base; }
  uint64_t end() const { return piece != nullptr ? piece->end : region->end(); }
  uint64_t pages() const { return piece != nullptr ? piece->pages() : region->pages; }
  Placement& placement() const { return piece != nullptr ? piece->placement : region->placement; }
};
inline predict::Unit unitOf(const Region& region) { return 2 * region.id; }
inline predict::Unit unitOf(const Piece& piece) { return 2 * piece.id + 1; }

/// An allocation of less than a page: a slot of a slab.
struct SmallAllocation {
  uint64_t bytes;
  uint64_t buffer_id;
  CUcontext context;
  AllocationKind kind;
};

/// Allocations of less than a page. Slabs are regions; their slots are here.
struct SmallAllocations {
  struct SlabsOf {
    CUdevice device;
    CUcontext context;
    bool placed;
    auto operator<=>(const SlabsOf&) const = default;
  };
  std::map<SlabsOf, std::unique_ptr<space::SlabAllocator>> slabs;
  std::unordered_map<uint64_t, SmallAllocation> slots;  // by address
  // A slab allocator must not release the mutex: what it made or emptied is seen to after it
  // returned.
  std::vector<Region*> made, emptied;
  std::set<uint64_t> leaving;  // placed slabs that are being dropped: their addresses come free
};

class AddressBook {
 public:
  /// `piece_gone` is called with the id of each piece that is no more.
  explicit AddressBook(std::function<void(uint32_t id)> piece_gone)
      : pieces(std::move(piece_gone)) {}

  /// The range is [base, + size), in whole pages.
  Status create(uint64_t base, uint64_t size);

  const space::PageMap& map() const { return *map_; }
  /// The region whose pages or guard hold `address`, which lies in the range; nullptr: none.
  Region* find(uint64_t address) const {
    const uint32_t id = map_->lookup(address);
    return id == 0 ? nullptr : regions.at(id);
  }
  /// The extent of a live region that begins at `address`; nullptr: there is none.
  Extent* extentAt(uint64_t address) const;
  /// No region: the unit is gone.
  UnitRef unitAt(predict::Unit unit) const {
    if (unit % 2 == 0) return {regions.at(unit / 2), nullptr};
    Piece* piece = pieces.at(unit / 2);
    return {piece != nullptr ? piece->region : nullptr, piece};
  }

  /// Sets the first `bytes` of the range aside for addresses that the caller chooses. False: a part
  /// is set aside already, or addresses have been given out.
  bool setPlaced(uint64_t bytes);
  bool isPlaced(uint64_t address) const { return placed_ != nullptr && placed_->contains(address); }
  /// A run of pages, anywhere, or at `at` in the part that was set aside (0: anywhere).
  std::optional<uint64_t> take(uint64_t pages, uint64_t at);
  /// A run outside the part that was set aside, aligned, at `hint` if that is free.
  std::optional<uint64_t> take(uint64_t pages, uint64_t alignment, uint64_t hint) {
    return addresses_->allocate(pages, alignment, hint);
  }
  /// From now on find() gives the region for the addresses of its run.
  void publish(const Region& region) { allocatorOf(region.base).publish(region.base, region.id); }
  /// From now on find() gives nothing there; the addresses stay taken.
  void withdraw(uint64_t address) { allocatorOf(address).withdraw(address); }
  /// Withdraws the run, and gives its addresses back.
  void release(uint64_t address) { allocatorOf(address).release(address); }
  /// Pages from the range's start to the end of the highest run ever given out.
  uint64_t highWaterPages() const {
    return std::max(addresses_->highWaterPages(),
                    placed_ != nullptr ? placed_->highWaterPages() : 0);
  }
  /// Unique in the process, never used again.
  uint64_t newBufferId() { return next_buffer_id_++; }

  PieceTable pieces;  // before the regions: arenas give their pieces back
  RegionTable regions;
  SmallAllocations small;

 private:
  space::RegionAddresses& allocatorOf(uint64_t address) {
    return isPlaced(address) ? *placed_ : *addresses_;
  }

  std::unique_ptr<space::PageMap> map_;
  std::unique_ptr<space::RegionAddresses> addresses_;
  std::unique_ptr<space::RegionAddresses> placed_;  // none: nothing is set aside
  uint64_t next_buffer_id_ = uint64_t{1} << 48;     // the driver counts what is its own from 1
};

}  // namespace olpager::pager
