// The pager of one process: the global address range, the allocations in it, and on each device the
// engine that keeps every page that a launch may touch mapped, in VRAM by prediction, else in host
// memory in place.
//
// How it is used (interposer, gpunode worker, tests):
//   auto pool = Pool::create(options, driver);
//   pool->allocate(ctx, bytes, ...)  -> an address in the range
//   Access access(*pool, stream); access.addParameter(...); access.acquire(); <driver call>;
//   access.submitted(result);
//
// Thread-safety: every member may be called from any thread unless it says otherwise. No pager lock
// is held across a driver call that can wait for the GPU. prepare() or the first allocation starts
// the pager's threads, no constructor does. Errors: what the program must see is a CUresult as
// native CUDA would return it; what stops the start is a Result.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "pager/allocations.h"
#include "pager/away/executor_memory.h"
#include "pager/driver_api.h"
#include "pager/launch/access.h"
#include "pager/launch/streams.h"
#include "pager/options.h"
#include "pager/programs/virtual_memory.h"
#include "pager/types.h"

namespace olpager::pager {

struct ExternalOperation;
struct PoolInside;
struct PoolState;  // private

/// Base classes: allocations (allocations.h), the program's own mappings
/// (programs/virtual_memory.h), streams and contexts (launch/streams.h), memory that other
/// executors have in turns (away/executor_memory.h). Access (launch/access.h) is how an operation
/// uses it.
class Pool : public Allocations, public VirtualMemory, public Streams, public ExecutorMemory {
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

  // --- budgets -----------------------------------------------------------------------------------
  /// The driver is out of memory on `device`: gives up to `bytes` of VRAM back to it, evicting what
  /// is in it if need be, and lowers the budget by as much. Waits some seconds at most. Returns the
  /// bytes given, 0 when that many can't be had.
  uint64_t relieve(CUdevice device, uint64_t bytes);
  /// VRAM that relieve() gave is free again: the budget is raised by it.
  void regain(CUdevice device, uint64_t bytes);
  /// From now on the device's VRAM budget is this, or the least that holds what does not fit below
  /// VRAM; memory beyond it leaves in the background. Before the device's first allocation: the
  /// first budget. Returns the new budget.
  uint64_t setVramBudget(CUdevice device, uint64_t bytes);
  /// From now on the host tier's limit is this, at most what the options give, or the least that
  /// holds what does not fit VRAM. Memory above the limit goes back to the system in the
  /// background. Returns the new limit.
  uint64_t setHostLimit(uint64_t bytes);
  /// As the Report option says, for `device`; asks the driver what is free when the engine has not
  /// started. `context`: the caller's current one, or null.
  MemoryInfo memoryInfo(CUcontext context, CUdevice device);

  /// True if there has been managed memory. One load.
  bool hasManaged() const;
  /// True if host functions are to be told of (Streams::hostFunctionBegins). Two loads at most.
  bool heedsHostFunctions() const;
  /// The CPU is about to use [address, + bytes) of managed memory: asks for its pages, and does not
  /// wait for them.
  void wantOnCpu(uint64_t address, uint64_t bytes);

  // --- users of addresses that pass no launch: textures, IPC, exported handles, peer registration
  /// Keeps the allocation that holds `address` in VRAM until unpinned as often. Waits until it is
  /// there. `pinned`, where given, names it: it may be freed, and its address given out again,
  /// before it is unpinned.
  CUresult pin(CUdeviceptr address, uint64_t* pinned = nullptr);
  /// CUDA_ERROR_INVALID_VALUE where nothing is pinned there, or other memory than `pinned` (0:
  /// whatever is).
  CUresult unpin(CUdeviceptr address, uint64_t pinned = 0);
  /// The memory of an exported allocation: `handles` of the driver's, mapped one behind the other,
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

  /// True if it pays to name kernels: one that goes beyond what it was taken to reach is reported
  /// by name.
  bool asksNames() const { return asks_names_; }

  /// Operations of a worker's may be suspended from now on (launch/external_operation.h).
  /// std::system_error: there is no thread for it.
  void startSuspending();
  /// As Suspended::giveUp().
  void giveUp(ExternalOperation& operation);

  /// The driver has answered something of work in `context`. If a kernel has touched unmapped
  /// memory, a line says once what may be the reason.
  void answered(CUcontext context, CUresult result) {
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) illegalAccess(context);
  }

  /// Steps of loops over all regions so far: they must not grow with the square of the number of
  /// allocations. For tests.
  uint64_t regionSteps() const;

  /// In a forked child: closes the parent's descriptors; every later call answers
  /// CUDA_ERROR_NOT_INITIALIZED.
  void forked() noexcept;
  /// Stops pager threads, without any driver call. For exit; safe twice.
  void stop() noexcept;

 private:
  friend class Access;
  friend struct PoolInside;  // of tests
  explicit Pool(std::unique_ptr<PoolState> state);
  void illegalAccess(CUcontext context);

  uint64_t base_;
  uint64_t end_;
  bool asks_names_;
  std::unique_ptr<PoolState> state_;
};

}  // namespace olpager::pager
