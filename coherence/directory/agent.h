// An agent's side of the ownership protocol: the extents, and the operations that wait for them.
// Pure: no I/O, no clock, no lock. Each call is a step, which appends to `actions` what the agent's
// pager has to do, in that order. How many extents an agent holds is its pager's affair: the pager
// has room for all that comes, in tiers of its own.
//
//   extent      AgentState (agent_table.h); the steps below move it by the table
//   operation   waiting (it lacks extents, or loses one to an older operation), submitted (it uses
//               them), gone
//   want        what one operation needs of one extent: nothing yet, asked (the home knows), or
//               claimed
//
// An operation is submitted when it claims everything it needs at one moment. A claim is lost to
// older operations only. Thread-safety: none; the agent's owner brings the lock.
//
// An agent may run operations that it is not told of: launches that find all that they reach mapped
// for writing, and shall cost nothing more. Before it gives up such an extent it says kStop, and
// waits for quiet() as for a submitted operation.
#pragma once

#include <span>
#include <vector>

#include "coherence/directory/agent_table.h"
#include "coherence/directory/ages.h"
#include "coherence/directory/pool.h"
#include "coherence/directory/types.h"

namespace olpager::directory {

// Many members: a step for each row of the protocol's table (agent_table.h).
class Agent {
 public:
  /// `untold`: it runs operations that it is not told of.
  explicit Agent(AgentId id, bool untold = false) : id_(id), untold_(untold) {}

  /// The extents are those below `count`.
  void resize(ExtentId count) { extents_.resize(std::max<size_t>(extents_.size(), count)); }

  /// An operation arrives with what is known of its reach. All below `oldest` are complete.
  void begin(Age age, std::span<const Need> needs, Age oldest, Actions& actions);
  /// More of its reach has been found. Not once it is submitted.
  void reach(Age age, Need need, Actions& actions);
  /// Takes what it claims into use. False: it has lost something since kRunnable; another kRunnable
  /// follows.
  [[nodiscard]] bool submit(Age age);
  /// A submitted operation uses an extent once more. If the extent was to become quiet when the
  /// operation was submitted, its users go on (kGo). False: it does not claim the extent.
  [[nodiscard]] bool useAgain(Age age, ExtentId extent, Actions& actions);
  /// A submitted operation is over; it has written all that it needed to write.
  void complete(Age age, Actions& actions);
  /// A waiting operation is given up.
  void cancel(Age age, Actions& actions);
  /// No waiting operation needs the extent any more: the program has freed it.
  void unneed(ExtentId extent, Actions& actions);

  void receive(const Message& message, Actions& actions);
  /// The bytes of a kFetch with that number are in the frame.
  void landed(ExtentId extent, Number number, Actions& actions);
  /// Since kStop no operation that the agent is not told of uses the extent any more. `written`:
  /// they may have written it.
  void quiet(ExtentId extent, bool written, Actions& actions);
  /// The pager has other use for frames: of those that are retained only `keep` stay, of what was
  /// given last.
  void shed(uint64_t keep, Actions& actions);
  /// Extents that are retained.
  uint64_t retained() const { return retained_; }

  AgentId id() const { return id_; }
  AgentState state(ExtentId extent) const { return at(extent).state(); }
  Content content(ExtentId extent) const { return at(extent).content; }
  Number number(ExtentId extent) const { return at(extent).number; }
  bool submitted(Age age) const;
  bool runnable(Age age) const;
  /// Extents of which something is under way: a demand of the home's waits, bytes come.
  size_t unsettled() const { return busy_.used(); }
  /// Operations and demands that are under way.
  size_t busy() const { return operations_.used() + busy_.used(); }
  /// The number of runs of ages that record past operations.
  size_t remembered() const { return seen_.runs(); }

  /// All of the state as numbers, in an order that does not depend on how it came about;
  /// `number(extent, n)` and `content(extent, c)` are told apart from plain values, so that the
  /// reader may rename them.
  template <typename Sink>
  void describe(Sink& sink) const;

 private:
  struct Extent {
    uint64_t number : 48 = 0;  // of the last transaction that changed anything here
    uint64_t state_ : 8 = 0;
    uint64_t lent : 1 = 0;  // the taker of a replica reads the frame
    uint64_t : 7;
    Content content = 0;                      // of the frame
    uint32_t wants = kNone;                   // those of operations, newest first
    uint32_t busy = kNone;                    // Busy
    uint32_t previous = kNone, next = kNone;  // of those that are retained
    AgentState state() const { return static_cast<AgentState>(state_); }
  };
  static_assert(sizeof(Extent) == 32);

  /// State that an extent has only while something is under way.
  struct Busy {
    // A demand of the home that waits: kYield, kInvalidate, kForget.
    bool waits = false;
    Message demand;
    // The operation that the extent was fetched for, which has not arrived yet.
    Age ahead = kNobody;
    Mode ahead_mode = Mode::kShared;
    // While Landing: what comes, and for which operation.
    bool lands = false;
    Content coming = 0;
    Age fetched_for = kNobody;
    // Operations that the agent is not told of: none may begin any more; and none is left.
    bool stopping = false;
    bool stopped = false;
    bool idle() const { return !waits && ahead == kNobody && !lands && !stopping; }
  };

  enum class Progress : uint8_t { kWaiting, kSubmitted };
  struct Operation {
    Age age = 0;
    Progress progress = Progress::kWaiting;
    bool failed = false;
    uint32_t wants = kNone;
    uint32_t open_wants = kNone;  // wants that are neither asked nor claimed
    uint32_t unclaimed = 0;
  };
  struct Want {
    ExtentId extent = 0;
    uint32_t operation = 0;
    Mode mode = Mode::kShared;
    bool claimed = false;
    bool asked = false;
    bool listed = false;  // in open_wants
    uint32_t next_of_operation = kNone;
    uint32_t next_of_extent = kNone;
    uint32_t open_previous = kNone, open_next = kNone;
  };
  struct Key {
    Age age;
    uint32_t operation;
  };
  const Extent& at(ExtentId extent) const { return extents_[extent]; }
  void link(ExtentId extent);
  void unlink(ExtentId extent);

  Busy& busy(ExtentId extent);
  void calm(ExtentId extent);
  static bool inOrder(const Key& key, Age age) { return key.age < age; }
  uint32_t find(Age age) const;
  bool known(Age age) const { return seen_.has(age); }

  void list(uint32_t want);
  void unlist(uint32_t want);
  void takeFromExtent(uint32_t want);
  void addWant(uint32_t operation, Need need, Actions& actions);
  bool barred(const Want& want) const;
  void tryClaim(uint32_t want, Actions& actions);
  void claim(uint32_t want, Actions& actions);
  void resume(ExtentId extent, Actions& actions);
  void end(uint32_t operation, Actions& actions);
  void heedAhead(Actions& actions);
  void fail(ExtentId extent, Actions& actions);

  bool inTheWay(ExtentId extent, Age age, Mode taken, bool submitted_only = false) const;
  bool underSubmitted(ExtentId extent, Mode taken) const {
    return inTheWay(extent, 0, taken, true);
  }
  void wound(ExtentId extent, Age age, Mode taken, Actions& actions);
  bool asked(ExtentId extent) const;
  void forgetAsks(ExtentId extent);
  /// True for a prefetch: the message is about an operation that has not asked for the extent.
  static bool isAhead(const Message& about) { return about.age == kNobody; }
  void arrive(ExtentId extent, Age age, Mode mode, Actions& actions);

  void step(ExtentId extent, AgentInput input, const Message& cause, Actions& actions);
  void demand(const Message& message, Actions& actions);
  bool quieted(ExtentId extent) const;
  void ready(const Message& message, Actions& actions);
  void send(MessageKind kind, const Message& cause, Actions& actions) const;

  void settle(Actions& actions);
  void pump(Actions& actions);
  bool needs(const Operation& operation, ExtentId extent) const;

  AgentId id_;
  bool untold_;
  bool changed_ = false;  // something that waiting operations may have waited for
  bool put_off_ = false;  // a test has broken a rule (seeded.h): claims are made later
  std::vector<Extent> extents_;
  // Extents that are retained, in the order in which they were given.
  uint32_t first_retained_ = kNone, last_retained_ = kNone;
  uint64_t retained_ = 0;
  Pool<Busy> busy_;
  Pool<Operation> operations_;
  Pool<Want> wants_;
  std::vector<Key> order_;    // all operations, by age
  std::vector<Key> waiting_;  // those not submitted
  std::vector<ExtentId> ahead_;
  Ages seen_;  // operations that have been here
};

template <typename Sink>
void Agent::describe(Sink& sink) const {
  for (ExtentId id = 0; id < extents_.size(); ++id) {
    const Extent& extent = at(id);
    sink.value(extent.state_ | uint64_t{extent.lent} << 8);
    sink.number(id, extent.number);
    sink.content(id, extent.content);
    if (extent.busy == kNone) {
      sink.value(0);
      continue;
    }
    const Busy& busy = busy_[extent.busy];
    sink.value(1u | busy.waits << 1 | busy.lands << 2 | (busy.ahead != kNobody) << 3 |
               busy.stopping << 4 | busy.stopped << 5);
    if (busy.waits) sink.message(busy.demand);
    if (busy.ahead != kNobody) sink.value(busy.ahead << 2 | static_cast<unsigned>(busy.ahead_mode));
    if (busy.lands) {
      sink.content(id, busy.coming);
      sink.value(busy.fetched_for);
    }
  }
  for (const Key& key : order_) {
    const Operation& operation = operations_[key.operation];
    sink.value(key.age << 3 | static_cast<unsigned>(operation.progress) << 1 | operation.failed);
    uint64_t sum = 0;
    for (uint32_t w = operation.wants; w != kNone; w = wants_[w].next_of_operation) {
      const Want& want = wants_[w];
      // The order in which needs were found does not matter: a sum has none.
      sum += (uint64_t{1} << 32 | uint64_t{want.extent} << 3 |
              static_cast<unsigned>(want.mode) << 2 | want.claimed << 1 | want.asked) *
             0x9E3779B97F4A7C15u;
    }
    sink.value(sum);
  }
}

}  // namespace olpager::directory
