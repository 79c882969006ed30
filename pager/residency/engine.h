// One device's residency engine: a thread that brings extents into VRAM ahead of launches, retires
// those whose next use is farthest, and serves launches that wait. Several extents are in flight at
// once: the copy engines never wait for a driver call or a hash of another extent.
//
// Each pipeline is an object of its own, which owns its queues and which the engine's thread
// advances (Engine::run in engine.cpp):
//
//   in      kParked -> take chunk -> HtoD on `streams_.in` -> event -> mapped by a       fetches.h
//           thread of its own -> kVram
//   out     kVram -> kRetiring: grace period, launches in flight, hash and scan         eviction.h
//           -> unmap -> equal to the lower copy: kParked, chunk free; else DtoH on
//           `streams_.out` -> event -> kParked
//   want    a launch that waits (Want) is served before any prefetch; what can't         serve.cpp
//           come in time is mapped in place
//   ahead   what the learned order expects next                                       prefetcher.h
//   host    host chunks of extents, and copies that give way                         host_copies.h
//   lower   host RAM <-> the tier below it                                          remote_moves.h
//   direct  VRAM <-> the tier below host RAM                                        direct_moves.h
//   arenas  parts of one change place while no launch reaches it                 arena_streaming.h
//   away    what another agent wants                                                   give_away.h
//   sparse  memory of which launches touch little                                     sparse_use.h
//
// The engine holds the state that pipelines share: states of extents (setState), events, streams,
// copies in flight, launches that wait, debts, the account of bytes. A pipeline sees another one by
// its public functions alone. Decisions are apart: victims eviction_order.cpp, residents
// planner.cpp, a want's next step wants.cpp, scans reach/scanner.cpp.
//
// Locks: everything runs under PoolState::mutex, which is released around driver calls; claimed
// extents are in a transitional state meanwhile. Only the engine's thread retires and fetches. The
// mapper's has claimed what the engine's hands it (Fetching::handToMapper), from then on until the
// extent is kVram or kParked; other threads map new extents.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "pager/counters/counters.h"
#include "pager/counters/trace.h"
#include "pager/launch/in_flight.h"
#include "pager/reach/scanner.h"
#include "pager/residency/chunks.h"
#include "pager/residency/packed.h"
#include "pager/residency/pass_kernels.h"
#include "pager/residency/planner.h"
#include "pager/residency/sparse.h"
#include "pager/residency/victim_order.h"
#include "pager/residency/vram_debts.h"
#include "pager/residency/wait_account.h"
#include "pager/residency/wants.h"
#include "pager/space/region.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::pager {

struct PoolState;
struct VmmHandle;

class ArenaStreaming;
class DirectMoves;
class Eviction;
class Fetching;
class GivingAway;
class HostCopies;
class Prefetcher;
class RemoteMoves;
class SparseUse;

// Many members: the pipelines share what is here.
class Engine {
 public:
  Engine(PoolState& pool, CUdevice device, CUcontext context);
  ~Engine();

  /// Starts the thread and makes the engine's objects in its context. Under the mutex (released for
  /// driver calls).
  CUresult start(uint64_t vram_budget, int numa_node, Lock& lock);
  /// The engine's context is about to go: makes its objects anew in another context of the device.
  /// Memory stays. False: not possible; every extent is in a stable state. Under the mutex
  /// (released).
  bool moveTo(CUcontext context, Lock& lock);
  /// Ends the thread. Without the mutex.
  void stop() noexcept;
  void abandon() noexcept;  // in a forked child

  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  ChunkStore& chunks() { return chunks_; }
  ArenaStreaming& arenas() { return *arenas_; }
  Eviction& eviction() { return *eviction_; }
  Fetching& fetching() { return *fetching_; }
  GivingAway& leaving() { return *leaving_; }
  HostCopies& host() { return *host_; }
  RemoteMoves& remote() { return *remote_; }
  Prefetcher& ahead() { return *ahead_; }
  SparseUse& sparse() { return *sparse_; }
  const ChunkStore& chunks() const { return chunks_; }

  /// Unmaps and gives back all that an extent has which is quiet and claimed (kFreeing).
  void dismantle(Extent& extent, Lock& lock);

  /// The region's extents go: nothing of the engine's may name them any more.
  void forget(const Region* region);
  /// A new handle's extents count among those that will need host memory one day.
  void adopt(VmmHandle& handle);
  /// An extent of a handle joins its reservation: mapped where its bytes are, or kEmpty.
  void attach(Extent& extent, Lock& lock);
  /// An extent that is quiet and in a stable state leaves its reservation, keeping its chunks.
  void detach(Extent& extent, Lock& lock);
  /// All of the region that is not in exported chunks leaves VRAM, pinned or not. False: not now.
  bool retireForExport(Region& region);
  /// Gives every chunk back to the driver. After stop(), with all regions gone, before the context
  /// goes.
  void releaseAll();
  /// The peer device gets access to every mapping. Under the mutex (released for driver calls).
  CUresult addPeer(CUdevice peer, Lock& lock);
  /// Makes the mappings of these extents what read_only and the peers say. The caller has made the
  /// region `wanted`.
  CUresult protect(const std::vector<Extent*>& extents, Lock& lock);

  /// Bytes of VRAM that there are for pages, or were before some of them were lent.
  uint64_t mostVram() const { return std::max(debts_.budget, chunks_.vramBudget()); }
  /// Bytes that the device's allocations can have: its VRAM, and what others' leave of the host
  /// tier. Under the mutex.
  uint64_t capacity() const;
  /// Bytes of them that no allocation has.
  uint64_t unallocated() const;
  /// Bytes that other engines' memory takes of the shared memory below VRAM.
  uint64_t usedByOthers() const;
  /// Bytes of its memory beyond VRAM.
  uint64_t beyondVram() const {
    return counts_.held - std::min(counts_.held, chunks_.vramBudget());
  }
  /// Pages of one region that a launch can get to all at once: where nothing can be used in place,
  /// they have to fit VRAM.
  uint64_t largestRegion() const {
    return chunks_.hostMappable() ? std::min(capacity(), chunks_.vramBudget() + chunks_.hostLimit())
                                  : chunks_.vramBudget();
  }
  /// True when `bytes` more, all in one region, fit the pool of the engine's node.
  bool fits(uint64_t bytes) const {
    return named() + bytes <= capacity() && bytes <= largestRegion();
  }
  /// Bytes that allocations of the device name, wherever they are.
  uint64_t named() const { return counts_.named; }
  /// Allocations name so many bytes more or less, and the node holds them.
  void addNamed(int64_t bytes) {
    counts_.named += static_cast<uint64_t>(bytes);
    counts_.held += static_cast<uint64_t>(bytes);
  }

  void addWant(Want* want) {
    wants_.add(want);
    wake();
  }
  void removeWant(Want* want) { wants_.remove(want); }
  /// Operations that wait here.
  size_t waiting() const { return wants_.size(); }
  void addRelief(const std::shared_ptr<Relief>& relief) {
    debts_.reliefs.push_back(relief);
    wake();
  }
  /// The budget from now on, or the least that holds what does not fit below VRAM. Memory in use
  /// beyond the budget leaves VRAM as soon as it can. Returns the budget to come.
  uint64_t setVramBudget(uint64_t bytes);
  /// Bytes below VRAM without which what is allocated here would have no place.
  uint64_t leastBelow() const;
  void removeRelief(const std::shared_ptr<Relief>& relief) { std::erase(debts_.reliefs, relief); }
  void wake() { life_.wake.notify_one(); }
  /// Another device is short of the host tier: what is in host memory here and has room in VRAM
  /// comes back.
  void recall() {
    asked_.recall = true;
    wake();
  }
  /// Another device's eviction waits for what runs on this one, which only this engine asks after.
  void askPoll() {
    asked_.poll = true;
    if (life_.idle) wake();
  }
  /// Another device is about to evict what pointers in this one's memory may name: all that is
  /// dirty is to be scanned.
  void askScan() {
    asked_.scan = true;
    if (life_.idle) wake();
  }
  /// Pages leave for other agents now and then, and what is dirty is scanned first each time: some
  /// of that may be scanned by now.
  void scanAhead() {
    asked_.scan_ahead = true;
    if (life_.idle) wake();
  }
  /// A launch touched regions in the learned order: prefetch may have something to do.
  void touched() {
    if (life_.idle) wake();
  }

  bool broken() const { return life_.broken; }
  DeviceCounters& figures() { return *figures_; }
  Scanner& scanner() { return scanner_; }
  /// The driver has answered that the context is lost: nothing moves any more.
  void lost(CUresult result);
  /// The one place where a state changes: keeps Region::blocked, `slow` and the gauges in step.
  void setState(Extent& extent, ExtentState state);

 private:
  friend class ArenaStreaming;
  friend class DirectMoves;
  friend class Eviction;
  friend class Fetching;
  friend class GivingAway;
  friend class HostCopies;
  friend class Prefetcher;
  friend class RemoteMoves;
  friend class SparseUse;

  struct Copy {
    Extent* extent;
    CUevent event;
    int hash = -1;           // of kernels_
    bool packed = false;     // by the extent's image,
    bool unchecked = false;  // which was to be compared and could not be
    uint64_t since_ns = 0;
  };
  /// Extents that the GPU was to pack or unpack, and has not because of what it runs: nobody waits
  /// for them any more.
  struct Late {
    VramChunk* chunk;
    HostChunk* image;  // nullptr: there is none
    CUevent event;
    int hash;
  };
  /// Why something comes to VRAM: a launch waits for it, it is expected to be used soon, or there
  /// is room.
  enum class Fetch : uint8_t { kDemand, kAhead, kRoom };

  // --- its parts ---------------------------------------------------------------------------------
  struct Life {
    std::thread thread;
    base::Condition wake;
    bool stop = false;
    bool stopping = false;  // somebody joins the threads
    bool pausing = false;   // nothing new is begun: the engine moves to another context
    bool idle = false;
    bool broken = false;  // the context is lost: nothing moves any more
  };
  /// Requests of other engines.
  struct Asked {
    bool poll = false;
    bool scan = false;
    bool scan_ahead = false;
    bool recall = false;  // another device needs what this one's memory takes of the host tier
  };
  struct CopyStreams {
    CUstream in = nullptr, out = nullptr;
  };
  struct InFlight {
    std::deque<Copy> fetching, writing, packing;
    std::deque<Late> late;
    std::deque<Copy> checking;  // of moves without host memory between (direct_moves.h)
    uint64_t fetching_bytes = 0;
    uint64_t expected_pages = 0;  // for which no chunk was made yet
    uint64_t freeing_bytes = 0;   // VRAM that batches, writes and sends in flight will free,
    std::array<uint32_t, kOrders> freeing{};   // in chunks of each order
    std::array<uint64_t, kOrders> freed_ns{};  // when one of them did last, or the first began to
    void leaves(const Extent& extent) {
      freeing_bytes += extent.bytes();
      if (freeing[extent.order]++ == 0) freed_ns[extent.order] = nowNs();
    }
    /// The extent has left, or it stays.
    void left(const Extent& extent) {
      freeing_bytes -= extent.bytes();
      --freeing[extent.order];
      freed_ns[extent.order] = nowNs();
    }
    /// True if a chunk of that order is about to come free: some are, and the last that did so is
    /// no longer ago than `ns`. A victim may wait for as long as a kernel runs.
    bool freesWithin(unsigned order, uint64_t ns) const {
      return freeing[order] > 0 && nowNs() - freed_ns[order] < ns;
    }
    // Bytes of freeing_bytes on their way to memservers; the last send's end, or the first's begin.
    uint64_t sending_bytes = 0, sent_ns = 0;
    void sends(const Extent& extent) {
      if (sending_bytes == 0) sent_ns = nowNs();
      sending_bytes += extent.bytes();
    }
    void sent(const Extent& extent) {
      sending_bytes -= extent.bytes();
      sent_ns = nowNs();
    }
    /// Memservers take nothing for a while.
    bool sendsHang() const { return sending_bytes > 0 && nowNs() - sent_ns > kSendHangNs; }
    /// VRAM that is about to come free, without sends that hang.
    uint64_t freesSoon() const { return freeing_bytes - (sendsHang() ? sending_bytes : 0); }
    bool none() const {
      return fetching.empty() && late.empty() && packing.empty() && writing.empty() &&
             checking.empty();
    }
  };
  struct Pauses {
    unsigned refusals = 0;          // of the driver's (or of a receive), in a row
    uint64_t refused_until_ns = 0;  // a fetch or a receive was refused: none is begun before
    Patience promoted{kFirstPromotedPauseNs, 0};  // of launches, for what leaves its place
  };
  /// Pages, in bytes: those that allocations of the device name, and those of them that this node
  /// holds, in VRAM, in host RAM or in the tier below. `named` answers what may still be allocated;
  /// `held` answers what has to have room somewhere here: budgets, host chunks made ahead, room for
  /// images, whether a round is all that there is.
  struct Counts {
    uint64_t named = 0;
    uint64_t held = 0;
  };
  /// Looking at what the GPU is at, for `olpagestat --why`: a mark behind all that was submitted,
  /// and a moment later whether it has come. Only while something is not in VRAM: marks are
  /// recorded then anyway.
  struct Look {
    uint64_t number = 0;   // the newest launch when the marks were recorded; 0: none are
    uint64_t last_ns = 0;  // when it was looked at last; 0: not all has been in VRAM since
    uint64_t marked_ns = 0;
    uint64_t next_ns = 0;
    uint64_t waited_ns = 0;  // what launches had waited until last_ns
  };
  static constexpr uint64_t kFirstPromotedPauseNs = 100'000'000;
  static constexpr uint64_t kSendHangNs = 100'000'000;
  static constexpr uint64_t kInFlightBytes = 128ull << 20;
  /// Packing or unpacking that the GPU does not come to is given up after this time.
  static constexpr uint64_t kLateNs = 1'000'000'000;
  static constexpr uint64_t kMostAheadBytes = 1ull << 30;   // of chunks made ahead and free
  static constexpr size_t kMostAtOnce = 16;                 // neighbours that are mapped together
  static constexpr uint64_t kRefusalPauseNs = 100'000'000;  // after a fetch was refused

  /// A step in the trace, from here to the end of the scope. Any thread.
  TracedStep step(TraceStep what, const Extent* of = nullptr) const {
    return {*figures_, static_cast<unsigned>(device_), what, of != nullptr ? of->address : 0,
            of != nullptr ? of->bytes() : 0};
  }
  /// Makes calls of the driver without the mutex: a step in the trace, as is the wait for it.
  template <typename Calls>
  auto outside(TraceStep what, const Extent* of, Lock& lock, Calls&& calls) {
    const base::HeldSignals held;  // the driver has locks of its own
    account(Limit::kThread);
    lock.unlock();
    const auto result = [&] {
      const TracedStep traced = step(what, of);
      return calls();
    }();
    const TracedStep waits = step(TraceStep::kLock);
    lock.lock();
    account(limitOf(what));
    return result;
  }

  /// A stretch of the engine's thread ends, which went for `what` (wait_account.h). Other threads'
  /// calls are no stretches of it.
  void account(Limit what) {
    if (std::this_thread::get_id() == life_.thread.get_id())
      account_.turn(what, !wants_.empty(), !flight_.fetching.empty() || isCopyingAhead());
  }
  static Limit limitOf(TraceStep step) {
    const bool maps = step == TraceStep::kMap || step == TraceStep::kUnmap ||
                      step == TraceStep::kTake || step == TraceStep::kGive;
    return maps ? Limit::kMapping : Limit::kThread;
  }
  bool isCopyingAhead() const;
  Limit sleepsFor() const;
  void lookAtGpu(Lock& lock);
  status::Counter& isAt(DeviceWhy& why, bool idle) const;

  // --- engine.cpp --------------------------------------------------------------------------------
  CUresult makeObjects();
  void destroyObjects();
  bool startThreads();
  template <typename Body>
  void guarded(Body body, bool vital) noexcept;
  void run();
  void stockEvents(Lock& lock);
  CUevent takeEvent(Lock& lock);
  bool reached(CUevent event, Lock& lock);
  void pollStreams(Lock& lock);
  // --- serve.cpp ---------------------------------------------------------------------------------
  struct Serving;
  bool serveWants(Lock& lock);
  bool serve(size_t index, Want& want, uint64_t now, Lock& lock);
  void take(WantStep step, Extent& extent, Want& want, Serving& found, Lock& lock);
  void serveScans(Want& want, Serving& found);
  bool makeRoomFor(Want& want, const Serving& found);
  void waitedInVain(uint64_t now);
  void surplusCameBack(uint64_t now);
  // --- debts.cpp ---------------------------------------------------------------------------------
  bool serveReliefs(Lock& lock);
  bool giveSurplus(Lock& lock);

  PoolState& pool_;
  CUdevice device_;
  CUcontext context_;
  ChunkStore chunks_;
  PackedImages packed_;
  DeviceCounters* figures_;
  WaitAccount account_;
  Look look_;
  PassKernels kernels_;
  Scanner scanner_;
  CopyStreams streams_;
  std::vector<CUevent> events_;  // free ones
  Life life_;
  Asked asked_;
  InFlight flight_;
  Wants wants_;
  VramDebts debts_;
  Pauses pauses_;
  Counts counts_;
  std::unique_ptr<DirectMoves> direct_;  // null: pages go by host memory
  const std::unique_ptr<ArenaStreaming> arenas_;
  const std::unique_ptr<Eviction> eviction_;
  const std::unique_ptr<Fetching> fetching_;
  const std::unique_ptr<GivingAway> leaving_;
  const std::unique_ptr<HostCopies> host_;
  const std::unique_ptr<RemoteMoves> remote_;
  const std::unique_ptr<Prefetcher> ahead_;
  const std::unique_ptr<SparseUse> sparse_;
};

}  // namespace olpager::pager
