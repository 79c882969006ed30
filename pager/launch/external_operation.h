// Operations that a worker makes for its client (forwarding/operations.h), and how they wait for
// memory without a thread.
//
// A worker serves many streams, and can't stand still in one of them. So its thread makes a call in
// the name of an ExternalOperation. If the call lacks memory, Access::acquire() returns
// kSuspended: the driver has been given nothing, and the operation keeps the acquisition, which
// goes on. When that need not wait any more, `resumable` is called. The worker then makes the same
// call again in the name of the same operation, and acquire() goes on with what was kept.
//
//   state      what holds                                     left by
//   running    nothing is kept; a call may be being made      acquire -> suspended | running
//   suspended  `kept` waits; Suspended lists the operation    Suspended's thread -> resumable
//   resumable  `kept` need not wait; `resumable` was called   acquire -> running | suspended;
//                                                             giveUp -> running
//
// Ownership: its caller's, who deletes it while it runs, and leaves one that is suspended to the
// end of the process. Thread-safety: its calls are made by one thread at a time. `kept` is under
// PoolState::mutex, and Suspended's thread alone uses what is listed. `resumable` is called without
// a lock, by that thread.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/held_signals.h"
#include "pager/shared/pool_agent.h"
#include "pager/types.h"

namespace olpager::pager {

class Acquisition;
struct PoolState;

/// The result of Access::acquire() for an operation that it has suspended. No code of the driver's.
inline constexpr auto kSuspended = static_cast<CUresult>(1022);

struct ExternalOperation {
  ExternalOperation(void (*call)(void* of), void* data);
  ~ExternalOperation();

  /// The operation of the calling thread's calls; nullptr: they are the program's own.
  static ExternalOperation* current() noexcept;
  static void setCurrent(ExternalOperation* operation) noexcept;

  void (*const resumable)(void* of);  // nullptr: it is never suspended, its thread waits
  void* const of;
  std::optional<ToldOperation> told;  // of an executor of the unified view
  // Under the mutex: what was suspended.
  std::unique_ptr<Acquisition> kept;
};

/// The operations of a pool that are suspended. A thread of its own looks at each whenever
/// something has become stable.
class Suspended {
 public:
  explicit Suspended(PoolState& state) : state_(state) {}
  ~Suspended() { stopThread(); }
  Suspended(const Suspended&) = delete;
  Suspended& operator=(const Suspended&) = delete;

  /// Starts the thread, once. Any thread, without the mutex. std::system_error: there is none to be
  /// had.
  void start();
  /// Under the mutex: the operation's `kept` waits.
  void add(ExternalOperation& operation);
  /// The operation's call has ended without what it keeps, since its context has. Not while it is
  /// suspended; without the mutex.
  void giveUp(ExternalOperation& operation);
  /// Ends the thread, once the pool is stopped. Without the mutex.
  void stopThread() noexcept;
  /// In a forked child.
  void forked() noexcept;

 private:
  void run();

  PoolState& state_;
  std::once_flag started_;
  std::thread thread_;
  // Under the mutex:
  std::vector<ExternalOperation*> all_;
  bool stops_ = false;
};

}  // namespace olpager::pager
