// Managed memory of a pool: pages that the program's CPU and its GPUs have in turns.
//
// The directory (coherence/directory/) has two agents here, whose messages are calls: the pool with
// all its GPUs, and the CPU (cpu_agent.h). Each page of a managed region is an extent of the
// directory's and of the pager's.
//
// A page has one frame in host RAM for as long as its region lives (frames.h), and both agents use
// it: the CPU maps it, the pool parks the page in it. So nothing is copied from agent to agent:
//
//   the CPU gives    it drops its view; the page is kParked at the pool, and comes to VRAM as any
//                    other that is parked
//   the pool gives   the page leaves VRAM as a victim does: equal to what the frame holds it is
//                    dropped, else written down (residency/give_away.cpp). Then the CPU maps the
//                    frame
//
// What the CPU only reads is not copied back. There are no replicas for that: every launch counts
// as a write of all that it reaches, so both sides would hardly ever read at one time. The CPU
// takes the page alone, and tells reads from writes by the view's protection (Frames::written). The
// page's VRAM chunk is free meanwhile, and keeps its bytes until it is needed for something else
// (ChunkStore::keepVram). If the CPU has written the page, or the chunk is gone, the page comes
// from its frame, as any other. Nor is a page written down that has not changed since it came from
// host memory.
//
// The pool as an agent, an extent by what Elsewhere asks (tiers/elsewhere.h):
//
//   fetch, clear   nothing to do: the bytes are in the frame, or there are none
//   grant          kAbsent -> kParked; what the CPU has written VRAM has no more
//   stop           Extent::leaving: no launch may begin to use it; quiet() once it is parked
//   go             it stays after all
//   yield          kParked -> kAbsent
//   release        nothing to do
//   lend, lendOver never: what either agent needs it needs for itself alone
//
// A launch that reaches managed memory and lacks some of it is told to the directory
// (ManagedClaim): what it claims stays until the launch is over. All others are untold.
//
// Threads and locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise.
// A thread of its own (run) takes what the exchange has for the pool; it waits on `bell_`, which
// whoever posts rings under the exchange's mutex.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "coherence/directory/exchange.h"
#include "pager/launch/in_flight.h"
#include "pager/managed/cpu_agent.h"
#include "pager/space/region.h"
#include "pager/tiers/elsewhere.h"

namespace olpager::pager {

struct PoolState;

class Managed final : private Residence<Lock> {
 public:
  /// The agents of a pool, at its first managed allocation. Fails with one line where the system
  /// does not let us see page faults. Without the mutex.
  static Result<std::unique_ptr<Managed>> start(PoolState& state);
  ~Managed() override;

  /// Frames for a region's pages: as much host RAM as the region has bytes. Without the mutex.
  static Result<std::shared_ptr<Frames>> makeFrames(uint64_t address, uint64_t pages);
  /// The region's pages are known to both agents from now on, and nobody's. Its extents are kEmpty
  /// and become kAbsent. Its frames are pinned for the GPU; a context is current. Releases the
  /// mutex.
  Status add(Region& region, std::shared_ptr<Frames> frames, Lock& lock);
  /// The region is freed: both agents forget its pages. Its extents are kFreeing, nothing uses
  /// them. Releases the mutex.
  void drop(Region& region, Lock& lock);

  /// The CPU asks for these; whoever calls holds no lock.
  void wantOnCpu(directory::ExtentId first, uint32_t count) { cpu_->want(first, count); }

  /// The extent is parked and stays so, in answer to stop().
  void parked(Extent& extent, Lock& lock);

  /// Whose kernels use managed memory, wherever it is: all that the program sees. Without the
  /// mutex.
  std::span<const CUdevice> devices() const { return devices_; }

  /// In a forked child.
  void forked() noexcept;
  /// Before the threads end: the CPU gets what the pool has, as far as that is done by `until_ns`.
  /// Releases the mutex.
  void bringHome(uint64_t until_ns, Lock& lock);
  /// Pages that callHome() has called, by ExtentId.
  using Called = std::vector<bool>;
  /// The CPU asks for what the pool has, each page once, whatever reaches it. Returns how much is
  /// not there yet, of launches that wait for pages as well. May release the mutex.
  uint64_t callHome(Called& called, Lock& lock);
  /// Ends the threads. Without the mutex.
  void stopThreads() noexcept;

  static directory::ExtentId idOf(const Extent& extent);

 private:
  friend class ManagedClaim;
  /// What a launch has claimed that is under way.
  struct Submitted {
    directory::Age age;
    StreamPoint launch;
  };

  explicit Managed(PoolState& state);
  void run();
  void serveNow();
  bool someoneWaits() const;
  void tell();
  void receive(Lock& lock);
  void heed(const std::vector<directory::Action>& news);
  bool completeThoseOver(Lock& lock);
  Extent& extentAt(directory::ExtentId id);

  void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
             directory::Content have, Lock& lock) override;
  void clear(directory::ExtentId extent, Lock& lock) override;
  void grant(directory::ExtentId extent, directory::Mode mode, Lock& lock) override;
  void yield(directory::ExtentId extent, Lock& lock) override;
  void release(directory::ExtentId extent, Lock& lock) override;
  void stop(directory::ExtentId extent, Lock& lock) override;
  void go(directory::ExtentId extent, Lock& lock) override;
  void lend(directory::ExtentId extent, Lock& lock) override;
  void lendOver(directory::ExtentId extent, Lock& lock) override;
  void runnable(directory::Age age) override;
  void failed(directory::Age age, directory::ExtentId extent) override;
  void post(const directory::Message& message) override;
  void violated(const directory::Action& action) override;

  PoolState& state_;
  std::vector<CUdevice> devices_;  // since start()
  directory::Exchange exchange_;
  std::counting_semaphore<> bell_{0};
  std::atomic<bool> ended_{false};
  std::atomic<bool> violated_{false};
  std::atomic<uint32_t> violated_extent_{0};
  std::atomic<int> violated_kind_{0};
  std::unique_ptr<CpuAgent> cpu_;
  std::thread thread_;
  // Under the mutex:
  Elsewhere<Lock> elsewhere_;
  std::vector<Region*> region_of_;                               // by ExtentId
  std::map<directory::ExtentId, directory::ExtentId> free_ids_;  // first and count
  std::vector<Submitted> submitted_;
  uint64_t asking_ = 0;  // claims that wait
  std::vector<directory::Message> inbox_;
};

/// What one launch that waits claims of managed memory. Under the mutex.
class ManagedClaim {
 public:
  explicit ManagedClaim(PoolState& state) : state_(state) {}
  /// As cancel().
  ~ManagedClaim();
  ManagedClaim(const ManagedClaim&) = delete;
  ManagedClaim& operator=(const ManagedClaim&) = delete;

  /// Claims what of `needed` is managed, if some of it is away. `needed` only grows from call to
  /// call.
  void ask(std::span<Extent* const> needed, Lock& lock);
  bool isAsked() const { return age_ != directory::kNobody; }
  bool isRunnable() const;
  /// Whether the launch may go: it has claimed nothing, or claims everything. What it claims stays
  /// until completed().
  [[nodiscard]] bool submit();
  /// The launch has this number.
  void begun(const StreamState& stream, uint64_t number);
  /// What was to be done is done: what is submitted is complete, else it is given up.
  void over(Lock& lock);
  /// It will not: unless it is submitted, it is given up.
  void cancel(Lock& lock);
  /// `needed` begins anew: some of it has been freed, the rest comes again.
  void again();

 private:
  PoolState& state_;
  std::vector<directory::Need> needs_;
  size_t looked_at_ = 0;  // of `needed`
  size_t told_ = 0;       // of needs_
  directory::Age age_ = directory::kNobody;
  bool submitted_ = false;
};

}  // namespace olpager::pager
