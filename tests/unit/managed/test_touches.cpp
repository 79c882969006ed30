// Touches of threads: sequential scans, and pages that an access needs together. How long pages
// stay.
#include "coherence/cpu/touches.h"

#include <vector>

#include "pager/managed/hold.h"
#include "tests/catch.h"

using namespace olpager::directory;
using namespace olpager::pager;
using olpager::cpu::Touches;

namespace {

std::vector<ExtentId> since(const Touches& touches, pid_t thread, ExtentId extent) {
  Touches::Pages pages;
  const size_t count = touches.since(thread, extent, pages);
  return {pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

TEST_CASE("a sequential scan asks for ever longer runs, and faults once for each", "[touches]") {
  Touches touches;
  constexpr ExtentId kFirst = 100, kEnd = 200;
  std::vector<bool> asked(kEnd);
  ExtentId mark = kNone;
  uint32_t faults = 0, longest = 0;
  for (ExtentId extent = kFirst; extent < kEnd; ++extent) {
    if (asked[extent] && extent != mark) continue;  // it is there when it is touched
    ++faults;
    const Touches::Run run = touches.fault(1, extent, kEnd);
    if (run.count == 0) continue;
    mark = run.first;
    longest = std::max(longest, run.count);
    REQUIRE(run.first > extent);
    REQUIRE(run.first + run.count <= kEnd);
    for (ExtentId ahead = run.first; ahead < run.first + run.count; ++ahead) {
      REQUIRE_FALSE(asked[ahead]);
      asked[ahead] = true;
    }
  }
  CHECK(longest == Touches::kMostAhead);
  // 2, 4, 8, then 16 each.
  CHECK(faults <= 2 + 3 + (kEnd - kFirst) / Touches::kMostAhead + 1);
}

TEST_CASE("what is not sequential asks for nothing", "[touches]") {
  Touches touches;
  for (const ExtentId extent : {5u, 9u, 2u, 2u, 40u, 38u, 36u})
    CHECK(touches.fault(1, extent, 100).count == 0);
  // Another thread's faults in between don't disturb one's scan.
  Touches two;
  CHECK(two.fault(1, 10, 100).count == 0);
  CHECK(two.fault(2, 50, 100).count == 0);
  CHECK(two.fault(1, 11, 100).count == 2);
  CHECK(two.fault(2, 51, 100).count == 2);
}

TEST_CASE("a fault tells what the thread has faulted at since", "[touches]") {
  Touches touches;
  CHECK(since(touches, 1, 5).empty());
  for (const ExtentId extent : {5u, 70u, 30u, 5u, 90u}) touches.fault(1, extent, 1000);
  CHECK(since(touches, 1, 70) == std::vector<ExtentId>{30, 5, 90});
  CHECK(since(touches, 1, 5) == std::vector<ExtentId>{90});
  CHECK(since(touches, 2, 5).empty());
  touches.forget(5, 1);
  CHECK(since(touches, 1, 70) == std::vector<ExtentId>{30, 90});
  // The oldest is forgotten first.
  for (ExtentId extent = 0; extent < Touches::kRemembered; ++extent)
    touches.fault(1, 100 + 3 * extent, 1000);
  CHECK(since(touches, 1, 90).empty());
  CHECK(since(touches, 1, 100).size() == Touches::kRemembered - 1);
}

TEST_CASE("more threads than are remembered", "[touches]") {
  Touches touches;
  for (pid_t thread = 1; thread <= static_cast<pid_t>(Touches::kThreads) + 1; ++thread) {
    touches.fault(thread, 1, 1000);
    touches.fault(thread, 500, 1000);
  }
  CHECK(since(touches, 1, 1).empty());
  CHECK(since(touches, 2, 1).size() == 1);
}

TEST_CASE("a page stays twice as long as it took to come, within limits", "[hold]") {
  const Hold hold;
  CHECK(hold.after(0) == Hold::kLeast);
  CHECK(hold.after(150 * Hold::kMicro) == 300 * Hold::kMicro);
  CHECK(hold.after(3000 * Hold::kMilli) == Hold::kMostAtFirst);
}

TEST_CASE("a page that others take again and again stays longer, until they don't", "[hold]") {
  Hold hold;
  uint64_t now = 1000 * Hold::kMilli;
  // Far apart: no contention.
  for (int i = 0; i < 20; ++i) CHECK_FALSE(hold.taken(now += 6 * Hold::kMilli));
  CHECK(hold.after(0) == Hold::kLeast);
  // Each comes back at once and is taken as soon as it may be.
  unsigned longer = 0;
  for (int i = 0; i < 60; ++i) longer += hold.taken(now += hold.after(0) + 200 * Hold::kMicro);
  CHECK(longer == 7);
  CHECK(hold.after(0) == Hold::kMost);
  CHECK_FALSE(hold.taken(now += Hold::kCalm + 1));
  CHECK(hold.after(0) == Hold::kLeast);
}
