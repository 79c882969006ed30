// Pages of a pool that other executors have: the pool as an agent of a directory elsewhere, as
// managed memory is one of the directory's here (managed/managed.h).
//
// Designed, not built: nothing includes this yet (docs/internals/coherence.md, "A launch over two
// executors").
//
// In the unified view all plain device memory is such: a region comes with olpager_agent_region,
// its extents are of one page each, kAbsent, and are the directory's first, first + 1, ... Once an
// extent is granted it is an ordinary one: VRAM, host memory and lower tiers are the engine's to
// choose. Unlike a managed page it has no place of its own in host RAM; its frame, to other
// executors, is the host chunk that it is parked in.
//
// What Elsewhere asks (tiers/elsewhere.h), and what is done:
//
//   fetch      a host chunk is taken (waits behind an eviction where there is none: the extent is
//              in `short_`), the link fetches into it; at olpager_agent_landed Elsewhere::landed()
//   clear      Extent::blank, no chunk: zeros need none
//   grant      kAbsent -> kParked with that chunk, its hash unknown, a scan due; blank ones ->
//              kParked as managed blank ones
//   stop       Extent::leaving; Engine::giveAway() takes it out of VRAM, or from a lower tier back
//              to a host chunk. When it is parked: quiet()
//   go         it stays after all
//   yield      kParked -> kAbsent; the chunk is kept in `given_` and named to the link (given)
//   release    the chunk in `given_` is the store's again; link: taken_back
//   abort      link: abort, and the chunk is the store's again
//   lend       never yet: what an executor needs it needs for itself alone
//
// A chunk in `given_` or `coming_` belongs to no extent: the engine never sees it, and it counts as
// in use in the host tier.
//
// Operations. AwayClaim is to an Acquisition what ManagedClaim is, and asks under the age that the
// calling thread has said (olpager_operation). One that lacks nothing is untold. That a launch
// waits for other executors is told at once (onWait), not after a moment: nothing here ends such a
// wait soon.
//
// Scans. A page that comes is scanned before a launch follows pointers in it (Extent::scan_due), as
// what the CPU has written. What its bytes name that is elsewhere is asked for then: edges do not
// travel yet.
//
// Locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise. Calls of
// the link are made under it and take only the worker's leaf. Owner: PoolState, from
// olpager_agent_start to the end of the process. Without a thread of its own: the worker's agent's
// calls in, and completions are looked for by the pool's poll while somebody waits (as Managed::run
// does).
#pragma once

#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "pager/launch/in_flight.h"
#include "pager/space/region.h"
#include "pager/tiers/elsewhere.h"

struct OlpagerAgentLink;  // forwarding/agent.h

namespace olpager::pager {

struct PoolState;

class Away final : private Residence<Lock> {
 public:
  Away(PoolState& state, directory::AgentId agent, const OlpagerAgentLink& link);

  /// By olpager_agent_region: nobody has its pages yet. Releases the mutex.
  Status add(Region& region, directory::ExtentId first, Lock& lock);
  /// The home has told all executors to forget the region's pages, and here nothing is left of any.
  void forgotten(Region& region, Lock& lock);
  void receive(std::span<const directory::Message> messages, Lock& lock);
  void landed(directory::ExtentId extent, directory::Number number, bool good, Lock& lock);
  /// The extent is parked in a host chunk and stays so, in answer to stop().
  void parked(Extent& extent, Lock& lock);
  /// Host chunks are free again: what was short of one goes on.
  void roomAgain(Lock& lock);
  /// Claims of operations that are over. True: there were some.
  bool completeThoseOver(Lock& lock);

 private:
  friend class AwayClaim;
  using Key = std::pair<directory::ExtentId, directory::Number>;
  struct Submitted {
    directory::Age age;
    StreamPoint launch;
  };

  void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
             directory::Content have, Lock& lock) override;
  void abort(directory::ExtentId extent, Lock& lock) override;
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
  const OlpagerAgentLink& link_;
  Elsewhere<Lock> elsewhere_;
  std::vector<Region*> region_of_;  // by ExtentId
  std::map<Key, HostChunk*> given_, coming_;
  std::deque<Key> short_;  // fetches that wait for a host chunk
  std::vector<Submitted> submitted_;
};

/// What one launch that waits claims of such memory. Under the mutex; as ManagedClaim, but its age
/// is given.
class AwayClaim {
 public:
  /// Of the operation that the calling thread makes.
  explicit AwayClaim(PoolState& state);
  ~AwayClaim();
  AwayClaim(const AwayClaim&) = delete;
  AwayClaim& operator=(const AwayClaim&) = delete;

  void ask(std::span<Extent* const> needed, Lock& lock);
  bool isRunnable() const;
  [[nodiscard]] bool submit();
  void begun(const StreamState& stream, uint64_t number);
  void over(Lock& lock);
  void cancel(Lock& lock);

 private:
  PoolState& state_;
  const directory::Age age_, oldest_;
  std::vector<directory::Need> needs_;
  size_t looked_at_ = 0;  // of `needed`
  size_t told_ = 0;       // of needs_
  bool begun_ = false, submitted_ = false;
};

}  // namespace olpager::pager
