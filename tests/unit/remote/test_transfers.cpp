// Memservers that are well: what is sent comes back, frames are kept account of.
#include "tests/unit/remote/rig.h"

namespace olpager::pager::test {

using Outcome = LowerTier::Outcome;

TEMPLATE_TEST_CASE("what was sent comes back", "[transfers]", Tcp, Shm) {
  const unsigned replicas = GENERATE(1u, 2u);
  Server a(TestType::kChoice), b(TestType::kChoice), c(TestType::kChoice);
  Caller caller({&a, &b, &c}, replicas);
  auto random = seededRandom("what was sent comes back");
  const uint64_t capacity = caller.tier->figures().capacity_bytes;
  CHECK(capacity <= 3 * 16 * kSlab / replicas);
  CHECK(capacity >= 3 * 16 * kSlab / replicas * 3 / 4);
  CHECK(caller.tier->figures().connected == 3);
  struct Sent {
    std::unique_ptr<Bytes> bytes;
    uint64_t seed = 0;
  };
  std::map<uint64_t, Sent> all;
  uint64_t total = 0;
  for (uint64_t id = 1; id <= 8; ++id) {
    const uint64_t length = 2 * kMiB << (id == 1 ? 4 : random() % 4);
    if (total + length > capacity) break;
    all[id].bytes = std::make_unique<Bytes>(length);
    total += length;
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& [id, sent] : all) {
      sent.seed = random();
      sent.bytes->fill(sent.seed);
      const ContentHash hash = kernels::hashMemory(sent.bytes->base, sent.bytes->length);
      caller.send(id, *sent.bytes, id % 2 == 0 ? &hash : nullptr);
    }
    for (auto& [id, sent] : all) {
      const auto done = caller.await(id);
      REQUIRE(done.outcome == Outcome::kDone);
      CHECK(done.sent);
      CHECK(done.hash == kernels::hashMemory(sent.bytes->base, sent.bytes->length));
      CHECK(caller.tier->holds(id, done.hash));
      CHECK_FALSE(caller.tier->holds(id, {done.hash.low + 1, done.hash.high}));
      sent.bytes->clear();
    }
    for (auto& [id, sent] : all) caller.receive(id, *sent.bytes, id % 2 == 0);
    for (auto& [id, sent] : all) caller.tier->raise(id);
    for (auto& [id, sent] : all) {
      const auto done = caller.await(id);
      REQUIRE(done.outcome == Outcome::kDone);
      CHECK_FALSE(done.sent);
      CHECK(sent.bytes->holds(sent.seed));
      CHECK(caller.tier->holds(id, done.hash));
    }
  }
  auto figures = caller.tier->figures();
  CHECK(figures.held_bytes == total);
  CHECK(figures.sent_bytes == 3 * total * replicas);
  // Late pages have been read twice.
  CHECK((replicas > 1 ? figures.received_bytes >= 3 * total : figures.received_bytes == 3 * total));
  CHECK(figures.lost_bytes == 0);
  CHECK_FALSE(figures.degraded);
  for (auto& [id, sent] : all) caller.tier->drop(id);
  for (auto& [id, sent] : all) CHECK(caller.received(id, *sent.bytes) == Outcome::kLost);
  CHECK(caller.tier->figures().held_bytes == 0);
  CHECK(caller.tier->figures().lost_bytes == 0);
  caller.tier.reset();
  for (const Server* server : {&a, &b, &c})
    eventually([&] { return server->store->figures().free == server->bytes; });
}

TEST_CASE("a memserver that can't be reached is named", "[transfers]") {
  Server a(Choice::kTcp);
  memserver::TierOptions options;
  options.memservers = {a.address(), "127.0.0.1:1"};
  const auto refused = memserver::connectTier(options);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("127.0.0.1:1") != std::string::npos);
  options.memservers = {a.address(), a.address()};
  CHECK_FALSE(memserver::connectTier(options).ok());
}

TEST_CASE("the hash of an extent is that of its pages in order", "[transfers]") {
  Bytes bytes(4 * kMiB);
  bytes.fill(3);
  const ContentHash first = kernels::hashPage(bytes.base),
                    second = kernels::hashPage(bytes.base + 2 * kMiB);
  const ContentHash both = kernels::hashMemory(bytes.base, bytes.length);
  CHECK(both == ContentHash{first.low * 0x9E3779B97F4A7C15ull + second.low,
                            first.high * 0xD1342543DE82EF95ull + second.high});
  const ContentHash turned[] = {second, first};
  CHECK_FALSE(kernels::combineHashes(turned, 2) == both);
}

}  // namespace olpager::pager::test
