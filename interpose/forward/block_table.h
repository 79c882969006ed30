// The table of blocks: host memory of the program's that workers know of. A block is at the same
// address here and at the workers where it lies in the window; registered memory is elsewhere here,
// and has a mirror in the window as soon as kernels are to reach it. A session's worker shares a
// block or has memory of its own there, which is exchanged (exchange.h).
//
// The table is the files' that make blocks (host_blocks.cpp, registered.cpp) and exchange them
// (exchange.cpp); others ask host_blocks.h.
//
// Locks: BlockTable::send_mutex, under which changes go to workers in the order in which they were
// seen; below it BlockTable::mutex, and alone while something is sent, so that what comes from a
// worker meanwhile can be put in place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "coherence/transport/regions.h"
#include "interpose/forward/program.h"

namespace olpager::forward {

// A block in one session.
struct BlockSide {
  // Decided when the worker maps it.
  enum class Kind : uint8_t {
    kNone,       // it has not
    kShared,     // one memory with the worker's
    kExchanged,  // the worker has memory of its own there
  };
  Kind kind = Kind::kNone;
  std::vector<std::byte> agreed;  // kExchanged: empty until it is named
  // The session's region for the block, at its first side; null where it can't be had: bytes travel
  // in calls then.
  transport::RegionPtr region;
};

struct Block {
  uint64_t bytes;
  unsigned flags;
  bool registered;  // memory of the program's own, elsewhere
  bool managed = false;
  bool variable =
      false;           // of a module or a library: not in the window, and not the program's to free
  uint64_t there = 0;  // its address at the workers; 0: they have no such memory (registered, until
                       // it is asked for)
  bool leaving = false;  // the workers are told that it goes: nothing more is said of it
  std::array<BlockSide, kMostSessions> sides{};

  bool isNamed(unsigned slot) const { return !sides[slot].agreed.empty(); }
  bool goesWithLaunches(unsigned slot) const { return isNamed(slot) && !leaving; }
  bool isShared(unsigned slot) const { return sides[slot].kind == BlockSide::Kind::kShared; }
};

struct BlockTable {
  std::mutex send_mutex;
  std::mutex mutex;
  std::map<uint64_t, Block> blocks;      // by address here
  std::map<uint64_t, uint64_t> mirrors;  // of registered blocks: address there -> here
  // Counts of one session, by slot: its sides of a kind; unnamed: of those that are exchanged.
  struct Counts {
    std::atomic<uint32_t> shared{0}, exchanged{0}, unnamed{0};
  };
  std::array<Counts, kMostSessions> counts;
  // For each session, by slot: the blocks that are named, and their addresses here. Programs have
  // thousands of blocks; launches and moves look at these alone.
  std::array<std::map<Block*, uint64_t>, kMostSessions> named;
  // All variables that ever were lie between.
  std::atomic<uint64_t> variables_from{UINT64_MAX}, variables_to{0};
  std::mutex mirroring;  // above the others: one mirror is made, or goes, at a time

  // Under mutex.

  /// By an address of the program's; null: it lies in no block.
  Block* find(uint64_t address, uint64_t* base);
  /// By an address of the workers'.
  Block* findThere(uint64_t address, uint64_t* base);
  /// By an address of the worker's: it is compared at each launch of the session from now on.
  /// False: there is no such block, or it has been named before.
  bool name(unsigned slot, uint64_t address);
  /// In a session that has shared blocks as well, nobody sees which addresses the program, or a
  /// kernel, puts into them: exchanged ones all count as named.
  void nameBesideShared(unsigned slot);
  /// The worker of the session in the slot has mapped the block, or not any more.
  void setKind(Block& block, unsigned slot, BlockSide::Kind kind);

  // Without a lock.

  /// Before the calls that tell the workers that a block goes. Calls of others about the block are
  /// before them, and none is behind them.
  void leaves(uint64_t address) {
    std::lock_guard order(send_mutex);
    setLeaving(address, true);
  }
  /// The block does not go after all, or is back.
  void stays(uint64_t address) { setLeaving(address, false); }

 private:
  void setLeaving(uint64_t address, bool leaving);
};

inline BlockTable& blocks() { return *program().parts().blocks; }

}  // namespace olpager::forward
