// The pager of one process: the global address range, the allocations in it, and on each device the
// engine that keeps every page that a launch may touch mapped, in VRAM by prediction, else in host
// memory in place.
//
// How it is used (interposer, gpunode worker, tests):
//   auto pool = Pool::create(options, driver);
//   pool->allocate(ctx, bytes, ...)  -> an address in the range
//   Access access(*pool, ctx, stream); access.addParameters(...); access.acquire(); <driver call>;
//   access.submitted(rc);
//
// Thread-safety: every member may be called from any thread unless it says otherwise. No pager lock
// is held across a driver call that can wait for the GPU. Pager threads are started by the first
// attach(), never by a constructor. Errors: what the program must see is a CUresult as native CUDA
// would return it; what stops the start is a Result.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/size.h"
#include "pager/driver_api.h"

namespace olpager::pager {

inline constexpr uint64_t kPageBytes = 2ull << 20;

class RemoteTier;  // remote/remote_tier.h

/// Which allocations a launch is taken to reach besides those its parameters name. See
/// docs/internals/architecture.md.
enum class Reach : uint8_t {
  kTraced,   // those whose addresses lie in pages that it reaches, found by scanning (default)
  kAll,      // every allocation: parked extents stay mapped in place
  kLearned,  // of an arena only the predicted working set; the user vouches for it
};

/// What cuMemGetInfo and cuDeviceTotalMem tell the program.
enum class Report : uint8_t { kNode, kPool };

/// A size that the user gives: bytes, or a percentage of what there is.
using Budget = base::Budget;

/// Where the range lies where nothing else is set: the same in every process that takes part.
inline constexpr uint64_t kDefaultVaBase = 0x2A5D'0000'0000;
inline constexpr uint64_t kDefaultVaSize = 16ull << 40;

struct PoolOptions {
  uint64_t va_base = 0;  // 0: the built-in base (kDefaultVaBase)
  uint64_t va_size = 0;  // 0: 16 TiB
  Budget vram;           // of each device; not given: what the driver has free less a reserve
  Budget
      host;  // host tier; not given: 80 % of the smaller of available memory and the cgroup's limit
  Reach reach = Reach::kTraced;
  Report report = Report::kNode;
  bool pack = true;                    // what streams also as packed images (packed.h)
  std::shared_ptr<RemoteTier> remote;  // memory of memservers; none: host RAM is the lowest tier
};

enum class AllocationKind : uint8_t {
  kDevice,         // cuMemAlloc and pitched
  kStreamOrdered,  // cuMemAllocAsync
  kVmm,            // the program's own cuMemCreate + cuMemMap
};

/// What the tables know of an address. Plain data, valid as of the call.
struct AllocationInfo {
  uint64_t base = 0;       // as the program got it
  uint64_t bytes = 0;      // as the program asked for
  uint64_t buffer_id = 0;  // unique in the process, never reused
  AllocationKind kind = AllocationKind::kDevice;
  CUcontext context = nullptr;
  CUdevice device = 0;
};

/// Where the bytes of an allocation are.
struct Residency {
  uint64_t vram = 0;      // mapped there
  uint64_t in_place = 0;  // mapped for the GPU in host memory
  uint64_t other = 0;     // not mapped, on the way, or never touched
  bool sparse = false;    // launches touch little of it: it stays in place
};

struct MemoryInfo {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t vram_bytes = 0;  // of total_bytes, what the VRAM budget is at present
  bool vram_set = false;    // by setVramBudget()
};

/// What memory outside the range is, in which kernels may find pointers into it (roots.h).
enum class RootKind : uint8_t {
  kVariable,  // of a module: every kernel of its context reads it
  kHost,      // pinned
  kManaged,
  kDevice,   // device memory that is the driver's own, mapped for the context's device until it is
             // no root any more
  kUnknown,  // memory that can't be looked at: whoever reaches it may reach anything
};

/// How an operation uses a range. A write that covers an extent whole spares the fetch of what it
/// overwrites.
enum class Mode : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

/// A stream as the pager keys it. `stream` is never NULL: the interposer replaces NULL by
/// CU_STREAM_LEGACY or CU_STREAM_PER_THREAD as the called symbol says; `thread` is a per-thread
/// identity for CU_STREAM_PER_THREAD, else 0.
struct StreamKey {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  uint64_t thread = 0;
  auto operator<=>(const StreamKey&) const = default;
};

struct Allocation;   // private
struct Region;       // private
struct StreamState;  // private
class Closure;       // private: what one operation reaches
class Engine;        // private: one device's residency engine
struct PoolState;    // private
struct TimedLaunch;  // private: a launch between two events
using Lock = std::unique_lock<std::mutex>;

/// Allocations that a graph reaches, gathered while it is captured or from its nodes. Copyable.
struct ReachSet {
  /// Ascending, unique: one address inside each allocation; of a very large one, one in each page
  /// that is named.
  std::vector<uint64_t> addresses;
  /// What a copy or memset names exactly.
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool only_set = false;  // the operation reads from nowhere, as far as is known: a memset
    auto operator<=>(const Range&) const = default;
  };
  std::vector<Range> ranges;  // ascending, unique
  bool everything = false;    // a kernel of it may reach any allocation
  /// Names of its kernels, the first ones, for reports. They live as long as the process.
  std::array<const char*, 8> kernels{};
  bool empty() const { return addresses.empty() && !everything; }
  bool operator==(const ReachSet&) const = default;
  void add(uint64_t address);
  /// Unless the page has one.
  void addInPage(uint64_t address);
  void addRange(const Range& range);
  void add(const ReachSet& other);
  void addKernel(const char* name);
};

class Pool {
 public:
  /// Reserves the range; fails with one line when it is taken or an option can't be met.
  static Result<std::unique_ptr<Pool>> create(const PoolOptions& options, const DriverApi& driver);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint64_t base() const { return base_; }
  uint64_t end() const { return end_; }
  /// True for any address of the range, allocated or not. A compare; use it before everything else.
  bool contains(uint64_t address) const { return address - base_ < end_ - base_; }

  // --- allocations -------------------------------------------------------------------------------
  /// Starts the engine of `device` in `context`, unless it is there. For before the first kernel
  /// runs: what a start loads, the driver loads only when no kernel runs, and whoever allocates
  /// beside a kernel does not expect to wait for it. allocate() starts what this could not.
  void prepare(CUcontext context, CUdevice device);
  /// Device memory in `context` (current device `device`). CUDA_ERROR_OUT_OF_MEMORY beyond the
  /// pool, after some seconds at most while memory freed in stream order is still in use;
  /// CUDA_ERROR_INVALID_VALUE for 0 bytes. Contents undefined, as with cuMemAlloc. Starts the
  /// device's engine if prepare() has not.
  CUresult allocate(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                    CUdeviceptr* out);
  /// Sets the first `bytes` of the range aside for allocateAt(): nothing else is allocated there.
  /// Before the first allocation and once, else CUDA_ERROR_NOT_PERMITTED; CUDA_ERROR_INVALID_VALUE
  /// when it is no number of pages or more than half of the range.
  CUresult setPlaced(uint64_t bytes);
  /// As allocate(), of kind kDevice, at `address`, which lies in the part that was set aside. From
  /// 2 MiB on an allocation has pages of its own with a guard page behind them
  /// (space::AddressAllocator), below it a slot of its slab (space::SlabAllocator): who chooses
  /// addresses by these two, for each context and device slabs of its own, finds them free here.
  /// CUDA_ERROR_INVALID_VALUE when the address is not free for it.
  CUresult allocateAt(CUcontext context, CUdevice device, CUdeviceptr address, uint64_t bytes);
  /// What may be allocated on a device in all, and in one piece. As of the call; 0 before its
  /// engine has started.
  struct Room {
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  Room room(CUdevice device) const;
  /// Whether the device has one. As of the call.
  bool hasEngine(CUdevice device) const;
  /// Frees what `address` is the base of, once all work that reaches it is done (waits for it, as
  /// cuMemFree does). CUDA_ERROR_INVALID_VALUE when it is no base of a live allocation.
  CUresult free(CUdeviceptr address);
  /// Frees in stream order: returns at once, memory is reused when all work now in `stream` is
  /// done.
  CUresult freeAsync(CUdeviceptr address, const StreamKey& stream);
  /// Whether `address` is what an allocation was given out as that was not freed, in stream order
  /// either.
  bool isAllocated(CUdeviceptr address) const;
  /// The allocation that holds `address` (its guard and end excluded). False when there is none.
  bool describe(uint64_t address, AllocationInfo* out) const;
  /// Of the region (an allocation, a slab of small ones, a reservation) that holds `address`; as of
  /// the call.
  Residency residency(uint64_t address) const;
  /// The driver is out of memory on `device`: gives up to `bytes` of VRAM back to it, evicting what
  /// is in it if need be, and lowers the budget by as much. Waits some seconds at most. Returns the
  /// bytes given, 0 when that many can't be had.
  uint64_t relieve(CUdevice device, uint64_t bytes);
  /// What relieve() gave is free again: the budget is raised by it.
  void regain(CUdevice device, uint64_t bytes);
  /// From now on the device's VRAM budget is this, or the least that holds what does not fit below
  /// VRAM; what exceeds it leaves in the background. Before the device's first allocation: what it
  /// begins with. Returns what it will be.
  uint64_t setVramBudget(CUdevice device, uint64_t bytes);
  /// From now on the host tier's limit is this, at most what the options give, or the least that
  /// holds what does not fit VRAM. What exceeds it goes back to the system in the background.
  /// Returns what it will be.
  uint64_t setHostLimit(uint64_t bytes);
  /// As the Report option says, for `device`; asks the driver what is free when the engine has not
  /// started. `context`: the caller's current one, or null.
  MemoryInfo memoryInfo(CUcontext context, CUdevice device);

  // --- the program's own virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap) --
  CUresult reserveAddress(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr* out);
  CUresult releaseAddress(CUdeviceptr address, uint64_t bytes);
  /// A physical allocation of ours; `handle` is unique and never one of the driver's (they are
  /// small; ours start at 2^62).
  CUresult createHandle(CUcontext context, CUdevice device, uint64_t bytes,
                        const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* handle);
  CUresult releaseHandle(CUmemGenericAllocationHandle handle);
  bool ownsHandle(CUmemGenericAllocationHandle handle) const { return handle >= (1ull << 62); }
  CUresult handleProperties(CUmemGenericAllocationHandle handle,
                            CUmemAllocationProp* properties) const;
  CUresult retainHandle(CUdeviceptr address, CUmemGenericAllocationHandle* handle);
  CUresult map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult unmap(CUdeviceptr address, uint64_t bytes);
  CUresult setAccess(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* descriptors,
                     size_t count);
  CUresult getAccess(CUdeviceptr address, const CUmemLocation& location,
                     unsigned long long* flags) const;

  // --- users of addresses that pass no launch: textures, IPC, exported handles, peer registration
  /// Keeps the allocation that holds `address` in VRAM until unpinned as often. Waits until it is
  /// there. `pinned`, where given, names it: it may be freed, and its address given out again,
  /// before it is unpinned.
  CUresult pin(CUdeviceptr address, uint64_t* pinned = nullptr);
  /// CUDA_ERROR_INVALID_VALUE where nothing is pinned there, or other memory than `pinned` (0:
  /// whatever is).
  CUresult unpin(CUdeviceptr address, uint64_t pinned = 0);
  /// What an exported allocation lies in: `handles` of the driver's, mapped one behind the other,
  /// `offset` of the allocation's first byte in them.
  struct Exported {
    struct Piece {
      CUmemGenericAllocationHandle handle;
      uint64_t bytes;
    };
    std::vector<Piece> pieces;
    uint64_t offset = 0;
  };
  /// Makes the memory of the allocation that holds `address`, which is pinned, such that the driver
  /// exports its handles as file descriptors; it stays so until it is freed. The first time its
  /// bytes move, so launches that use it are waited for: CUDA_ERROR_NOT_READY when they don't end
  /// within ten seconds. The handles are valid while the allocation lives.
  CUresult makeExportable(CUdeviceptr address, Exported* out);

  /// [address, + bytes), outside the range or mapped by the driver into a reservation in it, may
  /// hold pointers into it that kernels follow. `context`: where it was made. Memory of kind kHost
  /// is at the same address for CPU and GPU. Roots do not overlap; one that is added again stays as
  /// it is. `registered`: the program's own memory, which it may unmap or protect at any time, also
  /// while it is a root.
  void addRoot(CUcontext context, CUdeviceptr address, uint64_t bytes, RootKind kind,
               bool registered = false);
  /// Before the memory goes. Waits for a pass that reads it.
  void removeRoot(CUdeviceptr address);
  /// Something is not in VRAM, or may leave it: operations have to say all that they do. One load.
  bool paging() const;
  /// False when no root overlaps [address, + bytes): a copy there is none of the pager's business.
  /// A few nanoseconds; may be true of what lies between roots.
  bool mayHoldRoot(uint64_t address, uint64_t bytes) const;

  /// Whether it pays to name kernels: one that goes beyond what it was taken to reach is reported
  /// by name.
  bool asksNames() const { return asks_names_; }

  /// The driver has answered something of work in `context`. Where a kernel has touched what is not
  /// mapped, a line says once what may be the reason.
  void answered(CUcontext context, CUresult result) {
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) illegalAccess(context);
  }

  // --- streams and contexts ----------------------------------------------------------------------
  /// Before the driver destroys a stream.
  void streamDestroyed(const StreamKey& stream);
  /// Before the driver is told to capture on a stream of `context`, and after it has answered: in
  /// between the pager records no event there. While anything captures it records none on streams
  /// that do, and synchronises no context.
  void captureBegins(CUcontext context);
  void captureBegan(bool begun);
  void captureEnded();
  /// Between the first and the last of these calls of any capture.
  bool capturing() const;
  /// Before and after a call that may make a stream of `context` part of another's capture.
  void streamMayJoin(CUcontext context);
  void streamJoined();
  /// Before a context is destroyed or its device reset: drops its allocations and the pager's own
  /// objects in it.
  void contextGone(CUcontext context);
  /// Before a green context goes, by the context that stands for it: drops what there is of its
  /// streams. Allocations made there have been made in the primary context, and stay.
  void greenContextGone(CUcontext context);
  /// Another device may access this one's allocations from now on (cuCtxEnablePeerAccess).
  CUresult peerEnabled(CUdevice accessing, CUdevice owner);

  /// Steps of loops over all regions so far: what must not grow with the square of the number of
  /// allocations. For tests.
  uint64_t regionSteps() const;

  /// In a forked child: closes what was the parent's; every later call answers
  /// CUDA_ERROR_NOT_INITIALIZED.
  void forked() noexcept;
  /// Stops pager threads, without any driver call. For exit; safe twice.
  void stop() noexcept;

 private:
  friend class Access;
  Pool() = default;
  CUresult allocateOne(CUcontext context, CUdevice device, uint64_t bytes, AllocationKind kind,
                       uint64_t at, CUdeviceptr* out);
  uint64_t base_ = 0;
  uint64_t end_ = 0;
  void illegalAccess(CUcontext context);

  bool asks_names_ = false;
  std::unique_ptr<PoolState> state_;
};

/// One GPU operation (launch, copy, memset, graph launch) that uses pool memory: names what it
/// uses, gets it mapped, stays valid while the driver call is made. A stack object of one thread;
/// the resident path takes no lock and makes no system call. Members are called in this order:
/// add*, acquire, (driver call), submitted. Destroying it without submitted() releases it as if the
/// driver had refused the call.
class Access {
 public:
  /// `context`/`stream`: where the operation will run. An operation that names no pool memory costs
  /// a few nanoseconds.
  Access(Pool& pool, const StreamKey& stream);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  /// A kernel: gives the launch its signature in the learned order. Call before addParameters.
  void setFunction(const void* function) {
    function_ = function;
    follows_pointers_ = true;  // also without parameters: module globals
  }
  /// The kernel's name, for reports (Pool::asksNames). It lives as long as the process.
  void setName(const char* name) { name_ = name; }
  /// Every 8-byte word at 4-byte steps of a kernel parameter (or an `extra` buffer) that lies in
  /// the range names an allocation; the launch reads and writes it. `bytes` may be below 8 (then
  /// nothing).
  void addParameter(const void* bytes_at, size_t bytes);
  /// A kernel whose parameters nobody can tell: it may reach any allocation.
  void addEverything() { reaches_everything_ = follows_pointers_ = true; }
  /// An exact range, known from the function's specification. 0 bytes: nothing. Of an address
  /// outside the range only that it is written matters, where a root may lie.
  void addRange(uint64_t address, uint64_t bytes, Mode mode);
  /// The operation copies `bytes` from host memory, whose words may be addresses of the range that
  /// kernels follow later. `stable`: the bytes can't change before the copy is made (pageable
  /// source, or a synchronous copy).
  void addHostSource(const void* host, uint64_t bytes, bool stable);
  /// Everything that a graph reaches.
  void addReach(const ReachSet& set);
  /// Nothing is used: the driver only looks where the ranges are mapped, and notes it. Those that
  /// belong to no allocation any more are left out; what is in host memory in place comes to VRAM
  /// if that can be had in a bounded time.
  void onlyShow() { only_shows_ = true; }
  /// True when something was named.
  bool any() const { return count_ != 0 || reaches_everything_ || !root_writes_.empty(); }
  /// For a launch recorded by a capture or put in a graph node: what it names, instead of
  /// acquire().
  void collect(ReachSet& into) const;

  /// Makes all of it mapped: waits for fetches a bounded time, then maps in place.
  /// CUDA_ERROR_OUT_OF_MEMORY when neither can be had; an address in the range that belongs to no
  /// allocation is CUDA_ERROR_ILLEGAL_ADDRESS for addRange and ignored for parameters (ordinary
  /// data can look like an address).
  CUresult acquire();
  /// The driver call was made (or refused: result != CUDA_SUCCESS).
  void submitted(CUresult result);

 private:
  struct Use {
    uint64_t address;
    uint64_t bytes;  // 0: unknown (a kernel parameter)
    Mode mode;
  };
  static constexpr unsigned kInlineUses = 40;
  Use& push();
  Use& pushMore();
  const Use& use(unsigned i) const { return i < kInlineUses ? inline_[i] : more_[i - kInlineUses]; }
  void addWord(uint64_t word);
  void addOutside(uint64_t word);
  CUresult acquireSlow();
  CUresult nameAll(Closure& closure);
  CUresult await(Closure& closure, Lock& lock, uint64_t* waited_ns);
  void commit(Closure& closure, uint64_t waited_ns);
  void assumeStored(const Closure& closure);
  void noteWritten(const Use& write, Region& region, const Closure& closure, uint64_t number);
  bool crosses(const StreamState& stream, const Region& region) const;
  void reachAcross(StreamState& stream);
  void findDevice(StreamState& stream) const;
  void writesRoots(const Closure& closure, uint64_t number);
  TimedLaunch* chooseTimed(std::span<Region* const> named);

  Pool& pool_;
  StreamKey stream_;
  const void* function_ = nullptr;
  const char* name_ = nullptr;
  const ReachSet* graph_ = nullptr;  // until acquire() returns
  const void* host_source_ = nullptr;
  uint64_t host_bytes_ = 0;
  bool host_stable_ = false;
  bool follows_pointers_ =
      false;  // a kernel or a graph: its reach goes on through pointers in memory
  bool reaches_everything_ = false;
  bool only_shows_ = false;
  Use inline_[kInlineUses];
  std::vector<Use> more_;                // beyond kInlineUses
  std::vector<uint64_t> outside_words_;  // parameters that may lie in a root
  std::vector<Use> root_writes_;         // what is written where roots may lie
  unsigned count_ = 0;
  StreamState* stream_state_ = nullptr;  // set while acquired
  uint64_t number_ = 0;                  // of this operation, while acquired
  TimedLaunch* timed_ = nullptr;         // this launch is timed
  uint64_t traced_ = 0;                  // when it was ready to go; 0: nobody traces
};

}  // namespace olpager::pager
