// The directory and agents step by step, without a network: messages are carried one by one.
#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <random>

#include "coherence/directory/agent.h"
#include "coherence/directory/directory.h"
#include "coherence/directory/extent_numbers.h"
#include "coherence/directory/seeded.h"
#include "tests/catch.h"

using namespace olpager::directory;

namespace {

/// A home and so many agents. Messages wait in `posts` until they are delivered.
struct System {
  Directory home;
  std::vector<Agent> agents;
  std::deque<Message> posts;
  std::vector<Action> told;  // all other actions, `peer` the agent

  explicit System(ExtentId extents = 8, AgentId count = 3) {
    for (AgentId id = 0; id < count; ++id) {
      agents.emplace_back(id);
      agents.back().resize(extents);
      home.join(id);
    }
    home.allocate(0, extents);
  }
  void take(AgentId who, Actions& actions) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kSend) {
        posts.push_back(action.message);
      } else {
        told.push_back(action);
        if (action.kind != ActionKind::kFetch) told.back().peer = who;
        if (action.kind == ActionKind::kFetch) fetched.push_back({who, action});
      }
    }
    actions.clear();
  }
  Age begin(AgentId agent, std::initializer_list<Need> needs) {
    const Age age = home.operation();
    home.sent(age, agent);
    begin(age, agent, needs);
    return age;
  }
  void begin(Age age, AgentId agent, std::initializer_list<Need> needs) {
    Actions actions;
    agents[agent].begin(age, std::vector<Need>(needs), home.oldest(), actions);
    take(agent, actions);
  }
  void complete(AgentId agent, Age age) {
    Actions actions;
    agents[agent].complete(age, actions);
    take(agent, actions);
  }
  void ask(Age age, AgentId agent, ExtentId extent, Mode mode) {
    Actions actions;
    home.ask(age, agent, extent, 1, mode, actions);
    take(kHome, actions);
  }
  void deliver(const Message& message) {
    Actions actions;
    if (message.to == kHome) {
      home.receive(message, actions);
    } else {
      agents[message.to].receive(message, actions);
    }
    take(message.to, actions);
  }
  /// Everything on its way arrives, and so do all bytes.
  void quiet() {
    while (!posts.empty() || !fetched.empty()) {
      if (!posts.empty()) {
        const Message message = posts.front();
        posts.pop_front();
        deliver(message);
        continue;
      }
      const auto [who, action] = fetched.front();
      fetched.pop_front();
      Actions actions;
      agents[who].landed(action.extent, action.number, actions);
      take(who, actions);
    }
  }
  void run(AgentId agent, std::initializer_list<Need> needs) {
    const Age age = begin(agent, needs);
    quiet();
    REQUIRE(agents[agent].submit(age));
    complete(agent, age);
    quiet();
  }
  size_t count(ActionKind kind) const {
    size_t found = 0;
    for (const Action& action : told) found += action.kind == kind ? 1 : 0;
    return found;
  }
  AgentState at(AgentId agent, ExtentId extent) const { return agents[agent].state(extent); }
  /// Extents that have a frame there, or have asked for one.
  size_t framesUsed(AgentId agent) const {
    size_t used = 0;
    for (ExtentId extent = 0; extent < home.extents(); ++extent)
      used += at(agent, extent) != AgentState::kAbsent ? 1 : 0;
    return used;
  }

  std::deque<std::pair<AgentId, Action>> fetched;
};

constexpr Mode W = Mode::kOwn, R = Mode::kShared;

}  // namespace

TEST_CASE("the first operation that touches an extent owns it", "[directory]") {
  System s;
  s.run(0, {{3, R}});
  CHECK(s.at(0, 3) == AgentState::kOwned);
  CHECK(s.home.owner(3) == 0);
  CHECK(s.count(ActionKind::kClear) == 1);
  CHECK(s.count(ActionKind::kFetch) == 0);
  CHECK(s.home.busy() == 0);
  CHECK(s.agents[0].busy() == 0);
}

TEST_CASE("an extent goes from agent to agent, and what comes back unchanged is not fetched",
          "[directory]") {
  System s;
  s.run(0, {{0, W}});
  s.run(1, {{0, R}});
  CHECK(s.at(0, 0) == AgentState::kOwnedShared);
  CHECK(s.at(1, 0) == AgentState::kShared);
  CHECK(s.home.replicas(0) == 2);
  CHECK(s.count(ActionKind::kFetch) == 1);
  s.run(1, {{0, W}});
  CHECK(s.at(0, 0) == AgentState::kRetained);
  CHECK(s.at(1, 0) == AgentState::kOwned);
  CHECK(s.home.owner(0) == 1);
  CHECK(s.home.replicas(0) == 0);
  // The replica had the bytes.
  CHECK(s.count(ActionKind::kFetch) == 1);
  s.run(0, {{0, R}});
  // The pages have been written since.
  CHECK(s.count(ActionKind::kFetch) == 2);
  s.run(0, {{0, W}});
  s.told.clear();
  // Nobody has written.
  s.run(0, {{0, R}});
  CHECK(s.told.size() == 1);
}

TEST_CASE("an older operation takes what a younger one claims, a younger one waits",
          "[directory]") {
  System s;
  s.run(0, {{0, W}, {1, W}});
  const Age older = s.home.operation();
  const Age younger = s.begin(0, {{0, W}, {2, W}});
  CHECK_FALSE(s.agents[0].runnable(younger));  // extent 2 is on its way
  s.home.sent(older, 1);
  s.begin(older, 1, {{0, W}});
  s.quiet();
  CHECK(s.agents[1].runnable(older));
  CHECK_FALSE(s.agents[0].runnable(younger));
  CHECK(s.count(ActionKind::kClaimLost) == 1);
  REQUIRE(s.agents[1].submit(older));
  s.quiet();
  // Extents of a submitted operation are not taken from under it.
  CHECK(s.at(1, 0) == AgentState::kOwned);
  s.complete(1, older);
  s.quiet();
  CHECK(s.agents[0].runnable(younger));
}

TEST_CASE("a stream of younger operations can't hold an extent against one that waits",
          "[directory]") {
  for (const Rule rule : {Rule::kAll, Rule::kPendingBars}) {
    broken_rule = rule;
    System s;
    s.run(0, {{0, W}});
    Age running = s.begin(0, {{0, W}});
    REQUIRE(s.agents[0].submit(running));
    const Age waits = s.begin(1, {{0, W}});
    s.quiet();
    int rounds = 0;
    while (!s.agents[1].runnable(waits) && ++rounds < 100) {
      const Age next = s.begin(0, {{0, W}});
      const bool submitted = s.agents[0].runnable(next) && s.agents[0].submit(next);
      s.complete(0, running);
      if (submitted) running = next;
      s.quiet();
    }
    CHECK(rounds == (rule == Rule::kAll ? 1 : 100));
  }
  broken_rule = Rule::kAll;
}

TEST_CASE("what was fetched ahead is its operation's, whatever else is asked for ahead",
          "[directory]") {
  for (const Rule rule : {Rule::kAll, Rule::kClaimAhead}) {
    broken_rule = rule;
    System s;
    s.run(0, {{0, W}});
    const Age ahead = s.home.operation();
    s.home.sent(ahead, 1);
    s.ask(ahead, 1, 0, W);
    s.quiet();
    CHECK(s.at(1, 0) == AgentState::kOwned);
    const Age younger = s.home.operation();
    s.home.sent(younger, 0);
    s.ask(younger, 0, 0, W);
    s.quiet();
    CHECK(s.home.owner(0) == (rule == Rule::kAll ? 1 : 0));
    s.begin(ahead, 1, {{0, W}});
    s.quiet();
    REQUIRE(s.agents[1].submit(ahead));
    s.complete(1, ahead);
    s.quiet();
    s.begin(younger, 0, {{0, W}});
    s.quiet();
    CHECK(s.agents[0].runnable(younger));
  }
  broken_rule = Rule::kAll;
}

TEST_CASE("what is there already is kept for whom it was asked for ahead, as what is fetched",
          "[directory]") {
  for (const Rule rule : {Rule::kAll, Rule::kGrantOwner}) {
    broken_rule = rule;
    System s;
    s.run(0, {{0, W}});
    const Age ahead = s.home.operation();
    s.home.sent(ahead, 0);
    s.ask(ahead, 0, 0, W);
    s.quiet();
    const Age younger = s.home.operation();
    s.home.sent(younger, 1);
    s.ask(younger, 1, 0, W);
    s.quiet();
    CHECK(s.home.owner(0) == (rule == Rule::kAll ? 0 : 1));
    CHECK(s.home.phase(0) == Phase::kRest);
  }
  broken_rule = Rule::kAll;
}

TEST_CASE("what is asked for ahead stays where it is claimed, and the home hears so at once",
          "[directory]") {
  for (const Rule rule : {Rule::kAll, Rule::kHintDeclined}) {
    broken_rule = rule;
    System s;
    s.run(0, {{0, W}});
    s.run(1, {{1, W}});
    const Age holder = s.begin(1, {{1, W}});
    REQUIRE(s.agents[1].submit(holder));
    const Age claims = s.begin(0, {{0, W}, {1, W}});  // waits for extent 1
    const Age ahead = s.home.operation();
    s.home.sent(ahead, 2);
    s.ask(ahead, 2, 0, W);
    s.quiet();
    CHECK(s.home.phase(0) == (rule == Rule::kAll ? Phase::kRest : Phase::kYielding));
    CHECK(s.home.owner(0) == 0);
    CHECK(s.count(ActionKind::kClaimLost) == 0);
    s.complete(1, holder);
    s.quiet();
    CHECK(s.agents[0].runnable(claims));
  }
  broken_rule = Rule::kAll;
}

TEST_CASE("what was fetched ahead goes to whoever needs it first", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Age ahead = s.home.operation();
  s.home.sent(ahead, 1);
  s.ask(ahead, 1, 0, W);
  s.quiet();
  const Age younger = s.begin(0, {{0, W}});
  s.quiet();
  REQUIRE(s.agents[0].submit(younger));
  // Now it is needed at both: the older one has it as soon as the younger one is over.
  s.begin(ahead, 1, {{0, W}});
  s.quiet();
  CHECK_FALSE(s.agents[1].runnable(ahead));
  s.complete(0, younger);
  s.quiet();
  CHECK(s.agents[1].runnable(ahead));
}

TEST_CASE("an operation that will not come holds nothing", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Age ahead = s.home.operation();
  s.home.sent(ahead, 1);
  s.ask(ahead, 1, 0, W);
  s.quiet();
  const Age younger = s.home.operation();
  s.home.sent(younger, 0);
  Actions actions;
  s.home.cancel(ahead, actions);
  s.take(kHome, actions);
  s.quiet();
  s.ask(younger, 0, 0, W);
  s.quiet();
  CHECK(s.home.owner(0) == 0);
}

TEST_CASE("what is asked for ahead keeps nobody from what is here, and is not waited for",
          "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Age ahead = s.home.operation();
  s.home.sent(ahead, 1);
  const Age spins = s.begin(0, {{0, W}});
  REQUIRE(s.agents[0].submit(spins));
  s.ask(ahead, 1, 0, W);
  s.quiet();
  const Age ends = s.begin(0, {{0, W}});
  REQUIRE(s.agents[0].submit(ends));
  // At a third agent it is needed.
  const Age other = s.home.operation();
  s.home.sent(other, 2);
  s.begin(other, 2, {{0, W}});
  s.quiet();
  s.complete(0, ends);
  s.complete(0, spins);
  s.quiet();
  CHECK(s.home.owner(0) == 2);
  CHECK(s.agents[2].runnable(other));
}

TEST_CASE("of an agent's operations that ask for an extent one request waits, of the oldest",
          "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Age holder = s.begin(0, {{0, W}});
  REQUIRE(s.agents[0].submit(holder));
  const Age first = s.home.operation();
  std::vector<Age> later;
  for (int i = 0; i < 100; ++i) later.push_back(s.home.operation());
  s.begin(first, 1, {{0, W}});  // its transaction is open
  s.quiet();
  for (const Age age : later) {
    s.home.sent(age, 1);
    s.ask(age, 1, 0, W);
  }
  CHECK(s.home.waiting() <= 2);
  s.begin(later[1], 1, {{0, W}});
  s.begin(later[0], 1, {{0, W}});
  s.quiet();
  CHECK(s.home.waiting() <= 2);
  // The oldest ones go without it: the other one has asked, too.
  Actions actions;
  for (const Age age : {first, later[0]}) s.agents[1].cancel(age, actions);
  s.take(1, actions);
  s.quiet();
  s.complete(0, holder);
  s.quiet();
  CHECK(s.agents[1].runnable(later[1]));
  CHECK(s.home.waiting() == 0);
}

TEST_CASE("operations that an agent is not told of leave nothing behind", "[directory]") {
  System s;
  for (Age age = 1; age <= 10'000; ++age)  // all that are not the first, which does not end
    s.deliver({.kind = MessageKind::kOver, .to = 0, .age = age});
  CHECK(s.agents[0].remembered() == 1);
  for (Age age = 10'001; age <= 20'000; age += 2)  // every other one is elsewhere, and ends
    s.deliver({.kind = MessageKind::kOver, .to = 0, .age = age, .served = age - 10});
  CHECK(s.agents[0].remembered() < 10);
}

TEST_CASE("what operations that were not told of have written leaves under a name of its own",
          "[directory]") {
  System s;
  s.agents[0] = Agent(0, true);
  s.agents[0].resize(8);
  s.run(1, {{0, W}});
  const Age ahead = s.home.operation();  // brings the extent, and is not told of
  s.home.sent(ahead, 0);
  s.ask(ahead, 0, 0, W);
  s.quiet();
  REQUIRE(s.home.owner(0) == 0);
  const Age age = s.begin(1, {{0, W}});
  s.quiet();
  REQUIRE(s.count(ActionKind::kStop) == 1);
  Actions actions;
  const Number number = s.agents[0].number(0);
  CHECK(s.agents[0].content(0) != number);
  s.agents[0].quiet(0, true, actions);
  s.take(0, actions);
  REQUIRE(s.posts.size() == 1);
  CHECK(s.posts[0].kind == MessageKind::kReady);
  CHECK(s.posts[0].number == number + 1);
  CHECK(s.posts[0].content == number);
  // So what the taker has kept is not taken for it.
  s.told.clear();
  s.quiet();
  CHECK(s.count(ActionKind::kFetch) == 1);
  CHECK(s.agents[1].runnable(age));
}

TEST_CASE("bytes that land by another number are none of the extent's", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Age age = s.begin(1, {{0, W}});
  while (s.fetched.empty()) {
    const Message message = s.posts.front();
    s.posts.pop_front();
    s.deliver(message);
  }
  Actions actions;
  const Number number = s.agents[1].number(0);
  for (const Number other : {number - 1, number + 1}) {
    s.agents[1].landed(0, other, actions);
    CHECK(actions.empty());
    CHECK(s.at(1, 0) == AgentState::kLandingOwn);
  }
  s.quiet();
  CHECK(s.agents[1].runnable(age));
}

TEST_CASE("an Urge of another number presses nobody", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  s.run(1, {{1, W}});
  const Age oldest = s.home.operation();
  const Age holder = s.begin(1, {{1, W}});
  REQUIRE(s.agents[1].submit(holder));
  const Age claims = s.begin(0, {{0, W}, {1, W}});  // waits for extent 1
  s.quiet();
  s.begin(1, {{0, W}});
  s.quiet();
  const Number number = s.home.number(0);
  const auto urge = [&](Number by) {
    s.deliver({.kind = MessageKind::kUrge, .to = 0, .extent = 0, .number = by, .age = oldest});
  };
  urge(number - 1);
  urge(number + 1);
  CHECK(s.at(0, 0) == AgentState::kOwned);
  CHECK(s.count(ActionKind::kClaimLost) == 0);
  urge(number);
  CHECK(s.at(0, 0) == AgentState::kGiven);
  CHECK(s.count(ActionKind::kClaimLost) == 1);
  CHECK_FALSE(s.agents[0].runnable(claims));
}

TEST_CASE("an operation that reads an extent and is found to write it claims it anew",
          "[directory]") {
  System s;
  s.run(0, {{0, W}});
  s.run(1, {{0, R}});
  const Age age = s.begin(1, {{0, R}});
  REQUIRE(s.agents[1].runnable(age));
  Actions actions;
  s.agents[1].reach(age, {0, W}, actions);
  s.take(1, actions);
  CHECK_FALSE(s.agents[1].submit(age));  // agent 0 may read it still
  s.quiet();
  CHECK(s.at(0, 0) == AgentState::kRetained);
  CHECK(s.at(1, 0) == AgentState::kOwned);
  REQUIRE(s.agents[1].submit(age));
  s.complete(1, age);
  s.quiet();
  // An extent that is the agent's alone needs no wait.
  const Age again = s.begin(1, {{0, R}});
  s.agents[1].reach(again, {0, W}, actions);
  s.take(1, actions);
  CHECK(s.agents[1].submit(again));
}

TEST_CASE("an extent that is needed no more goes to whom it was kept from", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  s.run(1, {{1, W}});
  const Age holder = s.begin(1, {{1, W}});
  REQUIRE(s.agents[1].submit(holder));
  const Age older = s.begin(0, {{0, W}, {1, W}});
  s.quiet();
  const Age younger = s.begin(1, {{0, W}});
  s.quiet();
  REQUIRE_FALSE(s.agents[1].runnable(younger));
  Actions actions;
  s.agents[0].unneed(0, actions);
  s.take(0, actions);
  s.quiet();
  CHECK(s.agents[1].runnable(younger));
  CHECK_FALSE(s.agents[0].runnable(older));
}

TEST_CASE("a Get of an operation that is complete moves nothing", "[directory]") {
  for (const Rule rule : {Rule::kAll, Rule::kDropCompleted}) {
    broken_rule = rule;
    System s;
    s.run(0, {{0, W}});
    const Age age = s.begin(1, {{0, W}});
    const Message get = s.posts.front();
    REQUIRE(get.kind == MessageKind::kGet);
    s.quiet();
    REQUIRE(s.agents[1].submit(age));
    s.complete(1, age);
    s.quiet();
    s.run(0, {{0, W}});
    s.deliver(get);
    s.quiet();
    CHECK(s.home.owner(0) == (rule == Rule::kAll ? 0 : 1));
  }
  broken_rule = Rule::kAll;
}

TEST_CASE("of what is retained what was given last stays", "[directory]") {
  System s;
  s.run(0, {{0, W}, {1, W}, {2, W}, {3, W}});
  for (const ExtentId extent : {2u, 0u, 3u, 1u}) s.run(1, {{extent, W}});
  s.run(0, {{3, W}});  // it is none of them any more
  CHECK(s.agents[0].retained() == 3);
  Actions actions;
  s.agents[0].shed(2, actions);
  s.take(0, actions);
  CHECK(s.at(0, 2) == AgentState::kAbsent);
  CHECK(s.at(0, 0) == AgentState::kRetained);
  CHECK(s.at(0, 1) == AgentState::kRetained);
  CHECK(s.count(ActionKind::kFree) == 1);
  s.agents[0].shed(1, actions);
  s.take(0, actions);
  CHECK(s.at(0, 0) == AgentState::kAbsent);
  CHECK(s.at(0, 1) == AgentState::kRetained);
  s.agents[0].shed(0, actions);
  s.take(0, actions);
  CHECK(s.agents[0].retained() == 0);
  CHECK(s.at(0, 1) == AgentState::kAbsent);
  CHECK(s.at(0, 3) == AgentState::kOwned);
  s.run(0, {{0, W}, {1, W}});
  CHECK(s.framesUsed(0) == 3);
}

TEST_CASE("a freed extent is forgotten everywhere, and can be allocated again", "[directory]") {
  System s;
  s.run(0, {{0, W}, {1, W}});
  s.run(1, {{0, R}});
  Actions actions;
  s.home.free(0, 2, actions);
  s.take(kHome, actions);
  s.quiet();
  CHECK(s.count(ActionKind::kReleased) == 2);
  CHECK(s.home.phase(0) == Phase::kGone);
  CHECK(s.at(0, 0) == AgentState::kAbsent);
  CHECK(s.at(1, 0) == AgentState::kAbsent);
  CHECK(s.framesUsed(0) == 0);
  const Number number = s.home.number(0);
  s.home.allocate(0, 2);
  s.told.clear();
  s.run(1, {{0, R}});
  CHECK(s.count(ActionKind::kClear) == 1);
  CHECK(s.home.number(0) > number);
}

TEST_CASE("what is to become quiet goes again for the operation that has been submitted meanwhile",
          "[directory]") {
  System s;
  s.agents[0] = Agent(0, true);
  s.agents[0].resize(8);
  s.run(0, {{0, W}});
  const Age older = s.home.operation();
  const Age several = s.begin(0, {{0, W}});  // makes several calls
  s.home.sent(older, 1);
  s.begin(older, 1, {{0, W}});
  s.quiet();
  REQUIRE(s.count(ActionKind::kStop) == 1);
  REQUIRE(s.agents[0].submit(several));
  Actions actions;
  CHECK_FALSE(s.agents[0].useAgain(several, 1, actions));
  CHECK(s.agents[0].useAgain(several, 0, actions));
  s.take(0, actions);
  CHECK(s.count(ActionKind::kGo) == 1);
  s.quiet();
  CHECK_FALSE(s.agents[1].runnable(older));
  s.complete(0, several);
  s.quiet();
  CHECK(s.count(ActionKind::kStop) == 2);
  s.agents[0].quiet(0, true, actions);
  s.take(0, actions);
  s.quiet();
  CHECK(s.agents[1].runnable(older));
}

TEST_CASE("an operation that needs a freed extent fails", "[directory]") {
  System s;
  Actions actions;
  s.home.free(0, 1, actions);
  s.take(kHome, actions);
  s.quiet();
  const Age age = s.begin(0, {{0, W}});
  s.quiet();
  CHECK(s.count(ActionKind::kFailed) == 1);
  s.agents[0].cancel(age, actions);
  s.take(0, actions);
  s.quiet();
  CHECK(s.agents[0].busy() == 0);
  CHECK(s.framesUsed(0) == 0);
}

TEST_CASE("an operation that waits goes without a freed extent that it needs no more",
          "[directory]") {
  System s;
  s.run(1, {{0, W}, {1, W}, {2, W}});
  const Age holder = s.begin(1, {{1, W}});
  REQUIRE(s.agents[1].submit(holder));
  const Age waiter = s.begin(0, {{0, W}, {1, W}, {2, W}});
  s.quiet();
  CHECK_FALSE(s.agents[0].runnable(waiter));  // it claims two of the three
  Actions actions;
  s.home.free(1, 2, actions);
  s.take(kHome, actions);
  for (const ExtentId freed : {1u, 2u}) s.agents[0].unneed(freed, actions);
  s.take(0, actions);
  s.quiet();
  CHECK(s.count(ActionKind::kFailed) == 0);
  CHECK(s.agents[0].submit(waiter));
  s.complete(0, waiter);
  s.quiet();
  CHECK(s.home.phase(2) == Phase::kGone);
  s.complete(1, holder);
  s.quiet();
  CHECK(s.home.phase(1) == Phase::kGone);
  CHECK(s.count(ActionKind::kReleased) == 2);
  CHECK(s.agents[0].busy() == 0);
  CHECK(s.at(0, 0) == AgentState::kOwned);
  CHECK(s.framesUsed(0) == 1);
}

TEST_CASE("replicas of agents below 32 and above are recalled alike", "[directory]") {
  System s(8, kMostAgents);
  const auto bits = [](std::initializer_list<unsigned> agents) {
    AgentSet set = 0;
    for (const unsigned agent : agents) set |= AgentSet{1} << agent;
    return set;
  };
  for (int round = 0; round < 3; ++round) {
    s.run(5, {{0, W}, {1, W}});
    for (const AgentId agent : {AgentId{0}, AgentId{31}}) s.run(agent, {{0, R}, {1, R}});
    CHECK(s.home.replicas(0) == bits({0, 31}));
    for (const AgentId agent : {AgentId{32}, AgentId{62}}) s.run(agent, {{0, R}});
    CHECK(s.home.replicas(0) == bits({0, 31, 32, 62}));
    CHECK(s.home.replicas(1) == bits({0, 31}));
    // One of them wants it for itself alone: all others lose it.
    s.run(62, {{0, W}});
    CHECK(s.home.owner(0) == 62);
    CHECK(s.home.replicas(0) == 0);
    for (const AgentId agent : {AgentId{0}, AgentId{5}, AgentId{31}, AgentId{32}})
      CHECK(s.at(agent, 0) == AgentState::kRetained);
    CHECK(s.home.replicas(1) == bits({0, 31}));
  }
  // Only one beyond 32 is left.
  s.run(40, {{0, R}, {2, W}});
  s.run(33, {{2, R}});
  CHECK(s.home.replicas(0) == bits({40}));
  CHECK(s.home.replicas(2) == bits({33}));
  s.run(61, {{2, R}});
  CHECK(s.home.replicas(2) == bits({33, 61}));
  s.run(0, {{2, W}});
  CHECK(s.home.owner(2) == 0);
  CHECK(s.home.replicas(2) == 0);
  CHECK(s.home.busy() == 0);
}

TEST_CASE("what is out of place is a violation, what is late is nothing", "[directory]") {
  System s;
  s.run(0, {{0, W}});
  const Number number = s.home.number(0);
  s.deliver({.kind = MessageKind::kRelease, .to = 0, .extent = 0, .number = number});
  s.deliver(
      {.kind = MessageKind::kYield, .to = 0, .mode = W, .taker = 1, .extent = 0, .number = number});
  s.deliver({.kind = MessageKind::kDone, .from = 1, .extent = 0, .number = number});
  CHECK(s.count(ActionKind::kViolation) == 0);
  CHECK(s.at(0, 0) == AgentState::kOwned);
  s.deliver({.kind = MessageKind::kInvalidate, .to = 0, .extent = 0, .number = number + 1});
  CHECK(s.count(ActionKind::kViolation) == 1);
  s.deliver({.kind = MessageKind::kGet, .from = kMostAgents, .extent = 0});
  s.deliver({.kind = MessageKind::kGet, .from = 1, .extent = 4000});
  CHECK(s.count(ActionKind::kViolation) == 3);
}

TEST_CASE("many operations are under way, and end in any order", "[directory]") {
  const uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Directory home;
  home.join(0);
  home.join(1);
  Actions actions;
  std::map<Age, AgentId> under_way;
  for (int i = 0; i < 20'000; ++i) {
    if (under_way.empty() || (under_way.size() < 3000 && random() % 8 < 5)) {
      const Age age = home.operation();
      const auto agent = static_cast<AgentId>(random() % 2);
      home.sent(age, agent);
      under_way[age] = agent;
    } else {
      // Most often about the first.
      auto one = under_way.begin();
      std::advance(one,
                   random() % std::min<size_t>(under_way.size(), random() % 16 == 0 ? 3000 : 4));
      const auto [age, agent] = *one;
      under_way.erase(one);
      if (random() % 16 == 0)
        home.cancel(age, actions);
      else
        home.receive({.kind = MessageKind::kCompleted, .from = agent, .to = kHome, .age = age},
                     actions);
      REQUIRE(home.complete(age));
    }
    REQUIRE((under_way.empty() || home.oldest() == under_way.begin()->first));
    if (!under_way.empty()) REQUIRE_FALSE(home.complete(under_way.rbegin()->first));
  }
}

TEST_CASE("ages that are in a set", "[directory]") {
  Ages ages;
  for (Age age = 0; age < 1000; age += 2) ages.add(age);
  for (Age age = 0; age < 1000; ++age) CHECK(ages.has(age) == (age % 2 == 0));
  CHECK_FALSE(ages.has(100000));
  ages.addBelow(501);
  for (Age age = 0; age < 1000; ++age) CHECK(ages.has(age) == (age <= 500 || age % 2 == 0));
  for (Age age = 0; age < 1000; ++age) ages.add(age);
  CHECK(ages.has(999));
  CHECK_FALSE(ages.has(1000));
}

TEST_CASE("numbers of extents are used again, in runs", "[directory]") {
  ExtentNumbers numbers;
  CHECK(numbers.take(4) == 0);
  CHECK(numbers.take(2) == 4);
  CHECK(numbers.take(3) == 6);
  CHECK(numbers.end() == 9);
  numbers.give(0, 4);
  CHECK(numbers.take(5) == 9);  // no run is large enough
  CHECK(numbers.take(1) == 0);  // of the first one
  numbers.give(6, 3);
  numbers.give(4, 2);  // between two that are free
  CHECK(numbers.take(8) == 1);
  CHECK(numbers.end() == 14);
  numbers.give(0, 1);
  numbers.give(9, 5);
  numbers.give(1, 8);
  CHECK(numbers.take(14) == 0);  // all of them are one run again
  CHECK(numbers.end() == 14);
}
