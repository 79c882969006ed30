// The program's side of one unit whose objects it uses: in the discrete view the GPUs of one
// gpunode, in the unified view the one device. A session holds the parts (session_parts.h), answers
// that stay valid, records on their way, and the numbers that it has given out. Records are sent
// and received by its executor (executor.h), which hands those that no thread waits for to the
// session.
//
// States: made -> up (open, start) -> initialized (cuInit has succeeded) -> ended (its executor is
// lost, or the program's end); final. In a forked child a session of its parent is out of reach,
// and one is made anew only where the parent had not called cuInit yet.
//
// Thread-safety: everything from any thread. Made by sessions.h, one for each gpunode, never
// destroyed. Errors: one line on standard error when the session is lost, then results of CUDA.
//
// Locks: one of its own, alone, while its end is said; what it has has its own (locks.h). No lock
// is held while a callback runs.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/settings.h"
#include "coherence/transport/transport.h"
#include "forwarding/wire/wire.h"
#include "interpose/forward/group.h"
#include "interpose/forward/sites.h"

namespace olpager::forward {

class AnswerCache;
class Arrivals;
class Executor;
class HostFunctions;
struct SessionParts;

class Session {  // Many members: each of its parts is one object, beside its executors.
 public:
  /// With an executor at each of `sites`, several in the unified view alone: they are number `slot`
  /// and those behind it of the program's `slots` workers.
  Session(const base::Settings& settings, std::span<const Site> sites, unsigned slot,
          unsigned slots);
  /// Gets its workers and connects to them. Then start() asks who they are; nothing else before.
  /// Once each.
  Status open();
  Status start();
  /// After start(), for several executors: `group` chooses the executor of each call.
  void formGroup(std::unique_ptr<Group> group);

  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  unsigned slot() const { return slot_; }
  /// In the numbers of its primary contexts.
  unsigned handleSlot() const { return unified_ ? kCommonSlot : slot_; }
  /// The executor of calls for which the group names no other one.
  Executor& executor() const { return *executors_[group_ == nullptr ? 0 : group_->active()]; }
  std::span<const std::unique_ptr<Executor>> executors() const { return executors_; }
  /// Null: the session has one executor.
  Group* group() const { return group_.get(); }
  /// The number of the program's worker whose pinned memory operations use now.
  unsigned side() const { return group_ == nullptr ? slot_ : group_->active(); }
  /// True if all its workers are on this host and map memory that has a descriptor.
  bool sharesMemory() const;
  /// Those of all its workers.
  auto sides() const {
    return std::views::iota(slot_, slot_ + static_cast<unsigned>(executors_.size()));
  }
  /// Memory that workers are to read or write by themselves is registered here: with one key for
  /// whichever executor, in place over lost links.
  const transport::DomainPtr& domain() const { return domain_; }

  uint64_t newNumber() { return newNumbers(1); }
  /// The first of so many.
  uint64_t newNumbers(uint64_t count) {
    return numbers_.fetch_add(count, std::memory_order_relaxed);
  }
  /// True if objects that a call's answer names are numbered here as well.
  bool namesAnswers() const { return unified_; }

  /// The client's knowledge of the session's objects.
  SessionParts& parts() const { return *parts_; }
  AnswerCache& answers() const { return *answers_; }
  /// Records for which no thread waits: bytes for the program's memory, and places in streams.
  Arrivals& arrivals() const { return *arrivals_; }
  HostFunctions& functions() const { return *functions_; }

  /// A stream that waits at the gate goes on.
  void openGate(uint32_t number);
  /// A host function has been called.
  void functionDone(uint32_t number);
  /// The export of this number can't be imported any more.
  void exportGone(uint32_t number);
  /// From now on calls in the context that wait return this.
  void breakContext(uint64_t context, CUresult why);
  /// A record will come for which no thread waits: the session receives also while no thread waits.
  /// nothingComes() ends that when the record has come, or comes no more.
  void somethingComes();
  void nothingComes(uint32_t count = 1) { coming_.fetch_sub(count); }
  /// somethingComes(), behind a call that is posted next: that wakes the receiver.
  void somethingComesBehindCall() { coming_.fetch_add(1); }
  bool coming() const { return coming_.load() != 0; }
  /// Sends the posted records.
  void flush();

  /// The failure of earlier calls in the current context for which no thread waited. Every call
  /// reports the failure that broke the context. A call that `tells` reports, once each, the
  /// failure of a call of this thread, else of another one.
  CUresult takeFailure(bool tells);

  /// A kernel's fault that broke the context, once the worker has reported it: calls for which no
  /// thread waits fail with it as well.
  CUresult faultOf(uint64_t context);

  bool initialized() const { return initialized_.load(std::memory_order_acquire); }
  void setInitialized() { initialized_.store(true, std::memory_order_release); }
  /// True if calls of other threads may end this thread's wait.
  bool othersCall() const;
  void atExit();
  bool ended() const { return ended_.load(); }

  // By the executor, which holds no lock meanwhile.
  /// A record that nobody waits for. Returns its fault, or null.
  const char* heard(const Executor& executor, const AnswerHead& head, Reader body);
  /// The line that an executor is lost for good, if it is the first; `leaving`: since goodbye was
  /// said. Before any call says so by its result: the program may end at once then.
  void sayLost(const Executor& executor, const std::string& why, bool leaving);
  /// The executor is lost, and its line is said.
  void lost(const Executor& executor, const std::string& why, bool leaving);

 private:
  const unsigned slot_, slots_;
  const bool unified_;
  const transport::DomainPtr domain_;
  std::vector<std::unique_ptr<Executor>> executors_;  // of a group: by their numbers
  std::unique_ptr<Group> group_;
  const std::unique_ptr<SessionParts> parts_;
  const std::unique_ptr<AnswerCache> answers_;
  const std::unique_ptr<Arrivals> arrivals_;
  const std::unique_ptr<HostFunctions> functions_;
  std::atomic<uint64_t> own_numbers_;
  std::atomic<uint64_t>& numbers_;  // those, or the program's
  std::atomic<bool> initialized_{false};
  std::atomic<bool> ended_{false};
  std::mutex saying_lost_;
  bool lost_is_said_ = false;
  std::atomic<uint32_t> coming_{0};  // answers that nobody waits for
};

}  // namespace olpager::forward
