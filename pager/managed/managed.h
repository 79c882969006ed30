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
// Pages that the CPU only reads are not copied back. There are no replicas for that: every launch
// counts as a write of all that it reaches, so both sides would hardly ever read at one time. The
// CPU takes the page alone, and tells reads from writes by the view's protection (Frames::written).
// The page's VRAM chunk is free meanwhile, and keeps its bytes until it is needed for something
// else (ChunkStore::keepVram). If the CPU has written the page, or the chunk is gone, the page
// comes from its frame, as any other. Nor is a page written down that has not changed since it came
// from host memory.
//
// The pool as an agent is PoolAgent (shared/pool_agent.h). The agent's requests are served here so:
//
//   fetch, clear   nothing to do: the bytes are in the frame, or there are none
//   take           the frame is the page's host chunk; what the CPU has written VRAM has no more
//   give           the frame stays where it is
//   release        nothing to do
//   newOperation   each claim is an operation; the exchange gives its age
//
// A launch that reaches managed memory and lacks some of it is told to the directory (Claim). All
// others are untold.
//
// Threads and locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise.
// The agent's thread takes what the exchange has for the pool; a thread that posts rings its bell
// under the exchange's mutex.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "coherence/directory/exchange.h"
#include "coherence/directory/extent_numbers.h"
#include "pager/managed/cpu_agent.h"
#include "pager/shared/pool_agent.h"

namespace olpager::pager {

class Managed final : public PoolAgent {
 public:
  /// The agents of a pool, at its first managed allocation. Fails with one line where the system
  /// does not let us see page faults. Without the mutex.
  static Result<std::unique_ptr<Managed>> start(PoolState& state);
  ~Managed() override;

  /// Frames for a region's pages: as much host RAM as the region has bytes. Without the mutex.
  static Result<std::shared_ptr<Frames>> makeFrames(uint64_t address, uint64_t pages);
  /// The region's pages are known to both agents from now on, and nobody's. The region's extents
  /// are kEmpty and become kAbsent. The frames are pinned for the GPU; a context is current.
  /// Releases the mutex.
  Status add(Region& region, std::shared_ptr<Frames> frames, Lock& lock);
  /// Both agents forget its pages.
  void drop(Region& region, Lock& lock) override;

  /// The CPU asks for these; the caller holds no lock.
  void wantOnCpu(directory::ExtentId first, uint32_t count) { cpu_->want(first, count); }

  /// The devices whose kernels use managed memory, wherever it is: all that the program sees.
  /// Without the mutex.
  std::span<const CUdevice> devices() const { return devices_; }

  void forked() noexcept override;
  /// Before the threads end: the CPU gets the pool's pages, as far as that is done by `until_ns`.
  /// Releases the mutex.
  void bringHome(uint64_t until_ns, Lock& lock);
  /// Pages that callHome() has called, by ExtentId.
  using Called = std::vector<bool>;
  /// The CPU asks for the pool's pages, each once, whatever reaches it. Returns how much is not
  /// there yet, of launches that wait for pages as well. May release the mutex.
  uint64_t callHome(Called& called, Lock& lock);
  void stopThreads() noexcept override;

 private:
  explicit Managed(PoolState& state);
  void serveNow();
  void heed(const std::vector<directory::Action>& news);

  void tell() override;
  void turn(Lock& lock) override;
  bool take(Extent& extent) override;
  void give(Extent& extent) override;
  std::unique_ptr<ToldOperation> newOperation() override;
  void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
             directory::Content have, Lock& lock) override;
  void clear(directory::ExtentId extent, Lock& lock) override;
  void release(directory::ExtentId, Lock&) override {}
  void failed(directory::Age age, directory::ExtentId extent) override;
  void post(const directory::Message& message) override;
  void violated(const directory::Action& action) override;

  std::vector<CUdevice> devices_;  // since start()
  directory::Exchange exchange_;
  std::atomic<bool> violated_{false};
  std::atomic<uint32_t> violated_extent_{0};
  std::atomic<int> violated_kind_{0};
  std::unique_ptr<CpuAgent> cpu_;
  // Under the mutex:
  directory::ExtentNumbers numbers_;
  std::vector<directory::Message> inbox_;
};

}  // namespace olpager::pager
