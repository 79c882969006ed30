// The way to another agent: managed memory that the CPU wants (managed/managed.h), and what another
// executor wants (away/away.h). An extent that is to leave goes out of VRAM, or out of its place in
// host memory, by a batch of its own, as victims do (eviction.cpp): no launch that reaches it is
// left then, and the frame holds its bytes. An extent that has not changed since it came from host
// memory is not written there again: its VRAM is free, and keeps the bytes until it is needed. The
// frame of what another executor is to have is the host chunk that the extent is parked in.
//
//   kVram, kInPlace -> kRetiring -> ... -> kParked
//   kEmpty, which never had bytes -> kParked
//   kParked, managed, in a chunk that was mapped in place -> its bytes are copied to the frame
//   kRemote -> kReceiving -> kParked
//   kParked in its frame -> PoolAgent::parked()
//   kLost -> Away::lost(): the session ends
// What is on its way somewhere is waited for first, and where there is no host chunk, so is one.
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex, by the engine's thread where
// nothing else is said.
#pragma once

#include <cstdint>
#include <vector>

#include "pager/residency/engine.h"
#include "pager/residency/eviction.h"

namespace olpager::pager {

class GivingAway {
 public:
  explicit GivingAway(Engine& engine)
      : engine_(engine), pool_(engine.pool_), chunks_(engine.chunks_) {}

  /// Another agent is to have the extent: it is parked, whatever it takes, and then
  /// PoolAgent::parked() is called, at once where it is parked already. Any thread.
  void giveAway(Extent& extent, Lock& lock);
  /// The extent stays after all. Any thread.
  void keep(Extent& extent);
  /// Extents are to leave.
  bool any() const { return !leaving_.empty(); }
  /// Extents that are mapped set out together; of the others, one takes a step. May release the
  /// mutex. True: progress.
  bool step(Lock& lock);
  /// The region's extents go. Any thread.
  void forget(const Region* region);

  // --- for who moves extents

  /// The extent found no host chunk to leave to. Those behind it may find what it does not, or need
  /// none.
  void noChunkToLeave(Extent& extent);
  /// The victims of a batch that goes to another agent are quiet. Releases the mutex.
  void leaveUnseen(VictimBatch& batch, Lock& lock);
  /// The extent's host chunk has its bytes from now on, and its VRAM is free.
  void leaveVram(Extent& extent);
  /// False: there is no host chunk that the GPU can map, now. Releases the mutex.
  bool toMappableChunk(Extent& extent, Lock& lock);

 private:
  using Batch = VictimBatch;
  void abandonBytes(Extent& extent);
  bool parkEmpty(Extent& extent, Lock& lock);
  bool isUnwritten(const Extent& extent) const;
  void toFrame(Extent& extent, Lock& lock);

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  std::vector<Extent*> leaving_;
  uint64_t pause_until_ns_ = 0;  // one found no host chunk: none is given away before then
};

}  // namespace olpager::pager
