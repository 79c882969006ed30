// How small requests share a page. Knows nothing of GPUs, contents or mappings.
//
// Thread-safety: no lock of its own: the caller's lock that guards allocation covers it. Units:
// bytes unless named `pages` (2 MiB each). Errors: nullopt when there is no room or no such thing;
// nothing here throws except for host memory exhaustion.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/space/pages.h"

namespace olpager::space {

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

  /// The fate of empty slabs.
  enum class Empty : uint8_t {
    kDrop,     // they go at once
    kKeepOne,  // one of each size class stays: a program that allocates and frees in turn makes no
               // slab each time
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
  /// Slabs that are kept though they are empty.
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
