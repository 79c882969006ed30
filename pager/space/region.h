// Regions, which addresses name, and extents, which are mapped and moved.
//
// A Region is a run of addresses that pointers name as a whole: an allocation, a slab of small
// ones, or a range that the program reserved for its own mappings. Extents, power-of-two runs of
// 2 MiB pages, cover the pages of a region.
//
// Extent states, and who moves them (always under PoolState::mutex; a transitional state is left
// only by its claimer):
//
//   kEmpty      no contents anywhere, unmapped           -> kMapping (allocation, or first use)
//   kMapping    a claimer makes a chunk and maps it      -> kVram | kInPlace
//   kVram       in a VRAM chunk, mapped                  -> kRetiring (engine)
//   kRetiring   as kVram, but new launches are stopped: waits for launches in flight, then hash and
//                                                        scan -> kVram (a launch cancels) |
//                                                        kWriting | kParked | kMoving
//   kWriting    unmapped, VRAM -> host copy in flight    -> kParked | kVram (wanted again: mapped,
//                                                        host copy stays valid)
//   kParked     in a host chunk, unmapped                -> kFetching | kMoving
//   kFetching   unmapped, host -> VRAM copy in flight,   -> kVram | kParked
//               or over, and the mapper is to map it; without a host chunk -> kRemote | kSending
//   kInPlace    in a host chunk, mapped there for the GPU -> kMoving | kParked
//   kMoving     a claimer changes the mapping            -> any stable state
//   kSending    in a host chunk, unmapped; on its way to memservers (remote_moves.cpp) -> kRemote |
//               kParked. Or in a VRAM chunk, likewise (direct_moves.h) -> kRemote | kMoving
//   kRemote     in frames of memservers only             -> kReceiving
//   kReceiving  frames -> host chunk                     -> kParked | kLost
//               or -> VRAM chunk                         -> kFetching | kRemote | kLost
//   kLost       no memserver has it any more: a launch that needs it is refused
//   kAbsent     memory that another agent has (tiers/elsewhere.h): unmapped, no VRAM; of what other
//               executors have no host chunk either -> kParked, kEmpty (granted: managed/managed.h,
//               away/away.h)
//   kFreeing    the allocation is being freed            -> gone
//   kDetached   belongs to a handle of the program's own that is mapped nowhere (vmm.cpp); no
//               engine looks at it
//
// Extent::leaving: another agent is to have the extent. From whatever state it is in it goes to
// kParked and from there to kAbsent; nothing brings it to VRAM or into place meanwhile
// (residency/give_away.cpp).
//
// An extent's mapping changes only when no launch in flight reaches its region (in_flight.h says
// how that is known). Under reach = learned an arena moves by pieces (Region::by_pieces): its
// extents have stamps of their own, raised by the launches whose working set they are in, and what
// is parked stays mapped in place (kInPlace) as far as host memory can be.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "coherence/directory/types.h"
#include "pager/kernels/hash_and_scan.h"
#include "pager/launch/in_flight.h"
#include "pager/reach/edge.h"
#include "pager/reach/roots.h"
#include "pager/residency/sparse.h"
#include "pager/space/arena.h"
#include "pager/space/object_pool.h"
#include "pager/types.h"

namespace olpager::cpu {
class Frames;
}  // namespace olpager::cpu

namespace olpager::pager {

using cpu::Frames;

class Engine;
struct Region;

enum class ExtentState : uint8_t {
  kEmpty,
  kMapping,
  kVram,
  kRetiring,
  kWriting,
  kParked,
  kFetching,
  kInPlace,
  kMoving,
  kFreeing,
  kDetached,
  kSending,
  kRemote,
  kReceiving,
  kLost,
  kAbsent,
};

/// A transitional state: somebody has claimed the extent, and leaves it in a stable one.
constexpr bool moving(ExtentState state) {
  return state == ExtentState::kMapping || state == ExtentState::kWriting ||
         state == ExtentState::kFetching || state == ExtentState::kMoving ||
         state == ExtentState::kSending || state == ExtentState::kReceiving;
}

/// The most that an extent may cost, in bytes, with its place in its region's list and a chunk of
/// each kind.
inline constexpr uint64_t kExtentCost = 128;

/// Objects of which there is one for each extent: new and delete as ever, in memory without a
/// header for each.
template <typename Object>
struct Pooled {
  static void* operator new(size_t, const std::nothrow_t&) noexcept {
    return takePooled(sizeof(Object));
  }
  static void* operator new(size_t) {
    void* memory = takePooled(sizeof(Object));
    return memory != nullptr ? memory : throw std::bad_alloc();
  }
  static void operator delete(void* object) noexcept { givePooled(object, sizeof(Object)); }
};

/// Physical VRAM of 2^order pages with a mapping of its own (alias) that lasts as long as the
/// chunk.
struct VramChunk : Pooled<VramChunk> {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t alias : 57 = 0;
  uint64_t order : 3 = 0;
  /// Other processes may have it mapped: it is not used for anything else, and goes back to the
  /// driver.
  uint64_t exported : 1 = false;
  /// The budget was lowered for it.
  uint64_t lent : 1 = false;
  /// Network cards know it (residency/direct_memory.h).
  uint64_t direct : 1 = false;

  /// The bytes by the alias, as transfers name them. No processor touches them.
  void* bytes() const { return reinterpret_cast<void*>(alias); }
};

/// Pinned host memory of 2^order pages. `alias` is readable by the CPU and by copy engines.
/// `handle` is 0 when it can't be mapped in place (memory of cuMemHostAlloc).
struct HostChunk : Pooled<HostChunk> {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t alias : 57 = 0;
  uint64_t order : 5 = 0;
};

struct VramCopy;

/// A free VRAM chunk, and who may want it back as it is.
struct KeptChunk {
  VramChunk* chunk;
  VramCopy* copy;
};

/// Bytes that a page had in VRAM when it left, in a chunk that is free for everybody; `there` until
/// the chunk is taken for something else (ChunkStore).
struct VramCopy {
  bool there = false;
  std::list<KeptChunk>::iterator at;  // in the store's list, while `there`
};

struct Extent : Pooled<Extent> {
  Region* region = nullptr;
  uint64_t address = 0;  // global address; of a program's own handle: where its primary mapping is,
                         // or its home (programs/mappings.h)
  VramChunk* vram = nullptr;
  HostChunk* host = nullptr;
  ContentHash hash;  // of what `host` holds; meaningful while hash_valid
  ExtentState state = ExtentState::kEmpty;
  ExtentState rests =
      ExtentState::kEmpty;  // while kDetached: kRemote, kLost, if it was; else what the chunks say
  uint8_t order = 0;        // log2 of pages
  bool hash_valid = false;
  bool host_valid = false;   // `host` holds the contents as of the last write down
  bool left_mapped = false;  // kFreeing: its mapping still stands
  bool prefetched = false;   // came in ahead of a launch and no launch has used it yet
  bool read_only = false;    // mapped for reading only (the program's own mapping says so)
  bool in_host =
      false;  // of an arena that is reached whole: used less than what is in VRAM, so in place
  // For arenas that move by pieces:
  bool scan_due = false;  // launches or copies may have written it since its last scan; of what
                          // other agents have in turns: those may have, or a copy of unknown bytes
  // For memory that other agents have in turns:
  bool leaving = false;  // another agent is to have it
  // For managed memory:
  bool blank = false;   // it never had contents: zeros, which `host` need not hold
  uint16_t wanted = 0;  // launches waiting for it: no victim
  uint16_t pins = 0;    // mapped elsewhere too (vmm.cpp): no victim
  uint32_t mark = 0;    // visit mark of working sets
  // For streamed arenas (residency/arena_streaming.cpp):
  uint8_t looks = 0;    // times, in a row, that it was unchanged when it left VRAM
  bool sealed = false;  // in place, and mapped for reading only since it is constant
  uint64_t stamp = 0;   // highest number of a launch whose working set holds it

  uint64_t bytes() const { return kPageBytes << order; }
  bool mapped() const {
    return state == ExtentState::kVram || state == ExtentState::kRetiring ||
           state == ExtentState::kInPlace;
  }
};

/// True if a launch may go with the extent as it is. kDetached, kFreeing: the program takes the
/// extent away, and nobody will map it.
constexpr bool usable(ExtentState state) {
  return state == ExtentState::kVram || state == ExtentState::kInPlace ||
         state == ExtentState::kDetached || state == ExtentState::kFreeing;
}
/// `next` is the neighbour behind `before`, and mapped for the same.
inline bool isNext(const Extent& before, const Extent& next) {
  return next.region == before.region && next.address == before.address + before.bytes() &&
         next.read_only == before.read_only;
}
// The rest up to kExtentCost is what is lost at the ends of blocks and in lists; a test counts it.
static_assert(sizeof(Extent) + sizeof(void*) + sizeof(VramChunk) + sizeof(HostChunk) <=
              kExtentCost - 8);

/// Further state of a region whose pages other agents have in turns. The region's extents are of
/// one page each.
struct SharedRegion {
  directory::ExtentId first = 0;  // of its first page; the others follow
  /// Launches that were known to reach the region when they were made: the newest of each stream. A
  /// page is given to another agent once these are over. Launches that are older than one of these,
  /// and do not reach the region, need not be over.
  std::vector<StreamPoint> users;
  /// Highest number of what has come to reach it otherwise.
  uint64_t others = 0;

  directory::ExtentId idOf(const Extent& extent) const;
  void usedBy(const StreamState& stream, uint64_t number);
};

/// Memory that other executors have (away/away.h).
struct AwayRegion : SharedRegion {
  std::vector<directory::Message> forgets;    // the home has said so of these pages
  std::vector<directory::Message> forgotten;  // the answers, for when its addresses are free
};

/// Managed memory.
struct ManagedRegion : SharedRegion {
  std::shared_ptr<Frames> frames;  // where its pages are in host RAM, for as long as it lives
  /// The frames, as host chunks of parked extents. Such a chunk can't be mapped in place, and no
  /// chunk store knows it.
  std::vector<HostChunk> places;
  struct Page {
    /// A copy of the frame's bytes in VRAM. The copy stays while the CPU has the page, and is of
    /// use if the CPU has only read it.
    VramCopy copy;
    /// Since it came to VRAM the page has been what its host memory holds, unless an operation of
    /// this number or a higher one may have written it.
    std::optional<uint64_t> came;
  };
  std::vector<Page> states;
  uint64_t written = 0;   // highest number of a copy or memset that wrote into it
  bool pinned = false;    // the frames, for the GPU
  uint32_t released = 0;  // while it is freed: extents that are nothing here any more

  static uint32_t indexOf(const Extent& extent);
  HostChunk* placeOf(const Extent& extent) { return &places[indexOf(extent)]; }
  Page& pageOf(const Extent& extent) { return states[indexOf(extent)]; }
  bool isPlace(const HostChunk* chunk) const {
    return chunk >= places.data() && chunk < places.data() + places.size();
  }
};

inline void SharedRegion::usedBy(const StreamState& stream, uint64_t number) {
  std::erase_if(users, [&](const StreamPoint& use) { return use.isOn(stream) || use.isOver(); });
  users.emplace_back(stream, number);
}

enum class RegionKind : uint8_t {
  kAllocation,
  kSlab,
  kReservation,
  kRoot,  // memory outside the range (roots.h): no pages, no extents, no engine
};

/// A region of up to this share of the VRAM budget is kept out of the learned order: there are many
/// such blocks (a growing KV cache, activations), an allocator uses them in changing orders, and
/// together they are too small to be worth moving.
inline constexpr uint64_t kTinyShare = 1024;
/// A tiny region that a launch reached within this many launches is not evicted unless a launch
/// waits for room.
inline constexpr uint64_t kTinyLaunches = 1u << 16;

/// The learned order keeps a region in VRAM, or streams it through VRAM once in each round.
enum class Placement : uint8_t { kUnplanned, kKeep, kStream };

/// One object has many fields: the launch path, the reach graph, the engine and the planner keep
/// their state of an allocation here, so that a launch finds all of it by one look-up.
// Many members: plain data, read on the path of each launch.
struct alignas(64) Region {
  // --- read by launches without a lock, in one cache line ---
  /// Highest number of a launch that reached the region. Raised by launching threads before the
  /// driver call, inside their hazard; read by the engine after a grace period.
  std::atomic<uint64_t> stamp{0};
  /// Not zero: a launch takes the slow path (an extent is not in VRAM, or is being retired).
  /// Written under the mutex, seq_cst against hazards.
  std::atomic<uint32_t> blocked{0};
  uint64_t base = 0;  // set before the page map names the region
  uint64_t pages = 0;
  uint32_t slot_bytes = 0;  // of a slab: an allocation ends where its slot does. Set with `base`
  CUdevice device = 0;      // likewise
  Engine* engine = nullptr;
  bool divisible = false;  // it is an arena, or can become one: which address of it is named
                           // matters. Set with `base`

  // --- under PoolState::mutex ---
  uint32_t id = 0;
  RegionKind kind = RegionKind::kAllocation;
  AllocationKind allocation_kind = AllocationKind::kDevice;
  Placement placement = Placement::kUnplanned;
  DensityRecord density;   // large regions: how much of it launches touch
  bool tiny = false;       // stays by recency, out of the learned order: see kTinyShare
  bool published = false;  // in the page map
  bool dead = false;       // freed; the object is reused after a grace period
  bool in_dirty_list = false;
  bool by_pieces = false;     // an arena whose pieces move each for itself (reach = learned)
  bool whole_due = false;     // of one by pieces: all of it is to be scanned
  bool names_itself = false;  // its pages hold pointers into itself
  uint8_t scans = 0;          // passes in flight that look for pointers in it
  bool host_written = false;  // bytes of unknown contents came from the host since the last scan
  bool exporting =
      false;  // moves into chunks that other processes can map; the budget was lowered for them:
  bool exports_lent = false;
  uint16_t wanted = 0;  // launches waiting for it: no victim
  uint32_t pins = 0;
  uint32_t ahead = 0;     // extents that came in ahead of a launch and are unused
  uint32_t in_place = 0;  // extents in host memory in place
  uint32_t remote = 0;    // extents that only memservers have
  uint32_t unusable = 0;  // extents that a launch has to wait for
  uint32_t fixed =
      0;  // of a reservation: mappings in it whose memory is known elsewhere (ReachGraph::forFixed)
  uint32_t mark = 0;  // visit mark of reach closures
  uint64_t requested_bytes = 0;
  uint64_t buffer_id = 0;
  CUcontext context = nullptr;
  std::vector<std::unique_ptr<Extent>> extents;  // ascending by address
  std::vector<Edge> edges;  // what pointers in its pages name, as of the last scan; ascending
  std::vector<uint64_t>
      piece_edges;  // of arenas by pieces: pages that those pointers lie in, ascending
  std::unique_ptr<RootMemory> root;        // of a root
  std::unique_ptr<ManagedRegion> managed;  // of managed memory
  std::unique_ptr<AwayRegion> away;        // of memory that other executors have in turns
  std::unique_ptr<Arena> arena;            // of a large one: what launches name inside it
  uint64_t whole_stamp = 0;  // of one by pieces: highest number of a launch that reached all of it
  uint64_t fetch_after =
      0;  // likewise: launches up to this number don't wait for what is in place,
  uint64_t fetch_pause = 0;  // since waiting was in vain; twice as many the next time
  // For an arena that is reached whole (swap.cpp):
  uint64_t swap_after = 0;  // names of the arena before the next exchange,
  uint64_t swap_pause = 0;  // and between two
  bool swap_asked = false;  // it is in the engine's list
  bool swapping = false;    // launches wait for its parts to change place, and take none back

  uint32_t host_writes = 0;  // likewise: copies that set host_written
  /// Highest number of a launch that reached the region and follows the pointers in it (no copy),
  /// on the slow path.
  uint64_t followed = 0;

  /// True if the extent, one of the region's, has to stay in VRAM. One mapping of a reservation
  /// does not pin the others where they move by pieces.
  bool isPinned(const Extent& extent) const {
    return by_pieces && kind == RegionKind::kReservation ? extent.pins > 0 : pins > 0;
  }
  /// Highest number of a launch that may use the extent, one of the region's.
  uint64_t stampOf(const Extent& extent) const {
    return by_pieces ? std::max(extent.stamp, whole_stamp) : stamp.load(std::memory_order_acquire);
  }
  /// State of pages that other agents have in turns; null: the region has none.
  SharedRegion* shared() const {
    return managed != nullptr ? static_cast<SharedRegion*>(managed.get()) : away.get();
  }
  uint64_t end() const { return base + pages * kPageBytes; }
  bool isRoot() const { return root != nullptr; }
  /// An arena that is reached whole, and that the program fills by copies, where arenas are
  /// streamed: what launches name of it comes to VRAM, and the rest is used in place
  /// (residency/arena_streaming.cpp).
  bool isStreamed() const {
    return arena != nullptr && !by_pieces && kind == RegionKind::kAllocation && arena->hasFills() &&
           managed == nullptr && away == nullptr;
  }
  /// The learned order knows it by itself; of another one it knows the pieces, or nothing.
  bool isOneUnit() const { return !tiny && !by_pieces && !isStreamed(); }
  /// Better read in place than fetched.
  bool isSparse() const { return density.verdict == Density::kSparse && arena == nullptr; }
};

/// Notes that launches up to `number` may reach the region, which was not known when they were
/// made. `followed`: Region::followed of the memory that leads there. True: one of both
/// was lower before.
inline bool raiseStamps(Region& region, uint64_t number, uint64_t followed) {
  if (SharedRegion* const shared = region.shared(); shared != nullptr)
    shared->others = std::max(shared->others, followed);
  const bool news = region.stamp.load() < number || region.followed < followed;
  raise(region.stamp, number);
  region.followed = std::max(region.followed, followed);
  return news;
}

/// True if an extent of the region in this state is here, and not in VRAM. Pages that other
/// executors have are not here.
inline bool isOutside(const Region& region, ExtentState state) {
  return state != ExtentState::kVram && !(state == ExtentState::kAbsent && region.away != nullptr);
}

inline uint64_t countOutside(const Region& region) {
  return static_cast<uint64_t>(
      std::count_if(region.extents.begin(), region.extents.end(),
                    [&](const auto& extent) { return isOutside(region, extent->state); }));
}

inline directory::ExtentId SharedRegion::idOf(const Extent& extent) const {
  return first +
         static_cast<directory::ExtentId>((extent.address - extent.region->base) / kPageBytes);
}

inline uint32_t ManagedRegion::indexOf(const Extent& extent) {
  return static_cast<uint32_t>((extent.address - extent.region->base) / kPageBytes);
}

/// Extents of a region that [address, address + bytes) overlaps: indices [first, last).
struct ExtentRange {
  size_t first = 0;
  size_t last = 0;
};
ExtentRange extentsAt(const Region& region, uint64_t address, uint64_t bytes);

/// True if a range lies in the region's pages, of which the guard is none.
inline bool holds(const Region& region, uint64_t address, uint64_t bytes) {
  const uint64_t offset = address - region.base;
  const uint64_t size = region.pages * kPageBytes;
  if (offset >= size || bytes > size - offset) return false;  // a sum could wrap
  // As native: a small allocation ends where what is rounded up for it does.
  return region.slot_bytes == 0 || bytes <= region.slot_bytes - offset % region.slot_bytes;
}

/// A region of more than this share of the VRAM budget is an arena: under reach = learned, where
/// its pieces move; else one that can hardly be swapped as a whole.
inline constexpr uint64_t kLearnedArenaShare = 8;
constexpr bool isArenaSize(uint64_t bytes, uint64_t vram_budget, Reach reach) {
  if (reach == Reach::kAll) return false;
  return reach == Reach::kLearned ? bytes > vram_budget / kLearnedArenaShare
                                  : bytes > vram_budget / 4 * 3;
}

/// Makes a region object as new; its id and its place in the dirty list stay.
void resetRegion(Region& region);

}  // namespace olpager::pager
