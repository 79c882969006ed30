// Host memory of a device's extents: who has a host chunk, chunks that are made ahead of need, and
// copies in host RAM that are given up where others need the room. The chunks themselves are
// ChunkStore's.
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex; `maker` is a thread of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>

#include "pager/residency/engine.h"

namespace olpager::pager {

class HostCopies {
 public:
  explicit HostCopies(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

  /// The extent gets a host chunk unless it has one; images and lower copies give way. False: there
  /// is none. Releases the mutex.
  bool takeHost(Extent& extent, Lock& lock);
  /// The extent's host chunk goes. A managed one keeps its frame.
  void giveHost(Extent& extent);
  /// An extent has no host chunk, and may need one: they are made ahead.
  void lacksChunk(const Extent& extent) { ++without_[extent.order]; }
  /// Such an extent is gone.
  void lacksNone(const Extent& extent) { --without_[extent.order]; }
  /// A host chunk of that order for the caller; images and lower copies give way. `beyond`: bytes
  /// by which the limit may be exceeded for it. nullptr: there is none. Releases the mutex.
  HostChunk* takeHostChunk(unsigned order, uint64_t beyond, Lock& lock);
  /// A host chunk of one page for bytes that come from another executor, or go there: it belongs to
  /// no extent meanwhile. nullptr: there is none now.
  HostChunk* takeChunkForOthers(Lock& lock) { return takeHostChunk(0, transitBytes(), lock); }
  void giveChunkOfOthers(HostChunk* chunk);

  /// Bytes of a host chunk that was wanted and not there; 0: none since metShortage().
  uint64_t shortBytes() const { return short_bytes_; }
  void metShortage() { short_bytes_ = 0; }
  /// Gives up lower copies that nobody will miss. Returns the bytes.
  uint64_t dropSpareCopies(uint64_t bytes);
  /// Gives back what exceeds a limit that was lowered. Releases the mutex. True: progress.
  bool giveHostSurplus(Lock& lock);
  /// Bytes of host memory that images may still take.
  uint64_t spareForImages() const;

  // --- the thread that makes chunks

  /// The thread's body. Without the mutex.
  void makeHostChunks();
  void wakeMaker() { wake_.notify_all(); }
  std::thread maker;  // joined by Engine::stop()

 private:
  bool makeHostAhead(Lock& lock);
  uint64_t transitBytes() const;
  template <typename May>
  uint64_t dropHostCopies(uint64_t bytes, May may);
  uint64_t dropLowerCopies(uint64_t bytes, bool own);
  uint64_t imagesWanted(unsigned order) const;

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  base::Condition wake_;
  std::array<uint32_t, kOrders> without_{};  // extents that have no host chunk
  bool full_ = false;                        // said once
  uint64_t short_bytes_ = 0;
};

}  // namespace olpager::pager
