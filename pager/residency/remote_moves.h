// Extents between host RAM and the tier below it, memservers (tiers/lower_tier.h); between VRAM and
// memservers: direct_moves.h.
//
//   down  kParked -> kSending -> kRemote, the host chunk is free. One that memservers hold already,
//         with the same hash, leaves at once, from host RAM or straight from VRAM (eviction.cpp).
//         Extents that are used farthest in the future go first.
//   up    kRemote -> kReceiving, into a host chunk -> kParked, and from there as ever. For a launch
//         that waits at once; else in the learned order, ahead of the prefetch into VRAM.
//
// Bytes that memservers hold stay there as a lower copy until they change or they are full
// (dropRemoteCopies); also that of a handle which the program maps nowhere meanwhile
// (Extent::rests), and that of a page which another executor has: should it come back as it was, it
// need not be sent again. Extents of arenas that move by pieces stay in host RAM: they are mapped
// in place, for the accesses that nobody foretold. Extents that another executor wants
// come up first (give_away.h).
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <cstdint>

#include "pager/residency/engine.h"

namespace olpager::pager {

class RemoteMoves {
 public:
  explicit RemoteMoves(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

  /// Ends transfers with memservers that are over since the last call, for all engines. Any thread.
  static bool finishRemote(PoolState& pool);
  /// Somebody waits for the extent to come to a stable state: what memservers are about to get
  /// stays, what comes from them comes first, or is given up where its region goes. Any thread.
  void hurry(const Extent& extent);
  /// Begins to bring the extent, which is kRemote. `urgent`: a launch waits. False: not now.
  /// Releases the mutex.
  bool startReceive(Extent& extent, bool urgent, Lock& lock);
  /// Brings what is used next to host RAM. Releases the mutex. True: progress.
  bool prefetchRemote(Lock& lock);
  /// Sends what is parked, so that some of host RAM is free for what comes in. True: progress.
  bool demote();

  /// Memservers hold the extent's bytes as they are in host RAM.
  bool remoteHolds(const Extent& extent) const;
  /// The host chunk goes; `hash` is what memservers hold.
  void leaveHost(Extent& extent, const ContentHash& hash);
  /// Memservers are full: gives up copies there of what is here. Returns the bytes.
  uint64_t dropRemoteCopies(uint64_t bytes);
  /// Bytes of a host tier of that limit that are kept free.
  static uint64_t reserveOf(uint64_t limit);
  /// Bytes of the host tier that no device uses.
  uint64_t hostRoom() const;

 private:
  void finishSend(Extent& extent, const LowerTier::Finished& finished);
  void finishReceive(Extent& extent, const LowerTier::Finished& finished);

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  // A receive found no chunk: none of so many bytes is begun before then, or before somebody gives
  // a host chunk back.
  uint64_t none_until_ns_ = 0, none_given_ = 0, none_bytes_ = 0;
};

}  // namespace olpager::pager
