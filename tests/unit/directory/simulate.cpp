// Random systems under random faults, with the real step functions: up to five agents and the host,
// or so many as are asked for. A failing one is made smaller, and printed with seed and history.
//   simulate [SEEDS [FIRST]]       that many seeds (10000), from FIRST (OL_TEST_SEED, else 1)
//   simulate --agents N SEEDS      that many seeds of systems of N agents, 7 to 64, with the host
//   simulate --seed N              one, with its history
//   simulate --broken [NAME]       breaks each rule of the protocol in turn, or the one: each has
//                                  to be noticed
#include <chrono>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "coherence/directory/seeded.h"
#include "tests/unit/directory/scenarios.h"
#include "tests/unit/directory/world.h"

namespace olpager::directory::test {
namespace {

/// SplitMix64: the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(next() % bound); }
  bool oneIn(uint32_t chances) { return below(chances) == 0; }

 private:
  uint64_t state_;
};

/// One operation ends when a younger one has ended (a kernel that waits for what another launch
/// does). As in a unified view, nothing else runs at other agents until then; but what others will
/// need is asked for ahead.
void addSpinning(Scenario& s, Random& random) {
  const auto count = static_cast<uint32_t>(s.plans.size());
  const uint32_t spins = random.below(count - 1);
  const uint32_t ends = spins + 1 + random.below(count - 1 - spins);
  s.plans[spins].until = static_cast<int>(ends);
  s.plans[ends].agent = s.plans[spins].agent;
  for (uint32_t i = 0; i < count; ++i)
    s.plans[i].after = s.plans[i].agent == s.plans[spins].agent ? -1 : static_cast<int>(ends);
  s.hints = 1 + random.below(6);
}

/// `agents`: so many in all, with the host; 0: as the seed says.
Scenario drawn(uint64_t seed, uint32_t agents = 0) {
  Random random(seed);
  Scenario s;
  s.agents = 1 + random.below(4) + (random.oneIn(4) ? 1 : 0);
  s.extents = 1 + random.below(6);
  s.placed = random.below(4);
  if (random.oneIn(3)) s.hints = 1 + random.below(3);
  if (random.oneIn(3)) s.duplicates = 1 + random.below(4);
  if (random.oneIn(6)) {
    s.frees = 1 + random.below(2);
    s.stale = random.oneIn(2);
  }
  if (random.oneIn(4)) s.untold = 1 + random.below(6);
  if (agents != 0) s.agents = agents - 1;
  const uint32_t runners = s.agents + (random.oneIn(4) ? 1 : 0);  // the host as well
  const bool shared = !random.oneIn(3);
  const uint32_t count = (agents != 0 ? agents : 2) + random.below(9);
  for (uint32_t i = 0; i < count; ++i) {
    Plan plan;
    plan.agent = static_cast<AgentId>(random.below(runners));
    uint32_t left = 1 + random.below(std::min(3u, s.extents));
    std::vector<bool> used(s.extents);
    while (left > 0) {
      const ExtentId p = random.below(s.extents);
      if (used[p]) continue;
      used[p] = true;
      --left;
      const Need need{p, shared && random.oneIn(2) ? Mode::kShared : Mode::kOwn};
      (plan.needs.empty() || random.oneIn(2) ? plan.needs : plan.hidden).push_back(need);
    }
    // The operation may depend on an older operation elsewhere; a dependency on a younger one is a
    // wait for memory.
    if (i > 0 && random.oneIn(4)) plan.after = static_cast<int>(random.below(i));
    s.plans.push_back(plan);
  }
  if (random.oneIn(8)) s.plans[0].after = 1 + static_cast<int>(random.below(count - 1));
  for (size_t i = 1; i < s.plans.size(); ++i) {
    // No circle through the first.
    if (s.plans[0].after >= 0) s.plans[i].after = -1;
  }
  if (random.oneIn(6)) addSpinning(s, random);
  return s;
}

struct Outcome {
  std::string failure;
  uint64_t steps = 0;
  std::vector<std::string> history;
};

template <typename World>
Outcome runIn(const Scenario& scenario, uint64_t schedule, bool with_history) {
  Random random(schedule ^ 0xC0FFEE);
  World world(scenario);
  Outcome outcome;
  std::vector<Event> normal, spare;
  // How a run is out of order: some prefer what the network brings, some what operations do.
  const uint32_t mood = random.below(4);
  const uint32_t faults = 4u << random.below(4);
  while (!world.failed()) {
    world.events(normal, spare);
    if (normal.empty()) {
      if (!world.over()) {
        world.fail("dead end: operations wait for ever");
      } else {
        world.checkQuiet();
      }
      break;
    }
    if (world.steps() > 20000) {
      world.fail("no end: operations wait for ever");
      break;
    }
    const bool fault = !spare.empty() && random.oneIn(faults);
    const std::vector<Event>& from = fault ? spare : normal;
    Event event = from[random.below(static_cast<uint32_t>(from.size()))];
    if (!fault && mood != 0) {
      // Delay: some kinds of events wait for others.
      for (uint32_t again = 0; again < 3; ++again) {
        const bool network = event.kind == EventKind::kDeliver || event.kind == EventKind::kLand;
        if (mood == 1 ? !network : mood == 2 ? network : event.kind != EventKind::kComplete) break;
        event = from[random.below(static_cast<uint32_t>(from.size()))];
      }
    }
    if (with_history) outcome.history.push_back(world.tell(event));
    try {
      world.happen(event);
    } catch (const std::length_error& endless) {
      world.fail(endless.what());
    }
  }
  outcome.failure = world.failure();
  outcome.steps = world.steps();
  return outcome;
}

Outcome run(const Scenario& scenario, uint64_t schedule, bool with_history) {
  return scenario.agents + 1 > World::kMost ? runIn<LargeWorld>(scenario, schedule, with_history)
                                            : runIn<World>(scenario, schedule, with_history);
}

void print(const Scenario& s) {
  std::printf("agents %u, extents %u, placed %u, hints %u, duplicates %u, frees %u%s, untold %u\n",
              s.agents, s.extents, s.placed, s.hints, s.duplicates, s.frees,
              s.stale ? " (stale)" : "", s.untold);
  for (size_t i = 0; i < s.plans.size(); ++i) {
    const Plan& plan = s.plans[i];
    std::printf("  operation %zu at agent %u:", i, plan.agent);
    for (const Need& need : plan.needs)
      std::printf(" %s%u", need.mode == Mode::kOwn ? "w" : "r", need.extent);
    for (const Need& need : plan.hidden)
      std::printf(" (%s%u)", need.mode == Mode::kOwn ? "w" : "r", need.extent);
    if (plan.after >= 0) std::printf(" after %d", plan.after);
    if (plan.until >= 0) std::printf(" until %d", plan.until);
    std::printf("\n");
  }
}

/// A smaller system that fails as well, under some schedule.
void shrink(Scenario& scenario, uint64_t& schedule, size_t& length) {
  const auto fails = [&](const Scenario& candidate, uint32_t tries) {
    bool found = false;
    for (uint32_t i = 0; i < tries; ++i) {
      const uint64_t other = i == 0 ? schedule : schedule * 1000003 + i;
      const Outcome outcome = run(candidate, other, false);
      if (outcome.failure.empty() || (found && outcome.steps >= length)) continue;
      found = true;
      scenario = candidate;
      schedule = other;
      length = outcome.steps;
    }
    return found;
  };
  constexpr uint32_t kTries = 200;
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t i = 0; i < scenario.plans.size(); ++i) {
      Scenario less = scenario;
      less.plans.erase(less.plans.begin() + static_cast<ptrdiff_t>(i));
      for (Plan& plan : less.plans) {
        const int gone = static_cast<int>(i);
        for (int* const other : {&plan.after, &plan.until}) {
          if (*other == gone) *other = -1;
          if (*other > gone) --*other;
        }
      }
      if (!less.plans.empty() && fails(less, kTries)) {
        smaller = true;
        break;
      }
    }
    for (uint32_t Scenario::*const field :
         {&Scenario::hints, &Scenario::duplicates, &Scenario::frees, &Scenario::untold}) {
      Scenario less = scenario;
      if (less.*field == 0) continue;
      less.*field -= 1;
      smaller = fails(less, kTries) || smaller;
    }
    if (scenario.stale) {
      Scenario less = scenario;
      less.stale = false;
      smaller = fails(less, kTries) || smaller;
    }
    for (size_t i = 0; i < scenario.plans.size(); ++i) {
      for (size_t n = 0; n < scenario.plans[i].hidden.size(); ++n) {
        Scenario less = scenario;
        less.plans[i].hidden.erase(less.plans[i].hidden.begin() + static_cast<ptrdiff_t>(n));
        smaller = fails(less, kTries) || smaller;
        if (n >= scenario.plans[i].hidden.size()) break;
      }
      for (size_t n = 0; n < scenario.plans[i].needs.size() && scenario.plans[i].needs.size() > 1;
           ++n) {
        Scenario less = scenario;
        less.plans[i].needs.erase(less.plans[i].needs.begin() + static_cast<ptrdiff_t>(n));
        smaller = fails(less, kTries) || smaller;
      }
    }
  }
  fails(Scenario(scenario), 2000);
}

void report(uint64_t seed, uint32_t agents, const std::string& failure) {
  Scenario scenario = drawn(seed, agents);
  uint64_t schedule = seed;
  size_t length = run(scenario, schedule, false).steps;
  std::printf("seed %" PRIu64 ": %s\n", seed, failure.c_str());
  shrink(scenario, schedule, length);
  print(scenario);
  const Outcome outcome = run(scenario, schedule, true);
  for (const std::string& line : outcome.history) std::printf("  %s\n", line.c_str());
  std::printf("  %s\n", outcome.failure.c_str());
}

bool simulate(uint64_t seeds, uint64_t first, uint32_t agents = 0) {
  const auto begin = std::chrono::steady_clock::now();
  uint64_t steps = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Outcome outcome = run(drawn(seed, agents), seed, false);
    steps += outcome.steps;
    if (outcome.failure.empty()) continue;
    report(seed, agents, outcome.failure);
    return false;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%" PRIu64 " seeds from %" PRIu64 ", %" PRIu64 " steps in %.1f s, nothing found\n",
              seeds, first, steps, seconds);
  return true;
}

struct RuleName {
  Rule rule;
  const char* name;
  uint64_t seed = 1;  // one that has noticed it; tried first
};
#define RULE(name) Rule::name, #name
constexpr RuleName kRuleNames[] = {
    {RULE(kOlderClaimHolds)},
    {RULE(kSubmittedHolds)},
    {RULE(kUntoldHolds)},
    {RULE(kYoungerClaimYields)},
    {RULE(kInvalidateHeedsAge)},
    // Nobody owns an extent at first: else the first is not placed.
    {RULE(kClaimOnArrival), 2},
    {RULE(kAllClaimOnArrival)},
    {RULE(kHintsYield)},
    {RULE(kUrge)},
    {RULE(kOldestFirst)},
    {RULE(kAcksBeforeYield)},
    {RULE(kOldNumberIgnored)},
    {RULE(kReleaseMatches), 1812},
    {RULE(kRetainedEqual)},
    {RULE(kDoneBeforeRelease)},
};
#undef RULE
// Five more are a matter of time, not of what is right: test_directory.cpp.
static_assert(std::size(kRuleNames) == static_cast<size_t>(Rule::kRules) - 1 - 5);

bool broken(const char* only) {
  bool all = true;
  for (const auto& [rule, name, likely] : kRuleNames) {
    if (only != nullptr && std::strcmp(only, name) != 0) continue;
    broken_rule = rule;
    uint64_t seed = likely;
    std::string failure = run(drawn(seed), seed, false).failure;
    for (uint64_t next = 1; next <= 200000 && failure.empty(); ++next)
      failure = run(drawn(seed = next), next, false).failure;
    if (only != nullptr && !failure.empty()) report(seed, 0, failure);
    if (failure.empty()) {
      std::printf("%-22s NOT NOTICED\n", name);
    } else {
      std::printf("%-22s seed %" PRIu64 ": %s\n", name, seed, failure.c_str());
    }
    std::fflush(stdout);
    all = all && !failure.empty();
    broken_rule = Rule::kAll;
  }
  return all;
}

}  // namespace
}  // namespace olpager::directory::test

int main(int argc, char** argv) {
  using namespace olpager::directory::test;
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  if (argc > 1 && std::strcmp(argv[1], "--broken") == 0)
    return broken(argc > 2 ? argv[2] : nullptr) ? 0 : 1;
  if (argc > 2 && std::strcmp(argv[1], "--seed") == 0) {
    const uint64_t seed = std::strtoull(argv[2], nullptr, 0);
    const Outcome outcome = run(drawn(seed), seed, true);
    print(drawn(seed));
    for (const std::string& line : outcome.history) std::printf("  %s\n", line.c_str());
    std::printf("%s\n", outcome.failure.empty() ? "nothing found" : outcome.failure.c_str());
    return outcome.failure.empty() ? 0 : 1;
  }
  uint32_t agents = 0;
  if (argc > 2 && std::strcmp(argv[1], "--agents") == 0) {
    agents = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 0));
    if (agents <= World::kMost || agents > LargeWorld::kMost) {
      std::printf("--agents: from %u to %u\n", World::kMost + 1u, unsigned{LargeWorld::kMost});
      return 2;
    }
    argv += 2;
    argc -= 2;
  }
  const char* const given = std::getenv("OL_TEST_SEED");
  const uint64_t seeds = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 10000;
  const uint64_t first = argc > 2                          ? std::strtoull(argv[2], nullptr, 0)
                         : given != nullptr && *given != 0 ? std::strtoull(given, nullptr, 0)
                                                           : 1;
  return simulate(seeds, first, agents) ? 0 : 1;
}
