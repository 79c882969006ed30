// Streaming inside an arena that is reached whole (reach = traced) and that the program fills by
// copies, a tensor at a time: what launches name comes to VRAM, in batches, and the rest is used in
// place. Two rules make that right without knowing what a kernel reads:
//
//   reads    Every extent of the arena is mapped, in VRAM or in place, while a launch is in flight
//            that may reach any of it. Mappings change only while none is: a launch that names what
//            is in place waits for those before it, and for the remap.
//   writes   An extent is constant when it was unchanged the last kConstantLooks times that it was
//            hashed: when it left VRAM, and when it came, with launches between. A constant extent
//            is sealed in place: mapped for reading only. So a copy in VRAM that is made ahead of
//            need, while launches run, stays true. A kernel that writes there without having named
//            the tensor loses its context, with an error; no write is lost in silence. Copies and
//            memsets into it, and launches that name it where it can't come to VRAM, unseal it
//            first.
//
// An extent of a streamed arena, beside its state (space/region.h):
//
//   kVram               writable; hashed when it leaves
//   kInPlace            not constant: writable; copied to VRAM in the quiet moment of the remap
//   kInPlace, sealed    constant
//   kInPlace, staged    sealed, and a chunk of VRAM has or gets a copy (Staged)
//
// One remap, as a batch of the way out (eviction.cpp): those that leave and those that come are
// kRetiring until the launches before are over and the GPU has hashed what leaves; then finishRemap
// changes the mappings of all of them. A remap is given up as a swap is.
//
// A remap brings the extents that waiting launches name, and all staged ones. Staged next are the
// extents that waiting launches name, then those that the learned order expects next. Extents that
// the order expects the latest leave (victim_order.h). While the order is not known, the extents
// that were named the longest ago are staged, because a program that goes through its tensors again
// and again names them first. Extents that were never named leave, then those named last.
//
// An arena that the program does not fill by copies has no tensors to stream: its parts are swapped
// (swap.cpp).
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "pager/residency/engine.h"
#include "pager/residency/eviction.h"

namespace olpager::pager {

// Many members: a step for each stage of a remap.
class ArenaStreaming {
 public:
  explicit ArenaStreaming(Engine& engine);

  // --- copies ahead of need

  /// Ends copies that are over, and frees chunks that nobody wants any more. May release the mutex.
  /// True: progress.
  bool pollStaged(Lock& lock);
  /// Begins copies ahead of need. May release the mutex. True: progress.
  bool stageAhead(Lock& lock);
  /// Others need `bytes` of VRAM: the copies that would be used last go. True: some did.
  bool giveStagedUp(uint64_t bytes);
  /// True while a copy is under way.
  bool isCopying() const { return isCopying(0); }
  /// Nothing is copied ahead.
  bool hasNoneStaged() const { return staging_.empty(); }
  /// Waits until nothing is copied ahead from the region's host memory, which is about to go. Any
  /// thread; releases the mutex.
  void awaitStaged(const Region& region, Lock& lock);
  /// Bytes of VRAM that streaming needs: a mapped tensor, and the copies ahead of need.
  uint64_t streamingBytes() const;

  // --- remaps

  /// Waiting launches name these extents, which are in place: begins the remap that brings them, or
  /// what comes before it, a copy or room for one. May release the mutex. False: not now.
  bool remapFor(std::span<Extent* const> named, Lock& lock);
  /// Brings what launches use often where it lies in place. True: progress.
  bool bringHot();
  /// The batch's victims are quiet and hashed: changes their mappings. Releases the mutex.
  void finishRemap(VictimBatch& batch, std::span<const ContentHash> hashes, Lock& lock);
  /// A sealed extent may be written from now on: a copy goes there, or a launch that names it where
  /// it is. `written`: it is, for certain; else it is constant again where the next look shows that
  /// it was not. Any thread; releases the mutex.
  void unseal(Extent& extent, bool written, Lock& lock);

  // --- swaps (swap.cpp)

  /// A launch found the arena partly in place. Any thread.
  void askSwap(Region& region);
  /// Begins a swap that was asked for, or gives up one that takes too long. True: progress.
  bool swapArenas();
  /// An arena's parts change place.
  bool isSwapping() const { return swapping_ != nullptr; }

  /// The region's extents go. Any thread.
  void forget(const Region* region);
  /// Frees all chunks and events. The copies are over.
  void releaseAll();

 private:
  using Batch = VictimBatch;
  /// A copy in VRAM of a sealed extent, ahead of need.
  struct Staged {
    Extent* extent;  // nullptr: nobody wants it any more
    VramChunk* chunk;
    CUevent event;   // nullptr: it has come
    Region* region;  // whose host memory it is copied from
  };
  /// An extent of an arena that is to be mapped elsewhere than it is.
  struct Move {
    Extent* extent;
    VramChunk* chunk;  // to VRAM; nullptr: in place
    bool seals;        // in place, for reading only
  };
  /// An extent of a streamed arena that may leave VRAM.
  struct Leaver {
    Extent* extent;
    VictimScore score;
  };

  Staged* stagedOf(const Extent& extent);
  uint64_t stagedBytes() const;
  uint64_t partBytes() const;
  uint64_t stagingWindow() const;
  /// True while a copy of those from the `first`th on is under way, the `last` ones left out.
  bool isCopying(size_t first, size_t last = 0) const {
    const size_t end = staging_.size() - last;
    return std::any_of(staging_.begin() + static_cast<ptrdiff_t>(std::min(first, end)),
                       staging_.begin() + static_cast<ptrdiff_t>(end),
                       [](const Staged& one) { return one.event != nullptr; });
  }
  template <typename Of>
  void dropStaged(Of of);
  bool stage(Extent& extent, Lock& lock);
  bool copyAhead(const std::vector<Staged>& begun, Lock& lock);
  Extent* nextToStage(const Region& region);
  std::vector<Leaver> whoLeaves(const Region& region);
  void stageInto(const std::vector<Move>& leaves, uint64_t kept, Lock& lock);
  bool mayRemap(const Region& region) const;
  bool beginRemap(Region& region, std::span<Extent* const> named, bool all_here);
  bool leaveArena(Region& region, uint64_t bytes);
  void makeDense(Region& region);
  bool startRemap(Region& region, std::unique_ptr<Batch> batch);
  static uint64_t sealedBytes(std::span<Extent* const> extents);
  CUresult changeMappings(std::vector<Move>& moves) const;
  bool remap(std::vector<Move>& moves, Lock& lock);
  bool copyNow(std::span<const Move> moves, bool down, Lock& lock);
  void writeChanged(std::vector<Move>& changed, Lock& lock);
  void leaveForPlace(std::vector<Move>& moves, Lock& lock);
  void comeToVram(std::vector<Move>& moves, Lock& lock);
  bool beginSwap(Region& region);
  static void swapAgainAfter(Region& region, bool useful);

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  std::vector<Staged> staging_;  // in the order of their copies
  Region* streamed_ = nullptr;   // whose extents are staged
  std::vector<Region*> asked_;   // for a swap
  Region* swapping_ = nullptr;   // whose parts change place
  uint64_t hot_ns_ = 0;          // when bringHot() looked last
  uint64_t swap_until_ns_ = 0;   // the swap is given up unless the arena is quiet by then
};

}  // namespace olpager::pager
