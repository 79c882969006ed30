// One device's residency engine: a thread that brings extents into VRAM ahead of launches, retires
// those whose next use is farthest, and serves launches that wait. Several extents are in flight at
// once: the copy engines never wait for a driver call or a hash of another extent.
//
// Pipelines, each a queue that the engine's thread advances (engine.cpp holds the loop):
//   in    kParked -> take chunk -> HtoD on `in_stream_` -> event -> map -> kVram
//         (engine.cpp)
//   out   kVram -> kRetiring: grace period, launches in flight, hash and scan (retire.cpp) -> unmap
//         -> equal to the lower copy: kParked, chunk free; else DtoH on `out_stream_` -> event ->
//         kParked
//   want  a launch that waits (Want) is served before any prefetch; what can't come in time is
//         mapped in place.
//
// Locks: everything runs under PoolState::mutex, which is released around driver calls; claimed
// extents are in a transitional state meanwhile. Only the engine's thread retires and fetches;
// other threads map new extents.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "pager/chunks.h"
#include "pager/counters/counters.h"
#include "pager/kernels/page_pass.h"
#include "pager/launches.h"
#include "pager/packed.h"
#include "pager/region.h"
#include "pager/remote/remote_tier.h"
#include "pager/sparse.h"

namespace olpager::pager {

struct PoolState;
struct VmmHandle;

/// A launch that waits for extents. On the waiting thread's stack; listed in Engine::wants_ while
/// it waits.
struct Want {
  std::vector<Extent*> extents;  // to be mapped; those of the working set in VRAM
  std::vector<Region*> regions;  // all that the launch reaches here
  std::vector<Region*> to_scan;  // reached, and written by the host since their last scan
  bool scan_roots =
      false;  // it may follow module variables that a copy wrote since their last scan
  uint64_t since_ns = 0;
  bool in_place = false;   // the time is over, or it can't fit: map the rest in place
  bool failed = false;     // neither could be had
  bool lost = false;       // no memserver has it any more
  bool scan_late = false;  // the scan waits for something that may never end
  bool in_vram = false;    // in place is no help: who uses the addresses does not come by again
  bool fetch = false;  // what of it is in place is to come to VRAM if it does so in time (arenas by
                       // pieces, onlyShow())
};

/// The driver is short of VRAM, and a thread waits for some of the pager's. Listed in
/// Engine::reliefs_; shared, since either may go first.
struct Relief {
  uint64_t bytes = 0;  // still to be given
  uint64_t given = 0;  // to the driver, and taken off the budget
};

class Engine {
 public:
  Engine(PoolState& pool, CUdevice device, CUcontext context);
  ~Engine();

  /// Starts the thread and makes the engine's objects in its context. Under the mutex (released for
  /// driver calls).
  CUresult start(uint64_t vram_budget, int numa_node, Lock& lock);
  /// Its context is about to go: its objects are made anew in another context of the device. What
  /// it holds stays. False: it can't; every extent is in a stable state. Under the mutex
  /// (released).
  bool moveTo(CUcontext context, Lock& lock);
  /// Ends the thread. Without the mutex.
  void stop() noexcept;
  void abandon() noexcept;  // in a forked child

  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  ChunkStore& chunks() { return chunks_; }
  LaunchTimer& timer() { return timer_; }
  const ChunkStore& chunks() const { return chunks_; }

  /// New extents of a region get VRAM where there is room without evicting; the others stay kEmpty.
  CUresult mapNew(Region& region, Lock& lock);
  /// Unmaps and gives back all that the extent has. It is quiet and claimed (kFreeing).
  void dismantle(Extent& extent, Lock& lock);

  /// A launch (or a free) takes a victim back.
  void cancelRetiring(Extent& extent);
  /// Somebody waits for the extent to come to a stable state: what memservers are about to get
  /// stays, what comes from them comes first, or is given up where its region goes.
  void hurry(const Extent& extent);
  /// What has come from memservers or gone there since the last call. Of all engines.
  static bool finishRemote(PoolState& pool);
  /// The region's extents go: nothing of the engine's may name them any more.
  void forget(const Region* region);
  /// A new handle's extents count among those that will need host memory one day.
  void adopt(VmmHandle& handle);
  /// An extent of a handle joins its reservation: mapped where its bytes are, or kEmpty.
  void attach(Extent& extent, Lock& lock);
  /// An extent leaves its reservation, keeping its chunks. It is quiet and in a stable state.
  void detach(Extent& extent, Lock& lock);
  /// What of the region is not in exported chunks leaves VRAM, pinned or not. False: not now.
  bool retireForExport(Region& region);
  /// Gives every chunk back to the driver. After stop(), with all regions gone, before the context
  /// goes.
  void releaseAll();
  /// The peer device gets access to every mapping. Under the mutex (released for driver calls).
  CUresult addPeer(CUdevice peer, Lock& lock);
  /// Makes the mappings of these extents what read_only and the peers say. Their region is `wanted`
  /// by the caller.
  CUresult protect(const std::vector<Extent*>& extents, Lock& lock);

  /// Bytes of VRAM that there are for pages, or were before some of them were lent.
  uint64_t mostVram() const { return std::max(budget_, chunks_.vramBudget()); }
  /// Bytes that the device's allocations can have: its VRAM, and what others' leave of the host
  /// tier. Under the mutex.
  uint64_t capacity() const;
  /// What of them allocations do not have.
  uint64_t unallocated() const;
  /// What other engines' memory takes of what they all share below VRAM.
  uint64_t usedByOthers() const;
  /// What of its allocations exceeds VRAM.
  uint64_t beyondVram() const { return allocated_ - std::min(allocated_, chunks_.vramBudget()); }
  /// Pages of one region that a launch can get to all at once: where nothing can be used in place,
  /// they have to fit VRAM.
  uint64_t largestRegion() const {
    return chunks_.hostMappable() ? std::min(capacity(), chunks_.vramBudget() + chunks_.hostLimit())
                                  : chunks_.vramBudget();
  }
  uint64_t allocated() const { return allocated_; }
  void addAllocated(int64_t bytes) { allocated_ += static_cast<uint64_t>(bytes); }

  void addWant(Want* want) {
    wants_.push_back(want);
    wake();
  }
  void removeWant(Want* want) { std::erase(wants_, want); }
  void addRelief(const std::shared_ptr<Relief>& relief) {
    reliefs_.push_back(relief);
    wake();
  }
  /// The budget from now on, or the least that holds what does not fit below VRAM. What is in use
  /// beyond it leaves VRAM as soon as it can. Returns what it will be.
  uint64_t setVramBudget(uint64_t bytes);
  /// Bytes below VRAM without which what is allocated here would have no place.
  uint64_t leastBelow() const;
  void removeRelief(const std::shared_ptr<Relief>& relief) { std::erase(reliefs_, relief); }
  void wake() { wake_.notify_one(); }
  /// A launch found the arena partly in place.
  void askSwap(Region& region);
  /// Another device is short of the host tier: what is in host memory here and has room in VRAM
  /// comes back.
  void recall() {
    recalled_ = true;
    wake();
  }
  /// Another device's eviction waits for what runs on this one, which only this engine asks after.
  void askPoll() {
    poll_asked_ = true;
    if (idle_) wake();
  }
  /// Another device is about to evict what pointers in this one's memory may name: all that is
  /// dirty is to be scanned.
  void askScan() {
    scan_asked_ = true;
    if (idle_) wake();
  }
  /// A launch touched regions in the learned order: prefetch may have something to do.
  void touched() {
    if (idle_) wake();
  }

  bool broken() const { return broken_; }
  DeviceCounters& figures() { return *figures_; }
  /// The one place where a state changes: keeps Region::blocked, `slow` and the gauges in step.
  void setState(Extent& extent, ExtentState state);
  /// A launch came for a prefetched extent, or it leaves unused.
  void noteUsed(Extent& extent, bool used);

 private:
  /// A region whose pages a pass scans.
  struct Scanned {
    Region* region;
    uint64_t buffer_id;          // as of then: it may be freed and reused meanwhile
    bool whole;                  // every page of it, and no launch in flight writes it
    uint64_t stamp;              // as of then: a launch since may have written it
    std::vector<uint64_t> only;  // of an arena that moves by pieces: the extents, by address
    // Of a root: what the GPU scans, and what the CPU does, which does so once more when the pass
    // is over if kernels use it.
    std::vector<kernels::ScanJob> by_gpu;
    std::vector<ByteRun> by_cpu;
    bool twice = false;
    std::vector<uint64_t> found;  // by the CPU: addresses
  };
  /// A region that the host wrote, with its figures as the scan began.
  struct HostWritten {
    Region* region;
    uint64_t stamp;
    uint32_t host_writes;
  };
  /// A batch of victims on its way out (retire.cpp).
  struct Batch {
    enum class Stage : uint8_t { kGrace, kDrain, kPass } stage = Stage::kGrace;
    std::vector<Extent*> victims;
    std::vector<HostWritten> scan_for;  // no victims: a scan that a launch waits for
    std::vector<uint32_t> hash_slots;   // of each victim's first page
    std::vector<Scanned> scanned;
    size_t own_bitmaps =
        0;  // the first so many of `scanned` have a bitmap each, the others one in common
    Hazards::Snapshot hazards;
    uint64_t bytes = 0;
    unsigned scratch = 0;
    bool scans_variables = false;
    bool reads_roots = false;  // variables or others: nobody takes them away meanwhile
    Region* swap_of =
        nullptr;  // all victims are parts of this arena, which change place (swap.cpp)
    uint64_t roots_serial =
        0;  // of the newest write to a root that the pass sees (PoolState::RootsWritten)
    uint64_t completed = 0;  // all launches up to this one had completed when the pass began
    kernels::ScanScope scope;
    uint64_t pass_number = 0;  // of the engine's: they end in this order
    bool for_roots = false;    // a launch waits for the scan of the variables
    bool scan_all = false;     // no victims: another engine waits for the scan
    bool fills = false;        // victims are in place, and come to VRAM since there is room
    // Other engines that have to scan what is dirty of theirs before this one may unmap anything,
    // and the pass that will have done so, as of the victims' stamp then.
    std::vector<std::pair<const Engine*, uint64_t>> others;
    uint64_t others_stamp = 0;
    uint64_t settles_floor = 0;  // PoolState::floor_epoch when its grace period began, if that time
                                 // was not settled; else 0
    CUevent event = nullptr;
  };
  struct Copy {
    Extent* extent;
    CUevent event;
    int hash = -1;           // of fetch_hashes_
    bool packed = false;     // by the extent's image,
    bool unchecked = false;  // which was to be compared and could not be
    uint64_t since_ns = 0;
  };
  /// What the GPU was to pack or unpack and has not come to, because of what it runs: nobody waits
  /// for it any more.
  struct Late {
    VramChunk* chunk;
    HostChunk* image;
    CUevent event;
    int hash;
  };
  /// Extents of arenas that move by pieces are hashed as they come in: outsiders may have written
  /// them in place. So is what comes from an image for the first time.
  struct FetchHashes {
    static constexpr int kAtOnce = 64;
    kernels::PagePassJob* jobs = nullptr;  // one each
    ContentHash* hashes = nullptr;         // of pages, kLargestExtentPages each
    std::vector<int> free;
  };
  /// Buffers of one pass, in pinned memory that the GPU reads and writes directly.
  struct Scratch {
    uint64_t pages = 0;  // room of `hashes` and `jobs`
    ContentHash* hashes = nullptr;
    uint32_t* found = nullptr;
    kernels::PagePassJob* jobs = nullptr;
    kernels::ScanJob* roots = nullptr;
    bool busy = false;
  };
  static constexpr size_t kRootJobs = 4096;           // small roots that go in one launch
  static constexpr uint64_t kSmallRoot = 1ull << 20;  // a larger one is worth a launch of its own
  static constexpr uint32_t kGranules = 1u << 14;     // of the addresses between which roots lie
  static constexpr uint64_t kFoundBytes =
      (1u << 20) + kGranules / 8;  // a bit for each page of 16 TiB, and for each granule
  static constexpr size_t kOwnBitmaps =
      64;  // of a pass: more cost more to clear and to read than they save
  static constexpr uint64_t kHostAheadBytes =
      1ull << 30;  // host chunks made ahead of need, for each size
  static constexpr uint64_t kFirstPromotedPauseNs = 100'000'000;

  CUresult makeObjects();
  void destroyObjects();
  bool startThreads();
  void guarded(void (Engine::*body)(), bool vital) noexcept;
  void run();
  void makeHostChunks();
  bool finishFetches(Lock& lock);
  bool finishLate(Lock& lock);
  bool finishPacking(Lock& lock);
  bool startPacking(Extent& extent, Lock& lock);
  void makeLate(Extent& extent, const Copy& copy);
  bool finishWrites(Lock& lock);
  uint64_t spareForImages() const;
  uint64_t imagesExpected(unsigned order) const;
  bool advanceBatches(Lock& lock);
  void cancelBatches();
  bool serveWants(Lock& lock);
  bool inPass(const Extent& victim) const;
  void waitedInVain(uint64_t now);
  void surplusCameBack(uint64_t now);
  bool serveReliefs(Lock& lock);
  bool giveSurplus(Lock& lock);
  bool giveHostSurplus(Lock& lock);
  bool bringHome(Lock& lock);
  bool fillFreeVram();
  bool prefetch(Lock& lock);
  // remote_moves.cpp
  static uint64_t remoteId(const Extent& extent) { return reinterpret_cast<uintptr_t>(&extent); }
  void finishSend(Extent& extent, const RemoteTier::Finished& finished);
  void finishReceive(Extent& extent, const RemoteTier::Finished& finished);
  bool startReceive(Extent& extent, bool urgent, Lock& lock);
  bool prefetchRemote(Lock& lock);
  uint64_t dropSpareCopies(uint64_t bytes);
  uint64_t dropRemoteCopies(uint64_t bytes);
  bool remoteHolds(const Extent& extent) const;
  bool demote();
  void leaveHost(Extent& extent, const ContentHash& hash);
  bool swapArenas();
  bool beginSwap(Region& region);
  static void swapAgainAfter(Region& region, bool useful);
  void judgeTimed(Lock& lock);
  void plan();
  bool plan_known() const { return planned_round_ != 0; }

  CUevent hashFetched(const Extent& extent, CUevent copied, int slot);
  ContentHash fetchedHash(const Extent& extent, int slot);
  /// Why something comes to VRAM: a launch waits for it, it is expected to be used soon, or there
  /// is room.
  enum class Fetch : uint8_t { kDemand, kAhead, kRoom };
  bool startFetch(Extent& extent, Fetch why, Lock& lock);
  bool mapEmpty(Extent& extent, Lock& lock);
  VramChunk* takeVram(const Extent& extent, Lock& lock);
  CUresult mapVram(const Extent& extent, const VramChunk& chunk, Lock& lock);
  bool mapInPlace(Extent& extent, Lock& lock);
  bool isHeld(const Region& region) const;
  bool isHeld(const Extent& extent) const;
  bool promote(const std::vector<Extent*>& extents, bool fills = false);
  uint64_t promotingBytes() const;
  bool retire(uint64_t bytes, uint64_t nearer_than, bool demand);
  bool hasNoPlace() const;
  bool allIsFull() const;
  bool begin(std::unique_ptr<Batch> batch);
  bool scanHostWritten(const std::vector<Region*>& regions, bool roots);
  bool othersHaveScanned(Batch& batch, uint64_t stamp);
  bool hasDirty() const;
  bool startPass(Batch& batch, Lock& lock);
  kernels::ScanScope scopeNow() const;
  CUresult launchPass(const Scratch& scratch, size_t first, size_t count,
                      const kernels::ScanScope& scope, CUevent event);
  CUresult launchScans(const Scratch& scratch, size_t first,
                       const std::vector<kernels::ScanJob>& jobs, const kernels::ScanScope& scope);
  void finishPass(Batch& batch, Lock& lock);
  void findEdges(Batch& batch, std::vector<uint64_t>& news, Lock& lock);
  void takeEdges(const Scanned& scanned, const kernels::ScanScope& scope, const uint32_t* found,
                 std::vector<uint64_t>& news);
  static void forgetEdges(const Scanned& scanned);
  template <typename Visit>
  void forNamed(const kernels::ScanScope& scope, const uint32_t* found, Visit visit) const;
  std::vector<kernels::ScanJob> listVariables(uint32_t* found) const;
  bool listRoot(Batch& batch, Region& region, uint32_t* found, uint64_t floor);
  void scanOnCpu(Batch& batch, bool again, Lock& lock);
  void noteFoundOnCpu(Batch& batch, std::vector<uint64_t>& news);
  void noteVariables(const Batch& batch, const uint32_t* found, std::vector<uint64_t>& news);
  void noteMoved(const kernels::ScanScope& scope, const std::vector<uint32_t>& named,
                 std::vector<uint64_t>& news);
  void noteNews(const Region& region, const std::vector<Edge>& before,
                std::vector<uint64_t>& news) const;
  void lookThroughNews(std::vector<uint64_t>& news);
  void spare(const std::vector<uint64_t>& news);
  template <typename Named>
  void spareVictims(Named named);
  void spreadStamps();
  static void stampPage(Region& region, uint64_t page, uint64_t stamp);
  static uint64_t stampToScan(const Region& region);
  void evict(Extent& extent, const ContentHash& hash, Lock& lock);
  void drainContexts(Lock& lock);
  bool takeHost(Extent& extent, Lock& lock);
  void giveHost(Extent& extent);
  template <typename May>
  uint64_t dropHostCopies(uint64_t bytes, May may);
  uint64_t dropLowerCopies(uint64_t bytes, bool own);
  void refused(const char* what, CUresult result);
  void stockEvents(Lock& lock);
  CUevent takeEvent(Lock& lock);
  bool reached(CUevent event, Lock& lock);
  void lost(CUresult result);
  uint64_t windowBytes() const;

  PoolState& pool_;
  CUdevice device_;
  CUcontext context_;
  ChunkStore chunks_;
  PackedImages packed_;
  DeviceCounters* figures_;
  std::thread thread_;
  std::vector<std::thread> host_makers_;
  std::condition_variable wake_;
  std::condition_variable host_wake_;
  std::shared_ptr<std::atomic<bool>> draining_ = std::make_shared<std::atomic<bool>>(false);
  uint64_t next_drain_ns_ = 0;
  bool stop_ = false;
  bool stopping_ = false;  // somebody joins the threads
  bool poll_asked_ = false;
  bool scan_asked_ = false;
  bool recalled_ = false;  // another device needs what this one's memory takes of the host tier
  bool pausing_ = false;   // nothing new is begun: the engine moves to another context
  bool idle_ = false;
  bool broken_ = false;            // the context is lost: nothing moves any more
  bool host_full_ = false;         // said once
  unsigned refusals_ = 0;          // of the driver's (or of a receive), in a row
  uint64_t refused_until_ns_ = 0;  // a fetch or a receive was refused: none is begun before

  CUstream in_stream_ = nullptr, out_stream_ = nullptr, pass_stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction pass_ = nullptr, scan_ = nullptr, scan_roots_ = nullptr;
  std::array<Scratch, 4> scratch_;
  FetchHashes fetch_hashes_;
  std::vector<CUevent> events_;

  std::deque<Copy> fetching_;
  std::deque<Copy> writing_;
  std::deque<Copy> packing_;
  std::deque<Late> late_;
  std::deque<std::unique_ptr<Batch>> batches_;
  std::vector<Want*> wants_;  // oldest first
  size_t serving_ = 0;  // of wants_: what this one and older ones need is no victim, where nothing
                        // is used in place
  std::vector<std::shared_ptr<Relief>> reliefs_;
  uint64_t budget_ =
      0;  // as start() or setVramBudget() said; reliefs and what the driver withholds come off it
  uint64_t most_ = 0;     // the largest that it can be: the device's VRAM
  uint64_t surplus_ = 0;  // bytes by which VRAM is still to shrink
  // How long launches wait for what is to leave for that, and from when on the next time that is in
  // vain makes it longer.
  uint64_t surplus_patience_ns_ = 0, surplus_patience_from_ns_ = 0;
  // From when on launches wait for what is to leave its place in host memory, and how long they
  // don't after the next time that is in vain.
  uint64_t promoted_from_ns_ = 0, promoted_pause_ns_ = kFirstPromotedPauseNs;
  LaunchTimer timer_;
  uint64_t vram_bandwidth_ = 0;  // bytes a second
  uint64_t fetching_bytes_ = 0;
  uint64_t host_short_ = 0;  // bytes of a host chunk that was wanted and not there
  uint64_t unplaced_ = 0;    // victims so far that found no place in host memory
  uint64_t no_place_until_ns_ = 0,
           no_place_given_ = 0;  // none of a pass did: no further pass before then, or
                                 // before somebody gives a host chunk back
  uint64_t no_host_until_ns_ = 0, no_host_given_ = 0;  // likewise of a receive,
  uint64_t no_host_bytes_ = 0;                         // and of none that is as large as this one
  uint64_t demand_short_ = 0;  // bytes that launches wait for and that found no chunk yet
  uint64_t ahead_bytes_ = 0;   // prefetched and not used yet, in flight included
  uint64_t incoming_ = 0;      // VRAM that batches and writes in flight will free
  uint64_t allocated_ = 0;     // pages of the engine's regions, in bytes
  size_t clock_hand_ = 0;
  uint64_t passes_begun_ = 0, passes_ended_ = 0;
  uint64_t variables_seen_ =
      0;  // number of the newest launch when the last pass over the variables ended
  std::array<uint32_t, kOrders> without_host_{};  // extents that have no host chunk
  std::array<uint32_t, kOrders> host_making_{};
  uint64_t filled_ns_ = 0;  // when fillFreeVram() looked last
  uint64_t planned_touches_ = 0, next_plan_ = 0, planned_round_ = 0, planned_room_ = 0;
  uint64_t candidate_round_ = 0;  // pages of another round than the planned one
  unsigned candidate_seen_ = 0;
  bool prefetch_again_ = false;
  std::vector<Region*> swaps_asked_;
  Region* swapping_ = nullptr;  // whose parts change place
  uint64_t swap_until_ns_ = 0;  // it is given up unless the arena is quiet by then
};

}  // namespace olpager::pager
