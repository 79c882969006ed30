// Every order of events of small systems, with the real step functions: a walk through all states,
// depth first, each state once.
//   explore NAME...          scenarios by name; none: those of the suite. "all": the long ones as
//                            well
//   explore --list           their names
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>

#include "tests/unit/directory/canonical.h"
#include "tests/unit/directory/scenarios.h"
#include "tests/unit/directory/world.h"

namespace olpager::directory::test {
namespace {

/// Hashes of states that have been seen.
class Seen {
 public:
  Seen() : slots_(1 << 16) {}
  bool add(uint64_t hash) {
    if (hash == 0) hash = 1;
    if (size_ * 2 > slots_.size()) grow();
    const bool fresh = put(hash);
    size_ += fresh ? 1 : 0;
    return fresh;
  }
  size_t size() const { return size_; }

 private:
  bool put(uint64_t hash) {
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == hash) return false;
      if (slots_[at] != 0) continue;
      slots_[at] = hash;
      return true;
    }
  }
  void grow() {
    std::vector<uint64_t> old(slots_.size() * 2);
    old.swap(slots_);
    for (const uint64_t hash : old) {
      if (hash != 0) put(hash);
    }
  }
  std::vector<uint64_t> slots_;
  size_t size_ = 0;
};

struct Step {
  World world;
  std::vector<Event> events;
  size_t next = 0;
};

/// False: something does not hold; the way there has been printed.
bool explore(const NamedScenario& named) {
  Seen seen;
  Canonical canonical;
  std::vector<std::unique_ptr<Step>> path;
  std::vector<Event> normal, spare;
  uint64_t transitions = 0;
  const auto enter = [&](World&& world) {
    world.events(normal, spare);
    if (normal.empty()) {
      if (!world.over()) {
        world.fail("dead end: operations wait for ever");
      } else {
        world.checkQuiet();
      }
    }
    path.push_back(std::make_unique<Step>(Step{std::move(world), normal, 0}));
    path.back()->events.insert(path.back()->events.end(), spare.begin(), spare.end());
  };
  World start(named.scenario);
  seen.add(canonical.of(start));
  enter(std::move(start));
  while (!path.empty()) {
    Step& step = *path.back();
    if (step.world.failed()) {
      std::printf("%s: %s\n", named.name, step.world.failure().c_str());
      for (const auto& one : path) {
        if (one->next > 0)
          std::printf("  %s\n", one->world.tell(one->events[one->next - 1]).c_str());
      }
      return false;
    }
    if (step.next == step.events.size()) {
      path.pop_back();
      continue;
    }
    const Event event = step.events[step.next++];
    World world = step.world;
    world.happen(event);
    ++transitions;
    if (world.failed() || seen.add(canonical.of(world))) enter(std::move(world));
  }
  std::printf("%-28s %8zu states %9" PRIu64 " transitions\n", named.name, seen.size(), transitions);
  std::fflush(stdout);
  return true;
}

}  // namespace
}  // namespace olpager::directory::test

int main(int argc, char** argv) {
  using namespace olpager::directory::test;
  bool good = true;
  for (const NamedScenario& named : scenarios()) {
    if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
      std::printf("%s%s\n", named.name, named.is_long ? " (long)" : "");
      continue;
    }
    const bool chosen =
        argc == 1 ? !named.is_long : std::any_of(argv + 1, argv + argc, [&](const char* name) {
          return std::strcmp(name, named.name) == 0 || std::strcmp(name, "all") == 0;
        });
    if (chosen) good = explore(named) && good;
  }
  return good ? 0 : 1;
}
