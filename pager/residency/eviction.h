// The way out of VRAM. A batch of victims goes through these stages, each polled by the engine's
// thread:
//
//   kGrace  victims are kRetiring (no new launch takes them unseen); waits until every launch that
//           was being made when they were marked has been submitted
//   kDrain  waits until the launches that reached a victim have completed
//   kPass   the GPU hashes the victims and scans every page that launches may have written since
//           its last scan for pointers
//   then    each victim is unmapped; equal to its lower copy it is dropped, else written down
//           (kWriting)
//
// A launch that comes for a victim before it is unmapped takes it back (cancelRetiring). While VRAM
// is owed to others it waits for it first, a bounded time; and for what leaves its place in host
// memory when there is room for it in VRAM (serveWants).
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "pager/residency/engine.h"

namespace olpager::pager {

/// Victims on their way out together.
struct VictimBatch {
  enum class Stage : uint8_t { kGrace, kDrain, kPass } stage = Stage::kGrace;
  std::vector<Extent*> victims;  // nullptr: one that was taken back
  Scan scan;
  Hazards::Snapshot hazards;
  uint64_t bytes = 0;
  bool fills = false;   // victims are in place, and come to VRAM since there is room
  bool remaps = false;  // victims leave VRAM or come to it, all at once (arena_streaming.h)
  // Other engines that have to scan what is dirty of theirs before this one may unmap anything,
  // and the pass that will have done so, as of the victims' stamp then.
  std::vector<std::pair<const Engine*, uint64_t>> others;
  uint64_t others_stamp = 0;
  /// ReachFloor::epoch when its grace period began, if that time was not settled; else 0.
  uint64_t settles_floor = 0;
  CUevent event = nullptr;

  bool isEmpty() const { return victims.empty() && scan.forVictimsOnly(); }
  /// The victims go to another agent.
  bool isGivenAway() const {
    return scan.parts_of != nullptr && scan.parts_of->shared() != nullptr;
  }
};

class Eviction {
 public:
  explicit Eviction(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

  // --- batches

  std::deque<std::unique_ptr<VictimBatch>>& batches() { return batches_; }
  const std::deque<std::unique_ptr<VictimBatch>>& batches() const { return batches_; }
  /// Takes the extents that are used farthest in the future, `bytes` of them, and lets them set
  /// out, 128 MiB at most. `nearer_than`: extents that are used before that many touches stay,
  /// unless `demand`: a launch waits. True: some do.
  bool retire(uint64_t bytes, uint64_t nearer_than, bool demand);
  /// Extents in host memory in place are unmapped as victims are, once no launch reaches them, to
  /// be fetched after that. `fills`: since there is room. True: some are.
  bool promote(const std::vector<Extent*>& extents, bool fills = false);
  /// Regions, and `roots`, that the host wrote are scanned, before a kernel follows pointers in
  /// them. True: a batch does so.
  bool scanHostWritten(const std::vector<Region*>& regions, bool roots);
  /// The batch sets out, if there is anything in it.
  bool begin(std::unique_ptr<VictimBatch> batch);
  /// Another batch may set out.
  bool mayBegin() const;
  /// Each batch goes on. Releases the mutex. True: progress.
  bool advanceBatches(Lock& lock);
  /// The engine pauses: victims stay where they are, but those that the GPU looks at.
  void cancelBatches();

  // --- victims

  /// The extent, which is mapped, is about to leave VRAM, or its place in host memory: from here on
  /// no launch begins to use it unseen. The caller puts it into a batch. Any thread.
  void beginRetiring(Extent& extent);
  /// A launch (or a free) takes a victim back. Any thread.
  void cancelRetiring(Extent& extent);
  /// All that used the victim is over, and the GPU is looking at it.
  bool inPass(const Extent& victim) const;
  /// Unmaps the extent, which nothing uses. Releases the mutex.
  CUresult unmap(const Extent& extent, Lock& lock);
  /// The extent, which is unmapped and has a host chunk, is written there. Releases the mutex.
  void startWrite(Extent& extent, const ContentHash& hash, Lock& lock);
  /// Ends writes that are over. Releases the mutex. True: progress.
  bool finishWrites(Lock& lock);

  // --- room below VRAM

  /// Victims of the last pass had no place in host memory, nor will those of the next one.
  bool hasNoPlace() const;
  /// Likewise at memservers.
  bool allIsFull() const;
  /// A victim found no place in host memory.
  void foundNoPlace() { ++unplaced_; }
  /// Bytes of arenas that move by pieces on their way from host memory in place to VRAM, for which
  /// no chunk was taken yet.
  uint64_t promotingBytes() const;

 private:
  using Batch = VictimBatch;
  uint64_t stampToAwait(const Batch& batch) const;
  bool isQuiet(const Batch& batch, uint64_t stamp) const;
  bool othersHaveScanned(Batch& batch, uint64_t stamp);
  bool startPass(Batch& batch, Lock& lock);
  void finishPass(Batch& batch, Lock& lock);
  void spare(const std::vector<uint64_t>& news);
  void evict(Extent& extent, const ContentHash& hash, Lock& lock);
  void leavePlace(Extent& extent, const ContentHash& hash, Lock& lock);
  void drainContexts();

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  std::deque<std::unique_ptr<VictimBatch>> batches_;
  size_t clock_hand_ = 0;
  uint64_t unplaced_ = 0;  // victims so far that found no place in host memory
  // None of a pass did: no further pass before then, or before somebody gives a host chunk back.
  uint64_t no_place_until_ns_ = 0, no_place_given_ = 0;
  /// A thread synchronises contexts whose launches nobody marked.
  std::shared_ptr<std::atomic<bool>> draining_ = std::make_shared<std::atomic<bool>>(false);
  uint64_t next_drain_ns_ = 0;
};

}  // namespace olpager::pager
