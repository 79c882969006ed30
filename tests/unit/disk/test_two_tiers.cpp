// Two tiers as one, both over files: what the smaller one has no room for goes to the other.
#include <random>

#include "pager/tiers/two_tiers.h"
#include "tests/seed.h"
#include "tests/unit/disk/rig.h"

namespace olpager::disk::test {
namespace {

std::unique_ptr<LowerTier> opened(const TemporaryFolder& folder, uint64_t bytes, Faults* faults) {
  TierOptions options = optionsFor({&folder}, bytes);
  if (faults != nullptr) options.queues = faulty(*faults);
  auto tier = openTier(options);
  REQUIRE(tier.ok());
  return std::move(tier).value();
}

}  // namespace

TEST_CASE("what the first tier has no room for goes to the second", "[two tiers]") {
  TemporaryFolder a, b;
  Caller caller(std::make_unique<pager::TwoTiers>(opened(a, 4 * kMiB, nullptr),
                                                  opened(b, 8 * kMiB, nullptr)));
  CHECK(caller.tier->figures().capacity_bytes == 12 * kMiB);
  CHECK(caller.tier->figures().disk_bytes == 12 * kMiB);
  Bytes bytes(4 * kMiB);
  for (uint64_t id = 1; id <= 3; ++id) {
    bytes.fill(id);
    REQUIRE(caller.sent(id, bytes) == Outcome::kDone);
    CHECK(caller.tier->holds(id, bytes.hash()));
  }
  CHECK(caller.sent(4, bytes) == Outcome::kNoRoom);
  CHECK(caller.tier->heldAddresses().size() == 3);
  CHECK(caller.tier->figures().held_bytes == 12 * kMiB);
  for (uint64_t id = 1; id <= 3; ++id) {
    REQUIRE(caller.received(id, bytes) == Outcome::kDone);
    CHECK(bytes.holds(id));
  }
  // The one that lies in the first tier is sent again while that counts as full: its former copy
  // goes.
  bytes.fill(5);
  CHECK(caller.tier->drop(3));
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  CHECK(caller.tier->heldAddresses().size() == 2);
  bytes.clear();
  REQUIRE(caller.received(1, bytes) == Outcome::kDone);
  CHECK(bytes.holds(5));
  for (const uint64_t id : {1, 2}) CHECK(caller.tier->drop(id));
  CHECK_FALSE(caller.tier->drop(1));
  CHECK(caller.received(1, bytes) == Outcome::kLost);
  CHECK(caller.tier->figures().held_bytes == 0);
}

TEST_CASE("a send that a launch waits for goes no further", "[two tiers]") {
  TemporaryFolder a, b;
  Faults faults;
  Caller caller(std::make_unique<pager::TwoTiers>(opened(a, 64 * kMiB, &faults),
                                                  opened(b, 64 * kMiB, nullptr)));
  Bytes bytes(32 * kMiB);
  faults.held = true;
  caller.tier->send(1, bytes.base(), bytes.length(), nullptr);
  caller.tier->raise(1);
  faults.held = false;
  CHECK(caller.await(1).outcome == Outcome::kNoRoom);
  CHECK(caller.tier->heldAddresses().empty());
}

TEST_CASE("any order of calls over two tiers", "[two tiers]") {
  const uint64_t seed = olpager::test::seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  TemporaryFolder a, b;
  Caller caller(std::make_unique<pager::TwoTiers>(opened(a, 8 * kMiB, nullptr),
                                                  opened(b, 16 * kMiB, nullptr)));
  constexpr uint64_t kCopies = 8;
  Bytes bytes(4 * kMiB);
  std::map<uint64_t, uint64_t> held;  // seeds
  for (int step = 0; step < 300; ++step) {
    const uint64_t id = random() % kCopies;
    switch (random() % 3) {
      case 0: {
        const uint64_t filled = random();
        bytes.fill(filled);
        const auto outcome = caller.sent(id, bytes);
        held.erase(id);
        if (outcome == Outcome::kDone) held[id] = filled;
        break;
      }
      case 1:
        bytes.clear();
        REQUIRE(caller.received(id, bytes) ==
                (held.contains(id) ? Outcome::kDone : Outcome::kLost));
        if (held.contains(id)) REQUIRE(bytes.holds(held[id]));
        break;
      default:
        REQUIRE(caller.tier->drop(id) == held.contains(id));
        held.erase(id);
        break;
    }
    REQUIRE(caller.tier->heldAddresses().size() == held.size());
    REQUIRE(caller.tier->figures().held_bytes == held.size() * bytes.length());
  }
}

}  // namespace olpager::disk::test
