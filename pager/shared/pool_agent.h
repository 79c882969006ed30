// The pool as an agent of a directory: pages that it has in turns with other agents. Managed memory
// (managed/managed.h) and an executor of the unified view (away/away.h) derive from it, and a pool
// has one of them at most (PoolState::agent()). Code shared by both:
//
//   regions    each page of such a region is an extent of the directory's and of the pager's
//   claims     what operations ask for, and give up when they are over (claim.h)
//   asked for  what Elsewhere has the pager do (tiers/elsewhere.h):
//
//     grant      kAbsent -> kParked in a host chunk, a scan due; without a chunk -> kEmpty
//     stop       Extent::leaving: no launch may begin to use it; GivingAway::giveAway() brings it
//                to its host chunk, and parked() follows
//     go         it stays after all
//     yield      kParked -> kAbsent
//     lend       never: what an agent needs it needs for itself alone
//
// The deriving class gives the differences:
//
//   bytes      where a page's bytes come from and where they stay: fetch, clear, release, take,
//              give. A managed page has one frame for all agents, and nothing is copied. An
//              executor reads the page into a host chunk of its own
//   messages   post, flush, turn: calls of the exchange in this process, or records on a link
//   ages       newOperation: a launch on managed memory is one operation. operationOfThread: an
//              executor's operation has the age that its record came with
//   numbers    of extents: the home's in this process, or those that a record names
//
// Threads and locks: members run under PoolState::mutex, passed as Lock, unless they say otherwise.
// A thread of its own (run) waits on `bell_`, hears what has come (turn), and looks for operations
// that are over while somebody waits for their pages: nobody rings at their end.
#pragma once

#include <atomic>
#include <memory>
#include <semaphore>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "pager/launch/in_flight.h"
#include "pager/space/region.h"
#include "pager/tiers/elsewhere.h"

namespace olpager::pager {

struct PoolState;

/// An operation that the directory is told of once it lacks pages. Several acquisitions may make
/// one, as a long copy is made: then it is of the thread that makes them, and what is claimed stays
/// until the last one is over. Else it is of one claim.
struct ToldOperation {
  enum class Stage : uint8_t {
    kUntold,     // it has lacked nothing so far
    kTold,       // the directory knows what it needs
    kSubmitted,  // it has all of that, until `points` are over
    kOver,       // the directory has heard that it is complete
  };
  directory::Age age = directory::kNobody;
  directory::Age oldest = 0;
  bool alone = false;                               // nothing is before it
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // address and bytes, of all acquisitions
  // Under the mutex:
  Stage stage = Stage::kUntold;
  std::vector<StreamPoint> points;
};

class PoolAgent : protected Residence<Lock> {
 public:
  ~PoolAgent() override = default;
  PoolAgent(const PoolAgent&) = delete;
  PoolAgent& operator=(const PoolAgent&) = delete;

  /// The region is freed: here nothing is left of its pages. The extents are kFreeing, nothing uses
  /// them. Releases the mutex.
  virtual void drop(Region& region, Lock& lock) = 0;
  /// The extent is parked where others find its bytes and stays so, in answer to stop().
  void parked(Extent& extent, Lock& lock);

  /// In a forked child.
  virtual void forked() noexcept;
  /// Ends the threads. Without the mutex.
  virtual void stopThreads() noexcept;

 protected:
  PoolAgent(PoolState& state, directory::AgentId id) : state_(state), elsewhere_(id, *this) {}

  /// Last of all in the constructor of a derived class, whose destructor calls stopThreads().
  /// std::system_error as std::thread.
  void startThread();

  /// The extent is about to be granted: gives it its host chunk, if there is one. True: others may
  /// have put bytes there.
  virtual bool take(Extent& extent) = 0;
  /// The extent, parked, is about to be another agent's.
  virtual void give(Extent& extent) = 0;
  /// Steps have been made: their messages have to go.
  virtual void flush() {}
  /// The bell has rung, or somebody waits: does the rest of the work. May release the mutex.
  virtual void turn(Lock& lock) = 0;
  /// Called once a second or more often. Without the mutex.
  virtual void tell() {}
  /// True: the thread looks again before the bell rings, since others want pages that an operation
  /// under way may have claimed.
  virtual bool someoneWaits() const;
  /// The operation that the calling thread makes, which outlives its claims; null: it makes none.
  virtual ToldOperation* operationOfThread() const { return nullptr; }
  /// One acquisition is an operation by itself, and lacks pages. Null: it may not have them.
  virtual std::unique_ptr<ToldOperation> newOperation() { return nullptr; }

  /// Nobody has the pages of the region, which has its `shared()`: its extents are kEmpty and
  /// become kAbsent.
  void add(Region& region);
  /// First of all in drop(): no operation waits for its pages, and those that were to leave stay.
  void abandon(const Region& region, Lock& lock);
  /// Last of all: its numbers are nobody's.
  void remove(const Region& region);
  Extent& extentAt(directory::ExtentId id);
  /// All of the operation is submitted: it is complete when its points are over.
  void submitted(ToldOperation& operation);
  /// Paging has stopped, for a reason that is told.
  void stopPaging();

  void failed(directory::Age age, directory::ExtentId extent) override;
  void lend(directory::ExtentId extent, Lock& lock) final;
  void lendOver(directory::ExtentId extent, Lock& lock) final;

  PoolState& state_;
  std::counting_semaphore<> bell_{0};
  std::atomic<bool> ended_{false};
  // Under the mutex:
  Elsewhere<Lock> elsewhere_;
  std::vector<Region*> region_of_;  // by ExtentId
  uint64_t asking_ = 0;             // claims that wait

 private:
  friend class Claim;
  struct Submitted {
    directory::Age age;
    std::vector<StreamPoint> points;
    bool isOver() const;
  };

  void run();
  bool completeThoseOver(Lock& lock);
  void grant(directory::ExtentId extent, directory::Mode mode, Lock& lock) final;
  void yield(directory::ExtentId extent, Lock& lock) final;
  void stop(directory::ExtentId extent, Lock& lock) final;
  void go(directory::ExtentId extent, Lock& lock) final;
  void runnable(directory::Age age) final;

  std::thread thread_;
  // Under the mutex:
  std::vector<Submitted> submitted_;
  std::set<directory::Age> failed_;  // operations that can't have what they need
};

}  // namespace olpager::pager
