// Acquiring what one operation uses, as an object: from the first look at what it names until it
// has its number. The object belongs to nobody's stack frame: if its caller goes away before it is
// ready, keep() makes it own what it needs.
//
//   state        what holds                                       left by
//   described    nothing has been looked at                       begin
//   waiting      something is missing and has been asked for;     ready, cancel
//                what is reached is held (Region::wanted)
//   ready        all that it reaches can be used; it is held      ready, commit, cancel
//   refused      it can't be had, result() says why; nothing is   -
//                held or asked for any more
//   committed    it has its number, and the committing thread     -
//                its hazard; nothing is held any more
//   cancelled    nothing is held or asked for any more            -
//
//   begin    described -> waiting | ready | refused
//   ready    waiting | ready -> waiting | ready | refused: looks again, and does not wait
//   commit   ready -> committed, in one go; where it is not ready any more, as ready
//   cancel   described | waiting | ready -> cancelled
//
// Every member runs under PoolState::mutex; one thread at a time uses an object, and it need not be
// the same one each time. The thread that commits makes the driver call next (Access::submitted()):
// the hazard slot is that thread's. A ready object stays ready while the mutex is not released.
// After that it has to be looked at again before commit(): other launches may have stored pointers
// that lead further, and older ones may take memory back (Wants::hold).
//
// Managed memory that the CPU has is asked for by a claim (shared/claim.h), as is memory that other
// executors have: the object is ready when it claims all that it reaches of such memory, and has
// submitted the claim when committed.
//
// A waiting one is moved on as follows: engines serve its wants (wants.h), and whenever something
// becomes stable PoolState::changed rings. Then ready() is called.
//
// An object that waits holds regions: who frees one of them waits until the object lets go of it.
// The object lets go when it is over (committed, cancelled), or when ready() finds that something
// is freed: then it starts over, and no pointer leads to what is freed (Region::dead). So a thread
// that keeps one goes on calling ready(), or commits or cancels it, before it frees what it
// reaches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "pager/launch/asked.h"
#include "pager/launch/operation.h"
#include "pager/reach/closure.h"
#include "pager/shared/claim.h"

namespace olpager::pager {

struct DeviceWhy;

/// For `olpagestat --why`: a graph that reaches `bytes` has been launched. Any thread, no lock.
void countGraphLaunch(unsigned device, uint64_t bytes, bool is_beyond, bool in_parts);

// Many members: a step for each thing that an operation may lack.
class Acquisition {
 public:
  enum class State : uint8_t { kDescribed, kWaiting, kReady, kRefused, kCommitted, kCancelled };

  /// `operation` is the caller's until the object is over, or keep().
  Acquisition(PoolState& state, const Operation& operation);
  /// Under the mutex as well, unless it is over: as cancel().
  ~Acquisition();
  Acquisition(const Acquisition&) = delete;
  Acquisition& operator=(const Acquisition&) = delete;

  State begin(Lock& lock);
  State ready(Lock& lock);
  /// `into` is left as it is unless this returns kCommitted, or an exception comes after the number
  /// was taken.
  State commit(Lock& lock, Submission& into);
  void cancel(Lock& lock);

  /// True if the object waits for a host function, and need not wait longer (deferred.h).
  bool mayDefer() const;
  /// Gives it up, for a deferred launch, whose id this returns.
  uint64_t defer(Lock& lock);
  /// Before begin(): it waits for no host function, and for no code.
  void followsNobody() { follows_nobody_ = true; }

  /// From here on nothing is the caller's: copies what is.
  void keep();

  State state() const { return now_; }
  /// True if the object waits for other agents, for a host function or for code: nothing here
  /// hurries these.
  bool waitsForOthers() const { return held_back_ || !claim_.isRunnable(); }
  /// True if the object claims what other agents have: a touch of the CPU's waits for that until it
  /// is submitted.
  bool claims() const { return claim_.isAsked(); }
  /// Once it is refused: what the operation is to return. Else CUDA_SUCCESS.
  CUresult result() const { return result_; }
  /// Set if the object is refused since its caller makes it in parts (Access::inPartsBeyondVram()).
  const std::optional<GraphBeyond>& beyond() const { return beyond_; }
  const StreamKey& stream() const { return operation_->stream; }

 private:
  State describe(Lock& lock);
  State startOver(Lock& lock);
  // One turn, in this order.
  void chooseFetched();
  void hear();
  bool reachesManaged() const;
  uint64_t behind() const;
  bool followsFunction() const;
  bool awaitsCode() const;
  void unsealWritten(Lock& lock);
  State look(Lock& lock);
  CUresult nameAll(Closure& closure) const;
  bool isBetterInParts(const Closure& closure) const;
  State leaveToParts(Lock& lock, const Closure& closure);
  State refuse(Lock& lock, CUresult result);
  void stopWaiting();

  // commit.cpp: what the operation's number is written to.
  uint64_t takeNumber(Submission& into);
  void stampReached(const Submission& into, Engine** engine, bool* in_place);
  void assumeStored();
  void noteNames();
  void noteWritten(const Uses::Use& write, Region& region, uint64_t number);
  void writesRanges(uint64_t number);
  void writesRoots(uint64_t number);
  TimedLaunch* chooseTimed();
  TimedLaunch* chooseTimedTensor();
  void count(Engine& engine, bool in_place, Submission& into);
  void countWhy(const Engine& engine, bool in_place);
  void countGraph(const Engine& engine) const;
  void countInPlace(const Engine& engine, DeviceWhy& why, const char* kernel) const;

  PoolState& state_;
  const Operation* operation_;
  // Owned by an object whose caller has gone.
  std::unique_ptr<const Operation> own_;
  std::unique_ptr<const ReachSet> own_graph_;
  std::vector<char> own_source_;

  Closure closure_;
  Asked asked_;  // refers to closure_
  Claim claim_;
  State now_ = State::kDescribed;
  CUresult result_ = CUDA_SUCCESS;
  bool held_back_ = false;       // it waits for a host function before it, or for code
  bool follows_nobody_ = false;  // it is deferred, and its function over
  bool in_vain_ = false;         // what would be better fetched is not waited for any more
  bool failed_ = false;          // an engine has given up
  bool lost_ = false;            // so has the lower tier
  bool scan_late_ = false;       // a scan that it waits for was not begun or done in time
  bool no_scan_ = false;         // nor was it until an engine has given up
  std::optional<GraphBeyond> beyond_;
  uint64_t began_ns_ = 0;   // when something was missing first; 0: nothing was
  uint64_t waited_ns_ = 0;  // 0 likewise
};

}  // namespace olpager::pager
