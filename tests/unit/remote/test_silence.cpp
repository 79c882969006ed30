// Memservers that fall silent, alone or together, with leases that outlast the test: nobody waits
// for those where there is another replica, or where the caller has the bytes itself.
#include "tests/unit/remote/rig.h"

namespace olpager::pager::test {

using Outcome = LowerTier::Outcome;

namespace {

constexpr uint32_t kNever = 300'000;  // ms: longer than anything here waits
constexpr uint64_t kCount = 6;
constexpr uint64_t kLength = 4 * kMiB;

struct Silenced {  // a memserver behind a cable
  Silenced() : server(Choice::kTcp, 16 * kSlab, longLease()) {
    auto made = transport::makeFaultyWire(server.address(), {});
    REQUIRE(made.ok());
    wire = std::move(made.value());
  }
  static ServiceOptions longLease() {
    ServiceOptions options;
    options.lease_ms = kNever;
    return options;
  }
  Server server;
  std::unique_ptr<transport::FaultyWire> wire;
};

memserver::TierOptions optionsFor(const std::vector<const Silenced*>& servers, unsigned replicas,
                                  uint32_t stall_ms) {
  memserver::TierOptions options;
  for (const Silenced* server : servers) options.memservers.push_back(server->wire->address());
  options.replicas = replicas;
  options.transport = memserver::test::optionsFor(Choice::kTcp);
  options.stall_ms = stall_ms;
  return options;
}

std::vector<std::unique_ptr<Bytes>> sendSome(Caller& caller, uint64_t seed) {
  std::vector<std::unique_ptr<Bytes>> all;
  for (uint64_t id = 0; id < kCount; ++id) {
    all.push_back(std::make_unique<Bytes>(kLength));
    all.back()->fill(seed + id);
    caller.send(id, *all.back());
  }
  for (uint64_t id = 0; id < kCount; ++id) REQUIRE(caller.await(id).outcome == Outcome::kDone);
  return all;
}

}  // namespace

TEST_CASE(
    "what is late is read from the other replica, and nothing lands in the caller's memory "
    "afterwards",
    "[silence]") {
  Silenced a, b;
  Caller caller(optionsFor({&a, &b}, 2, kNever));  // nobody is ever called stalled
  auto random = seededRandom("late");
  const uint64_t seed = random();
  auto all = sendSome(caller, seed);
  Silenced& silent = random() % 2 == 0 ? a : b;
  for (const auto& bytes : all) bytes->clear();
  silent.wire->freeze();
  for (uint64_t id = 0; id < kCount; ++id) caller.receive(id, *all[id], id % 2 == 0);
  for (uint64_t id = 0; id < kCount; ++id) {
    REQUIRE(caller.await(id).outcome == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
    all[id]->fill(seed + 100 + id);  // the caller's again
  }
  CHECK(caller.tier->figures().hedged_bytes > 0);
  silent.wire->thaw();
  eventually([&] { return caller.tier->figures().connected == 2; });
  for (uint64_t id = 0; id < kCount; ++id) CHECK(all[id]->holds(seed + 100 + id));
  for (uint64_t id = 0; id < kCount; ++id) {
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
  }
  CHECK(caller.tier->figures().lost_bytes == 0);
}

TEST_CASE("receives that found everybody silent go on with the first who is back", "[silence]") {
  Silenced a, b;
  Caller caller(optionsFor({&a, &b}, 2, 100));
  auto random = seededRandom("first back");
  const uint64_t seed = random();
  auto all = sendSome(caller, seed);
  const bool dead = random() % 2 == 0;  // the other one: silent as well, or gone
  b.wire->freeze();
  dead ? a.server.stop() : a.wire->freeze();
  for (uint64_t id = 0; id < kCount; ++id) {
    all[id]->clear();
    caller.receive(id, *all[id], id % 2 == 0);
  }
  std::this_thread::sleep_for(
      std::chrono::milliseconds(random() % 1500));  // it has been noticed, or not yet
  b.wire->thaw();
  for (uint64_t id = 0; id < kCount; ++id) {
    REQUIRE(caller.await(id).outcome == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
  }
}

TEST_CASE("a memserver that takes its time with a lease has room all the same", "[silence]") {
  Silenced a;
  Caller caller(optionsFor({&a}, 1, kNever));
  auto random = seededRandom("late lease");
  const uint64_t seed = random();
  a.wire->freeze();
  // More than it may have leased ahead.
  std::vector<std::unique_ptr<Bytes>> all;
  for (uint64_t id = 0; id < 12 * kSlab / kLength; ++id) {
    all.push_back(std::make_unique<Bytes>(kLength));
    all.back()->fill(seed + id);
    caller.send(id, *all.back());
  }
  std::this_thread::sleep_for(900ms);
  a.wire->thaw();
  for (uint64_t id = 0; id < all.size(); ++id) {
    INFO("copy " << id);
    REQUIRE(caller.await(id).outcome == Outcome::kDone);
    all[id]->clear();
  }
  for (uint64_t id = 0; id < all.size(); ++id) {
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
  }
}

TEST_CASE("a send that is waited for does not wait for a memserver that is silent", "[silence]") {
  const unsigned replicas = GENERATE(1u, 2u);
  Silenced a, b;
  Caller caller(optionsFor({&a, &b}, replicas, 100));
  auto random = seededRandom("send waited for");
  const uint64_t seed = random();
  auto all = sendSome(caller, seed);
  a.wire->freeze();
  b.wire->freeze();
  for (uint64_t id = 0; id < kCount; ++id) {
    all[id]->fill(seed + 200 + id);
    caller.send(id, *all[id]);
  }
  for (uint64_t id = 0; id < kCount; ++id) {
    caller.tier->raise(id);
    caller.tier->raise(id);
    CHECK(caller.await(id).outcome == Outcome::kNoRoom);
    all[id]->clear();  // the caller's again
  }
  a.wire->thaw();
  b.wire->thaw();
  eventually([&] { return caller.tier->figures().connected == 2; });
  for (uint64_t id = 0; id < kCount; ++id) {
    CHECK(caller.received(id, *all[id]) == Outcome::kLost);  // it said that it has no copy
    all[id]->fill(seed + 300 + id);
    eventually([&] { return caller.sent(id, *all[id]) == Outcome::kDone; });
    all[id]->clear();
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + 300 + id));
  }
}

TEST_CASE("a receive that nobody wants any more does not wait for a memserver that is silent",
          "[silence]") {
  Silenced a;
  Caller caller(optionsFor({&a}, 1, 100));
  auto random = seededRandom("receive given up");
  const uint64_t seed = random();
  auto all = sendSome(caller, seed);
  for (const auto& bytes : all) bytes->clear();
  // Before it is known to be silent, after, and one that was waited for by a launch before.
  a.wire->freeze();
  for (uint64_t id = 0; id < kCount; ++id) caller.receive(id, *all[id], id % 2 == 0);
  if (random() % 2 == 0) std::this_thread::sleep_for(300ms);
  caller.tier->raise(1);
  for (uint64_t id = 0; id < kCount - 1; ++id) {
    caller.tier->giveUp(id);
    caller.tier->giveUp(id);
    const auto end = caller.await(id);
    CHECK(end.outcome == Outcome::kNotNow);
    CHECK(caller.tier->holds(id, end.hash));
    all[id]->fill(seed + 100 + id);  // the caller's again
  }
  // A wanted page waits, and comes.
  a.wire->thaw();
  REQUIRE(caller.await(kCount - 1).outcome == Outcome::kDone);
  CHECK(all[kCount - 1]->holds(seed + kCount - 1));
  for (uint64_t id = 0; id < kCount - 1; ++id) CHECK(all[id]->holds(seed + 100 + id));
  caller.tier->drop(0);
  for (uint64_t id = 1; id < kCount; ++id) {
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
  }
  // From one that answers it comes, or not: it is there afterwards.
  for (uint64_t id = 1; id < kCount; ++id) {
    caller.receive(id, *all[id]);
    caller.tier->giveUp(id);
    const auto outcome = caller.await(id).outcome;
    CHECK((outcome == Outcome::kDone || outcome == Outcome::kNotNow));
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + id));
  }
  CHECK(caller.tier->figures().lost_bytes == 0);
}

TEST_CASE("sends that are silent go elsewhere", "[silence]") {
  Silenced a, b, c;
  Caller caller(optionsFor({&a, &b, &c}, 2, 100));
  auto random = seededRandom("sends elsewhere");
  const uint64_t seed = random();
  auto all = sendSome(caller, seed);
  Silenced* const silenced[] = {&a, &b, &c};
  silenced[random() % 3]->wire->freeze();
  for (uint64_t id = 0; id < kCount; ++id) {
    all[id]->fill(seed + 400 + id);
    caller.send(id, *all[id]);
  }
  for (uint64_t id = 0; id < kCount; ++id) REQUIRE(caller.await(id).outcome == Outcome::kDone);
  for (uint64_t id = 0; id < kCount; ++id) {
    all[id]->clear();
    REQUIRE(caller.received(id, *all[id]) == Outcome::kDone);
    CHECK(all[id]->holds(seed + 400 + id));
  }
}

}  // namespace olpager::pager::test
