// An agent's side of the ownership protocol: the extents, the operations that wait for them, and
// the frames they are in. Pure: no I/O, no clock, no lock. Each call is a step, which appends to
// `actions` what the agent's pager has to do, in that order.
//
//   extent      AgentState (agent_table.h); the steps below move it by the table
//   operation   waiting (it lacks extents, or loses one to an older operation), submitted (it uses
//               them), gone
//   want        what one operation needs of one extent: nothing yet, asked (a frame is reserved,
//               the home knows), or claimed
//
// An operation is submitted when it claims everything it needs at one moment. A claim is lost to
// older operations only. Thread-safety: none; whoever owns the agent brings the lock.
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

class Agent {
 public:
  /// `frames`: pages that the agent can hold at once. The spill has kUnlimited.
  /// `untold`: it runs operations that it is not told of.
  Agent(AgentId id, Epoch epoch, uint32_t frames, bool untold = false)
      : id_(id), epoch_(epoch), frames_(frames), untold_(untold) {}

  /// The extents are those below `count`.
  void resize(ExtentId count) { extents_.resize(std::max<size_t>(extents_.size(), count)); }
  /// An extent is 2^order pages, one unless this says so. While it is absent and nobody needs it:
  /// before its region's first use.
  void weigh(ExtentId first, ExtentId count, unsigned order) {
    for (ExtentId extent = first; extent < first + count; ++extent)
      extents_[extent].order = order & 31;
  }

  /// An operation arrives with what is known of its reach. All below `oldest` are complete.
  void begin(Age age, std::span<const Need> needs, Age oldest, Actions& actions);
  /// More of its reach has been found. Not once it is submitted.
  void reach(Age age, Need need, Actions& actions);
  /// Takes what it claims into use. False: it has lost something since kRunnable; another kRunnable
  /// follows.
  [[nodiscard]] bool submit(Age age);
  /// A submitted operation uses an extent once more. What was to become quiet when the operation
  /// was submitted goes again (kGo). False: it does not claim the extent.
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
  /// The pager has other use for frames: of those that are retained only `keep` pages stay, of what
  /// was given last.
  void shed(uint64_t keep, Actions& actions);
  /// Pages that are retained.
  uint64_t retained() const { return lists_[kListRetained].pages; }
  /// Such an operation has used the extent: room comes from it later than from others.
  void used(ExtentId extent) { touch(extent); }

  AgentId id() const { return id_; }
  Epoch epoch() const { return epoch_; }
  /// Pages.
  uint64_t framesUsed() const { return used_; }
  AgentState state(ExtentId extent) const { return at(extent).state(); }
  Content content(ExtentId extent) const { return at(extent).content; }
  Number number(ExtentId extent) const { return at(extent).number; }
  bool submitted(Age age) const;
  bool runnable(Age age) const;
  /// Extents of which something is under way: a demand of the home's waits, bytes come.
  size_t unsettled() const { return busy_.used(); }
  /// Operations and demands that are under way.
  size_t busy() const { return operations_.used() + busy_.used(); }
  /// What is kept of operations that have been here, in runs of ages.
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
    uint64_t order : 5 = 0;
    uint64_t : 2;
    Content content = 0;                      // of the frame
    uint32_t wants = kNone;                   // those of operations, newest first
    uint32_t busy = kNone;                    // Busy
    uint32_t previous = kNone, next = kNone;  // in the list of its state
    AgentState state() const { return static_cast<AgentState>(state_); }
  };
  static_assert(sizeof(Extent) == 32);

  /// What an extent has only while something is under way.
  struct Busy {
    // A demand of the home that waits: kYield, kInvalidate, kForget.
    bool waits = false;
    Message demand;
    bool pushed = false;  // the home is asked to take the extent away, for an operation of that age
    Age push_age = kNobody;
    // The operation that the extent was fetched for, which has not arrived yet.
    Age ahead = kNobody;
    Mode ahead_mode = Mode::kShared;
    // Where bytes come from, while Landing.
    AgentId giver = kNoAgent;
    Content coming = 0;
    Age fetched_for = kNobody;
    bool push_taken = false;
    // Operations that the agent is not told of: none may begin any more; and none is left.
    bool stopping = false;
    bool stopped = false;
    bool idle() const {
      return !waits && !pushed && ahead == kNobody && giver == kNoAgent && !stopping;
    }
  };

  enum class Progress : uint8_t { kWaiting, kSubmitted };
  struct Operation {
    Age age = 0;
    Progress progress = Progress::kWaiting;
    bool failed = false;
    uint32_t wants = kNone;
    uint32_t open_wants = kNone;  // wants that are neither asked nor claimed
    uint64_t pages = 0;           // of all that it needs
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
  /// The last one is where the next comes from.
  struct List {
    uint32_t first = kNone, last = kNone;
    uint64_t pages = 0;
  };
  enum ListOf : uint8_t { kListTaking, kListOwned, kListShared, kListGiven, kListRetained, kLists };

  const Extent& at(ExtentId extent) const { return extents_[extent]; }
  uint64_t pages(ExtentId extent) const { return uint64_t{1} << at(extent).order; }
  bool fits(ExtentId extent) const { return used_ + pages(extent) <= frames_; }
  static ListOf listOf(AgentState state);
  void link(ExtentId extent);
  void unlink(ExtentId extent);
  void touch(ExtentId extent);

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
  bool askedByOlder(ExtentId extent, Age age, bool or_same) const;
  void forgetAsks(ExtentId extent);
  Age demandAge(const Message& demand) const;
  /// It is for an operation that has not asked for it.
  static bool isAhead(const Message& about) { return about.age == kNobody && !about.push; }
  void arrive(ExtentId extent, Age age, Mode mode, Actions& actions);

  void step(ExtentId extent, AgentInput input, const Message& cause, Actions& actions);
  void demand(const Message& message, Actions& actions);
  bool quieted(ExtentId extent) const;
  bool hasRoom(ExtentId extent, const Message& message) const;
  void ready(const Message& message, Actions& actions);
  void fence(const Message& message, Actions& actions);
  void send(MessageKind kind, const Message& cause, Actions& actions) const;

  void settle(Actions& actions);
  void pump(Actions& actions);
  bool makeRoom(const Operation& operation, ExtentId wanted, uint64_t lacking, Actions& actions);
  bool needs(const Operation& operation, ExtentId extent) const;

  AgentId id_;
  Epoch epoch_;
  uint32_t frames_;
  bool untold_;
  uint64_t used_ = 0;      // pages
  Age starved_ = kNobody;  // the oldest operation that lacks a frame
  bool changed_ = false;   // something that waiting operations may have waited for
  bool put_off_ = false;   // a test has broken a rule (seeded.h): claims are made later
  std::vector<Extent> extents_;
  List lists_[kLists];
  Pool<Busy> busy_;
  Pool<Operation> operations_;
  Pool<Want> wants_;
  std::vector<Key> order_;    // all operations, by age
  std::vector<Key> waiting_;  // those not submitted
  std::vector<ExtentId> pushed_;
  std::vector<ExtentId> ahead_;
  Ages seen_;                      // operations that have been here
  Epoch peers_[kMostAgents] = {};  // what is older is not heard
};

template <typename Sink>
void Agent::describe(Sink& sink) const {
  sink.value(epoch_);
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
    sink.value(1u | busy.waits << 1 | busy.pushed << 2 | (busy.giver != kNoAgent) << 3 |
               (busy.ahead != kNobody) << 4 | busy.stopping << 5 | busy.stopped << 6);
    if (busy.waits) sink.message(busy.demand);
    if (busy.pushed) sink.value(busy.push_age);
    if (busy.ahead != kNobody) sink.value(busy.ahead << 2 | static_cast<unsigned>(busy.ahead_mode));
    if (busy.giver != kNoAgent) {
      sink.value(busy.giver);
      sink.content(id, busy.coming);
      sink.value(busy.fetched_for << 1 | busy.push_taken);
    }
  }
  for (const List& list : lists_) {
    for (ExtentId id = list.first; id != kNone; id = at(id).next) sink.value(id);
    sink.value(kNone);
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
  sink.value(starved_);
  for (const Epoch epoch : peers_) {
    if (epoch != 0) sink.value(epoch);
  }
}

}  // namespace olpager::directory
