// Pages of a pool that other executors have. In the unified view of several executors a page of
// plain device memory is owned by one executor, and travels when another one needs it. This pool is
// one of the agents between which the home's directory moves the pages; managed memory is the same
// with a directory in this process (managed/managed.h).
//
// A region comes with olpager_agent_region. The extents are of one page each, kAbsent, and have the
// directory's numbers first, first + 1, ... Once an extent is granted it is an ordinary one: the
// engine chooses between VRAM, host memory and memservers. Unlike a managed page it has no place of
// its own in host RAM; its frame, to other executors, is the host chunk that it is parked in.
//
// PoolAgent (shared/pool_agent.h) is the pool as an agent. Requests to it are served here so:
//
//   fetch      a host chunk is taken (without one, the request is repeated: `short_`), the link
//              fetches into it; at landed() Elsewhere::landed()
//   clear      nothing: memory that nobody has written has no contents
//   take       the page's host chunk is that one, with the giver's hash
//   give       the chunk is kept in `frames_`, and named to the link with the message that says so
//              (given)
//   release    the chunk in `frames_` is the store's again; link: taken_back
//
// A chunk in `frames_` or `coming_` belongs to no extent: the engine never sees it, and it counts
// as in use in the host tier. Some pages that the directory calls retained stay, with their hash:
// one that comes back with the same hash is not read (AwayLink::fetch). Retained pages go when host
// memory is short (shed).
//
// Operations. A claim asks under the age that the calling thread has said
// (olpager_operation_enter). An operation that lacks nothing is untold. An operation may be made by
// several acquisitions, as a long copy is: the first one that lacks something tells the directory
// all that the operation uses, and claims stay until the last one is over.
//
// Scans ahead. Before a page leaves, launches' writes since its last scan are scanned for pointers
// to it. The executor that takes the page waits for that, and an executor's kernels may reach
// gigabytes. So a pass over complete operations is made every few operations, where pages have left
// not long ago.
//
// Arrivals. A page comes into a host chunk. If there is room the engine brings it to VRAM and scans
// it at once (Prefetcher::bringArrivals): pages that travel with a move of all are named by a
// launch soon, and each launch would wait for its own. A page that comes is scanned before a launch
// follows pointers in it (Extent::scan_due), like a page that the CPU has written. Pages elsewhere
// that its bytes name are asked for then: edges do not travel yet.
//
// A free. The home says kForget of each page. After the last one the region is dropped as a freed
// one is (dropRegion); only then the agent hears of it, and the home of kForgotten: its addresses
// may be another region's at once. A thread of its own does that (dropFreed): it waits until
// nothing holds the region, and the holder may wait for pages of which the thread that hears the
// home has to hear.
//
// Locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise. Calls of
// the link are made under it and take only the worker's leaf. Owner: PoolState, from
// olpager_agent_start to the end of the process. The agent's thread looks for host chunks as well
// while some are short. The thread that drops freed regions waits on `freed_bell_`.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <semaphore>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "pager/away/link.h"
#include "pager/shared/pool_agent.h"

namespace olpager::pager {

class Away final : public PoolAgent {
 public:
  /// Starts the threads. Without the mutex.
  Away(PoolState& state, directory::AgentId agent, AwayLink& link);
  ~Away() override;

  /// A new region of the home's.
  using PoolAgent::add;
  /// The region goes, since the home says so.
  void drop(Region& region, Lock& lock) override;
  /// The region's addresses are free: the home hears that its pages are forgotten, and may use them
  /// again.
  void dropped(const AwayRegion& region);
  /// Releases the mutex.
  void receive(std::span<const directory::Message> messages, Lock& lock);
  /// Extents of regions so far are below this.
  directory::ExtentId extents() const {
    return static_cast<directory::ExtentId>(region_of_.size());
  }
  void landed(directory::ExtentId extent, directory::Number number, std::optional<ContentHash> hash,
              Lock& lock);
  /// Host memory is short: what other executors have as well is not kept. Such a page may come back
  /// a moment later.
  void giveRetained(Lock& lock);
  /// Pages that are kept though another executor has taken them: they may come back as they left.
  /// Any thread, without the mutex.
  uint64_t retained() const { return retained_.load(std::memory_order_relaxed); }
  /// The extent's bytes are lost, and another executor waits for them: the session ends.
  void lost(const Extent& extent);

  /// Pages that have come, in their order, and that the engine has not brought to VRAM and scanned
  /// yet. Those that `keeps` does not keep are not shown again. The mutex stays held.
  void keepArrivals(const std::function<bool(Extent&)>& keeps);

  /// The operation has been made. Returns true if the directory was told of it. Without the mutex.
  bool over(ToldOperation& operation);

  void forked() noexcept override;
  void stopThreads() noexcept override;

 private:
  using Key = std::pair<directory::ExtentId, directory::Number>;
  struct Frame {
    HostChunk* chunk = nullptr;
    directory::Number number = 0;     // by which it is given; 0: it is not
    std::optional<ContentHash> hash;  // of what is in it
  };
  struct Short {
    Key key;
    directory::AgentId from;
  };

  void dropFreed();
  void scanAhead();
  void fetchShort(Lock& lock);
  void startFetch(const Key& key, directory::AgentId from, const Frame& frame);
  uint64_t retainedPages() const;
  Frame takeFrame(directory::ExtentId extent);
  void forget(const std::vector<directory::Message>& forgets);
  Engine& engineOf(directory::ExtentId id);

  void flush() override;
  void turn(Lock& lock) override;
  bool someoneWaits() const override;
  bool take(Extent& extent) override;
  void give(Extent& extent) override;
  ToldOperation* operationOfThread() const override;
  void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
             directory::Content have, Lock& lock) override;
  void clear(directory::ExtentId extent, Lock& lock) override;
  void release(directory::ExtentId extent, Lock& lock) override;
  void post(const directory::Message& message) override;
  void violated(const directory::Action& action) override;

  AwayLink& link_;
  std::atomic<uint64_t> retained_{0};  // written under the mutex
  std::counting_semaphore<> freed_bell_{0};
  std::thread dropper_;
  // Under the mutex:
  std::deque<Region*> freed_;  // to be dropped
  std::vector<directory::ExtentId> arrived_;
  std::map<directory::ExtentId, Frame> frames_;
  std::map<Key, HostChunk*> coming_;
  std::deque<Short> short_;  // fetches that wait for a host chunk
  bool fetching_short_ = false;
  std::vector<directory::Message> outbox_;
  unsigned made_ = 0;           // operations since the last scan ahead
  unsigned scans_to_come_ = 0;  // more are made until something is given away again
};

}  // namespace olpager::pager
