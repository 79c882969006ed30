// Memservers that die, restart, lie, fill up and want memory back: what is received is right or
// said to be lost.
#include <thread>

#include "tests/unit/remote/rig.h"

namespace olpager::pager::test {

using Outcome = LowerTier::Outcome;

namespace {

ServiceOptions shortLease(uint32_t ms = 1500) {
  ServiceOptions options;
  options.lease_ms = ms;
  return options;
}

struct Sent {
  explicit Sent(uint64_t length) : bytes(length) {}
  Bytes bytes;
  uint64_t seed = 0;
};
using SentById = std::map<uint64_t, std::unique_ptr<Sent>>;

SentById sendSome(Caller& caller, std::mt19937_64& random, uint64_t count, uint64_t length) {
  SentById all;
  for (uint64_t id = 1; id <= count; ++id) {
    auto& sent = all[id] = std::make_unique<Sent>(length);
    sent->seed = random();
    sent->bytes.fill(sent->seed);
    caller.send(id, sent->bytes);
  }
  for (auto& [id, sent] : all) REQUIRE(caller.await(id).outcome == Outcome::kDone);
  return all;
}

void receiveAll(Caller& caller, SentById& all) {
  for (auto& [id, sent] : all) {
    sent->bytes.clear();
    REQUIRE(caller.received(id, sent->bytes) == Outcome::kDone);
    CHECK(sent->bytes.holds(sent->seed));
  }
}

// Everything changes, again and again: it finds a place as before.
void changeAll(Caller& caller, SentById& all, std::mt19937_64& random) {
  for (unsigned round = 0; round < 6; ++round) {
    for (auto& [id, sent] : all) {
      sent->seed = random() | 1;
      sent->bytes.fill(sent->seed);
      INFO("round " << round << ", copy " << id);
      REQUIRE(caller.sent(id, sent->bytes) == Outcome::kDone);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));  // upkeep
  }
}

void wantAll(Server& server) {
  eventually([&] { return server.service->lentBytes() != 0; });
  server.service->stopLending();
  server.service->recall(server.service->lentBytes(), 60'000, "test");
}

}  // namespace

TEMPLATE_TEST_CASE("two replicas outlive a memserver that dies at any moment", "[failures]", Tcp,
                   Shm) {
  Server a(TestType::kChoice, 16 * kSlab, shortLease()),
      b(TestType::kChoice, 16 * kSlab, shortLease()),
      c(TestType::kChoice, 16 * kSlab, shortLease());
  Server* const servers[] = {&a, &b, &c};
  Caller caller({&a, &b, &c}, 2);
  auto random = seededRandom("two replicas");
  SentById all = sendSome(caller, random, 8, 4 * kMiB);
  Server& victim = *servers[random() % 3];
  std::thread killer([&victim, wait = random() % 60'000] {
    std::this_thread::sleep_for(std::chrono::microseconds(wait));
    victim.stop();
  });
  for (int round = 0; round < 12; ++round) {
    for (auto& [id, sent] : all) {
      if (random() % 2 == 0) {
        sent->seed = random();
        sent->bytes.fill(sent->seed);
        caller.send(id, sent->bytes);
      } else {
        sent->bytes.clear();
        caller.receive(id, sent->bytes, random() % 2 == 0);
      }
    }
    for (auto& [id, sent] : all) {
      const auto done = caller.await(id);
      CHECK(done.outcome == Outcome::kDone);
      if (done.outcome == Outcome::kDone) CHECK(sent->bytes.holds(sent->seed));
    }
  }
  killer.join();
  eventually([&] {
    const auto figures = caller.tier->figures();
    return figures.connected == 2 && !figures.degraded;
  });
  // Now the next one may go.
  for (Server* server : servers) {
    if (server == &victim) continue;
    server->stop();
    break;
  }
  receiveAll(caller, all);
  CHECK(caller.tier->figures().lost_bytes == 0);
  eventually([&] { return caller.tier->figures().degraded; });
}

TEST_CASE("what is lost with its only memserver is said to be", "[failures]") {
  Server a(Choice::kTcp, 16 * kSlab, shortLease()), b(Choice::kTcp, 16 * kSlab, shortLease());
  Caller caller({&a, &b}, 1);
  auto random = seededRandom("lost");
  SentById all = sendSome(caller, random, 8, 4 * kMiB);
  a.stop();
  uint64_t lost = 0;
  for (auto& [id, sent] : all) {
    sent->bytes.clear();
    const auto outcome = caller.received(id, sent->bytes);
    if (outcome == Outcome::kDone) {
      CHECK(sent->bytes.holds(sent->seed));
    } else {
      CHECK(outcome == Outcome::kLost);
      lost += sent->bytes.length;
    }
  }
  CHECK(lost > 0);
  CHECK(lost < all.size() * 4 * kMiB);
  const auto figures = caller.tier->figures();
  CHECK(figures.lost_bytes == lost);
  CHECK(figures.held_bytes == all.size() * 4 * kMiB - lost);
  CHECK(figures.capacity_bytes <= 16 * kSlab);
  // All of it finds a place at the other.
  for (auto& [id, sent] : all) {
    sent->bytes.fill(id);
    REQUIRE(caller.sent(id, sent->bytes) == Outcome::kDone);
    sent->bytes.clear();
    REQUIRE(caller.received(id, sent->bytes) == Outcome::kDone);
    CHECK(sent->bytes.holds(id));
  }
}

TEST_CASE("a memserver that is started again is used again", "[failures]") {
  Server a(Choice::kTcp, 16 * kSlab, shortLease()), b(Choice::kTcp, 16 * kSlab, shortLease());
  Caller caller({&a, &b}, 2);
  auto random = seededRandom("started again");
  SentById all = sendSome(caller, random, 6, 4 * kMiB);
  for (Server* server : {&a, &b}) {
    server->stop();
    eventually([&] { return caller.tier->figures().connected == 1; });
    CHECK(caller.tier->figures().degraded);
    // One replica is better than none.
    all.at(1)->seed = random();
    all.at(1)->bytes.fill(all.at(1)->seed);
    REQUIRE(caller.sent(1, all.at(1)->bytes) == Outcome::kDone);
    server->start();
    eventually([&] {
      const auto figures = caller.tier->figures();
      return figures.connected == 2 && !figures.degraded;
    });
    receiveAll(caller, all);
  }
  CHECK(caller.tier->figures().rebuilt_bytes >= 2 * 6 * 4 * kMiB);
  CHECK(caller.tier->figures().lost_bytes == 0);
}

TEST_CASE("wrong bytes are noticed", "[failures]") {
  const unsigned replicas = GENERATE(1u, 2u);
  Server a(Choice::kTcp), b(Choice::kTcp);
  auto random = seededRandom("wrong bytes");
  transport::FaultCounts counts;
  transport::FaultPlan plan;
  plan.seed = random();
  plan.corrupt = 150'000;
  std::unique_ptr<Caller> caller;
  while (!caller) {  // a greeting may be hit as well
    ++plan.seed;
    const memserver::EndpointMaker faulty =
        [&](const transport::Options& options) -> Result<std::unique_ptr<transport::Endpoint>> {
      auto made = transport::makeEndpoint(options);
      if (!made.ok()) return made.error();
      return transport::makeFaulty(std::move(made.value()), plan, &counts);
    };
    memserver::TierOptions options;
    options.memservers = {a.address(), b.address()};
    options.transport = memserver::test::optionsFor(Choice::kTcp);
    if (memserver::connectTier(options, faulty).ok())
      caller = std::make_unique<Caller>(std::vector<const Server*>{&a, &b}, replicas, faulty);
  }
  Bytes bytes(4 * kMiB);
  unsigned right = 0, lost = 0;
  const auto end = std::chrono::steady_clock::now() + memserver::test::kLong;
  for (uint64_t round = 1; right < 10 || (replicas == 1 && lost == 0) || counts.corrupted == 0;
       ++round) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    bytes.fill(round);
    if (caller->sent(1, bytes) != Outcome::kDone) {  // connections break as well
      std::this_thread::sleep_for(10ms);
      continue;
    }
    bytes.clear();
    if (caller->received(1, bytes) == Outcome::kDone) {
      REQUIRE(bytes.holds(round));
      ++right;
    } else {
      ++lost;
    }
  }
  CHECK(counts.corrupted > 0);
  CHECK(caller->tier->figures().lost_bytes == lost * bytes.length);
}

TEST_CASE("without room a send says so, and goes on when there is room again", "[failures]") {
  const unsigned replicas = GENERATE(1u, 2u);
  Server a(Choice::kTcp, 4 * kSlab), b(Choice::kTcp, 4 * kSlab);
  Caller caller({&a, &b}, replicas);
  Bytes bytes(4 * kMiB);
  bytes.fill(5);
  const uint64_t most = 8 * kSlab / replicas / bytes.length;
  for (uint64_t id = 1; id <= most; ++id) REQUIRE(caller.sent(id, bytes) == Outcome::kDone);
  CHECK(caller.sent(most + 1, bytes) == Outcome::kNoRoom);
  CHECK(caller.tier->figures().held_bytes == most * bytes.length);
  // Over what is there already: no more is needed.
  bytes.fill(6);
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  caller.tier->drop(2);
  REQUIRE(caller.sent(most + 1, bytes) == Outcome::kDone);
  bytes.clear();
  REQUIRE(caller.received(most + 1, bytes) == Outcome::kDone);
  CHECK(bytes.holds(6));
}

TEST_CASE("of unequal memservers two replicas can use what the smaller ones have", "[failures]") {
  Server a(Choice::kTcp, 12 * kSlab), b(Choice::kTcp, 4 * kSlab), c(Choice::kTcp, 4 * kSlab);
  Caller caller({&a, &b, &c}, 2);
  Bytes bytes(2 * kMiB);
  bytes.fill(5);
  CHECK(caller.tier->figures().capacity_bytes <= 8 * kSlab);
  CHECK(caller.tier->figures().capacity_bytes >= 6 * kSlab);
  const uint64_t most = 8 * kSlab / bytes.length;
  for (uint64_t id = 1; id <= most; ++id) REQUIRE(caller.sent(id, bytes) == Outcome::kDone);
  CHECK(caller.sent(most + 1, bytes) == Outcome::kNoRoom);
}

TEST_CASE("memory that is wanted back is given back, and what is in it moved", "[failures]") {
  const unsigned replicas = GENERATE(1u, 2u);
  Server a(Choice::kTcp), b(Choice::kTcp), c(Choice::kTcp);
  Caller caller({&a, &b, &c}, replicas);
  auto random = seededRandom("wanted back");
  SentById all = sendSome(caller, random, 8, 4 * kMiB);
  eventually([&] { return a.service->lentBytes() != 0; });
  const uint64_t before = caller.tier->figures().capacity_bytes;
  a.service->stopLending();
  a.service->recall(a.service->lentBytes(), 10'000, "test");
  eventually([&] { return a.service->lentBytes() == 0; });
  eventually([&] { return caller.tier->figures().capacity_bytes < before; });
  a.stop();
  receiveAll(caller, all);
  CHECK(caller.tier->figures().lost_bytes == 0);
}

TEST_CASE("memory that is wanted back where there is no other is kept", "[failures]") {
  Server a(Choice::kTcp, 4 * kSlab);
  Caller caller({&a}, 2);
  CHECK(caller.tier->figures().degraded);
  auto random = seededRandom("kept");
  SentById all = sendSome(caller, random, 3, 4 * kMiB);
  eventually([&] { return a.service->lentBytes() == 4 * kSlab; });
  a.service->recall(kSlab, 300, "test");
  eventually([&] { return a.service->lentBytes() == 3 * kSlab; });  // what was empty
  std::this_thread::sleep_for(500ms);
  CHECK(a.service->lentBytes() == 3 * kSlab);
  a.service->recall(0, 0, "test");
  receiveAll(caller, all);
  Bytes more(4 * kMiB);
  eventually([&] { return caller.sent(9, more) == Outcome::kDone; });
}

TEST_CASE("a memserver that wants everything back is used on while nobody else has room",
          "[failures]") {
  const unsigned replicas = GENERATE(1u, 2u);
  Server a(Choice::kTcp, 8 * kSlab), b(Choice::kTcp, 2 * kSlab), c(Choice::kTcp, 2 * kSlab);
  Caller caller({&a, &b, &c}, replicas);
  auto random = seededRandom("used on");
  SentById all = sendSome(caller, random, replicas == 1 ? 10 : 3, kSlab);
  wantAll(a);
  changeAll(caller, all, random);
  // Also what comes anew, and what others have room for only in pieces.
  Sent more(kSlab);
  more.bytes.fill(more.seed = 77);
  caller.tier->drop(all.begin()->first);
  all.erase(all.begin());
  REQUIRE(caller.sent(99, more.bytes) == Outcome::kDone);
  receiveAll(caller, all);
  // Once others have room it is left.
  caller.tier->drop(99);
  while (all.size() > 2) {
    caller.tier->drop(all.begin()->first);
    all.erase(all.begin());
  }
  eventually([&] { return a.service->lentBytes() == 0; });
  receiveAll(caller, all);
}

TEST_CASE("the last copies at a memserver that wants everything back keep their place",
          "[failures]") {
  const unsigned copies = GENERATE(1u, 2u), replicas = GENERATE(1u, 2u);
  CAPTURE(copies, replicas);
  Server a(Choice::kTcp, 4 * kSlab), b(Choice::kTcp, 16 * kSlab);
  // Nobody else; or one who has the other replica already.
  Caller caller(replicas == 1 ? std::vector<const Server*>{&a} : std::vector<const Server*>{&a, &b},
                replicas);
  auto random = seededRandom("keep their place");
  SentById all = sendSome(caller, random, copies, kSlab);
  wantAll(a);
  changeAll(caller, all, random);
  CHECK(a.service->lentBytes() != 0);
  CHECK(!caller.tier->figures().degraded);
  receiveAll(caller, all);
}

TEST_CASE("memservers that all want everything back are used on, and nothing is moved to and fro",
          "[failures]") {
  Server a(Choice::kTcp, 8 * kSlab), b(Choice::kTcp, 8 * kSlab);
  Caller caller({&a, &b}, 1);
  auto random = seededRandom("all want everything");
  SentById all = sendSome(caller, random, 10, kSlab);
  wantAll(a);
  wantAll(b);
  changeAll(caller, all, random);
  std::this_thread::sleep_for(600ms);
  const uint64_t before = caller.tier->figures().sent_bytes;
  std::this_thread::sleep_for(1200ms);
  CHECK(caller.tier->figures().sent_bytes == before);
  receiveAll(caller, all);
}

TEST_CASE("what is wanted back in part is given back, also while what is there changes",
          "[failures]") {
  Server a(Choice::kTcp, 8 * kSlab);
  Caller caller({&a}, 1);
  auto random = seededRandom("in part");
  SentById all = sendSome(caller, random, 8, kSlab);
  eventually([&] { return a.service->lentBytes() == 8 * kSlab; });
  a.service->stopLending();
  a.service->recall(2 * kSlab, 60'000, "test");
  for (unsigned round = 0; round < 3; ++round) {
    for (auto& [id, sent] : all) {
      sent->bytes.fill(sent->seed = random() | 1);
      if (caller.sent(id, sent->bytes) != Outcome::kDone)
        sent->seed = 0;  // what is closed is not used again
    }
  }
  while (all.size() > 2) {
    caller.tier->drop(all.begin()->first);
    all.erase(all.begin());
  }
  eventually(
      [&] { return a.service->lentBytes() <= 6 * kSlab && a.service->recalledBytes() == 0; });
  std::erase_if(all, [](const auto& one) { return one.second->seed == 0; });
  receiveAll(caller, all);
}

TEMPLATE_TEST_CASE("many copies from several threads, memservers coming and going", "[failures]",
                   Tcp, Shm) {
  Server a(TestType::kChoice, 16 * kSlab, shortLease()),
      b(TestType::kChoice, 16 * kSlab, shortLease()),
      c(TestType::kChoice, 16 * kSlab, shortLease());
  Caller caller({&a, &b, &c}, 2);
  auto random = seededRandom("several threads");
  std::atomic<unsigned> wrong{0}, right{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread, seed = random()] {
      std::mt19937_64 mine(seed);
      SentById all;
      for (int step = 0; step < 60; ++step) {
        const uint64_t id = thread * 100 + mine() % 4;
        auto& sent = all[id];
        if (!sent) sent = std::make_unique<Sent>(2 * kMiB << mine() % 2);
        switch (sent->seed == 0 ? 0 : mine() % 4) {
          case 0:
            sent->seed = mine() | 1;
            sent->bytes.fill(sent->seed);
            if (caller.sent(id, sent->bytes) != Outcome::kDone) sent->seed = 0;
            break;
          case 1:
            caller.tier->drop(id);
            if (caller.received(id, sent->bytes) != Outcome::kLost) ++wrong;
            sent->seed = 0;
            break;
          default:
            sent->bytes.clear();
            if (caller.received(id, sent->bytes) == Outcome::kDone) {
              ++(sent->bytes.holds(sent->seed) ? right : wrong);
            } else {
              sent->seed = 0;
            }
        }
      }
    });
  }
  for (int times = 0; times < 2; ++times) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    b.stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    b.start();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(right > 0);
}

TEMPLATE_TEST_CASE("a tier ends under load, also when a memserver is dead", "[failures]", Tcp,
                   Shm) {
  const bool dead = GENERATE(false, true);
  Server a(TestType::kChoice), b(TestType::kChoice);
  auto caller = std::make_unique<Caller>(std::vector<const Server*>{&a, &b}, 2);
  std::vector<std::unique_ptr<Bytes>> all;
  for (uint64_t id = 1; id <= 6; ++id) {
    all.push_back(std::make_unique<Bytes>(4 * kMiB));
    REQUIRE(caller->sent(id, *all.back()) == Outcome::kDone);
  }
  for (uint64_t id = 1; id <= 6; ++id) {
    if (id % 2 == 0) {
      caller->send(id, *all[id - 1]);
    } else {
      caller->receive(id, *all[id - 1]);
    }
  }
  if (dead) b.stop();
  caller.reset();
  for (const auto& bytes : all) bytes->clear();  // nobody else writes it any more
  eventually([&] { return a.store->figures().free == a.bytes; });
  for (const auto& bytes : all) {
    const auto* words = reinterpret_cast<const uint64_t*>(bytes->base);
    CHECK(std::all_of(words, words + bytes->length / 8, [](uint64_t word) { return word == 0; }));
  }
}

TEST_CASE("a recall moves with the leases to a new connection, and ends there", "[failures]") {
  for (const bool ends_while_cut : {false, true}) {
    INFO("ends while cut " << ends_while_cut);
    auto random = seededRandom("a recall moves");
    ServiceOptions service;
    service.lease_ms = 60'000;
    Server a(Choice::kTcp, 8 * kSlab, service);
    auto made = transport::makeFaultyWire(a.address(), {});
    REQUIRE(made.ok());
    const auto wire = std::move(made.value());
    memserver::TierOptions options;
    options.memservers.push_back(wire->address());
    options.replicas = 1;
    options.transport = memserver::test::optionsFor(Choice::kTcp);
    Caller caller(options);
    std::vector<std::unique_ptr<Bytes>> all;
    for (uint64_t id = 1; id <= 3; ++id) {
      all.push_back(std::make_unique<Bytes>(4 * kMiB));
      all.back()->fill(id);
      REQUIRE(caller.sent(id, *all.back()) == Outcome::kDone);
    }
    a.service->recall(8 * kSlab, 60'000, "test");
    eventually([&] { return a.service->recalledBytes() != 0; });
    std::this_thread::sleep_for(
        std::chrono::milliseconds(random() % 200));  // it has no other place
    wire->cut();
    if (ends_while_cut) a.service->recall(0, 0, "test");
    eventually([&] { return a.service->figures().leases_moved >= 3; });
    if (!ends_while_cut) {
      CHECK(a.service->recalledBytes() != 0);
      a.service->recall(0, 0, "test");
    }
    uint64_t id = 9;
    Bytes more(4 * kMiB);
    eventually([&] { return caller.sent(id++, more) == Outcome::kDone; });
    CHECK(caller.tier->figures().lost_bytes == 0);
  }
}

}  // namespace olpager::pager::test
