// The small systems that are explored whole.
#pragma once

#include <vector>

#include "tests/unit/directory/world.h"

namespace olpager::directory::test {

struct NamedScenario {
  const char* name;
  Scenario scenario;
  bool is_long = false;
};

inline std::vector<NamedScenario> scenarios() {
  constexpr Mode W = Mode::kOwn, R = Mode::kShared;
  std::vector<NamedScenario> all;
  all.push_back({"ping-pong",
                 {.agents = 2,
                  .extents = 1,
                  .placed = 1,
                  .plans = {{0, {{0, W}}, {}}, {1, {{0, W}}, {}}, {0, {{0, W}}, {}}}}});
  all.push_back({"first touch",
                 {.agents = 2,
                  .extents = 1,
                  .plans = {{0, {{0, R}}, {}}, {1, {{0, W}}, {}}, {0, {{0, W}}, {}}}}});
  all.push_back({"crossed",
                 {.agents = 2,
                  .extents = 2,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {{1, W}}}, {1, {{1, W}}, {{0, W}}}}}});
  all.push_back({"crossed, each has one",
                 {.agents = 2,
                  .extents = 2,
                  .placed = 3,
                  .plans = {{0, {{0, W}}, {{1, W}}}, {1, {{1, W}}, {{0, W}}}}}});
  all.push_back({"swap",
                 {.agents = 2,
                  .extents = 2,
                  .placed = 3,
                  .plans = {{0, {{1, W}}, {}}, {1, {{0, W}}, {}}},
                  .hints = 1}});
  all.push_back(
      {"replicas",
       {.agents = 2,
        .extents = 1,
        .placed = 2,
        .plans = {{0, {{0, R}}, {}}, {1, {{0, R}}, {}}, {1, {{0, W}}, {}}, {0, {{0, R}}, {}}}}});
  all.push_back({"replicas and cpu",
                 {.agents = 3,
                  .extents = 1,
                  .placed = 1,
                  .plans = {{0, {{0, R}}, {}}, {1, {{0, W}}, {}}, {2, {{0, R}}, {}}}}});
  all.push_back({"cpu between",
                 {.agents = 3,
                  .extents = 2,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {{1, W}}}, {2, {{0, W}}, {}}, {1, {{1, W}}, {{0, W}}}}}});
  all.push_back({"duplicates",
                 {.agents = 2,
                  .extents = 1,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {}}, {1, {{0, R}}, {}}, {1, {{0, W}}, {}}},
                  .duplicates = 1}});
  all.push_back({"hints",
                 {.agents = 2,
                  .extents = 2,
                  .placed = 2,
                  .plans = {{0, {{1, W}}, {}}, {1, {{0, W}, {1, W}}, {}}},
                  .hints = 2}});
  all.push_back(
      {"spins",
       {.agents = 2,
        .extents = 2,
        .placed = 2,
        .plans = {{0, {{0, W}}, {}, -1, 2}, {1, {{0, W}, {1, W}}, {}, 2}, {0, {{1, W}}, {}}},
        .hints = 1}});
  all.push_back({"spins, and its extent is wanted ahead",
                 {.agents = 2,
                  .extents = 1,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {}, -1, 2}, {1, {{0, W}}, {}, 2}, {0, {{0, W}}, {}}},
                  .hints = 1}});
  all.push_back({"free",
                 {.agents = 2,
                  .extents = 1,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {}}, {1, {{0, R}}, {}}},
                  .hints = 1,
                  .frees = 1}});
  all.push_back({"untold",
                 {.agents = 2,
                  .extents = 1,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {}}, {1, {{0, W}}, {}}, {1, {{0, R}}, {}}},
                  .untold = 2}});
  all.push_back({"host",
                 {.agents = 1,
                  .extents = 2,
                  .placed = 3,
                  .plans = {{0, {{0, W}}, {}}, {1, {{0, W}}, {{1, R}}}, {0, {{1, W}}, {}}}}});
  all.push_back({"three deep",
                 {.agents = 2,
                  .extents = 2,
                  .placed = 2,
                  .plans = {{0, {{0, W}}, {{1, W}}}, {1, {{1, W}}, {{0, W}}}, {0, {{1, W}}, {}}}},
                 true});
  all.push_back({"replicas of two",
                 {.agents = 3,
                  .extents = 2,
                  .placed = 2,
                  .plans = {{0, {{0, R}}, {{1, W}}}, {1, {{0, W}}, {}}, {2, {{0, R}, {1, R}}, {}}}},
                 true});
  return all;
}

}  // namespace olpager::directory::test
