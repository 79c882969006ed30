// State that the parts of the pager share: one PoolState for each Pool. Private to pager/.
//
//   part       knows                                                      declared in
//   book       addresses: regions, pieces of arenas, small allocations    space/address_book.h
//   reach      who may still reach what: edges, roots, what is unscanned  reach/reach_graph.h
//   devices    engines, budgets, peers                                    residency/devices.h
//   lower      extents on their way to or from the tier below host RAM    tiers/lower_moves.h
//   programs   the program's own physical memory and its mappings         programs/mappings.h
//   managed    pages that the CPU has in turns with the GPUs                  managed/managed.h
//   away       pages that other executors have in turns with this pool        away/away.h
//   frees      memory freed in stream order                               deferred_frees.h
//   lost       contexts that a kernel has ended                           launch/lost_contexts.h
//   streams    which launches have completed (a lock of its own)          launch/in_flight.h
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "pager/away/away.h"
#include "pager/deferred_frees.h"
#include "pager/launch/code_loads.h"
#include "pager/launch/deferred.h"
#include "pager/launch/external_operation.h"
#include "pager/launch/host_functions.h"
#include "pager/launch/in_flight.h"
#include "pager/launch/lost_contexts.h"
#include "pager/locks.h"
#include "pager/managed/managed.h"
#include "pager/options.h"
#include "pager/predict/predict.h"
#include "pager/programs/mappings.h"
#include "pager/reach/reach_graph.h"
#include "pager/residency/devices.h"
#include "pager/residency/engine.h"
#include "pager/space/address_book.h"
#include "pager/tiers/lower_moves.h"

namespace olpager::pager {

/// Everything of one Pool. Lock order: locks.h.
// Many members: each part of the pool is one object here.
struct PoolState {
  PoolState(const PoolOptions& given, const DriverApi& functions)
      : options(given), driver(functions), streams(driver, launch_number) {}

  const PoolOptions options;
  const DriverApi driver;

  base::HoldingMutex mutex{kPoolMutex};
  /// An extent reached a stable state; launches that wait look again.
  base::Condition changed;

  /// Number of the newest launch.
  std::atomic<uint64_t> launch_number{0};
  StreamTable streams;
  /// Some extent is not in VRAM, or leaves it, or could at any time since there is managed memory:
  /// launches take the slow path. seq_cst against hazards.
  std::atomic<bool> slow{false};
  std::atomic<bool> forked{false};
  std::atomic<bool> has_managed{false};  // `managed` is there, and stays
  std::atomic<bool> is_executor{false};  // so is `away`
  std::atomic<int> draining{0};  // threads that synchronise a context and then look at `streams`

  // Under the mutex from here on.
  predict::Predictor predictor;
  AddressBook book{[this](uint32_t piece) { predictor.forget(2 * piece + 1); }};
  ProgramMappings programs;
  Devices devices;
  ReachGraph reach{options.reach, book, devices, programs};
  LowerMoves lower;
  DeferredFrees frees;
  LostContexts lost;
  // One of them at most, as agent():
  std::unique_ptr<Managed> managed;  // from the first managed allocation on
  std::unique_ptr<Away> away;        // where the pool is an executor among several
  /// The program's host functions. Operations behind one must not take what the function may touch.
  HostFunctions host_functions;
  uint64_t outside = 0;  // extents of live regions for which isOutside()
  bool stopped = false;
  CodeLoads loads;  // code that the driver loads beside managed memory
  std::vector<std::shared_ptr<DeferredLaunch>> deferred;
  uint64_t last_deferred = 0;
  Suspended suspended{*this};  // operations of a worker's that wait for memory

  /// The pool as an agent that has pages in turns with others; null: it is none.
  PoolAgent* agent() const {
    return managed != nullptr ? static_cast<PoolAgent*>(managed.get()) : away.get();
  }
  /// True if host functions may touch what others have: managed memory, and as an executor any
  /// page, since the program's managed memory is among them. Without the mutex.
  bool heedsHostFunctions() const { return has_managed.load() || is_executor.load(); }
  /// True if one that may is not over. Without the mutex.
  bool anyHostFunction() const { return host_functions.any(); }
  /// True if the order in which launches use memory matters. Not where all of it is in VRAM, which
  /// only an executor among several has to look at.
  bool learnsOrder() const { return outside != 0 || away == nullptr; }
  /// A launch uses the unit.
  void touch(predict::Unit unit, uint32_t signature) {
    if (learnsOrder()) predictor.touch(unit, signature);
  }
  /// `slow` as the extents say.
  void updateSlow();
};

/// A large region gets to know its pieces; its record as one unit is forgotten. Under the mutex.
void makeArena(PoolState& state, Region& region);

/// A kernel has touched unmapped memory: says so (LostContexts). False: that is the program's own
/// doing, since everything that it has is mapped for each launch. Under the mutex.
bool tellUnmapped(PoolState& state, CUcontext context);

/// Bytes that the lower tier has for this pool. 0 where everything is mapped for each launch: they
/// are of no use then.
uint64_t lowerCapacity(const PoolState& state);
/// The tiers below host RAM, as a message has them: "memservers", "disks", or both.
const char* lowerName(const PoolState& state);
/// The counters' figures of what the pool has room for, as it is now: memservers want memory back,
/// budgets change. Under the mutex.
void tellRoom(const PoolState& state);

/// Waits until every launch that is being made now has been submitted, and settles
/// ReachFloor::number by that; for a bounded time. Without the mutex.
void settleFloor(PoolState& state);
/// Synchronises contexts with launches in per-thread default streams that only their threads could
/// have marked. `number`: all launches up to it have been submitted. Without the mutex; waits for
/// the GPU. Nothing while something captures.
void drainUnmarked(PoolState& state, uint64_t number);
/// The device's engine, made and started by Pool::prepare() or at its first allocation, in
/// `context`. Under the mutex (released).
CUresult engineFor(PoolState& state, CUcontext context, CUdevice device, Lock& lock, Engine** out);
/// VRAM budget of a device and host limit of all together, found out once: what the program was
/// told before the first allocation is what it gets. Without the mutex; a context of the device is
/// current.
std::pair<uint64_t, uint64_t> budgetsOf(PoolState& state, CUdevice device);
/// Waits until [address, + bytes) of a region is in VRAM. The region is pinned by the caller. Under
/// the mutex (released).
CUresult bringToVram(PoolState& state, Region& region, uint64_t address, uint64_t bytes,
                     Lock& lock);
/// Frees a slot or an allocation whose work is done. Under the mutex (released).
CUresult freeQuiet(PoolState& state, CUdeviceptr address, Lock& lock);
/// Frees memory that was freed in stream order and whose event has come, waiting for one of those
/// until `until_ns`. True when something was freed. Under the mutex (released).
bool reapDeferred(PoolState& state, uint64_t until_ns, Lock& lock);
/// Memory whose pages other executors have in turns, at an address of the placed part that is free.
/// Nobody has its pages yet. Under the mutex (released).
CUresult addAway(PoolState& state, CUcontext context, CUdevice device, uint64_t base,
                 uint64_t pages, directory::ExtentId first, Lock& lock);
/// Takes a region away: it is quiet, and no launch names it any more. Under the mutex (released).
void dropRegion(PoolState& state, Region* region, Lock& lock);
/// A root that is in the table no more. Under the mutex (released).
void dropRoot(PoolState& state, Region& region, Lock& lock);
/// Gives the device's peers access to fixed mappings of the program's handles (vmm.cpp).
CUresult protectFixed(PoolState& state, Engine& engine, Lock& lock);
/// The engine goes: so do the extents of the program's handles, and their mappings (vmm.cpp).
void dropHandles(PoolState& state, Engine& engine, Lock& lock);

}  // namespace olpager::pager
