// What the parts of the pager share: one PoolState for each Pool. Private to pager/.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pager/engine.h"
#include "pager/kernels/page_pass.h"
#include "pager/launches.h"
#include "pager/pool.h"
#include "pager/predict/predict.h"
#include "pager/region.h"
#include "pager/roots.h"
#include "pager/space/space.h"

namespace olpager::pager {

/// Region by id, as the page map names it. Wait-free to read; ids start at 1. Regions are never
/// deleted while the pool lives: a dead one is reused after a grace period, so that a launch may
/// look at one that is being freed.
class RegionTable {
 public:
  Status create();
  ~RegionTable();
  Region* at(uint32_t id) const { return entries_[id].load(std::memory_order_acquire); }
  /// A region object with a free id. Under the mutex.
  Region* take();
  /// A dead region: its object is reused once no launch can look at it any more. Under the mutex.
  void give(Region* region);
  /// Ids in use are below this. Asked at each step of a loop over all of them: counted, for
  /// steps().
  uint32_t end() const {
    ++steps_;
    return next_;
  }
  uint64_t steps() const { return steps_; }

 private:
  struct Dead {
    Region* region;
    Hazards::Snapshot hazards;
  };
  std::atomic<Region*>* entries_ = nullptr;
  uint32_t next_ = 1;
  mutable uint64_t steps_ = 0;
  std::deque<Dead> dead_;
  std::vector<std::unique_ptr<Region>> owned_;
};

/// What the learned order knows as one unit: a region, or a piece of an arena that moves by pieces.
/// Valid while the mutex is held.
struct UnitRef {
  Region* region = nullptr;
  Piece* piece = nullptr;

  uint64_t begin() const { return piece != nullptr ? piece->begin : region->base; }
  uint64_t end() const { return piece != nullptr ? piece->end : region->end(); }
  uint64_t pages() const { return piece != nullptr ? piece->pages() : region->pages; }
  Placement& placement() const { return piece != nullptr ? piece->placement : region->placement; }
};
inline predict::Unit unitOf(const Region& region) { return 2 * region.id; }
inline predict::Unit unitOf(const Piece& piece) { return 2 * piece.id + 1; }

struct SmallAllocation {
  uint64_t bytes;
  uint64_t buffer_id;
  CUcontext context;
  AllocationKind kind;
};

/// Memory freed in stream order: goes when `event` has come.
struct DeferredFree {
  CUdeviceptr address;
  CUevent event;
};

/// Physical memory of the program's own (cuMemCreate). Its extents are here while it is mapped
/// nowhere with access.
struct VmmHandle {
  CUmemGenericAllocationHandle id = 0;
  uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  Engine* engine = nullptr;
  CUcontext context = nullptr;
  uint32_t references = 0;
  uint32_t mappings = 0;
  uint64_t primary = 0;     // where its extents are mapped and move; 0: they rest here
  uint32_t fixed = 0;       // further mappings: while there are any the extents stay in VRAM
  Region* aside = nullptr;  // a reservation of the pager's own, for a primary mapping where the
                            // program's can't be one
  std::vector<std::unique_ptr<Extent>> extents;
};

struct VmmMapping {
  VmmHandle* handle = nullptr;
  Region* region = nullptr;
  std::map<CUdevice, CUmemAccess_flags>
      access;          // of the devices that have any, as the program gave it
  bool fixed = false;  // the driver has it mapped, beside the handle's primary mapping

  /// No device may write. Where one may, all that have access can: an extent is mapped alike for
  /// all devices.
  bool isReadOnly() const {
    return std::none_of(access.begin(), access.end(), [](const auto& entry) {
      return entry.second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    });
  }
};

/// Kernels that were launched of late, for the report of a context that was lost.
class RecentKernels {
 public:
  /// The name is copied. One that is there already, at the same address, costs some comparisons.
  void note(const char* name);
  /// "a, b, c", the latest first.
  std::string list() const;

 private:
  std::array<const char*, 8> places_{};  // where the names were; never looked at again
  std::array<std::array<char, 48>, 8> names_{};
  std::array<uint64_t, 8> noted_{};  // when, by `notes_`
  uint64_t notes_ = 0;
};

/// Everything of one Pool. Lock order: lock_order.h.
struct PoolState {
  explicit PoolState(const PoolOptions& given, const DriverApi& functions)
      : options(given), driver(functions), streams(driver) {}

  const PoolOptions options;
  const DriverApi driver;

  std::mutex mutex;
  /// An extent reached a stable state; launches that wait look again.
  std::condition_variable changed;

  predict::Predictor predictor;  // under the mutex, as all below `floor`
  PieceTable pieces{[this](uint32_t id) { predictor.forget(2 * id + 1); }};
  std::unique_ptr<space::PageMap> map;
  RegionTable regions;
  StreamTable streams;
  /// Number of the newest launch.
  std::atomic<uint64_t> launch_number{0};
  /// Some extent is not in VRAM, or leaves it: launches take the slow path. seq_cst against
  /// hazards.
  std::atomic<bool> slow{false};
  /// Launches up to this number may have reached anything: they were made while nothing was
  /// unmapped, so nobody asked which pointers they could follow. Settled after the grace period
  /// that follows `slow`.
  uint64_t floor = 0;
  bool floor_pending = false;
  uint64_t floor_epoch = 0;  // how often it has come to be pending

  // Under the mutex from here on.
  std::unique_ptr<space::RegionAddresses> addresses;
  std::unique_ptr<space::RegionAddresses>
      placed;  // the part whose addresses the caller chooses; none: null
  struct SlabsOf {
    CUdevice device;
    CUcontext context;
    bool placed;
    auto operator<=>(const SlabsOf&) const = default;
  };
  std::map<SlabsOf, std::unique_ptr<space::SlabAllocator>> slabs;
  std::unordered_map<uint64_t, SmallAllocation> small;
  std::vector<std::shared_ptr<Engine>> engines;
  /// The same for a forked child, which can't have the mutex; those beyond the last place it does
  /// not need to know: it ends no engine.
  std::array<std::atomic<Engine*>, 64> for_child{};
  /// Under the mutex. Puts `now` where `before` is.
  void showToChild(Engine* before, Engine* now) {
    for (auto& place : for_child) {
      if (Engine* expected = before; place.compare_exchange_strong(expected, now)) return;
    }
  }
  std::vector<Region*> dirty;  // reached since their last scan
  RootTable roots;
  std::vector<RootEdge> root_edges;  // of the variables among them
  unsigned root_scans = 0;           // passes in flight that read any
  /// Contexts of variables whose contents are not known. A kernel in such a context waits until a
  /// pass that began after the operations up to `number` were done has scanned them. `serial`
  /// differs each time.
  struct RootsWritten {
    uint64_t number;
    uint64_t serial;
  };
  std::map<CUcontext, RootsWritten> roots_written;
  uint64_t root_writes = 0;                                // serials given out
  std::map<StreamKey, std::deque<DeferredFree>> deferred;  // in the order of each stream
  StreamKey deferred_last;                                 // whose were looked at last
  unsigned looking = 0;  // threads that hold some of these and ask the driver about them
  std::unordered_set<CUdeviceptr> deferred_addresses;  // of the same
  std::vector<Region*> new_slabs,
      empty_slabs;  // made or emptied by a slab allocator, seen to after it returned
  std::set<uint64_t>
      leaving_slabs;  // placed ones that are being dropped: their addresses come free
  std::unordered_map<CUmemGenericAllocationHandle, std::unique_ptr<VmmHandle>> vmm_handles;
  std::map<uint64_t, VmmMapping> vmm_mappings;  // by address
  uint64_t next_handle = 1;
  uint64_t allocated_bytes = 0;  // pages of live regions
  uint64_t outside = 0;          // extents of live regions that are not in state kVram
  uint64_t next_buffer_id = 1;
  uint32_t closure_mark = 0;
  uint32_t extent_mark = 0;
  RecentKernels recent_kernels;
  std::set<CUcontext> told_unmapped;                 // contexts of which tellUnmapped() has told
  std::map<CUdevice, uint64_t> vram_budgets;         // bytes, once they were asked for
  std::set<CUdevice> vram_set;                       // budgets that were set meanwhile
  std::vector<std::pair<CUdevice, CUdevice>> peers;  // (who has access, to whose memory)
  HostBudget host;                                   // of all devices together
  std::shared_ptr<RemoteTier> remote;                // memservers, where there are any
  unsigned remote_moves = 0;                         // extents on their way to or from them
  uint64_t sending_bytes = 0, receiving_bytes = 0;   // of these
  uint64_t remote_retry_ns = 0;                      // they had no room: not asked before
  uint64_t host_given = 0;                           // host chunks that extents gave back so far
  std::vector<CUdevice> starting;                    // devices whose engine a thread is making
  std::unordered_set<CUdevice> refused;  // devices that can't do what the options ask for
  bool stopped = false;
  std::atomic<bool> forked{false};
  std::atomic<int> draining{0};  // threads that synchronise a context and then look at `streams`

  bool isPlaced(uint64_t address) const { return placed != nullptr && placed->contains(address); }
  /// Who gives out an address of the range.
  space::RegionAddresses& addressesOf(uint64_t address) {
    return isPlaced(address) ? *placed : *addresses;
  }
  /// Pages from the range's start to the end of the highest run ever given out.
  uint64_t highWaterPages() const {
    return std::max(addresses->highWaterPages(), placed != nullptr ? placed->highWaterPages() : 0);
  }

  /// The region whose pages or guard hold `address`, which lies in the range. Wait-free.
  Region* find(uint64_t address) const {
    const uint32_t id = map->lookup(address);
    return id == 0 ? nullptr : regions.at(id);
  }
  /// Under the mutex. No region: the unit is gone.
  UnitRef unitAt(predict::Unit unit) const {
    if (unit % 2 == 0) return {regions.at(unit / 2), nullptr};
    Piece* piece = pieces.at(unit / 2);
    return {piece != nullptr ? piece->region : nullptr, piece};
  }
  /// The region, or the root, that holds `address` and is not being freed; nullptr: none. Under the
  /// mutex.
  Region* liveAt(uint64_t address) const {
    Region* const region = map->contains(address) ? find(address) : roots.regionAt(address);
    return region == nullptr || region->dead ? nullptr : region;
  }
  /// Calls visit(region) for what an edge leads to. Under the mutex.
  template <typename Visit>
  void forEdge(const Edge& edge, Visit visit) const {
    if (Region* const region = liveAt(edge.begin);
        region != nullptr && region->buffer_id == edge.buffer_id)
      return visit(*region);
    const uint64_t end = std::min(edge.begin + edge.bytes, map->base() + map->size());
    for (uint64_t at = std::max(edge.begin, map->base()); at < end;) {
      Region* const region = liveAt(at);
      if (region != nullptr) visit(*region);
      at = std::max(at + kPageBytes, region != nullptr ? region->end() : 0);
    }
    roots.forAt(edge.begin, edge.bytes, [&](uint64_t, const Root& root) {
      if (root.region != nullptr && !root.region->dead) visit(*root.region);
    });
  }
  Engine* engineOf(CUdevice device) const {
    for (const auto& engine : engines)
      if (engine->device() == device) return engine.get();
    return nullptr;
  }
  void markDirty(Region* region) {
    if (region->in_dirty_list) return;
    region->in_dirty_list = true;
    dirty.push_back(region);
  }
  /// `slow` as the extents say.
  void updateSlow();
  Engine* engineIn(CUcontext context) const {
    for (const auto& engine : engines)
      if (engine->context() == context) return engine.get();
    return nullptr;
  }
  void noteRootsWritten(CUcontext context, uint64_t number) {
    roots_written[context] = {number, ++root_writes};
  }
  /// Variables of `context` name what `edge` leads to: every launch reaches it from now on.
  /// `page`: which one of an arena that moves by pieces; 0: any.
  void addRootEdge(CUcontext context, const Edge& edge, uint64_t page = 0);
  /// The same of what lies at `address`.
  void addRootEdge(CUcontext context, uint64_t address);
  /// The engine whose passes scan the root; nullptr: none can.
  Engine* scannerOf(const Region& root) const;
  /// Nobody knows what the root names, nor vouches for it.
  bool leadsAnywhere(const Region& root) const {
    return options.reach != Reach::kLearned &&
           (!root.root->scannable || scannerOf(root) == nullptr);
  }
  /// Calls visit(region) for what a reservation maps besides its extents: regions in which handles
  /// lie that it maps a second time (nullptr: in none now), and roots, memory that is the driver's
  /// own.
  template <typename Visit>
  void forFixed(const Region& region, Visit visit) const {
    forFixed(region, region.base, region.end(), visit);
  }
  /// The same, of what lies in [begin, end) of the reservation.
  template <typename Visit>
  void forFixed(const Region& region, uint64_t begin, uint64_t end, Visit visit) const {
    if (region.fixed == 0) return;
    auto it = vmm_mappings.upper_bound(begin);
    if (it != vmm_mappings.begin()) --it;  // it may begin before
    for (; it != vmm_mappings.end() && it->first < end; ++it) {
      if (!it->second.fixed || it->first + it->second.handle->bytes <= begin) continue;
      visit(it->second.handle->primary == 0 ? nullptr : find(it->second.handle->primary));
    }
    roots.forAt(begin, end - begin, [&](uint64_t, const Root& root) { visit(root.region); });
  }
};

/// A large region gets to know its pieces; what was known of it as one unit is forgotten. Under the
/// mutex.
void makeArena(PoolState& state, Region& region);
/// The edge to a live region, or to a root.
Edge edgeTo(const Region& target);
/// The edge to an address where nothing lies now: its page.
Edge edgeToNothing(const PoolState& state, uint64_t address);
/// Pointers in `region` lead there. True: it was not known. Under the mutex, as all below.
bool addEdge(Region& region, const Edge& edge);
/// Pointers in `region` name `address`, of the range or between roots: an edge, unless nothing has
/// ever been there.
bool addEdge(const PoolState& state, Region& region, uint64_t address);
/// The same, of which it is known that `target` (live; a region, or a root) holds the address.
bool addEdge(const PoolState& state, Region& region, const Region& target, uint64_t address);
/// Pages of `from`, copied to `region`, name what they name.
void addEdgesOf(Region& region, const Region& from);
/// Calls visit(word) for each word of [data, + bytes), which the CPU reads, that is an address of
/// the range or between roots.
template <typename Visit>
void forPointersAmong(const PoolState& state, const void* data, uint64_t bytes, Visit visit) {
  const AddressSpan& outside = state.roots.span();
  kernels::scanWords(data, bytes, state.map->base(), state.map->size(), visit);
  kernels::scanWords(data, bytes, outside.low(), outside.bytes(), visit);
}
/// Pointers among the words of [data, + bytes), which the CPU reads, are in `region` by now. Under
/// the mutex.
void addEdgesAmong(const PoolState& state, Region& region, const void* data, uint64_t bytes);
/// Looks through what the CPU may have put into a root. False: nobody knows what it holds, so that
/// whoever reaches it may reach anything. Under the mutex.
bool refreshRoot(const PoolState& state, Region& root);

/// A kernel has touched what is not mapped: its context is lost. Once for each context, a line that
/// says what may be the reason, with the kernels that were launched of late. False: that is the
/// program's own doing, since everything that it has is mapped for each launch. Under the mutex.
bool tellUnmapped(PoolState& state, CUcontext context);

/// Bytes that memservers have for this pool. 0 where everything is mapped for each launch: they are
/// of no use then.
uint64_t remoteCapacity(const PoolState& state);
/// The counters' figures of what the pool has room for, as it is now: memservers want memory back,
/// budgets change. Under the mutex.
void tellRoom(const PoolState& state);

/// Synchronises contexts with launches in per-thread default streams that only their threads could
/// have marked. `number`: all launches up to it have been submitted. Without the mutex; waits for
/// the GPU. Nothing while something captures.
void drainUnmarked(PoolState& state, uint64_t number);
/// The device's engine, made and started by Pool::prepare() or at its first allocation, in
/// `context`.
CUresult engineFor(PoolState& state, CUcontext context, CUdevice device, Lock& lock, Engine** out);
/// Waits until what [address, + bytes) of a region holds is in VRAM. The region is pinned by the
/// caller.
CUresult bringToVram(PoolState& state, Region& region, uint64_t address, uint64_t bytes,
                     Lock& lock);
/// Gives the device's peers access to fixed mappings of the program's handles (vmm.cpp).
CUresult protectFixed(PoolState& state, Engine& engine, Lock& lock);
/// The engine goes: so does what the program's handles hold, and their mappings (vmm.cpp).
void dropHandles(PoolState& state, Engine& engine, Lock& lock);

}  // namespace olpager::pager
