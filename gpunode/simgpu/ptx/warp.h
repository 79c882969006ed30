// A warp, its block and what they share with their worker and launch.
//
// Divergence. The live lanes of a warp are spread over *splits* (a set of lanes with one program
// counter), *groups* and waiting lists. A group is a convergence barrier: a divergent branch makes
// one at its immediate post-dominator, a call makes one at the callee's return. Lanes that get
// there park in the group until all lanes that the group expects have come (or have exited), then
// go on as one split with the enclosing group.
//   running  -> ready    its slice is used up, or it has diverged and the other side runs
//   running  -> parked   it reached its group's point and others are still expected
//   running  -> waiting  at a .sync instruction whose other lanes are elsewhere, or at a block
//                        barrier
//   parked   -> ready    the group is complete; or it was broken up because the others spin or wait
//                        for a parked lane
//   waiting  -> ready    the last lane has come
// All of this is moved by the one worker thread that runs the block at the time; nothing here needs
// a lock.
#pragma once

#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/ptx/memory.h"
#include "gpunode/simgpu/ptx/program.h"
#include "gpunode/simgpu/ptx/ptx.h"
#include "gpunode/simgpu/ptx/texture.h"

namespace olpager::simgpu::ptx {

inline constexpr std::uint32_t kFullMask = 0xFFFFFFFF;
inline constexpr std::uint32_t kBarriers = 16;

/// body(lane) for each lane of the mask.
template <typename Body>
void forEach(std::uint32_t mask, Body body) {
  for (; mask != 0; mask &= mask - 1) body(static_cast<std::uint32_t>(std::countr_zero(mask)));
}

/// Shared memory behind all other for kernels that read %reserved_smem_offset_*: two parts of a
/// KiB.
inline constexpr std::uint32_t kReservedSharedBytes = 2048;
/// Backward branches and calls of a warp's turn. Short, so that neighbouring warps stay close in
/// what they read; long enough not to count beside the work.
inline constexpr std::int32_t kTurn = 64;
/// How many of them an access that may be spinning is worth.
inline constexpr std::int32_t kStrongCost = 8;
/// Turns without a park, an exit or a wait before lanes parked in groups are let go.
inline constexpr std::uint32_t kSpinLimit = 2048;

inline std::uint32_t countLanes(std::uint32_t mask) {
  // A full warp is the rule, and counting takes a call where the CPU may lack the instruction.
  return mask == kFullMask ? kWarpSize : static_cast<std::uint32_t>(std::popcount(mask));
}

struct Block;
struct Worker;
struct Launch;
struct Cluster;

/// Activation of a function by a set of lanes.
struct Frame {
  const CodeFunction* function = nullptr;
  Frame* parent = nullptr;
  const Op* return_pc = nullptr;   ///< in the parent's function, behind the call
  const CallSite* site = nullptr;  ///< the call
  std::byte* registers = nullptr;  ///< function->frame_bytes, 64-byte aligned
  std::byte* params = nullptr;     ///< lane-major: 32 areas of function->param_bytes
  std::unique_ptr<std::byte[]> storage;
  std::uint32_t* allocated =
      nullptr;  ///< by lane: bytes from alloca, behind its local variables; null without such
  std::uint32_t local_base = 0;  ///< offset of its local variables in each thread's stack
  std::uint32_t depth = 0;
};

/// Lanes that run together.
struct Split {
  const Op* pc = nullptr;
  Frame* frame = nullptr;
  std::uint32_t mask = 0;
  std::int32_t group = -1;
  std::uint32_t member_mask = 0;  ///< waiting at a .sync instruction: the lanes it names
  bool forced = false;            ///< its .sync instruction is to wait no more
};

/// A convergence barrier.
struct Group {
  const Op* pc = nullptr;  ///< where it converges; null: at the return of `frame`
  Frame* frame = nullptr;
  std::int32_t parent = -1;
  std::uint32_t expected = 0;  ///< live lanes that have not left it
  std::uint32_t arrived = 0;   ///< those of them that are parked
  bool used = false;
};

struct Fault {
  LaunchStatus status = LaunchStatus::kOk;
  std::uint64_t address = 0;
  bool write = false;
  std::uint32_t lane = 0;
  std::string message;
};

/// A split that waits at a block barrier.
struct BarrierWait {
  Warp* warp = nullptr;
  Split split;
  std::uint32_t result = kNoTarget;  ///< register that gets the reduction
};

enum class Reduction : std::uint8_t { kNone, kPopc, kAnd, kOr };

struct Barrier {
  std::uint32_t needed = 0;    ///< threads; 0: all of the block
  std::uint32_t arrivals = 0;  ///< by bar.arrive
  std::uint32_t lanes = 0;     ///< that wait
  std::vector<BarrierWait> waiting;
  std::uint32_t count_true = 0;  ///< bar.red: lanes whose predicate held
  Reduction reduction = Reduction::kNone;
};

struct Warp {  // Many members: an Op reaches all that it uses by one pointer.
  // Read by every Op.
  std::byte* base[2] = {};      ///< registers of the current frame, constants
  std::uint32_t mask = 0;       ///< active lanes
  std::uint32_t dead = 0;       ///< exited or never started
  const Op* pc = nullptr;       ///< the next Op
  const Op* segment = nullptr;  ///< first Op not yet counted in `instructions`
  Frame* frame = nullptr;
  Frame* root = nullptr;  ///< of the kernel
  std::int32_t group = -1;
  std::int32_t budget = 0;  ///< backward branches and calls until the slice is used up
  Worker* worker = nullptr;
  Block* block = nullptr;
  std::uint32_t id = 0;  ///< in the block
  std::uint64_t instructions = 0;
  std::byte* local = nullptr;  ///< 32 stacks of Block::stack_bytes
  std::uint32_t tid[3][kWarpSize] = {};

  bool running = false;  ///< the current split is valid
  bool forced = false;   ///< of the current split: see Split
  std::deque<Split> ready;
  std::vector<Split> waiting;  ///< at .sync instructions
  std::vector<Group> groups;
  std::vector<std::int32_t> free_groups;
  std::uint32_t spin = 0;  ///< slices used up since a split last parked, waited or exited
  std::uint32_t spin_limit = kSpinLimit;  ///< slices before parked lanes are let go
  std::uint32_t parked_lanes = 0;         ///< in all groups
  std::uint32_t at_barrier = 0;           ///< lanes that wait at block barriers (a mask)
  std::uint32_t stuck = 0;                ///< turns in a row without a ready split
  std::uint32_t strong_accesses = 0;      ///< in this turn, as spinning does
  std::uint64_t cluster_phase = 0;        ///< of its last barrier.cluster.arrive
  Fault fault;

  [[gnu::always_inline]] bool full() const { return (mask | dead) == kFullMask; }
  bool finished() const { return dead == kFullMask; }

  template <typename T>
  [[gnu::always_inline]] T* reg(std::uint32_t operand) {
    return reinterpret_cast<T*>(base[operand & kConstantBit] + (operand & ~kConstantBit));
  }
  [[gnu::always_inline]] std::uint32_t& predicate(std::uint32_t operand) {
    return *reg<std::uint32_t>(operand);
  }
  [[gnu::always_inline]] void setPredicate(std::uint32_t operand, std::uint32_t lanes) {
    std::uint32_t& word = predicate(operand);
    word = (word & ~mask) | (lanes & mask);
  }

  /// Counts the instructions since the last change of pc; `end` is one past the last one run.
  void count(const Op* end) {
    instructions += static_cast<std::uint64_t>(end - segment) * countLanes(mask);
  }
  void jump(const Op* target) {
    count(pc);
    pc = segment = target;
  }

  Step fail(LaunchStatus status, std::string message);
  Step failAddress(LaunchStatus status, std::uint64_t address, bool write, std::uint32_t lane);

  /// Host address of `size` bytes at a generic address of a lane, or null with `fault` set.
  std::byte* resolve(std::uint64_t address, std::uint32_t lane, std::uint32_t size, bool write);

  // Splits and groups (warp.cpp).
  void start(std::uint32_t lanes);
  Split current() const { return Split{pc, frame, mask, group, 0}; }
  void resume(const Split& split);
  /// Chooses the next ready split. False: there is none.
  bool schedule();
  /// A branch that takes the `taken` lanes to `target` and leaves the rest at pc; converges at
  /// `join` (or null).
  void diverge(std::uint32_t taken, const Op* target, const Op* join);
  /// The current split has reached the point of its group, if that is `point`. True: it goes on
  /// (with more lanes perhaps).
  bool converge(const Op* point);
  Step enter(const CodeFunction& callee, const CallSite& site);
  /// Runs until the budget is used up or nothing is ready. False: a fault.
  bool run();
  Step leave();
  Step exitLanes();
  /// To be called by accesses that lanes spin on (volatile, relaxed, acquire loads;
  /// compare-and-swap): they use up the turn sooner, and a turn full of them counts as waiting.
  [[gnu::always_inline]] void mayBeSpinning() {
    ++strong_accesses;
    budget -= kStrongCost;
  }
  /// Uses up the slice.
  Step yield();
  /// Takes the current split away; whoever holds it now makes it ready again.
  Step suspend() {
    running = false;
    spin = 0;
    return Step::kSwitch;
  }
  /// For a .sync instruction at `op`: true when all named lanes are here; then `mask` may have been
  /// widened to all of them and finishSync() must follow. False: the current split now waits.
  bool arriveSync(const Op& op, std::uint32_t members);
  /// All lanes that the active lanes' member masks, in a register, name: parts of a warp may each
  /// name their own.
  std::uint32_t members(std::uint32_t masks) {
    const std::uint32_t* const named = reg<std::uint32_t>(masks);
    if ((masks & kConstantBit) != 0) return named[0];
    std::uint32_t all = 0;
    for (std::uint32_t left = mask; left != 0; left &= left - 1)
      all |= named[std::countr_zero(left)];
    return all;
  }
  void finishSync();
  /// Lets waiting lanes go that wait for each other at different instructions, or for lanes parked
  /// in groups.
  bool unblock();
  void breakGroups();
  void reset();

 private:
  std::int32_t newGroup(const Op* point, Frame* at, std::uint32_t lanes);
  void freeGroup(std::int32_t index);
  /// Makes `lanes`, parked in the group, ready behind its point; frees the group if none are left.
  void release(std::int32_t index, std::uint32_t lanes);
  /// The return values of a call, for some lanes.
  static void copyReturns(const Frame& callee, std::uint32_t lanes);

  std::vector<Split> merged_;  ///< splits whose lanes the current .sync instruction runs for
};

/// A thread block.
struct Block {
  Launch* launch = nullptr;
  Dim3 index;
  std::uint32_t rank = 0;  ///< in its cluster
  Cluster* cluster = nullptr;
  std::vector<std::unique_ptr<Warp>> warps;
  std::unique_ptr<std::byte[]> shared;
  std::byte* shared_data = nullptr;  ///< aligned
  std::uint64_t shared_size = 0;     ///< static and dynamic
  std::uint32_t dynamic_offset = 0;
  std::uint32_t stack_bytes = 0;
  Barrier barriers[kBarriers];
  std::uint32_t finished_warps = 0;
  std::byte* stacks = nullptr;  ///< mapped memory; touched pages only cost
  std::size_t stacks_bytes = 0;

  std::uint32_t live = 0;                         ///< threads that have not exited
  std::vector<std::unique_ptr<Frame>> frames;     ///< all ever made
  std::vector<std::vector<Frame*>> spare_frames;  ///< by function

  Block() = default;
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Registers keep what an earlier call left in them.
  Frame* newFrame(const CodeFunction& function);
  void deleteFrame(Frame* frame);
  /// The current split of wait.warp waits at a barrier; `needed` threads complete it, 0: all of the
  /// block.
  void wait(std::uint32_t id, BarrierWait wait, std::uint32_t needed);
  void arriveOnly(std::uint32_t id, const Warp& warp, std::uint32_t needed);
  /// After lanes of a warp have exited.
  void threadsExited(std::uint32_t count);
  Warp& warpAt(std::uint32_t i) { return *warps[i]; }

 private:
  void checkBarrier(Barrier& barrier);
};

enum class Progress : std::uint8_t { kFinished, kMore, kDeadlock, kFault };

/// Blocks that are scheduled together (one, unless the launch has clusters).
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  Dim3 index;  ///< of the cluster in the grid of clusters
  // barrier.cluster
  std::vector<BarrierWait> waiting;
  std::uint32_t arrived = 0;  ///< threads in the current phase
  std::uint64_t phase = 0;

  /// Gives memory and threads to the blocks of the launch's cluster of that number.
  void start(Worker& worker, std::uint64_t number);
  /// Runs its warps in turn for some milliseconds.
  Progress runSlice(Worker& worker);
  void arrive(Warp& warp);
  /// Completes the phase if every live thread has arrived.
  void checkPhase();
};

/// State of one launch that all its workers share.
struct Launch {
  const Module* module = nullptr;
  const Program* program = nullptr;
  const Kernel* kernel = nullptr;
  const CodeFunction* entry = nullptr;
  const LaunchConfig* config = nullptr;
  AddressSpace* memory = nullptr;
  PrintfSink* sink = nullptr;
  const std::atomic<bool>* cancel = nullptr;
  std::uint32_t stack_bytes = 0;
  std::uint32_t threads_per_block = 0;
  std::atomic<bool> stop{false};
  std::mutex mutex;  ///< guards result
  LaunchResult result;
};

/// One thread that runs blocks.
struct Worker {
  explicit Worker(Launch& owner) : launch(owner), tlb(*owner.memory) {}

  Launch& launch;
  Tlb tlb;
  ObjectCache<Texture> textures;
  ObjectCache<Surface> surfaces;
  std::uint32_t id = 0;
  std::uint64_t instructions = 0;
};

/// Device printf for the active lanes: format string and argument buffer at generic addresses.
Step devicePrintf(Warp& warp, const CallSite& site);
Step deviceAssertFail(Warp& warp, const CallSite& site);

}  // namespace olpager::simgpu::ptx
