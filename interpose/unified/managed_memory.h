// Managed memory of a view over several executors (cuMemAllocManaged). The pages are the home's, as
// those of cuMemAlloc: they spread over all executors, and operations go where they are. The
// program's CPU uses them at the same addresses, in turns with the GPUs, as CUDA has it where a
// device has no concurrent managed access: the CPU touches nothing while kernels run that may use
// it. So the CPU is no agent of the directory. The CPU takes pages by a copy, as a program that
// calls cuMemcpyDtoH, and gives them back by one before the next operation.
//
//   page       kView: executors have it, a touch of the CPU's is a fault -> kRead: a copy of it is
//              in the CPU's frame, which a write still faults at -> kWritten: the frame has the
//              only valid bytes -> kView (give). kLost: its bytes can't be had, a touch is a
//              SIGBUS. Final
//   region     untouched: no operation has been sent since it was made, so that pages are zeros
//              and nothing is copied -> used (give)
//
// A fault waits until all that was sent has ended, then copies the page, and more of them where a
// thread touches one after the other (coherence/cpu/touches.h). Behind host functions it does not
// wait: the touch may be the function's. Nor does a fault wait for memory attached to the host
// (CU_MEM_ATTACH_HOST); for memory attached to a stream it waits for that one. Both stay with the
// CPU until an operation names them, or may use them without a name: in that stream, in a graph,
// behind a host function.
//
// Copies go in a stream of their own for each context, so no fault waits for the program's streams,
// and to the executor that owns the page, whichever is active and wherever the page is to go: so
// nothing moves for them, and no operation that is submitted there is in their way.
//
// Pages that can't go back stay with the CPU, and the operation fails.
//
// Owner: the session's executors. Threads: one serves faults, from the first allocation until
// stop(). The thread makes calls. So no thread touches managed memory with a lock that a call
// needs: what a call sends while the group's order is held is copied before (GroupCall), and what
// it tells is written without one. Nor does a handler of the program's run on a thread that has
// such a lock (interpose/forward/locks.h). Thread-safety: any thread. Locks: mutex_, held while
// pages are copied, above the group's order; ranges_mutex_, a leaf (interpose/forward/locks.h).
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/held_signals.h"
#include "base/result.h"
#include "coherence/cpu/frames.h"
#include "coherence/cpu/touches.h"
#include "coherence/cpu/userfaults.h"
#include "coherence/status/unified_counters.h"
#include "interpose/forward/group.h"
#include "interpose/forward/named.h"
#include "interpose/unified/home.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

class ManagedMemory {
 public:
  /// `paged`: false where the program is not to have any (the setting `managed`).
  /// `counters`: where it counts what is [managed] there, for as long as it lives.
  ManagedMemory(forward::Session& session, const Home& home, status::UnifiedCounters& counters,
                bool paged)
      : session_(session), home_(home), counters_(counters), paged_(paged) {}
  ~ManagedMemory();
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;

  /// True if faults of the CPU are served here; why not is told once. Starts the thread that serves
  /// them.
  bool available();
  /// The allocation of so many bytes at `base`, which begins a page, is managed from now on; it
  /// ends with `context`. The Error is one line.
  Status add(uint64_t base, uint64_t bytes, uint64_t context, unsigned flags);
  /// The allocation is freed, if it is managed. A touch is a SIGSEGV from now on.
  void remove(uint64_t base);
  void contextGone(uint64_t context);
  std::optional<forward::ManagedRange> at(uint64_t address);
  /// True if there is any.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  /// Sets the users of the allocation from now on, as Group::attachManaged().
  void attach(uint64_t base, unsigned flags, CUstream stream);

  /// An operation is about to be sent: on success the executors have all pages that it may use.
  /// Costs one load where the CPU has none.
  CUresult give(const forward::ManagedUse& use);
  /// The program ends: no fault is served any more. A touch of a page that the CPU has not got is a
  /// SIGBUS. Waits for that for a second at most.
  void stop() noexcept;

 private:
  enum class At : uint8_t { kView, kRead, kWritten, kLost };
  struct Region {
    uint64_t bytes = 0;
    uint64_t context = 0;
    CUstream stream = nullptr;  // of its copies
    unsigned attached = CU_MEM_ATTACH_GLOBAL;
    CUstream attached_to = nullptr;  // of CU_MEM_ATTACH_SINGLE
    bool untouched = true;
    std::unique_ptr<cpu::Frames> frames;
    std::vector<At> at;        // by page
    std::vector<bool> filled;  // likewise: whether the frame has memory
    uint32_t here = 0;         // pages that are kRead or kWritten
    bool busy() const { return untouched || here != 0; }
  };
  /// Pages of a region in a row.
  struct Run {
    uint32_t first = 0, count = 0;
  };

  // Without the mutex.
  void serve();
  void serve(const cpu::UserFault& fault);
  void awaitWork(uint64_t context, CUstream stream);
  void end();
  // Under the mutex.
  Status start();
  Region* find(uint64_t address);
  CUresult streamOf(uint64_t context, CUstream* stream);
  directory::ExtentId firstOf(const Region& region) const;  // its number among touches_
  bool fill(Region& region, Run run);
  void noteFilled(Region& region, Run run, bool filled);
  void bring(Region& region, uint32_t page, const cpu::UserFault& fault);
  static bool mayUse(const forward::ManagedUse& use, const Region& region);
  CUresult give(Region& region);
  CUresult copy(const Region& region, Run run, bool to_view);
  void lose(Region& region, Run run, const std::string& because);
  void noteBusy(const Region& region, bool was);

  forward::Session& session_;
  const Home& home_;
  status::UnifiedCounters& counters_;
  const bool paged_;
  std::atomic<uint32_t> busy_{0};  // regions of which give() would have to look at; under mutex_
  base::HoldingMutex mutex_;
  bool tried_ = false;
  std::unique_ptr<cpu::UserFaults> faults_;  // null: not available
  base::UniqueFd bell_;                      // rung to end the thread
  std::thread thread_;
  std::atomic<bool> runs_{false}, stopping_{false};
  std::mutex end_mutex_;  // a leaf
  bool ended_ = false;    // the thread
  std::condition_variable end_;
  mutable std::shared_mutex ranges_mutex_;
  std::map<uint64_t, uint64_t> ranges_;   // base and bytes
  std::atomic<size_t> count_{0};          // of them
  std::map<uint64_t, Region> regions_;    // by base
  std::map<uint64_t, CUstream> streams_;  // by context
  cpu::Touches touches_;
  uint64_t filled_ = 0;  // pages whose frames have memory
};

}  // namespace olpager::unified
