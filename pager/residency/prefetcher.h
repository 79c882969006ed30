// Brings memory to VRAM before a launch needs it: in the learned order, or because there is room.
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <cstdint>
#include <vector>

#include "pager/residency/engine.h"

namespace olpager::pager {

class Prefetcher {
 public:
  explicit Prefetcher(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

  /// Brings what the learned order expects next. Releases the mutex. True: progress.
  bool prefetch(Lock& lock);
  /// Host memory is short, for another device or here while the tier below is full: brings extents
  /// for which VRAM has room. May release the mutex. True: progress.
  bool bringHome(Lock& lock);
  /// Brings what has come from other executors for launches to come. May release the mutex. True:
  /// progress.
  bool bringArrivals(Lock& lock);
  /// Brings what is used in place to VRAM that nobody needs. True: progress.
  bool fillFreeVram();

  /// The next prefetch() looks again, whatever launches do.
  void lookAgain() { again_ = true; }
  /// There is more or less room than the plan of who stays in VRAM knows.
  void replan();
  bool hasPlan() const { return planner_.known(); }
  /// Bytes that are brought ahead of launches.
  uint64_t windowBytes() const;

  /// The extent is fetched ahead of need.
  void broughtAhead(Extent& extent);
  /// A launch came for such an extent, or it leaves unused. Any thread.
  void noteUsed(Extent& extent, bool used);

 private:
  /// An extent that the learned order expects.
  struct Upcoming;

  std::vector<Upcoming> upcoming(uint64_t window);
  bool promoteAhead(const std::vector<Upcoming>& upcoming, uint64_t* room_for);
  bool fetchAhead(const std::vector<Upcoming>& upcoming, uint64_t room_for, uint64_t window,
                  Lock& lock);
  void plan();

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  Planner planner_;
  uint64_t ahead_bytes_ = 0;  // prefetched and not used yet, in flight included
  uint64_t planned_touches_ = 0;
  uint64_t filled_ns_ = 0;  // when fillFreeVram() looked last
  bool again_ = false;
};

}  // namespace olpager::pager
