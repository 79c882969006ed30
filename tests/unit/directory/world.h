// A whole system in one value: the real directory, real agents, a virtual network between them, and
// frames with contents. The explorer or simulator picks the next of the events that are possible;
// after each the world checks what has to hold:
//
//   one writer      an extent that an agent may write is mapped nowhere else
//   no stale read   what is mapped has the bytes of the last write, and so has what an operation
//                   reads and writes
//   no lost page    somebody has those bytes
//   the oldest      claims are lost to older operations only; the oldest operation asks once for an
//                   extent
//   no dead end     as long as operations are not complete, something can happen
//
// A page is two words. A fetch copies one when it begins and the other when it ends: a giver that
// lets go too early is seen.
//
// Long, and a class with more members than most: what it checks has to see all of the system at
// once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "coherence/directory/agent.h"
#include "coherence/directory/directory.h"

namespace olpager::directory::test {

/// One operation: where it runs, what the home knows of its reach, and what only running it shows.
struct Plan {
  AgentId agent = 0;
  std::vector<Need> needs;
  std::vector<Need> hidden;
  int after = -1;  // it is sent when that operation (older or younger) is complete
  int until =
      -1;  // it does not end by itself: once submitted, only when that operation is complete
};

struct Scenario {
  /// That run operations. One more, number `agents`, is the host: extents may be there at first,
  /// and it runs operations where a plan says so.
  uint32_t agents = 2;
  ExtentId extents = 2;
  /// The first owners of the extents. 0: nobody; 1: the host all; 2: agent 0 all; 3: agents in
  /// turns.
  uint32_t placed = 0;
  std::vector<Plan> plans;
  uint32_t hints = 0;       // asks of the home ahead, for any operation and extent that it needs
  uint32_t duplicates = 0;  // messages that come twice
  uint32_t frees = 0;       // extents that are freed when all that need them is complete
  bool stale = false;       // also those that operations are yet to find that they reach
  uint32_t untold = 0;      // operations that agents are not told of
};

enum class EventKind : uint8_t {
  kSendOperation,  // a: plan
  kArrive,         // a: plan; the channel from home may deliver it at any time
  kReveal,         // a: plan, its next hidden need
  kSubmit,         // a: plan
  kUseAgain,       // a: plan, b: extent, which was stopped meanwhile
  kComplete,       // a: plan
  kDeliver,        // a: from, b: to
  kDeliverTwice,   // the network keeps a copy
  kAgain,          // a duplicate arrives; a: place in the list of delivered ones
  kLand,           // a: fetch
  kHint,           // a: plan, b: need
  kFree,           // a: extent
  kUntold,      // a: agent, b: extent: an operation that the agent is not told of begins to use it
  kUntoldEnds,  // a: agent, b: extent
  kQuiet,       // a: agent, b: extent: none does any more
};
struct Event {
  EventKind kind;
  uint32_t a = 0, b = 0;
};

inline const char* nameOf(MessageKind kind) {
  static const char* const names[] = {"Get",       "Done",    "Declined", "Acked",      "Forgotten",
                                      "Completed", "Yield",   "Urge",     "Invalidate", "Grant",
                                      "First",     "Release", "Forget",   "Over",       "Ready"};
  static_assert(std::size(names) == kMessageKinds);
  return names[static_cast<size_t>(kind)];
}

/// A world of so many agents at most, the host included.
template <AgentId kAgents>
class WorldOf {
 public:
  static constexpr AgentId kMost = kAgents;
  static constexpr ExtentId kMostExtents = 8;
  static constexpr size_t kMostPlans = 2 * kAgents + 2;

  explicit WorldOf(const Scenario& scenario) : plan_(&scenario) {
    const Scenario& s = scenario;
    for (AgentId a = 0; a < ends(); ++a) {
      agents_.emplace_back(a, s.untold != 0);
      agents_.back().resize(s.extents);
      directory_.join(a);
    }
    directory_.allocate(0, s.extents);
    for (size_t i = 0; i < s.plans.size(); ++i) directory_.operation();
    states_.resize(s.plans.size());
    duplicates_ = s.duplicates;
    hints_ = s.hints;
    frees_ = s.frees;
    untold_ = s.untold;
    if (s.placed != 0) place();
  }

  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  bool over() const {
    for (const State& state : states_) {
      if (state.progress != kFinished) return false;
    }
    return true;
  }
  uint64_t steps() const { return steps_; }
  /// Nothing is under way, and everything is at its place.
  void checkQuiet() {
    if (directory_.busy() != 0) fail("all is quiet, but for a transaction");
    for (const Agent& agent : agents_) {
      if (agent.busy() != 0) fail("all is quiet, but for an agent");
    }
  }

  /// The events that can happen now. Those of `spare` need not: faults, hints, frees, and further
  /// uses.
  void events(std::vector<Event>& normal, std::vector<Event>& spare) const {
    normal.clear();
    spare.clear();
    const Scenario& s = *plan_;
    for (uint32_t i = 0; i < s.plans.size(); ++i) {
      const State& state = states_[i];
      const Plan& plan = s.plans[i];
      switch (state.progress) {
        case kUnsent:
          if (plan.after < 0 || states_[static_cast<size_t>(plan.after)].progress == kFinished)
            normal.push_back({EventKind::kSendOperation, i});
          break;
        case kUnderWay:
          normal.push_back({EventKind::kArrive, i});
          break;
        case kWaiting:
          if (state.revealed < plan.hidden.size() && (state.runnable || plan.needs.empty()))
            normal.push_back({EventKind::kReveal, i});
          if (state.revealed == plan.hidden.size() && agents_[plan.agent].runnable(i))
            normal.push_back({EventKind::kSubmit, i});
          break;
        case kSubmitted:
          if (plan.until < 0 || states_[static_cast<size_t>(plan.until)].progress == kFinished)
            normal.push_back({EventKind::kComplete, i});
          for (ExtentId p = 0; p < s.extents; ++p) {
            if (untolds_[plan.agent][p].stopped && !gone_at_[plan.agent][p] && writes(plan, p))
              spare.push_back({EventKind::kUseAgain, i, p});
          }
          break;
        case kFinished:
          break;
      }
      // Also for what waits for a younger operation that may need the same.
      if (hints_ > 0 && state.progress != kFinished) {
        for (uint32_t n = 0; n < plan.needs.size() + plan.hidden.size(); ++n)
          spare.push_back({EventKind::kHint, i, n});
      }
    }
    for (uint32_t from = 0; from < kEnds; ++from) {
      for (uint32_t to = 0; to < kEnds; ++to) {
        if (channels_[from][to].empty()) continue;
        normal.push_back({EventKind::kDeliver, from, to});
        if (duplicates_ > 0) spare.push_back({EventKind::kDeliverTwice, from, to});
      }
    }
    for (uint32_t f = 0; f < fetches_.size(); ++f) normal.push_back({EventKind::kLand, f});
    for (uint32_t d = 0; d < delivered_.size(); ++d) spare.push_back({EventKind::kAgain, d});
    for (AgentId a = 0; a < ends(); ++a) {
      for (ExtentId p = 0; p < s.extents; ++p) {
        const Untold& u = untolds_[a][p];
        if (untold_ > 0 && !u.uses && !u.stopped && mapped_[a][p] == kWritable && !freed_[p])
          spare.push_back({EventKind::kUntold, a, p});
        if (u.uses) normal.push_back({EventKind::kUntoldEnds, a, p});
        if (u.asked && !u.uses) normal.push_back({EventKind::kQuiet, a, p});
      }
    }
    for (ExtentId p = 0; p < s.extents && frees_ > 0; ++p) {
      if (!freed_[p] && unused(p)) spare.push_back({EventKind::kFree, p});
    }
  }

  void happen(const Event& event) {
    ++steps_;
    switch (event.kind) {
      case EventKind::kSendOperation:
        states_[event.a].progress = kUnderWay;
        directory_.sent(event.a, plan(event.a).agent);
        break;
      case EventKind::kArrive: {
        states_[event.a].progress = kWaiting;
        act(agentOf(event.a), [&](Actions& out) {
          agentOf(event.a).begin(event.a, plan(event.a).needs, directory_.oldest(), out);
        });
        break;
      }
      case EventKind::kReveal: {
        State& state = states_[event.a];
        const Need need = plan(event.a).hidden[state.revealed++];
        if (gone_at_[plan(event.a).agent][need.extent]) break;
        state.runnable = false;
        act(agentOf(event.a), [&](Actions& out) { agentOf(event.a).reach(event.a, need, out); });
        // A need that is met already does not make it wait.
        if (agentOf(event.a).runnable(event.a)) state.runnable = true;
        break;
      }
      case EventKind::kSubmit:
        if (!agentOf(event.a).submit(event.a)) fail("a runnable operation is not submitted");
        states_[event.a].progress = kSubmitted;
        use(event.a, false);
        break;
      case EventKind::kUseAgain:
        act(agentOf(event.a), [&](Actions& out) {
          if (!agentOf(event.a).useAgain(event.a, event.b, out))
            fail("a submitted operation does not have its extent");
        });
        if (untolds_[plan(event.a).agent][event.b].stopped)
          fail("what an operation uses again stays stopped");
        break;
      case EventKind::kComplete:
        use(event.a, true);
        states_[event.a].progress = kFinished;
        act(agentOf(event.a), [&](Actions& out) { agentOf(event.a).complete(event.a, out); });
        break;
      case EventKind::kDeliver:
      case EventKind::kDeliverTwice: {
        auto& channel = channels_[event.a][event.b];
        const Message message = channel.front();
        channel.erase(channel.begin());
        if (event.kind == EventKind::kDeliverTwice) {
          --duplicates_;
          delivered_.push_back(message);
        }
        deliver(message);
        break;
      }
      case EventKind::kAgain: {
        const Message message = delivered_[event.a];
        delivered_.erase(delivered_.begin() + event.a);
        deliver(message);
        break;
      }
      case EventKind::kLand: {
        const Fetch fetch = fetches_[event.a];
        fetches_.erase(fetches_.begin() + event.a);
        if (mapped_[fetch.giver][fetch.extent] != kUnmapped &&
            !untolds_[fetch.giver][fetch.extent].lent)
          fail("what is fetched is not lent");
        pages_[fetch.taker][fetch.extent][1] = pages_[fetch.giver][fetch.extent][1];
        act(agents_[fetch.taker],
            [&](Actions& out) { agents_[fetch.taker].landed(fetch.extent, fetch.number, out); });
        break;
      }
      case EventKind::kHint: {
        --hints_;
        const Plan& p = plan(event.a);
        const Need need =
            event.b < p.needs.size() ? p.needs[event.b] : p.hidden[event.b - p.needs.size()];
        home([&](Actions& out) {
          directory_.ask(event.a, p.agent, need.extent, 1, need.mode, out);
        });
        break;
      }
      case EventKind::kFree:
        --frees_;
        freed_[event.a] = true;
        home([&](Actions& out) { directory_.free(event.a, 1, out); });
        break;
      case EventKind::kUntold:
        --untold_;
        untolds_[event.a][event.b].uses = true;
        break;
      case EventKind::kUntoldEnds:
        useUntold(static_cast<AgentId>(event.a), event.b);
        break;
      case EventKind::kQuiet: {
        Untold& u = untolds_[event.a][event.b];
        u.asked = false;
        const bool written = std::exchange(u.wrote, false);
        act(agents_[event.a], [&](Actions& out) { agents_[event.a].quiet(event.b, written, out); });
        break;
      }
    }
    if (!failed()) check();
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  std::string tell(const Event& event) const {
    const std::string a = std::to_string(event.a), b = std::to_string(event.b);
    switch (event.kind) {
      case EventKind::kSendOperation:
        return "home sends operation " + a + " to agent " + std::to_string(plan(event.a).agent);
      case EventKind::kArrive:
        return "operation " + a + " arrives";
      case EventKind::kReveal:
        return "operation " + a + " finds that it reaches extent " +
               std::to_string(plan(event.a).hidden[states_[event.a].revealed].extent);
      case EventKind::kSubmit:
        return "operation " + a + " is submitted";
      case EventKind::kUseAgain:
        return "operation " + a + " uses extent " + b + " again";
      case EventKind::kComplete:
        return "operation " + a + " is complete";
      case EventKind::kDeliver:
      case EventKind::kDeliverTwice:
        return (event.kind == EventKind::kDeliver ? "deliver " : "deliver, and again later, ") +
               text(channels_[event.a][event.b].front());
      case EventKind::kAgain:
        return "deliver again " + text(delivered_[event.a]);
      case EventKind::kLand: {
        const Fetch& f = fetches_[event.a];
        return "extent " + std::to_string(f.extent) + " lands at agent " + std::to_string(f.taker) +
               " from " + std::to_string(f.giver);
      }
      case EventKind::kHint:
        return "home asks ahead for operation " + a + ", need " + b;
      case EventKind::kFree:
        return "extent " + a + " is freed";
      case EventKind::kUntold:
        return "agent " + a + " uses extent " + b + " untold";
      case EventKind::kUntoldEnds:
        return "agent " + a + " has used extent " + b + " untold";
      case EventKind::kQuiet:
        return "extent " + b + " is quiet at agent " + a;
    }
    return "?";
  }

  /// The state as numbers; equal for worlds that go on alike.
  template <typename Sink>
  void describe(Sink& sink) const {
    directory_.describe(sink);
    for (const Agent& agent : agents_) agent.describe(sink);
    for (const auto& row : channels_) {
      for (const auto& channel : row) {
        sink.value(channel.size());
        for (const Message& message : channel) sink.message(message);
      }
    }
    // A set: what lands first is a matter of the events.
    uint64_t sum = 0;
    for (const Fetch& f : fetches_)
      sum += (uint64_t{1} << 40 | uint64_t{f.extent} << 16 | uint64_t{f.taker} << 8 | f.giver) *
             0x9E3779B97F4A7C15u;
    sink.value(sum);
    for (const Message& message : delivered_) sink.message(message);
    for (const State& state : states_) {
      sink.value(uint64_t{state.progress} | uint64_t{state.revealed} << 8 |
                 uint64_t{state.runnable} << 16);
      for (ExtentId p = 0; p < plan_->extents; ++p) sink.value(state.asks[p]);
    }
    for (ExtentId p = 0; p < plan_->extents; ++p) {
      sink.stamp(p, truth_[p]);
      sink.value(freed_[p]);
      for (AgentId a = 0; a < ends(); ++a) {
        const Untold& u = untolds_[a][p];
        sink.value(static_cast<uint64_t>(mapped_[a][p]) | uint64_t{gone_at_[a][p]} << 7 |
                   uint64_t{u.uses} << 8 | uint64_t{u.stopped} << 9 | uint64_t{u.asked} << 10 |
                   uint64_t{u.wrote} << 11 | uint64_t{u.lent} << 12);
        sink.stamp(p, pages_[a][p][0]);
        sink.stamp(p, pages_[a][p][1]);
      }
    }
    sink.value(uint64_t{duplicates_} | uint64_t{hints_} << 8 | uint64_t{frees_} << 16 |
               uint64_t{untold_} << 24);
  }

  const Directory& directory() const { return directory_; }
  const Agent& agent(AgentId id) const { return agents_[id]; }

 private:
  static constexpr uint32_t kEnds = kMost + 1;  // the last is the home
  static constexpr uint32_t kHomeEnd = kMost;
  static constexpr uint64_t kScribble = 0xdead;
  enum Progress : uint8_t { kUnsent, kUnderWay, kWaiting, kSubmitted, kFinished };
  enum Mapping : uint8_t { kUnmapped, kReadable, kWritable };
  struct State {
    Progress progress = kUnsent;
    uint8_t revealed = 0;
    bool runnable = false;  // it has been, with what was known of its reach
    std::array<uint8_t, kMostExtents> asks{};
  };
  struct Fetch {
    AgentId taker, giver;
    ExtentId extent;
    Number number;
  };
  using Page = std::array<uint64_t, 2>;
  /// Operations on one extent that the agent is not told of, as its pager sees them.
  struct Untold {
    bool uses = false;
    bool stopped = false;  // none begins
    bool asked = false;    // quiet() is due
    bool wrote = false;
    bool lent = false;
  };

  const Plan& plan(uint32_t i) const { return plan_->plans[i]; }
  Agent& agentOf(uint32_t i) { return agents_[plan(i).agent]; }
  AgentId ends() const { return static_cast<AgentId>(plan_->agents + 1); }
  static uint32_t endOf(AgentId a) { return a == kHome ? kHomeEnd : a; }
  static std::string text(const Message& m) {
    const auto who = [](AgentId a) { return a == kHome ? std::string("home") : std::to_string(a); };
    std::string out = std::string(nameOf(m.kind)) + (m.mode == Mode::kOwn ? " own" : " shared") +
                      " extent " + std::to_string(m.extent) + " number " +
                      std::to_string(m.number) + " from " + who(m.from) + " to " + who(m.to);
    if (m.age != kNobody) out += " age " + std::to_string(m.age);
    if (m.taker != kNoAgent) out += " taker " + who(m.taker);
    if (m.kind == MessageKind::kReady) out += " content " + std::to_string(m.content);
    return out;
  }

  /// The program has put something into each extent before the operations begin: by the protocol,
  /// as ever.
  void place() {
    for (ExtentId p = 0; p < plan_->extents; ++p) {
      const auto a = static_cast<AgentId>(plan_->placed == 1   ? plan_->agents
                                          : plan_->placed == 2 ? 0
                                                               : p % plan_->agents);
      const Age age = directory_.operation();
      directory_.sent(age, a);
      act(agents_[a], [&](Actions& out) {
        agents_[a].begin(age, std::array<Need, 1>{Need{p, Mode::kOwn}}, 0, out);
      });
      quiet();
      if (!agents_[a].submit(age)) return fail("an extent is not placed");
      pages_[a][p] = {1, 1};
      truth_[p] = 1;
      act(agents_[a], [&](Actions& out) { agents_[a].complete(age, out); });
      quiet();
    }
  }
  void quiet() {
    for (bool more = true; more;) {
      more = false;
      for (auto& row : channels_) {
        for (auto& channel : row) {
          if (channel.empty()) continue;
          more = true;
          const Message message = channel.front();
          channel.erase(channel.begin());
          if (message.to == kHome) {
            home([&](Actions& out) { directory_.receive(message, out); });
          } else {
            act(agents_[message.to],
                [&](Actions& out) { agents_[message.to].receive(message, out); });
          }
        }
      }
    }
  }

  template <typename Step>
  void act(Agent& agent, Step&& step) {
    Actions actions;
    step(actions);
    for (const Action& action : actions) carryOut(agent.id(), action);
  }
  template <typename Step>
  void home(Step&& step) {
    Actions actions;
    step(actions);
    for (const Action& action : actions) carryOut(kHome, action);
  }

  void deliver(const Message& message) {
    if (message.to == kHome) {
      home([&](Actions& out) { directory_.receive(message, out); });
      return;
    }
    if (plan_->stale && message.kind == MessageKind::kForget && freed_[message.extent])
      forget(message.to, message.extent);
    act(agents_[message.to], [&](Actions& out) { agents_[message.to].receive(message, out); });
  }

  void carryOut(AgentId who, const Action& action) {
    switch (action.kind) {
      case ActionKind::kSend: {
        const Message& m = action.message;
        if (m.kind == MessageKind::kGet && m.age < states_.size()) asked(m);
        channels_[endOf(who)][endOf(m.to)].push_back(m);
        return;
      }
      case ActionKind::kMap:
        mapped_[who][action.extent] = action.mode == Mode::kOwn ? kWritable : kReadable;
        if (action.mode == Mode::kShared && untolds_[who][action.extent].uses)
          fail("what is used untold is mapped for reading");
        untolds_[who][action.extent].stopped = untolds_[who][action.extent].asked = false;
        return;
      case ActionKind::kUnmap:
        mapped_[who][action.extent] = kUnmapped;
        if (untolds_[who][action.extent].uses) fail("what is used untold is unmapped");
        untolds_[who][action.extent].stopped = untolds_[who][action.extent].asked = false;
        return;
      case ActionKind::kStop:
        untolds_[who][action.extent].stopped = untolds_[who][action.extent].asked = true;
        return;
      case ActionKind::kGo:
        untolds_[who][action.extent].stopped = untolds_[who][action.extent].asked = false;
        return;
      case ActionKind::kLend:
        if (std::exchange(untolds_[who][action.extent].lent, true)) fail("lent twice");
        return;
      case ActionKind::kLendOver:
        if (!std::exchange(untolds_[who][action.extent].lent, false)) fail("not lent, and over");
        return;
      case ActionKind::kFetch:
        fetches_.push_back({who, action.peer, action.extent, action.number});
        pages_[who][action.extent][0] = pages_[action.peer][action.extent][0];
        pages_[who][action.extent][1] = kScribble;
        return;
      case ActionKind::kClear:
        pages_[who][action.extent] = {0, 0};
        return;
      case ActionKind::kFree:
        if (mapped_[who][action.extent] != kUnmapped) fail("the frame of a mapped extent is freed");
        pages_[who][action.extent] = {kScribble, kScribble};
        return;
      case ActionKind::kRunnable:
        if (action.age < states_.size()) states_[action.age].runnable = true;
        return;
      case ActionKind::kClaimLost:
        if (action.age < action.to) fail("a claim is lost to a younger operation");
        return;
      case ActionKind::kFailed:
        fail("an operation fails");
        return;
      case ActionKind::kReleased: {
        for (AgentId a = 0; a < ends(); ++a) {
          if (agents_[a].state(action.extent) != AgentState::kAbsent)
            fail("a freed extent has a frame");
        }
        return;
      }
      case ActionKind::kViolation:
        fail("violation: " + text(action.message));
        return;
    }
  }

  void asked(const Message& m) {
    uint8_t& asks = states_[m.age].asks[m.extent];
    bool oldest = true;
    for (Age other = 0; other < m.age; ++other)
      oldest = oldest && states_[other].progress == kFinished;
    if (asks < 255) ++asks;
    const bool calm = plan_->hints == 0 && plan_->duplicates == 0;
    if (m.age == 0 && calm && asks > 1) fail("the oldest operation asks twice for an extent");
    // A claim is lost to older operations only, and to each of them a few times: not more often
    // than it has needs.
    uint64_t older = 0;
    for (Age other = 0; other < m.age; ++other)
      older += plan(static_cast<uint32_t>(other)).needs.size() +
               plan(static_cast<uint32_t>(other)).hidden.size();
    const uint64_t most = calm ? 3 + older : 12 + 4 * plan_->plans.size();
    if (asks > most) fail("livelock: an extent is asked for again and again");
  }

  /// An operation reads what it needs, and at its end writes what it is to write.
  void use(uint32_t i, bool writes) {
    const AgentId a = plan(i).agent;
    const auto one = [&](const Need& need) {
      const ExtentId p = need.extent;
      Page& page = pages_[a][p];
      if (mapped_[a][p] == kUnmapped || (need.mode == Mode::kOwn && mapped_[a][p] != kWritable)) {
        fail("an operation runs without its extent");
        return;
      }
      if (page != Page{truth_[p], truth_[p]}) fail("an operation runs on stale bytes");
      if (!writes || need.mode != Mode::kOwn) return;
      write(page, p);
    };
    for (const Need& need : plan(i).needs) one(need);
    for (const Need& need : plan(i).hidden) {
      if (!gone_at_[a][need.extent]) one(need);
    }
  }

  void useUntold(AgentId a, ExtentId p) {
    untolds_[a][p].uses = false;
    Page& page = pages_[a][p];
    if (mapped_[a][p] != kWritable) {
      fail("an operation runs without its extent");
      return;
    }
    if (page != Page{truth_[p], truth_[p]}) fail("an operation runs on stale bytes");
    write(page, p);
    untolds_[a][p].wrote = true;
  }
  void write(Page& page, ExtentId p) {
    const uint64_t stamp = ++truth_[p];
    page = {stamp, stamp};
  }

  static bool writes(const Plan& plan, ExtentId p) {
    const auto does = [&](const Need& need) { return need.extent == p && need.mode == Mode::kOwn; };
    return std::ranges::any_of(plan.needs, does) || std::ranges::any_of(plan.hidden, does);
  }
  bool unused(ExtentId p) const {
    for (AgentId a = 0; a < plan_->agents; ++a) {
      if (untolds_[a][p].uses) return false;
    }
    for (uint32_t i = 0; i < states_.size(); ++i) {
      if (states_[i].progress == kFinished) continue;
      for (const Need& need : plan(i).needs) {
        if (need.extent == p) return false;
      }
      if (plan_->stale && states_[i].progress != kSubmitted) continue;
      for (const Need& need : plan(i).hidden) {
        if (need.extent == p) return false;
      }
    }
    return true;
  }
  /// The pager of that agent hears that the extent is freed: what waits there goes without it.
  void forget(AgentId a, ExtentId p) {
    gone_at_[a][p] = true;
    act(agents_[a], [&](Actions& out) { agents_[a].unneed(p, out); });
  }

  void check() {
    const Scenario& s = *plan_;
    for (ExtentId p = 0; p < s.extents; ++p) {
      uint32_t writers = 0, readers = 0;
      bool somewhere = freed_[p] || truth_[p] == 0;
      for (AgentId a = 0; a < ends(); ++a) {
        const AgentState state = agents_[a].state(p);
        const bool good = pages_[a][p] == Page{truth_[p], truth_[p]};
        if (mapped_[a][p] == kWritable) ++writers;
        if (mapped_[a][p] == kReadable) ++readers;
        if (mapped_[a][p] != kUnmapped && !good && !freed_[p]) fail("what is mapped is stale");
        const bool keeps = state == AgentState::kOwned || state == AgentState::kOwnedShared ||
                           state == AgentState::kGiven;
        somewhere = somewhere || (keeps && good);
        const Mapping wanted = state == AgentState::kOwned ? kWritable
                               : state == AgentState::kOwnedShared || state == AgentState::kShared
                                   ? kReadable
                                   : kUnmapped;
        if (mapped_[a][p] != wanted) fail("the mapping is not that of the state");
      }
      if (writers > 1 || (writers == 1 && readers > 0)) fail("one writer: there are others");
      if (!somewhere) fail("a page is lost");
    }
  }

  const Scenario* plan_;
  Directory directory_;
  std::vector<Agent> agents_;
  std::vector<State> states_;
  std::vector<Message> channels_[kEnds][kEnds];
  std::vector<Fetch> fetches_;
  std::vector<Message> delivered_;
  Page pages_[kMost][kMostExtents] = {};
  Mapping mapped_[kMost][kMostExtents] = {};
  Untold untolds_[kMost][kMostExtents] = {};
  uint64_t truth_[kMostExtents] = {};       // what its last write has written
  bool gone_at_[kEnds][kMostExtents] = {};  // freed, and its pager has heard of that
  bool freed_[kMostExtents] = {};
  uint32_t duplicates_ = 0, hints_ = 0, frees_ = 0, untold_ = 0;
  uint64_t steps_ = 0;
  std::string failure_;
};

using World = WorldOf<6>;
/// As large as it can be.
using LargeWorld = WorldOf<kMostAgents>;

}  // namespace olpager::directory::test
