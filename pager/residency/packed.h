// Second copies, packed, of what streams through VRAM, so that a quarter less crosses the bus
// (kernels/pack.h says how, and of what).
//
// A clean victim is packed by the GPU into a slot, a chunk of VRAM that is kept for this, and
// copied into a host chunk, before its VRAM is given to another. From then on the extent is fetched
// by a copy of the image into another slot, and unpacked from there. The first time the result is
// hashed and compared. An image is of the bytes with one hash: when the extent has others, it is of
// no use. The plain copy in host memory stays: it is what is mapped in place, and what is fetched
// where there is no image. Images take host memory that nothing else will need.
//
// States of an extent's image, none at first:
//   kWanted  a clean victim, and no free host chunk -> kMaking (the extent is kWriting) -> kReady
//                                                                                       -> kNever:
//                                                                                       its bytes
//                                                                                       do not pack
//   any      -> none when the extent's bytes are others, or it goes; kReady also when host memory
//            runs short
//
// Ownership: chunks of images and slots are taken from, and given back to, the engine's ChunkStore.
// Thread-safety: the engine's thread under PoolState::mutex, but for what says otherwise.
#pragma once

#include <cuda.h>

#include <array>
#include <unordered_map>

#include "pager/options.h"
#include "pager/residency/chunks.h"
#include "pager/space/region.h"

namespace olpager::pager {

class PackedImages {
 public:
  PackedImages(const DriverApi& driver, ChunkStore& chunks, const Packing& options)
      : driver_(driver), chunks_(chunks), options_(options) {}

  /// Kernels, stream and events in the current context.
  CUresult makeObjects();
  void destroyObjects();

  /// A chunk of VRAM that is free now: true, it is kept as a slot. `room` says how many bytes slots
  /// may have.
  bool keep(VramChunk& chunk, uint64_t room);
  /// True if the extent's bytes, which are those with its hash, have no image, and are not known
  /// not to pack. `spare`: bytes of host memory that images may still take. A chunk is claimed
  /// where there is one: start() is to follow, or drop().
  bool claim(const Extent& extent, uint64_t spare);
  /// Has the GPU pack what lies in the extent's VRAM and records `event` behind it, in a stream of
  /// its own. `queued`: some of it is on its way, also after a failure. Without the mutex, which
  /// imageOf() needs.
  CUresult start(const Extent& extent, const HostChunk& image, CUevent event, bool& queued) const;
  /// The GPU has done so, or failed to.
  void finish(const Extent& extent);

  /// The chunk in which the extent's image is, or is being made.
  const HostChunk& imageOf(const Extent& extent) const { return *images_.at(&extent).chunk; }
  /// True if the extent can be fetched by its image now.
  bool isReady(const Extent& extent) const;
  /// True if what was unpacked from its image was ever compared; checked() tells that it was: equal
  /// or not.
  bool isChecked(const Extent& extent) const { return images_.at(&extent).checked; }
  void checked(const Extent& extent, bool equal);
  /// The bytes that cross the bus for it.
  static uint64_t bytesOf(const Extent& extent);
  /// Copies the extent's image and unpacks it into `target`; records `event` behind it. In streams
  /// of its own: where the GPU does not come to unpacking, other copies do not wait. `queued` as in
  /// start(). Without the mutex.
  CUresult fetch(const Extent& extent, const HostChunk& image, uint64_t target, CUevent event,
                 bool& queued);
  /// An image being packed or fetched is waited for no more: its chunk is the caller's, who gives
  /// it back once the GPU is done with it.
  HostChunk* release(const Extent& extent);
  /// The GPU did not come to unpacking for a long time: for a while nothing is fetched that way.
  /// Until then isReady() is false.
  void pause();

  /// The extent's image is of no use any more. Any thread, under the mutex; the extent is in no
  /// transitional state of the engine's.
  void drop(const Extent& extent);
  /// Drops images of extents that are not on their way until `bytes` of host memory came free.
  /// Returns the bytes. Any thread, under the mutex.
  uint64_t drop(uint64_t bytes);
  /// Gives the slots back if they are more than `room` or their share of the budget. Nothing is
  /// being fetched.
  void trimSlots(uint64_t room);
  /// Waits for all that it has the GPU do. Without the mutex; the engine's context is current.
  void synchronize() const;
  /// Gives back all that it has, after that.
  void releaseAll();

  uint64_t hostBytes() const { return host_bytes_; }
  /// Bytes of the slots that there may be, and the slots' order; negative: there may be none.
  uint64_t mostSlotBytes() const {
    return slotOrder() < 0 ? 0 : kSlots * (kPageBytes << slotOrder());
  }
  int slotOrder() const;
  /// Host chunks of an order that images wait for.
  uint32_t wanted(unsigned order) const { return wanted_[order]; }

 private:
  enum class State : uint8_t { kWanted, kMaking, kReady, kNever };
  struct Image {
    ContentHash hash;
    HostChunk* chunk = nullptr;  // kMaking, kReady
    State state = State::kWanted;
    bool checked = false;
  };
  struct Slot {
    VramChunk* chunk = nullptr;
    CUevent copied = nullptr, unpacked = nullptr;
    bool used = false;  // since `unpacked` was made
  };
  static constexpr unsigned kSlots = 3;  // the first is for packing

  void giveChunk(Image& image);
  void set(Image& image, unsigned order, State state);

  const DriverApi& driver_;
  ChunkStore& chunks_;
  const Packing options_;
  CUmodule module_ = nullptr;
  CUfunction pack_ = nullptr, unpack_ = nullptr;
  CUstream pack_stream_ = nullptr, copy_stream_ = nullptr, unpack_stream_ = nullptr;
  std::array<Slot, kSlots> slots_;
  unsigned slot_count_ = 0, next_slot_ = 0;
  int slot_order_ = 0;  // of the chunks in slots_
  std::unordered_map<const Extent*, Image> images_;
  std::array<uint32_t, kOrders> wanted_{};
  uint64_t host_bytes_ = 0;
  uint64_t paused_until_ns_ = 0;
};

}  // namespace olpager::pager
