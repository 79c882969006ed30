// The part of arenas that move by pieces (reach = learned) that one launch (or copy) uses: the
// pieces that it names and those that pointers in memory name. Ordinary regions are used whole and
// are not here.
//
// Part of a Closure; every member runs under PoolState::mutex. Extents stay
// valid while the launch waits, since their regions are held (Region::wanted).
#pragma once

#include <vector>

#include "pager/pool_state.h"

namespace olpager::pager {

class WorkingSet {
 public:
  /// A tensor that is named, of an arena that is streamed.
  struct Tensor {
    Region* region;
    uint64_t begin, end;
    uint64_t bytes() const { return end - begin; }
    Piece& piece() const { return region->arena->at(begin); }
  };

  explicit WorkingSet(PoolState& state) : state_(state) {}

  /// A kernel's parameter names `address`; the pieces are told to the learned order. Names of
  /// traced arenas are counted; of one that is streamed the tensor is used, and told.
  void name(Region& region, uint64_t address, uint32_t signature);
  /// A copy uses exactly [address, + bytes).
  void nameRange(Region& region, uint64_t address, uint64_t bytes, uint32_t signature);
  /// A pointer in memory lies in the page.
  void addPage(Region& region, uint64_t page);
  /// Everything in it is reached.
  void addWhole(Region& region);

  bool empty() const { return regions_.empty(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Extents of tensors of which launches touch little: they are used where they are.
  const std::vector<Extent*>& stays() const { return stays_; }
  /// Nothing of it is held.
  void clear();
  const std::vector<Extent*>& extents() const { return extents_; }
  /// Before extents are added again after a wait: those that are there are not added twice.
  void remark();
  /// Extents that wait in host memory in place and are worth waiting for, of a launch with `newest`
  /// as the number of the newest launch. None when they are too many to come in together, or when
  /// waiting was in vain of late.
  std::vector<Extent*> worthFetching(uint64_t newest) const;
  /// The extents did not come in time: the next launches don't wait.
  void fetchedInVain(uint64_t newest);
  void fetchedInTime();

  /// The extents are no victims while the launch waits; from the `held`th on. Returns their number.
  size_t hold(size_t held);
  void release(size_t held);
  /// The launch has its number.
  void stamp(uint64_t number, bool written);
  bool knows(const Region& region) const;
  bool usesInPlace() const;

 private:
  void add(Region& region, uint64_t begin, uint64_t end);
  void know(Region& region);

  PoolState& state_;
  std::vector<Region*> regions_;  // by pieces, that are used
  std::vector<Region*> whole_;    // of them, those that are reached whole
  std::vector<Extent*> extents_;
  std::vector<Tensor> tensors_;
  std::vector<Extent*> stays_;
  uint32_t mark_ = 0;
};

}  // namespace olpager::pager
