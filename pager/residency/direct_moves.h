// Extents between VRAM and memservers with no host memory between, where network cards know VRAM
// chunks (direct_memory.h). Elsewhere there is no such object, and pages go by host memory
// (remote_moves.cpp). The states are those of moves by host memory, with a VRAM chunk in the place
// of the host chunk:
//
//   down  kRetiring, unmapped -> kSending -> kRemote, the VRAM chunk is free. For victims that
//         changed while host RAM is as full as it is to be: else demote() would send another one.
//         Not sent, or wanted meanwhile: taken back -> written to host RAM, or mapped again.
//   up    kRemote -> kReceiving, into a VRAM chunk that is mapped nowhere -> unchecked -> checking
//         (the GPU hashes it) -> kFetching (the mapper's) -> kVram. For a launch that waits.
//         Not mapped: kRemote, or taken back where no memserver has it any more.
//
// Pages ahead of need come to host RAM: VRAM has no room to spare for them.
//
// Owner: its engine. Locks: all of it runs under PoolState::mutex.
#pragma once

#include <deque>
#include <memory>

#include "pager/residency/engine.h"

namespace olpager::pager {

class DirectMoves {
 public:
  /// Makes one where cards, driver and GPU let pages go straight, and says in a line what holds.
  /// CUDA_ERROR_NOT_SUPPORTED: that is required, and can't be. Before the engine's threads, in the
  /// current context, without the mutex.
  static CUresult start(Engine& engine, std::unique_ptr<DirectMoves>& into);
  explicit DirectMoves(Engine& engine);

  /// True: the extent may come or go straight now.
  bool may(const Extent& extent) const;
  bool maySend(const Extent& extent) const;
  /// The victim is unmapped.
  void send(Extent& extent, const ContentHash& hash);
  void sent(Extent& extent, const LowerTier::Finished& finished);
  /// False: by host memory, where the extent is still kRemote. May release the mutex.
  bool receive(Extent& extent, Lock& lock);
  /// The bytes are in the chunk, whatever they are. The extent stays on its way: the tier says
  /// again that it is over, when it has been told what these are.
  void came(Extent& extent);
  void received(Extent& extent, const LowerTier::Finished& finished);
  /// The extent has come straight and could not be mapped. False: memservers have it still. True:
  /// they have lost it since, nobody else has it, and it is taken back.
  bool keep(Extent& extent);
  /// Lets go of extents of regions that are freed, in whatever thread.
  void drop();
  /// By the engine's thread: checks what has come, takes back what was not sent. True: progress.
  bool step(Lock& lock);

 private:
  void pause();
  void leave(Extent& extent);
  bool takeBack(Lock& lock);
  bool mapBack(Extent& extent, Lock& lock);
  bool writeDown(Extent& extent, Lock& lock);
  void tellChecked(const Extent& extent, bool right);
  bool startChecks(Lock& lock);
  bool finishChecks(Lock& lock);

  Engine& engine_;
  PoolState& pool_;
  ChunkStore& chunks_;
  Engine::InFlight& flight_;
  std::deque<Extent*> unchecked_, taken_back_;
  uint64_t paused_until_ns_ = 0;  // what came to VRAM alone could not be checked
  uint64_t map_back_ns_ = 0;      // what was not sent was not mapped either: it is, from then on
};

}  // namespace olpager::pager
