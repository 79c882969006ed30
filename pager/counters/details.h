// Details behind the counters in a process's file: where each page lives, which allocations move
// most, and a ring of events that is filled only while somebody asks for it.
// docs/reference/counters.md describes the layout for other readers; a change of it raises
// kCountersVersion.
//
// Thread-safety: everything may be called from any thread; relaxed atomics, no lock, no system
// call, nothing waits. A reader in another process reads whenever it likes and checks what the
// comments say. Errors: none. Entries that do not fit are counted (ResidencyMap::unmapped_pages,
// TraceRing::dropped).
#pragma once

#include "pager/counters/counters.h"

namespace olpager::pager {

/// The place of an extent's contents. The low half of a byte of the map; the high half is the
/// device.
enum class Place : uint8_t {
  kNone,     // nothing there that the pager knows of
  kEmpty,    // allocated, without contents so far
  kVram,     // mapped there
  kInPlace,  // host memory, mapped for the GPU
  kHost,     // host memory, not mapped
  kRemote,   // another machine's memory
  kIn,       // on its way into VRAM
  kOut,      // on its way out of VRAM
  kLeaving,  // in VRAM, chosen to be evicted
  kMoving,   // its mapping is being changed
};
inline constexpr unsigned kPlaces = 10;
const char* placeName(Place place) noexcept;

/// A byte for each 2 MiB page, in blocks of 8 GiB of addresses that are taken up as addresses are
/// used and never given back. A reader finds the blocks by their addresses.
struct ResidencyMap {
  static constexpr unsigned kBlocks = 128;
  static constexpr unsigned kBlockPages = 4096;
  static constexpr uint64_t kPageBytes = 2ull << 20;
  static constexpr uint64_t kBlockBytes = kBlockPages * kPageBytes;

  Counter unmapped_pages;  // pages whose place could not be noted: all blocks are taken
  Counter reserved[7];
  Counter addresses[kBlocks];  // where the block begins; 0: not taken
  std::atomic<uint8_t> pages[kBlocks][kBlockPages];
};

/// The allocations whose extents move most: a table of fixed size in which what moves often keeps
/// its place. The figures count from when an allocation got its place.
struct HotTable {
  static constexpr unsigned kSets = 32;
  static constexpr unsigned kWays = 4;
  struct Entry {
    Counter base;     // 0: free. Written last when an entry changes hands
    Counter bytes;    // of the allocation, slab or reservation
    Counter device;   // ordinal
    Counter fetched;  // extents brought into VRAM
    Counter evicted;  // extents that left it
    Counter bytes_in;
    Counter bytes_out;  // written down; what left clean is not
    Counter credit;     // how long it keeps its place
  };
  Entry entries[kSets * kWays];
};

enum class TraceKind : uint8_t {
  kLaunch = 1,  // start to end: from when all that it reaches is there to when the driver has it.
                // `value`: its number
  kCopy,        // likewise a copy or memset
  kFault,       // start to end: a launch or copy waited for extents. `address`, `bytes`: the first
                // region that it reaches
  kState,  // start == end: an extent changed its place. `value`: Place before | Place after << 8 |
           // ahead << 16
  kStep,   // start to end: what a thread of the pager did. `value`: TraceStep; `address`, `bytes`:
           // the extent that it was for, else 0
};

/// The step that the engine's thread is in, for its lane in a trace. Steps of a thread nest. Those
/// that are made for an extent while a program's thread allocates are that thread's.
enum class TraceStep : uint8_t {
  kSleep,     // nothing to do, or a pause until the GPU is asked again
  kLock,      // waits for PoolState::mutex, after a call of the driver
  kPoll,      // asks the driver what has ended: events of its own, marks of streams
  kServe,     // launches that wait: what is to be done for each extent
  kAhead,     // what comes in before it is needed: the learned order
  kTake,      // makes a chunk of VRAM
  kGive,      // gives chunks back to the driver
  kCopyIn,    // queues a copy to VRAM
  kMap,       // maps an extent
  kChoose,    // chooses victims
  kPass,      // lists what is to be hashed and scanned, and queues that
  kFound,     // takes what a pass found, and lets its victims go
  kUnmap,     // unmaps an extent
  kCopyOut,   // queues a copy from VRAM
  kPack,      // queues the packing of an extent
  kMakeHost,  // makes a chunk of host memory, in a thread for that
};
inline constexpr unsigned kTraceSteps = 16;
const char* stepName(TraceStep step) noexcept;

/// The last kEvents events. A writer claims a number by `head`, marks its slot, fills it, and marks
/// it again.
struct TraceRing {
  static constexpr unsigned kEvents = 8192;
  struct Event {
    Counter sequence;  // 2 * number + 1 while it is written, 2 * number + 2 when it is whole
    Counter start_ns;  // CLOCK_MONOTONIC
    Counter end_ns;
    Counter about;  // TraceKind | device << 8 | thread id << 32
    Counter address;
    Counter bytes;
    Counter value;
    Counter reserved;
  };
  Counter head;     // numbers given away so far
  Counter dropped;  // events that found another one still being written in their slot
  Counter reserved[6];
  Event events[kEvents];
};

/// The whole file.
struct CountersFile {
  Counters head;
  HotTable hot;
  ResidencyMap map;
  TraceRing trace;
};
static_assert(sizeof(HotTable) == 8192 && sizeof(ResidencyMap) == 64 + 1024 + 524288 &&
              sizeof(TraceRing) == 64 + 524288 &&
              sizeof(CountersFile) ==
                  sizeof(Counters) + sizeof(HotTable) + sizeof(ResidencyMap) + sizeof(TraceRing));

/// This process's file; counters() is its head.
CountersFile& countersFile() noexcept;

/// An extent's change of place, as the pager tells it.
struct PlaceChange {
  unsigned device = 0;
  uint64_t address = 0;  // of the extent; 0: it has none, nothing is noted
  uint64_t bytes = 0;
  uint64_t region = 0;  // base of what it belongs to
  uint64_t region_bytes = 0;
  Place place = Place::kNone;  // kNone: it goes
  bool ahead = false;          // it came in ahead of need and nobody has used it yet
};

/// Notes it in the map and the table of `file`; one writer at a time for the same extent. Returns
/// its former place, as the map says.
Place notePlace(CountersFile& file, const PlaceChange& change) noexcept;

/// Puts an event into the ring.
void putEvent(TraceRing& ring, TraceKind kind, unsigned device, uint64_t start_ns, uint64_t end_ns,
              uint64_t address, uint64_t bytes, uint64_t value) noexcept;

}  // namespace olpager::pager
