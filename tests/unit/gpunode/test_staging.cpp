// The worker's pieces of pinned memory, without a driver.
#include <set>

#include "gpunode/worker/staging.h"
#include "tests/catch.h"

using namespace olpager;
using namespace olpager::gpunode;

namespace {
constexpr api::DriverTable kNone{};
}

TEST_CASE("pieces are taken, given and taken again", "[gpunode][staging]") {
  Staging staging;
  auto* const first = staging.take(kNone, 1);
  auto* const second = staging.take(kNone, 1);
  REQUIRE(first != nullptr);
  CHECK(first != second);
  staging.give(first);
  CHECK(staging.take(kNone, 2) == first);
}

TEST_CASE("the end of a context frees what nobody has", "[gpunode][staging]") {
  Staging staging;
  auto* const held = staging.take(kNone, 1);
  auto* const left = staging.take(kNone, 1);
  auto* const elsewhere = staging.take(kNone, 2);
  staging.leave(left);
  staging.contextGone(1);
  // Left pieces are free; a thread's are its own.
  std::set<Staging::Piece*> others;
  for (int i = 0; i < 3; ++i) others.insert(staging.take(kNone, 3));
  CHECK(others.size() == 3);
  CHECK(others.count(left) == 1);
  CHECK(others.count(held) == 0);
  CHECK(others.count(elsewhere) == 0);
  // Given back once, it is given out once.
  staging.give(held);
  others.insert(staging.take(kNone, 3));
  CHECK(others.size() == 4);
  CHECK(others.count(held) == 1);
  CHECK(others.count(staging.take(kNone, 3)) == 0);
}

TEST_CASE("what is left to a context that has gone is free", "[gpunode][staging]") {
  Staging staging;
  auto* const left = staging.take(kNone, 1);
  auto* const given = staging.take(kNone, 1);
  staging.contextGone(1);
  staging.leave(left);
  staging.give(given);
  CHECK(staging.take(kNone, 2) == given);
  CHECK(staging.take(kNone, 2) == left);
  const auto* const third = staging.take(kNone, 2);
  CHECK(third != left);
  CHECK(third != given);
}
