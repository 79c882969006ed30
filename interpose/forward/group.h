// Several executors of one session, as the unified view has them, seen from forwarded mode. The
// group chooses the executor of a call, and gives device memory its places. A session of one
// executor has no group, and its calls know of none.
//
// All executors have the same objects under the same numbers: a call that makes, changes or ends
// one goes to all of them, in the same bytes (Goes::kAll). Operations run at one executor at a
// time, the active one. The group changes which that is when an operation's memory is elsewhere,
// after all that was sent to the former one is complete: so streams, events and the default
// stream's rules hold as on one GPU, and nothing has to be ordered between executors.
//
//   active   everything sent since the last move is there. -> moving: an operation is better off
//            elsewhere (enter)
//   moving   no operation is sent until the former executor has nothing to do. A call that nobody
//            waits for is kept meanwhile, and sent afterwards in its turn: its thread goes on. A
//            thread that waits for an answer waits for the move. -> active there, or, if running
//            work does not end soon, active as before
//   bound    something can be at one executor alone (bind): all calls go there from now on, and its
//            pager brings the memory. Final
//
// Thread-safety: any thread. Locks: Group's order, above those of channels and of what the
// implementation has (interpose/forward/locks.h). Owner: the session, for the life of the process.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/forward/group_code.h"
#include "interpose/forward/kept_call.h"
#include "interpose/forward/named.h"

namespace olpager::forward {

/// The executors to which a call of a session with several ones goes.
enum class Goes : uint8_t {
  kActive,    // asks, or concerns what is in streams
  kOperates,  // the same, and may use device memory
  kAll,       // makes, changes or ends what each of them has
  kFirst,     // concerns what executor 0 alone has, and no stream
  kBound,     // makes what can be at one executor alone, or uses it; may use device memory as well
};
constexpr bool mayOperate(Goes goes) { return goes == Goes::kOperates || goes == Goes::kBound; }
/// Such a call may name device memory, so its record says how much of that there is by now.
constexpr bool mayName(Goes goes) { return mayOperate(goes) || goes == Goes::kAll; }

/// An allocation of managed memory.
struct ManagedRange {
  uint64_t base = 0, bytes = 0;
};

/// The managed memory that an operation may use.
struct ManagedUse {
  std::span<const Named> named;
  std::optional<CUstream> stream;  // in which it is
  bool all = false;                // also what is attached to the host, or to another stream
};

/// By CallHead::function.
Goes whereGoes(uint16_t function);
/// The same for a function of the driver's; generated from the specification.
Goes whereFunctionGoes(api::Symbol symbol);

class Group {
 public:
  /// The resources that a call uses.
  struct Uses {
    bool operates = false;            // it gets an age, and goes where `named` says
    bool launches = false;            // it is an operation that launches a kernel or a graph
    std::span<const Named> named;     // device memory
    std::span<const CodeThere> code;  // code whose variables it may change
    bool again = false;               // it becomes part of a graph, of whose launches nobody tells
    // The call operates there, whatever is active: a copy of the library's own. Only a wait for the
    // copy orders other calls with it.
    std::optional<unsigned> at = {};
    // Nobody waits for it, and its record is right for any executor: it may be kept while all
    // moves.
    bool may_be_kept = false;
  };

  virtual ~Group() = default;

  /// Number of the executor where operations run.
  unsigned active() const { return active_.load(std::memory_order_acquire); }
  bool bound() const { return bound_.load(std::memory_order_acquire); }

  /// A call's turn to be sent: made before its record is written, over when it has been. Records
  /// for the active executor are written in the order of their turns.
  class Turn {
   public:
    Turn(Group& group, const Uses& uses) : group_(group) {
      executor_ = group_.enter(uses, &aged_, &kept_);
    }
    ~Turn() { group_.leave(sent_, kept_, aged_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    unsigned executor() const { return executor_; }
    /// Gives a call that goes to all an operation of its own at each executor.
    Aged ageAt(unsigned executor) { return group_.draw(executor); }
    /// Age kNoOperation: the call is no operation.
    const Aged& aged() const { return aged_; }
    void sent() { sent_ = true; }
    /// True: the call's turn has not come, and nothing is to be sent. Leave the call with keep().
    bool isKept() const { return kept_; }
    void keep(std::unique_ptr<KeptCall> call) { group_.keep(std::move(call)); }

   private:
    Group& group_;
    unsigned executor_ = 0;
    Aged aged_;
    bool sent_ = false, kept_ = false;
  };

  /// The program ends: an executor that is lost from now on is no failure.
  virtual void leaves() = 0;
  /// From now on all calls go to one executor: the active one, or where the program has addresses
  /// of variables the first, whose these are. `what` needs that: told once.
  virtual void bind(const std::string& what) = 0;

  /// The code that has variables, and the variables whose addresses the program knows.
  GroupCode& code() { return code_; }
  /// The program asks for the address of a variable that all executors can have. Null: it can be at
  /// one alone, or the program is bound.
  virtual std::shared_ptr<const SharedVariable> share(CodeThere code, const std::string& name) = 0;
  /// The module or library is unloaded.
  void ownerGone(uint64_t owner) {
    if (code_.ownerGone(owner)) forget(owner);
  }
  virtual void contextGone(uint64_t context) = 0;

  /// Returns when no call is kept. Not in a turn.
  virtual void awaitKept() = 0;

  /// An event is recorded where operations run, behind the kept calls.
  void noteRecord(CUevent event) {
    behindKept([this, event] {
      const std::lock_guard lock(records_mutex_);
      recorded_[event] = {.executor = active(), .order = ++records_};
    });
  }
  void dropRecord(CUevent event) {
    behindKept([this, event] {
      const std::lock_guard lock(records_mutex_);
      recorded_.erase(event);
    });
  }
  struct Recorded {
    unsigned executor = 0;
    uint64_t order = 0;  // among all records; 0: there was none
  };
  /// The executor and order of the event's last record; without one, the active executor.
  Recorded recorded(CUevent event) {
    const std::lock_guard lock(records_mutex_);
    const auto found = recorded_.find(event);
    return found != recorded_.end() ? found->second : Recorded{.executor = active()};
  }

  // Device memory. Pages of the range at addresses that the caller gives out.

  /// New pages [base, + bytes). False: there is no room for them.
  [[nodiscard]] virtual bool add(uint64_t base, uint64_t bytes) = 0;
  /// The program has no use for the pages that begin there any more, and all that used them is
  /// complete.
  virtual void remove(uint64_t base) = 0;
  /// Bases of pages whose addresses may be given out again. Waits for one for some time where
  /// some are on their way.
  virtual std::vector<uint64_t> released(bool wait) = 0;
  /// Waits for some time until all that was removed is released.
  virtual void awaitReleased() = 0;
  /// Bytes that the program may still allocate, and may have in all, as it is told. The program may
  /// get more, as in local mode: memory of memservers counts only where the gpunodes report it.
  virtual uint64_t freeBytes() const = 0;
  virtual uint64_t totalBytes() const = 0;

  // Managed memory of the group's, which the program's CPU and the executors have in turns.

  /// The allocation that the address is in; nullopt: none of these.
  virtual std::optional<ManagedRange> managedAt(uint64_t address) = 0;
  /// Sets the users of the allocation at `base` (CU_MEM_ATTACH_*); `stream`: that of
  /// CU_MEM_ATTACH_SINGLE.
  virtual void attachManaged(uint64_t base, unsigned flags, CUstream stream) = 0;
  /// Before an operation's turn: gives the executors the CPU's bytes that the operation may use. A
  /// failure is the operation's result, and leaves the bytes with the CPU.
  virtual CUresult giveManaged(const ManagedUse& use) = 0;

 protected:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::atomic<unsigned> active_{0};
  std::atomic<bool> bound_{false};

 private:
  GroupCode code_;
  std::mutex records_mutex_;  // a leaf
  std::unordered_map<CUevent, Recorded> recorded_;
  uint64_t records_ = 0;

  virtual unsigned enter(const Uses& uses, Aged* aged, bool* kept) = 0;
  virtual void keep(std::unique_ptr<KeptCall> call) = 0;
  /// Does that now, or when the kept calls have been sent.
  virtual void behindKept(std::function<void()> what) = 0;
  virtual void leave(bool sent, bool kept, const Aged& aged) = 0;
  virtual Aged draw(unsigned executor) = 0;
  virtual void forget(uint64_t owner) = 0;
};

}  // namespace olpager::forward
