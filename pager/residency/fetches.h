// The way into VRAM, and into place in host memory; packed images of what streams through VRAM
// (packed.h), made on its way out (packing.cpp).
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said. The mapper's thread maps what has come.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <thread>
#include <utility>

#include "pager/residency/engine.h"

namespace olpager::pager {

class Fetching {
 public:
  explicit Fetching(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_), packed_(engine.packed_) {}

  // --- what has no bytes yet

  /// New extents of a region get VRAM where there is room without evicting; the others stay kEmpty.
  /// Any thread; releases the mutex.
  CUresult mapNew(Region& region, Lock& lock);
  /// The same of one extent, for a launch. False: there is no room. Releases the mutex.
  bool mapEmpty(Extent& extent, Lock& lock);
  /// So many pages will come to VRAM one by one, soon: chunks for them are made while the engine
  /// has nothing else to do. Any thread.
  void expectPages(uint64_t pages);
  /// The pages are freed, or the driver needs VRAM. Any thread.
  void expectNot(uint64_t pages);
  /// Makes such a chunk. Releases the mutex. True: progress.
  bool makeChunkAhead(Lock& lock);

  // --- what is parked

  /// Begins to bring the extent, which is kParked. False: not now. Releases the mutex.
  bool startFetch(Extent& extent, Engine::Fetch why, Lock& lock);
  /// Hands what has come to the mapper. Releases the mutex. True: progress.
  bool finishFetches(Lock& lock);
  /// Maps the extent's host chunk where the extent is. False: that is refused. Releases the mutex.
  bool mapInPlace(Extent& extent, Lock& lock);

  // --- chunks and mappings

  /// A chunk for the extent; nullptr: none. Any thread; releases the mutex.
  VramChunk* takeVram(const Extent& extent, Lock& lock);
  /// Maps the chunk where its extent is. Releases the mutex.
  CUresult mapVram(const Extent& extent, const VramChunk& chunk, Lock& lock);
  /// Other devices whose kernels use the extent unasked. Without the mutex.
  std::span<const CUdevice> sharersOf(const Extent& extent) const;
  /// The driver refused to `what` memory in VRAM. Launches that wait get it in place meanwhile.
  void refused(const char* what, CUresult result);

  // --- packing.cpp

  /// The extent has left its mapping and equals its host copy: it stays in VRAM until the GPU has
  /// packed it. False: there is nothing to pack, or no place for an image. Releases the mutex.
  bool startPacking(Extent& extent, Lock& lock);
  /// True: progress. Releases the mutex.
  bool finishPacking(Lock& lock);
  /// Ends packing and unpacking that nobody waits for any more. Releases the mutex. True: progress.
  bool finishLate(Lock& lock);

  // --- the mapper's thread

  /// The thread's body. Without the mutex.
  void runMapper();
  /// The extent has come, and is to be mapped: the mapper has claimed it from now on.
  void handToMapper(Extent& extent);
  void wakeMapper() { wake_.notify_all(); }
  /// The mapper has nothing to do.
  bool mapperIsIdle() const { return arrivals_.empty() && !busy_; }
  /// The mapper has mapped some since takeNews().
  bool hasNews() const { return news_; }
  bool takeNews() { return std::exchange(news_, false); }
  std::thread mapper;  // joined by Engine::stop()

 private:
  bool isAsExpected(const Engine::Copy& copy);
  void mapArrivals(Lock& lock);
  bool mapTogether(std::span<Extent* const> extents, Lock& lock);
  void arrived(Extent& extent, bool usable);
  void arrivedMapped(Extent& extent, Lock& lock);
  void parkAgain(Extent& extent);
  void makeLate(Extent& extent, const Engine::Copy& copy);

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  PackedImages& packed_;
  // Extents that have come to VRAM and are to be mapped.
  base::Condition wake_;
  std::deque<Extent*> arrivals_;
  bool busy_ = false;  // with some that it has taken off the queue
  bool news_ = false;
};

}  // namespace olpager::pager
