// Links over several cards. The addresses are in OL_TEST_RDMA_RAILS: "10.0.0.1,10.1.0.1" at the
// connector's end and OL_TEST_RDMA_PEER_RAILS at the acceptor's. OL_TEST_RDMA_WIRES names the
// network interfaces of each rail, the connector's first: "wire0,wire1,wire2,wire3". Without them
// there is nothing to run: tests/guest/ has them.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/verbs/api.h"
#include "tests/temporary_folder.h"
#include "tests/unit/transport/rig.h"

namespace olpager::transport::test {
namespace {

std::vector<std::string> namedBy(const char* variable) {
  const char* const given = std::getenv(variable);
  std::vector<std::string> names;
  for (std::string rest = given == nullptr ? "" : given; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    names.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  return names;
}

bool haveRails() {
  return namedBy("OL_TEST_RDMA_RAILS").size() > 1 && namedBy("OL_TEST_RDMA_PEER_RAILS").size() > 1;
}
#define NEEDS_RAILS()                                                 \
  if (!haveRails()) {                                                 \
    SUCCEED("skipped: OL_TEST_RDMA_RAILS names no cards' addresses"); \
    return;                                                           \
  }

// Until this goes nothing leaves by one end of a rail's wire: the connector's (0) or the
// acceptor's (1).
class Cut {
 public:
  Cut(size_t rail, size_t end) : wire_(namedBy("OL_TEST_RDMA_WIRES").at(2 * rail + end)) {
    set("add");
  }
  ~Cut() { set("del"); }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

 private:
  void set(const char* how) {
    const std::string command = base::format("tc qdisc {} dev {} root netem loss 100%", how, wire_);
    if (std::system(command.c_str()) != 0) std::abort();
  }
  const std::string wire_;
};

constexpr uint64_t kMiB = 1 << 20;

// Until this goes no memory of `bytes` is registered with the card of that name.
class Refusal {
 public:
  Refusal(std::string card, size_t bytes)
      : table_(const_cast<verbs::Api&>(*verbs::api())), real_(table_.ibv_reg_mr) {
    card_ = std::move(card);
    bytes_ = bytes;
    real() = real_;
    table_.ibv_reg_mr = [](ibv_pd* domain, void* memory, size_t length, int rights) -> ibv_mr* {
      if (length == bytes_ && card_ == domain->context->device->name) {
        ++refused_;
        errno = ENOMEM;
        return nullptr;
      }
      return real()(domain, memory, length, rights);
    };
  }
  ~Refusal() { table_.ibv_reg_mr = real_; }
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;
  static int refused() { return refused_; }

 private:
  using Function = decltype(verbs::Api::ibv_reg_mr);
  static Function& real() {
    static Function function = nullptr;
    return function;
  }
  verbs::Api& table_;
  const Function real_;
  inline static std::string card_;
  inline static size_t bytes_ = 0;
  inline static std::atomic<int> refused_{0};
};

// The names of all cards of this machine.
std::vector<std::string> cardNames() {
  int count = 0;
  ibv_device** const devices = verbs::api()->ibv_get_device_list(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(devices[i]->name);
  verbs::api()->ibv_free_device_list(devices);
  return names;
}

// A pair whose first connection takes none of the rails: it is on loopback.
struct RailPair {
  explicit RailPair(uint32_t dead_ms = 6000)
      : RailPair(options(true, dead_ms), options(false, dead_ms)) {}
  RailPair(const Options& server_options, const Options& client_options)
      : server(server_options), client(client_options) {
    server.domain = makeDomain(store);
    auto listening =
        server.endpoint->listen("127.0.0.1:0", [this](const PeerInfo&) -> Result<Accepted> {
          return Accepted{server.domain, server.queue};
        });
    if (!listening.ok()) FAIL(listening.error().message);
    listener = std::move(listening.value());
    connect();
  }
  void connect() {
    auto link = client.endpoint->connect(listener->address(), {client.domain, client.queue, ""});
    if (!link.ok()) FAIL(link.error().message);
    up = link.value();
    peer = server.await(Kind::kUp).link;
  }
  /// Reads memory of the server's that the link has not heard of.
  void readAnew(uint64_t seed) {
    Buffer there(kMiB), here(kMiB);
    there.fill(seed);
    const auto region = server.add(there, kRemoteRead);
    const auto local = client.add(here, kLocalOnly);
    const LocalRange all = wholeLocal(local);
    REQUIRE(up->read({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kOk);
    REQUIRE(client.await(Kind::kRead).outcome == Outcome::kOk);
    REQUIRE(here.holds(seed, 0, kMiB));
  }
  static Options options(bool server, uint32_t dead_ms = 6000) {
    Options options = optionsFor(Choice::kVerbs);
    options.rails = namedBy(server ? "OL_TEST_RDMA_PEER_RAILS" : "OL_TEST_RDMA_RAILS");
    options.dead_ms = dead_ms;
    return options;
  }

  // Memory lent from the store is in the server's domain.
  DomainPtr store = makeDomain();
  Side server, client;
  std::unique_ptr<Listener> listener;
  LinkPtr up, peer;
};

}  // namespace

TEST_CASE("all rails of a link carry its bytes", "[rails]") {
  NEEDS_RAILS();
  RailPair pair;
  REQUIRE(pair.up->peer().why.starts_with("verbs over 2 rails"));
  constexpr uint64_t kBytes = 4 * kMiB;
  Buffer there(kBytes), here(kBytes);
  there.fill(1);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  for (const Class klass : {Class::kDemand, Class::kPrefetch, Class::kWriteBack}) {
    here.fill(0);
    REQUIRE(pair.up->read({&all, 1}, whole(region), klass, 0) == Outcome::kOk);
    REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
    REQUIRE(here.holds(1, 0, here.length));
    here.fill(2);
    REQUIRE(pair.up->write({&all, 1}, whole(region), klass, 0) == Outcome::kOk);
    REQUIRE(pair.client.await(Kind::kWrite).outcome == Outcome::kOk);
    REQUIRE(there.holds(2, 0, there.length));
    there.fill(1);
  }
  const LinkStats stats = pair.up->stats();
  REQUIRE(stats.rails.size() == 2);
  REQUIRE(stats.railsSetAside() == 0);
  REQUIRE(stats.bounced_bytes == 0);
  REQUIRE(stats.rails[0].bytes + stats.rails[1].bytes == 6 * kBytes);
  REQUIRE(std::min(stats.rails[0].bytes, stats.rails[1].bytes) > kBytes);
}

// At either end: whose card the refusing one is, its name does not say.
TEST_CASE("what one card can't have goes by another", "[rails]") {
  NEEDS_RAILS();
  constexpr uint64_t kBytes = 2 * kMiB;
  for (const std::string& card : cardNames()) {
    CAPTURE(card);
    RailPair pair;
    Buffer there(kBytes), here(kBytes);
    there.fill(1);
    const auto region = pair.server.add(there, kRemoteReadWrite);
    const auto local = pair.client.add(here, kLocalOnly);
    const LocalRange all = wholeLocal(local);
    const int before = Refusal::refused();
    const Refusal refusal(card, kBytes);
    for (int round = 0; round < 2; ++round) {
      here.fill(0);
      REQUIRE(pair.up->read({&all, 1}, whole(region), Class::kPrefetch, 0) == Outcome::kOk);
      REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
      REQUIRE(here.holds(1, 0, kBytes));
    }
    REQUIRE(Refusal::refused() > before);
    const LinkStats stats = pair.up->stats();
    REQUIRE(stats.bounced_bytes == 0);
    REQUIRE(stats.rails[0].bytes + stats.rails[1].bytes == 2 * kBytes);
    REQUIRE(std::min(stats.rails[0].bytes, stats.rails[1].bytes) == 0);
  }
}

TEST_CASE("a link lives while one of its rails does", "[rails]") {
  NEEDS_RAILS();
  const size_t lost = GENERATE(0u, 1u);  // messages take the first
  const size_t end = 1 - lost;
  CAPTURE(lost);
  RailPair pair;
  constexpr uint64_t kPart = kMiB;
  constexpr uint64_t kParts = 8;
  Buffer there(kParts * kPart), here(kParts * kPart);
  auto whole_store = registerMemory(pair.store, there.memory(), kLends);
  REQUIRE(whole_store.ok());
  auto lent = end == 0 ? lendMemory(pair.server.domain, *whole_store.value(), 0, there.length,
                                    kRemoteReadWrite)
                       : registerMemory(pair.server.domain, there.memory(), kRemoteReadWrite);
  REQUIRE(lent.ok());
  const RegionPtr& region = lent.value();
  const auto local = pair.client.add(here, kLocalOnly);
  const auto part = [&](uint64_t i) { return LocalRange{local.get(), i * kPart, kPart}; };
  const auto move = [&](uint64_t i, bool write) {
    const LocalRange from = part(i);
    const RemoteRange range{region->key(), i * kPart, kPart};
    const Class klass = i % 2 == 0 ? Class::kDemand : Class::kWriteBack;
    REQUIRE((write ? pair.up->write({&from, 1}, range, klass, i)
                   : pair.up->read({&from, 1}, range, klass, i)) == Outcome::kOk);
  };
  int sent = 0, received = 0, back = 0;
  const auto say = [&] {
    // Both ways; as far as there is room for them.
    const std::string number = std::to_string(sent);
    if (pair.up->send(MessageClass::kNotice, bytesOf(number)) != Outcome::kOk) return;
    if (pair.peer->send(MessageClass::kNotice, bytesOf(number)) != Outcome::kOk)
      FAIL("room for messages differs");
    ++sent;
  };
  const auto hear = [&](std::chrono::microseconds patience) {
    for (auto one = pair.server.next(patience); one; one = pair.server.next(0us)) {
      if (one->kind == Kind::kMessage) REQUIRE(textOf(one->message) == std::to_string(received++));
    }
  };
  // All parts come and go, again and again; the wire is cut in the middle of it.
  std::optional<Cut> cut;
  uint64_t writes = 0;
  for (uint64_t i = 0; i < kParts; ++i) {
    here.fill(7);
    move(i, true);
  }
  uint64_t under_way = kParts;
  bool over = false;
  for (int round = 0; under_way != 0; ++round) {
    const auto done = pair.client.next(kLong);
    REQUIRE(done);
    if (done->kind == Kind::kMessage) REQUIRE(textOf(done->message) == std::to_string(back++));
    if (done->kind != Kind::kRead && done->kind != Kind::kWrite) continue;
    INFO(pair.up->reason());
    REQUIRE(done->outcome == Outcome::kOk);
    --under_way;
    say();
    hear(0us);
    writes += done->kind == Kind::kWrite ? 1 : 0;
    if (writes == 4 && !cut) cut.emplace(lost, end);
    // Until some have been moved again by the rail that is left, and then a few more.
    over = over || (pair.up->stats().railsSetAside() == 1 &&
                    pair.peer->stats().railsSetAside() == 1 && writes > 12);
    if (over) continue;
    const uint64_t i = done->context;
    if (done->kind == Kind::kWrite) {
      REQUIRE(there.holds(7, i * kPart, kPart));
      std::memset(here.base + i * kPart, 0, kPart);
      move(i, false);
    } else {
      REQUIRE(here.holds(7, i * kPart, kPart));
      std::memset(there.base + i * kPart, 0, kPart);
      move(i, true);
    }
    ++under_way;
  }
  REQUIRE(pair.up->state() == LinkState::kUp);
  const LinkStats stats = pair.up->stats();
  REQUIRE(stats.railsSetAside() == 1);
  REQUIRE(stats.repeated_bytes != 0);
  REQUIRE(stats.bounced_bytes == 0);
  // Messages: none is lost, none comes twice.
  for (int more = 0; more < 100; ++more) {
    say();
    hear(10us);
  }
  while (received < sent) hear(kLong);
  while (back < sent) {
    const auto one = pair.client.await(Kind::kMessage);
    REQUIRE(textOf(one.message) == std::to_string(back++));
  }
  // All of a link's memory is still reached, also what was never asked for before.
  pair.readAnew(9);
  REQUIRE(pair.up->stats().bounced_bytes == 0);
  // The wire is there again: a new link has both.
  cut.reset();
  pair.up->close("done");
  pair.client.await(Kind::kDown);
  pair.server.await(Kind::kDown);
  pair.connect();
  REQUIRE(pair.up->stats().rails.size() == 2);
}

// One end of a pair that writes to the other one and reads back, slot by slot, and asks it things.
struct Busy {
  static constexpr uint64_t kSlots = 6, kSlot = 128 << 10;
  Busy(Side& own, Side& other, LinkPtr link)
      : side(own),
        up(std::move(link)),
        region(other.add(there, kRemoteReadWrite)),
        local(own.add(here, kLocalOnly)) {}
  Side& side;
  const LinkPtr up;
  Buffer there{kSlots * kSlot}, here{kSlots * kSlot};
  const RegionPtr region, local;
  struct Slot {
    uint64_t seed = 0;  // of what was written last
    bool writing = false;
  };
  std::array<Slot, kSlots> slots;
  int under_way = 0, asked = 0, answered = 0, rounds = 0;

  uint64_t at(uint64_t slot) const { return slot * kSlot; }
  bool holds(const Buffer& buffer, uint64_t slot) const {
    for (uint64_t i = 0; i < kSlot; i += 61) {
      if (buffer.base[at(slot) + i] != Buffer::patternAt(slots[slot].seed, i)) return false;
    }
    return true;
  }
  void post(uint64_t slot, std::mt19937_64& random) {
    const LocalRange range{local.get(), at(slot), kSlot};
    const RemoteRange remote{region->key(), at(slot), kSlot};
    const auto klass = static_cast<Class>(random() % kClasses);
    const Outcome outcome = slots[slot].writing ? up->write({&range, 1}, remote, klass, slot)
                                                : up->read({&range, 1}, remote, klass, slot);
    REQUIRE(outcome == Outcome::kOk);
    ++under_way;
  }
  void write(uint64_t slot, std::mt19937_64& random) {
    slots[slot] = {random(), true};
    for (uint64_t i = 0; i < kSlot; ++i)
      here.base[at(slot) + i] = Buffer::patternAt(slots[slot].seed, i);
    post(slot, random);
  }
  /// Takes what has happened; goes on with new operations while it is to.
  void step(bool go_on, std::mt19937_64& random) {
    for (auto one = side.next(200us); one; one = side.next(0us)) {
      INFO(up->reason());
      REQUIRE(one->kind != Kind::kDown);
      if (one->kind == Kind::kMessage && one->message_class == MessageClass::kRequest) {
        REQUIRE(up->send(MessageClass::kReply, one->message.bytes()) == Outcome::kOk);
      } else if (one->kind == Kind::kMessage) {
        REQUIRE(textOf(one->message) == std::to_string(answered++));
      }
      if (one->kind != Kind::kRead && one->kind != Kind::kWrite) continue;
      REQUIRE(one->outcome == Outcome::kOk);
      --under_way;
      const uint64_t slot = one->context;
      if (one->kind == Kind::kWrite) {
        REQUIRE(holds(there, slot));
        std::memset(here.base + at(slot), 0, kSlot);
        slots[slot].writing = false;
        post(slot, random);
        if (up->send(MessageClass::kRequest, bytesOf(std::to_string(asked))) == Outcome::kOk)
          ++asked;
      } else {
        REQUIRE(holds(here, slot));
        // Nothing older has landed behind it.
        for (uint64_t other = 0; other < kSlots; ++other) {
          if (!slots[other].writing) REQUIRE(holds(there, other));
        }
        ++rounds;
        if (go_on) write(slot, random);
      }
    }
  }
};

TEST_CASE("both ends are busy when a rail is lost", "[rails]") {
  NEEDS_RAILS();
  auto random = seededRandom("busy rails");
  for (int round = 0; round < scaled(10); ++round) {
    RailPair pair;
    Busy client(pair.client, pair.server, pair.up), server(pair.server, pair.client, pair.peer);
    for (uint64_t slot = 0; slot < Busy::kSlots; ++slot) {
      client.write(slot, random);
      server.write(slot, random);
    }
    const int before = 1 + static_cast<int>(random() % 20);
    std::optional<Cut> cut;
    int after = 0;
    const auto over = [&] { return after > 40 && client.up->stats().railsSetAside() == 1; };
    const auto until = std::chrono::steady_clock::now() + 3 * kLong;
    while (client.under_way + server.under_way != 0 || client.asked != client.answered ||
           server.asked != server.answered) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      if (!cut && client.rounds + server.rounds > before) cut.emplace(random() % 2, random() % 2);
      after = client.rounds + server.rounds - before;
      client.step(!over(), random);
      server.step(!over(), random);
    }
    REQUIRE(client.up->stats().railsSetAside() == 1);
    REQUIRE(server.up->stats().railsSetAside() == 1);
    REQUIRE(client.up->state() == LinkState::kUp);
  }
}

TEST_CASE("a link whose last rail is lost is lost", "[rails]") {
  NEEDS_RAILS();
  RailPair pair(1500);
  Buffer there(kMiB), here(kMiB);
  const auto region = pair.server.add(there, kRemoteRead);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  const Cut first(0, 0), second(1, 1);
  REQUIRE(pair.up->read({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kOk);
  REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kLinkDown);
  pair.client.await(Kind::kDown);
  pair.server.await(Kind::kDown);
}

TEST_CASE("a rail that does not connect is left out", "[rails]") {
  NEEDS_RAILS();
  Options server = RailPair::options(true);
  const size_t without = GENERATE(0u, 1u);
  server.rails[without] = "127.0.0.1";  // no card's
  RailPair pair(server, RailPair::options(false));
  REQUIRE(pair.up->stats().rails.size() == 1);
  REQUIRE(pair.peer->stats().rails.size() == 1);
  pair.readAnew(4);
  REQUIRE(pair.up->send(MessageClass::kNotice, bytesOf("here")) == Outcome::kOk);
  REQUIRE(textOf(pair.server.await(Kind::kMessage).message) == "here");
  REQUIRE(pair.up->stats().rails[0].bytes == kMiB);
}

TEST_CASE("addresses of rails that can't be are refused", "[rails]") {
  const auto refused = [](std::vector<std::string> rails) {
    Options options;
    options.rails = std::move(rails);
    auto made = makeEndpoint(options);
    return made.ok() ? "" : made.error().message;
  };
  REQUIRE(refused({"10.0.0.1", "fd00::1"}).empty());
  REQUIRE(refused({"10.0.0.1:7000"}) ==
          "rails: '10.0.0.1:7000' is no IPv4 or IPv6 address, such as 10.0.0.2");
  REQUIRE(refused({"fe80::1"}) == "rails: fe80::1: a link-local address says nothing to a peer");
  REQUIRE(refused({"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}) ==
          "rails: 5 addresses; allowed: 4 at most");
}

// The last of them: a wire that was down is as it was only after a while.
TEST_CASE("a rail whose port is down is set aside, also when nothing is under way", "[rails]") {
  NEEDS_RAILS();
  RailPair pair(60000);  // no transfer would tell so soon
  const std::string wire = namedBy("OL_TEST_RDMA_WIRES").at(1);
  // The interface's routes go with it, and neighbours that are known from the start.
  const olpager::test::TemporaryFolder folder;
  const std::string routes = folder.path + "/routes";
  const auto shell = [](const std::string& command) { return std::system(command.c_str()); };
  REQUIRE(shell(base::format("ip route show table 101 dev {0} > {1}; ip link set {0} down", wire,
                             routes)) == 0);
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (pair.up->stats().railsSetAside() == 0 || pair.peer->stats().railsSetAside() == 0) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    (void)pair.client.next(10ms);
  }
  pair.readAnew(5);
  REQUIRE(shell(base::format("ip link set {0} up && while read -r route; do ip route replace "
                             "$route dev {0} table 101; done < {1}",
                             wire, routes)) == 0);
}

}  // namespace olpager::transport::test
