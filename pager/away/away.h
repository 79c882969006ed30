// Pages of a pool that other executors have: the pool as an agent of a directory elsewhere, as
// managed memory is one of the directory's here (managed/managed.h).
//
// In the unified view of several executors all plain device memory is such: a region comes with
// olpager_agent_region, its extents are of one page each, kAbsent, and are the directory's first,
// first + 1, ... Once an extent is granted it is an ordinary one: VRAM, host memory and memservers
// are the engine's to choose. Unlike a managed page it has no place of its own in host RAM; its
// frame, to other executors, is the host chunk that it is parked in.
//
// What Elsewhere asks (tiers/elsewhere.h), and what is done:
//
//   fetch      a host chunk is taken (where there is none, it is asked for again: `short_`), the
//              link fetches into it; at landed() Elsewhere::landed()
//   clear      nothing: memory that nobody has written has no contents
//   grant      kAbsent -> kParked with that chunk and the giver's hash, a scan due; without a chunk
//              -> kEmpty
//   stop       Extent::leaving; Engine::giveAway() takes it out of VRAM, out of place, or back from
//              a memserver. When it is parked: quiet()
//   go         it stays after all
//   yield      kParked -> kAbsent; the chunk is kept in `frames_`, and named to the link with the
//              message that says so (given)
//   release    the chunk in `frames_` is the store's again; link: taken_back
//   lend       never yet: what an executor needs it needs for itself alone
//
// A chunk in `frames_` or `coming_` belongs to no extent: the engine never sees it, and it counts
// as in use in the host tier. Of what the directory calls retained a few stay, with their hash: one
// that comes back with the same hash is not read (AwayLink::fetch). They go when host memory is
// short (shed).
//
// Operations. AwayClaim is to an Acquisition what ManagedClaim is, and asks under the age that the
// calling thread has said (olpager_operation). One that lacks nothing is untold. An operation may
// be made by several acquisitions, as a long copy is: the first one that lacks something tells the
// directory all that the operation uses (`uses`), and what is claimed then stays until the last one
// is over.
//
// Scans ahead. Before a page leaves, what launches have written since its last scan is scanned for
// pointers to it. Whoever takes the page waits for that, and what an executor's kernels reach may
// be gigabytes. So a pass over what is complete is made every few operations, where pages have left
// not long ago.
//
// Arrivals. A page comes into a host chunk. Where there is room the engine brings it to VRAM and
// scans it at once (Engine::bringArrivals): pages that travel with a move of all are named by a
// launch soon, and each launch would wait for its own.
//
// A free. The home says kForget of each page. When it has said so of all of a region's, the region
// is dropped as a freed one is (dropRegion), and only then the agent hears of it, and the home of
// kForgotten: its addresses may be another region's at once. A thread of its own does that
// (dropFreed): it waits until nothing holds the region, and what holds it may wait for pages, of
// which the thread that hears the home has to hear.
//
// Scans. A page that comes is scanned before a launch follows pointers in it (Extent::scan_due), as
// what the CPU has written. What its bytes name that is elsewhere is asked for then: edges do not
// travel yet.
//
// Locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise. Calls of
// the link are made under it and take only the worker's leaf. Owner: PoolState, from
// olpager_agent_start to the end of the process. A thread of its own (run) looks for operations
// that are over while somebody waits for their pages, and for host chunks while some are short; it
// waits on `bell_`. The one that drops what is freed waits on `freed_bell_`.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <semaphore>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "pager/away/link.h"
#include "pager/launch/in_flight.h"
#include "pager/space/region.h"
#include "pager/tiers/elsewhere.h"

namespace olpager::pager {

struct PoolState;

/// An operation that a thread makes, by as many acquisitions as it takes.
struct AwayOperation {
  enum class Stage : uint8_t {
    kUntold,     // it has lacked nothing so far
    kTold,       // the directory knows what it needs
    kSubmitted,  // it has all of that, until `points` are over
    kOver,       // the directory has heard that it is complete
  };
  directory::Age age = directory::kNobody;
  directory::Age oldest = 0;
  bool alone = false;                               // nothing is before it
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // address and bytes
  // Under the mutex:
  Stage stage = Stage::kUntold;
  std::vector<StreamPoint> points;
};

class Away final : private Residence<Lock> {
 public:
  /// Starts the threads. Without the mutex.
  Away(PoolState& state, directory::AgentId agent, AwayLink& link);
  ~Away() override;

  /// Nobody has the new region's pages yet: its extents are kEmpty and become kAbsent.
  void add(Region& region);
  /// The region goes, since the home says so: here nothing is left of its pages. Its extents are
  /// kFreeing, nothing uses them. Releases the mutex.
  void drop(Region& region, Lock& lock);
  /// Its addresses are free: the home hears that its pages are forgotten, and may use them again.
  void dropped(const AwayRegion& region);
  /// Releases the mutex.
  void receive(std::span<const directory::Message> messages, Lock& lock);
  /// Extents of regions so far are below this.
  directory::ExtentId extents() const {
    return static_cast<directory::ExtentId>(region_of_.size());
  }
  void landed(directory::ExtentId extent, directory::Number number, std::optional<ContentHash> hash,
              Lock& lock);
  /// Host memory is short: what other executors have as well is not kept. It may come back a moment
  /// later.
  void giveRetained(Lock& lock);
  /// Pages that are kept though another executor has taken them: they may come back as they left.
  /// Any thread, without the mutex.
  uint64_t retained() const { return retained_.load(std::memory_order_relaxed); }
  /// The extent is parked in a host chunk and stays so, in answer to stop().
  void parked(Extent& extent, Lock& lock);

  /// The extent's bytes are lost, and another executor waits for them: the session ends.
  void lost(const Extent& extent);

  /// Pages that have come, in their order, and that the engine has not brought to VRAM and scanned
  /// yet. Those that `keeps` does not keep are not shown again. It releases no mutex.
  void keepArrivals(const std::function<bool(Extent&)>& keeps);

  /// The calling thread makes this operation from now on; without the mutex.
  static void begin(directory::Age age, directory::Age oldest);
  static void alone();
  static void uses(uint64_t address, uint64_t bytes);
  /// It has been made. Whether the directory was told of it. Without the mutex.
  bool over();

  /// In a forked child.
  void forked() noexcept;
  /// Ends the threads. Without the mutex.
  void stopThreads() noexcept;

 private:
  friend class AwayClaim;
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
  struct Submitted {
    directory::Age age;
    std::vector<StreamPoint> points;
    bool isOver() const;
  };

  void run();
  void dropFreed();
  bool someoneWaits() const;
  bool completeThoseOver(Lock& lock);
  void scanAhead();
  void fetchShort(Lock& lock);
  void startFetch(const Key& key, directory::AgentId from, const Frame& frame);
  uint64_t retainedPages() const;
  Frame takeFrame(directory::ExtentId extent);
  void forget(const std::vector<directory::Message>& forgets);
  void send();
  Extent& extentAt(directory::ExtentId id);
  Engine& engineOf(directory::ExtentId id);

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
  AwayLink& link_;
  std::counting_semaphore<> bell_{0};
  std::atomic<uint64_t> retained_{0};  // written under the mutex
  std::atomic<bool> ended_{false};
  std::counting_semaphore<> freed_bell_{0};
  std::thread thread_, dropper_;
  // Under the mutex:
  Elsewhere<Lock> elsewhere_;
  std::vector<Region*> region_of_;  // by ExtentId
  std::deque<Region*> freed_;       // to be dropped
  std::vector<directory::ExtentId> arrived_;
  std::map<directory::ExtentId, Frame> frames_;
  std::map<Key, HostChunk*> coming_;
  std::deque<Short> short_;  // fetches that wait for a host chunk
  bool fetching_short_ = false;
  std::vector<Submitted> submitted_;
  std::set<directory::Age> failed_;  // operations that can't have what they need
  std::vector<directory::Message> outbox_;
  unsigned made_ = 0;           // operations since the last scan ahead
  unsigned scans_to_come_ = 0;  // more are made until something is given away again
};

/// What one acquisition claims of such memory. Under the mutex; as ManagedClaim, but its age is
/// given.
class AwayClaim {
 public:
  /// Of the operation that the calling thread makes, which outlives the claim.
  explicit AwayClaim(PoolState& state);
  /// As cancel().
  ~AwayClaim();
  AwayClaim(const AwayClaim&) = delete;
  AwayClaim& operator=(const AwayClaim&) = delete;

  /// Claims what of `needed` other executors may have, if some of it is away. `needed` only grows
  /// from call to call. False: the operation can't have it, and a line has said why.
  [[nodiscard]] bool ask(std::span<Extent* const> needed, Lock& lock);
  /// Of what has not asked for anything: whether it would have to, and must not before what is
  /// before it in its stream is over. What it has claimed others wait for, and those may be before
  /// it.
  bool mayNotAskYet(std::span<Extent* const> needed) const;
  /// It has asked, so others may take long.
  bool waits() const { return asked_ && !isRunnable(); }
  bool isRunnable() const;
  /// Whether the launch may go: it has claimed nothing, or claims everything. What it claims stays
  /// until the operation is over.
  [[nodiscard]] bool submit();
  /// The launch has this number.
  void begun(const StreamState& stream, uint64_t number);
  /// What was to be done is done: what is submitted is complete, else it is given up.
  void over(Lock& lock);
  /// It will not: unless it is submitted, the operation is given up.
  void cancel(Lock& lock);
  /// `needed` begins anew: some of it has been freed, the rest comes again.
  void again();

 private:
  bool isAway() const;
  static bool isAway(const Extent& extent);
  bool mayUseAgain(Lock& lock) const;
  void needUses();

  PoolState& state_;
  AwayOperation* const operation_;  // of the thread that makes it; null: it makes none
  std::vector<directory::Need> needs_;
  size_t looked_at_ = 0;  // of `needed`
  size_t told_ = 0;       // of needs_
  bool asked_ = false;    // and is not submitted
};

}  // namespace olpager::pager
