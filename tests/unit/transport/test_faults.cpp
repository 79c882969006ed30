// Links that fail, and what then still holds: everything completes once, nothing lands late, no
// wrong bytes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "base/format.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/core/reactor.h"
#include "coherence/transport/core/wire.h"
#include "coherence/transport/faults/faulty.h"
#include "coherence/transport/faults/faulty_wire.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

/// Random operations on a link until it is down or `count` are done. Returns what completed how
/// often, by context.
struct Exercise {
  std::map<uint64_t, int> posted;
  uint64_t ok = 0, failed = 0;
  bool down = false;
};

Exercise exercise(Side& client, const LinkPtr& link, const RemoteRange& remote,
                  const RegionPtr& local, std::mt19937_64& random, int count) {
  Exercise result;
  uint64_t next = 1, outstanding = 0;
  const uint64_t kSlot = 256 << 10;
  const uint64_t slots = local->length() / kSlot;
  std::map<uint64_t, uint64_t>
      slot_of;  // a slot of its own for each operation under way, here and there
  std::vector<uint64_t> idle;
  for (uint64_t slot = 0; slot < slots; ++slot) idle.push_back(slot);
  while (!result.down && (count > 0 || outstanding > 0)) {
    while (count > 0 && outstanding < slots) {
      const uint64_t length = 1 + random() % kSlot;
      const uint64_t slot = idle[random() % idle.size()];
      const LocalRange range{local.get(), slot * kSlot, length};
      const RemoteRange there{remote.key, slot * kSlot, length};
      const auto klass = static_cast<Class>(random() % kClasses);
      const auto outcome = random() % 2 == 0 ? link->read({&range, 1}, there, klass, next)
                                             : link->write({&range, 1}, there, klass, next);
      --count;
      if (outcome != Outcome::kOk) {
        REQUIRE(outcome == Outcome::kLinkDown);
        break;
      }
      std::erase(idle, slot);
      slot_of[next] = slot;
      result.posted[next++] = 0;
      ++outstanding;
    }
    const auto one = client.next(kLong);
    REQUIRE(one);
    if (one->kind == Kind::kDown) result.down = true;
    if (one->kind != Kind::kRead && one->kind != Kind::kWrite) continue;
    REQUIRE(result.posted.count(one->context) == 1);
    REQUIRE(++result.posted[one->context] == 1);
    idle.push_back(slot_of[one->context]);
    --outstanding;
    ++(one->outcome == Outcome::kOk ? result.ok : result.failed);
  }
  REQUIRE(outstanding == 0);
  // Operations fail since the link is down, which is told behind the last of them.
  if (result.failed > 0 && !result.down) {
    client.await(Kind::kDown);
    result.down = true;
  }
  return result;
}

/// Lends parts of one piece of memory, the middle one of three by lend(). Each link has a domain of
/// its own, as a memserver's sessions do.
struct Lender {
  const uint64_t part;
  DomainPtr store = makeDomain();
  Buffer there;
  RegionPtr all;
  Side server;
  std::vector<DomainPtr> domains;
  std::unique_ptr<Listener> listener;

  Lender(const Options& options, uint64_t bytes, unsigned seed)
      : part(bytes), there(3 * bytes), server(options) {
    there.fill(seed);
    auto registered = registerMemory(store, there.memory(), kLends);
    REQUIRE(registered.ok());
    all = std::move(registered.value());
    auto listening =
        server.endpoint->listen(addressFor(options), [this](const PeerInfo&) -> Result<Accepted> {
          domains.push_back(makeDomain(store));
          return Accepted{domains.back(), server.queue};
        });
    REQUIRE(listening.ok());
    listener = std::move(listening.value());
  }
  /// To the newest link.
  auto lend(uint32_t access) { return lendMemory(domains.back(), *all, part, part, access); }
};

}  // namespace

TEST_CASE("a wire that delays changes nothing", "[faults]") {
  auto random = seededRandom("delays");
  Pair pair(optionsFor(Choice::kTcp));
  WirePlan plan;
  plan.seed = random();
  plan.delay = 100'000;
  plan.delay_us = 3000;
  auto wire = makeFaultyWire(pair.listener->address(), plan);
  REQUIRE(wire.ok());
  Side client(optionsFor(Choice::kTcp));
  auto link = client.endpoint->connect(wire.value()->address(), {client.domain, client.queue, ""});
  REQUIRE(link.ok());
  Buffer there(8 << 20), here(8 << 20);
  there.fill(1);
  here.fill(1);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = client.add(here, kLocalOnly);
  const auto result = exercise(client, link.value(), whole(region), local, random, 400);
  REQUIRE(result.ok == 400);
  REQUIRE(here.holds(1, 0, here.length));
  REQUIRE(there.holds(1, 0, there.length));
  REQUIRE(wire.value()->faults() != 0);
  link.value()->close("done");
  client.await(Kind::kDown);
}

TEST_CASE("a wire that cuts connections ends links, each operation once", "[faults]") {
  auto random = seededRandom("cuts");
  Pair pair(optionsFor(Choice::kTcp));
  Buffer there(8 << 20);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  int downs = 0;
  for (int round = 0; round < scaled(25); ++round) {
    WirePlan plan;
    plan.seed = random();
    plan.cut = 5'000;
    plan.quiet_bytes = 4096;
    auto wire = makeFaultyWire(pair.listener->address(), plan);
    REQUIRE(wire.ok());
    Side client(optionsFor(Choice::kTcp));
    auto link =
        client.endpoint->connect(wire.value()->address(), {client.domain, client.queue, ""});
    REQUIRE(link.ok());
    Buffer here(8 << 20);
    const auto local = client.add(here, kLocalOnly);
    const auto result = exercise(client, link.value(), whole(region), local, random, 600);
    if (result.down) {
      ++downs;
      REQUIRE(!link.value()->reason().empty());
      REQUIRE(!client.next(5ms));
    } else {
      link.value()->close("done");
      client.await(Kind::kDown);
    }
  }
  REQUIRE(downs > 5);
  REQUIRE(pair.up->state() == LinkState::kUp);  // nobody else has noticed
}

TEST_CASE("encrypted, a changed bit ends the link and is never taken for data", "[faults]") {
  auto random = seededRandom("corruption");
  Options options = optionsFor(Choice::kTcp);
  NamedKey key;
  key.name = "k";
  key.secret.fill(5);
  options.keys = std::make_shared<const KeyRing>(std::vector<NamedKey>{key});
  Pair pair(options);
  Buffer there(8 << 20);
  there.fill(1);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  int downs = 0;
  for (int round = 0; round < scaled(10); ++round) {
    WirePlan plan;
    plan.seed = random();
    plan.corrupt = 20'000;
    plan.quiet_bytes = 4096;
    auto wire = makeFaultyWire(pair.listener->address(), plan);
    REQUIRE(wire.ok());
    Side client(options);
    auto link =
        client.endpoint->connect(wire.value()->address(), {client.domain, client.queue, ""});
    REQUIRE(link.ok());
    Buffer here(8 << 20);
    here.fill(1);
    const auto local = client.add(here, kLocalOnly);
    // Bytes read and written are the same everywhere: nothing else may ever be seen, whatever ends
    // half-way.
    downs += exercise(client, link.value(), whole(region), local, random, 300).down ? 1 : 0;
    if (link.value()->state() == LinkState::kUp) {
      link.value()->close("done");
      client.await(Kind::kDown);
    }
    REQUIRE(here.holds(1, 0, here.length));
    REQUIRE(there.holds(1, 0, there.length));
  }
  REQUIRE(downs > 2);
}

TEST_CASE("who is slow is connected to, who is silent is not waited for", "[faults]") {
  Options options = optionsFor(Choice::kTcp);
  options.connect_ms = 20'000;
  options.connect_answer_ms = 1000;
  Pair pair(options);
  Side client(options);
  WirePlan plan;
  plan.delay = 1'000'000;
  plan.delay_us = 350'000;
  auto wire = makeFaultyWire(pair.listener->address(), plan);
  REQUIRE(wire.ok());
  const auto connect = [&] {
    return client.endpoint->connect(wire.value()->address(), {client.domain, client.queue, ""});
  };
  const auto begin = std::chrono::steady_clock::now();
  const auto took = [&] { return std::chrono::steady_clock::now() - begin; };
  auto slow = connect();
  REQUIRE(slow.ok());
  REQUIRE(took() > 1s);  // all answers together
  slow.value()->close("done");
  client.await(Kind::kDown);
  wire.value()->freeze();
  const auto frozen = took();
  REQUIRE(!connect().ok());
  REQUIRE(took() - frozen >= 1s);
  REQUIRE(took() - frozen < 5s);
}

TEST_CASE("a peer that falls silent is lost in its time", "[faults]") {
  Options options = optionsFor(Choice::kTcp);
  options.ping_ms = 50;
  options.silent_ms = 400;
  Pair pair(options);
  auto wire = makeFaultyWire(pair.listener->address(), {});
  REQUIRE(wire.ok());
  Side client(options);
  auto link = client.endpoint->connect(wire.value()->address(), {client.domain, client.queue, ""});
  REQUIRE(link.ok());
  const auto peer = pair.server.await(Kind::kUp).link;
  // Pings keep a quiet link alive.
  REQUIRE(!client.next(1s));
  REQUIRE(link.value()->state() == LinkState::kUp);
  Buffer there(1 << 20), here(1 << 20);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = client.add(here, kLocalOnly);
  wire.value()->freeze();
  const LocalRange all = wholeLocal(local);
  REQUIRE(link.value()->read({&all, 1}, whole(region), Class::kDemand, 3) == Outcome::kOk);
  const auto begin = std::chrono::steady_clock::now();
  const auto read = client.await(Kind::kRead);
  REQUIRE(read.outcome == Outcome::kLinkDown);
  REQUIRE(std::chrono::steady_clock::now() - begin < 5s);
  client.await(Kind::kDown);
  REQUIRE(link.value()->reason().find("not answered") != std::string::npos);
  pair.server.await(Kind::kDown);
  REQUIRE(peer->reason().find("not answered") != std::string::npos);
}

// The other process of the next one. The process ends without Catch's words.
TEST_CASE("a process that serves", "[.serving]") {
  int channel = -1, choice = 0;
  const char* const told = std::getenv("OL_TEST_SERVE");
  if (told == nullptr || std::sscanf(told, "%d %d", &channel, &choice) != 2) _exit(1);
  const Options options = optionsFor(static_cast<Choice>(choice));
  auto endpoint = makeEndpoint(options);
  const auto domain = makeDomain();
  const auto queue = endpoint.value()->makeQueue();
  Buffer memory(8 << 20, true);
  memory.fill(1);
  auto region = registerMemory(domain, memory.memory(), kRemoteReadWrite);
  auto listener =
      endpoint.value()->listen(addressFor(options), [&](const PeerInfo&) -> Result<Accepted> {
        return Accepted{domain, queue};
      });
  char text[64] = {};
  strncpy(text, listener.value()->address().c_str(), sizeof text - 1);
  const RemoteKey key = region.value()->key();
  if (write(channel, text, sizeof text) < 0 || write(channel, &key, sizeof key) < 0) _exit(1);
  char byte = 0;
  if (read(channel, &byte, 1) < 0) _exit(1);
  _exit(0);
}

TEMPLATE_TEST_CASE("a process that is killed is noticed at once, one that is stopped in its time",
                   "[faults]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  const bool kill_it = GENERATE(true, false);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  setenv("OL_TEST_SERVE",
         base::format("{} {}", ends[1], static_cast<int>(TestType::kChoice)).c_str(), 1);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Begins anew: what a card has for this process is not a child's.
    fcntl(ends[1], F_SETFD, 0);
    execl("/proc/self/exe", "serving", "[.serving]", nullptr);
    _exit(1);
  }
  close(ends[1]);
  char text[64] = {};
  RemoteKey key;
  REQUIRE(recv(ends[0], text, sizeof text, MSG_WAITALL) == sizeof text);
  REQUIRE(recv(ends[0], &key, sizeof key, MSG_WAITALL) == sizeof key);
  {
    Options options = optionsFor(TestType::kChoice);
    options.ping_ms = 50;
    // A virtual machine's processors may be interpreted: 8 MiB take a while there.
    options.silent_ms = TestType::kKind == LinkKind::kVerbs ? 5000 : 500;
    Side client(options);
    auto link = client.endpoint->connect(text, {client.domain, client.queue, ""});
    if (!link.ok()) FAIL(link.error().message);
    REQUIRE(link.value()->peer().kind == TestType::kKind);
    Buffer here(8 << 20);
    const auto local = client.add(here, kLocalOnly);
    const LocalRange all = wholeLocal(local);
    REQUIRE(link.value()->read({&all, 1}, {key, 0, key.length}, Class::kDemand, 1) == Outcome::kOk);
    REQUIRE(client.await(Kind::kRead).outcome == Outcome::kOk);
    REQUIRE(here.holds(1, 0, here.length));
    REQUIRE(kill(child, kill_it ? SIGKILL : SIGSTOP) == 0);
    client.await(Kind::kDown, kLong);
    const bool silent = link.value()->reason().find("not answered") != std::string::npos;
    REQUIRE(silent == !kill_it);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
}

TEMPLATE_TEST_CASE("a link that replaces another is up after it is down", "[faults]", Tcp, Shm,
                   Rdma) {
  NEEDS_CARD(TestType);
  auto random = seededRandom("replace");
  Pair pair(anyThreads(TestType::kChoice));
  Buffer there(8 << 20), here(8 << 20);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  LinkPtr link = pair.up;
  for (int round = 0; round < scaled(20); ++round) {
    const LocalRange all = wholeLocal(local);
    for (int i = 0; i < 4; ++i)
      REQUIRE(link->write({&all, 1}, whole(region), Class::kWriteBack, 0) == Outcome::kOk);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    const LinkPtr old_peer = round == 0 ? pair.peer : pair.server.await(Kind::kUp).link;
    const LinkPtr next = pair.connect(link->id());
    // The new one is up: of the old one nothing lands any more, whatever it had on its way.
    REQUIRE(old_peer->state() == LinkState::kDown);
    link = next;
  }
  pair.server.early.clear();
}

TEMPLATE_TEST_CASE("memory that was taken back is not touched any more", "[faults]", Tcp, Shm,
                   Rdma) {
  NEEDS_CARD(TestType);
  auto random = seededRandom("revoke");
  const bool by_card = TestType::kKind == LinkKind::kVerbs;
  Pair pair(anyThreads(TestType::kChoice));
  Buffer here(8 << 20);
  here.fill(2);
  const auto local = pair.client.add(here, kLocalOnly);
  for (int round = 0; round < scaled(20); ++round) {
    constexpr uint64_t kParts = 3, kPart = 8 << 20;
    Buffer there(kParts * kPart);  // no memfd: what a peer has mapped is another matter (handedOut)
    auto region = pair.server.add(there, kRemoteReadWrite);
    for (uint64_t i = 0; i < kParts; ++i) {
      const LocalRange from = wholeLocal(local);
      REQUIRE(pair.up->write({&from, 1}, {region->key(), i * kPart, kPart}, Class::kDemand, 0) ==
              Outcome::kOk);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    region.reset();
    there.fill(3);
    for (uint64_t i = 0; i < kParts; ++i) {
      const auto outcome = pair.client.await(Kind::kWrite).outcome;
      INFO(pair.up->reason() << " / " << pair.peer->reason());
      const bool ended = outcome == Outcome::kLinkDown && by_card;
      REQUIRE((outcome == Outcome::kOk || outcome == Outcome::kRevoked || ended));
    }
    REQUIRE(there.holds(3, 0, there.length));
    // A card that was at it when the memory went can't say so: its link ends.
    if (by_card && pair.up->state() != LinkState::kUp) pair.up = pair.connect(pair.up->id());
  }
  REQUIRE(pair.up->state() == LinkState::kUp);
}

TEMPLATE_TEST_CASE("memory is lent in parts, to one peer after another", "[faults]", Tcp, Shm,
                   Rdma) {
  NEEDS_CARD(TestType);
  const bool by_card = TestType::kKind == LinkKind::kVerbs;
  const Options options = optionsFor(TestType::kChoice);
  constexpr uint64_t kPart = 4 << 20;
  Lender lender(options, kPart, 1);
  Buffer here(kPart);
  REQUIRE(!lendMemory(lender.store, *lender.all, 2 * kPart, kPart + 1, kRemoteRead).ok());
  for (int round = 0; round < 3; ++round) {
    Side client(options);
    auto up =
        client.endpoint->connect(lender.listener->address(), {client.domain, client.queue, ""});
    if (!up.ok()) FAIL(up.error().message);
    lender.server.await(Kind::kUp);
    const auto local = client.add(here, kLocalOnly);
    const LocalRange from = wholeLocal(local);
    const auto move = [&](const RegionPtr& lent, bool write, Class klass) {
      const RemoteRange range{lent->key(), 0, kPart};
      REQUIRE((write ? up.value()->write({&from, 1}, range, klass, 0)
                     : up.value()->read({&from, 1}, range, klass, 0)) == Outcome::kOk);
      return client.await(write ? Kind::kWrite : Kind::kRead).outcome;
    };
    auto middle = lender.lend(kRemoteReadWrite);
    REQUIRE(middle.ok());
    for (const Class klass :
         {Class::kControl, Class::kDemand, Class::kPrefetch, Class::kWriteBack}) {
      here.fill(10 + round);
      REQUIRE(move(middle.value(), true, klass) == Outcome::kOk);
      here.fill(0);
      REQUIRE(move(middle.value(), false, klass) == Outcome::kOk);
      REQUIRE(here.holds(10 + round, 0, kPart));
    }
    if (by_card) REQUIRE(up.value()->stats().bounced_bytes == 0);
    // The same part again, under another key, and the parts beside it as they were.
    auto again = lender.lend(kRemoteRead);
    REQUIRE(again.ok());
    REQUIRE(again.value()->key().key != middle.value()->key().key);
    REQUIRE(move(again.value(), false, Class::kDemand) == Outcome::kOk);
    REQUIRE(lender.there.holds(1, 0, kPart));
    REQUIRE(lender.there.holds(1, 2 * kPart, kPart));
    // Memory that was taken back is reached no more, by whatever key.
    const RemoteKey gone = middle.value()->key();
    middle.value().reset();
    lender.there.fill(1);
    REQUIRE(up.value()->write({&from, 1}, {gone, 0, kPart}, Class::kWriteBack, 0) == Outcome::kOk);
    const auto outcome = client.await(Kind::kWrite).outcome;
    REQUIRE((outcome == Outcome::kRevoked || (by_card && outcome == Outcome::kLinkDown)));
    REQUIRE(lender.there.holds(1, 0, lender.there.length));
  }
}

TEST_CASE("what is lent to a link is reached by its queue pairs alone - Rdma", "[faults]") {
  NEEDS_CARD(Rdma);
  const Options options = optionsFor(Choice::kVerbs);
  constexpr uint64_t kPart = 1 << 20;
  Lender lender(options, kPart, 4);
  RawVerbsPeer owner(lender.listener->address());
  lender.server.await(Kind::kUp);
  auto lent = lender.lend(kRemoteReadWrite);
  REQUIRE(lent.ok());
  const wire::Reach reach = owner.reach(lent.value()->key().key);
  const auto moves = [&](RawVerbsPeer& peer, Class by, ibv_wr_opcode how, Class of) {
    return peer.move(by, how, reach.address, reach.rkeys[static_cast<size_t>(of)], 4096) ==
           IBV_WC_SUCCESS;
  };
  for (size_t each = 0; each < kClasses; ++each) {
    const auto klass = static_cast<Class>(each);
    REQUIRE(moves(owner, klass, IBV_WR_RDMA_READ, klass));
    // A queue pair is lost by the first try: each has a link of its own.
    for (const auto how : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
      RawVerbsPeer other(lender.listener->address());
      REQUIRE(!moves(other, klass, how, klass));
    }
  }
  REQUIRE(lender.there.holds(4, 0, lender.there.length));
  owner.memory.fill(5);
  REQUIRE(moves(owner, Class::kWriteBack, IBV_WR_RDMA_WRITE, Class::kWriteBack));
  REQUIRE(std::memcmp(lender.there.base + kPart, owner.memory.base, 4096) == 0);
  // A window is one queue pair's, among those of a link too. A card without windows has one key.
  if (reach.rkeys[0] != reach.rkeys[1]) {
    for (size_t each = 0; each < kClasses; ++each)
      REQUIRE(!moves(owner, static_cast<Class>(each), IBV_WR_RDMA_READ,
                     static_cast<Class>((each + 1) % kClasses)));
  }
}

TEMPLATE_TEST_CASE("the decorator: faults of every kind, contracts kept", "[faults]", Tcp, Shm,
                   Rdma) {
  NEEDS_CARD(TestType);
  auto random = seededRandom("decorator");
  FaultCounts counts;
  for (int round = 0; round < std::max(scaled(8), 4);
       ++round) {  // of four rounds each has other faults
    FaultPlan plan;
    plan.seed = random();
    plan.delay = 300'000;
    plan.delay_us = 2000;
    plan.drop = round % 2 == 0 ? 0 : 15'000;
    plan.truncate = round % 4 == 2 ? 30'000 : 0;
    plan.corrupt = 20'000;
    Pair pair(optionsFor(TestType::kChoice));
    Side client(optionsFor(TestType::kChoice));
    client.queue.reset();
    client.endpoint = makeFaulty(std::move(client.endpoint), plan, &counts);
    client.queue = client.endpoint->makeQueue();
    auto link =
        client.endpoint->connect(pair.listener->address(), {client.domain, client.queue, ""});
    REQUIRE(link.ok());
    Buffer there(8 << 20, true), here(8 << 20);
    const auto region = pair.server.add(there, kRemoteReadWrite);
    const auto local = client.add(here, kLocalOnly);
    const auto result = exercise(client, link.value(), whole(region), local, random, 300);
    if (!result.down) {
      REQUIRE(result.ok == 300);
      link.value()->close("done");
      client.await(Kind::kDown);
    }
    REQUIRE(!client.next(20ms));
  }
  REQUIRE(counts.delayed != 0);
  REQUIRE(counts.dropped != 0);
  REQUIRE(counts.corrupted != 0);
  REQUIRE(counts.truncated != 0);
}

TEST_CASE("frames full of noise end the link with a reason", "[faults][fuzz]") {
  // A peer that has shaken hands properly, and then says anything.
  auto random = seededRandom("frame noise");
  Options options = optionsFor(Choice::kTcp);
  options.limits.handshakes_per_second = 100000;
  Pair pair(options);
  Buffer there(1 << 20);
  there.fill(6);
  const auto readable = pair.server.add(there, kRemoteRead);
  for (int round = 0; round < scaled(150); ++round) {
    RawPeer peer(pair.listener->address());

    // Plausible frames with something wrong in them, on either connection, until the server has had
    // enough.
    bool closed = false;
    for (int frame = 0; frame < 200 && !closed; ++frame) {
      wire::Header bad;
      bad.frame = static_cast<wire::Frame>(random() % 20);
      bad.klass = static_cast<uint8_t>(random() % 6);
      bad.length = random() % 4 == 0 ? static_cast<uint32_t>(random())
                                     : static_cast<uint32_t>(random() % 3000);
      bad.operation = random() % 3;
      bad.index = static_cast<uint32_t>(random() % 3);
      bad.code = static_cast<uint32_t>(random() % 300);
      bad.key = random() % 2 == 0 ? readable->key().key : random();
      bad.offset = random() % (2 << 20);
      bad.bytes = random() % (2 << 20);
      std::vector<uint8_t> bytes(sizeof bad + std::min<uint32_t>(bad.length, 3000));
      for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
      std::memcpy(bytes.data(), &bad, sizeof bad);
      const int fd = random() % 3 == 0 ? peer.lane.get() : peer.control.get();
      closed = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
    }
    shutdown(peer.control.get(), SHUT_RDWR);
    shutdown(peer.lane.get(), SHUT_RDWR);
    const auto down = pair.server.await(Kind::kDown);
    REQUIRE(!down.link->reason().empty());
    pair.server.early.clear();
    REQUIRE(there.holds(6, 0, 4096));
  }
  REQUIRE(there.holds(6, 0, there.length));
  REQUIRE(pair.up->send(MessageClass::kNotice, bytesOf("still here")) == Outcome::kOk);
  REQUIRE(textOf(pair.server.await(Kind::kMessage).message) == "still here");
}

TEST_CASE("queue pairs of a peer that breaks every rule - Rdma", "[faults][fuzz]") {
  NEEDS_CARD(Rdma);
  auto random = seededRandom("queue pair noise");
  Options options = optionsFor(Choice::kVerbs);
  options.limits.handshakes_per_second = 100000;
  Pair pair(options);
  // The readable part, between what nobody was granted.
  constexpr uint64_t kPart = 1 << 20;
  Buffer there(3 * kPart);
  there.fill(6);
  Memory middle = there.memory();
  middle.base = there.base + kPart;
  middle.length = kPart;
  auto readable = registerMemory(pair.server.domain, middle, kRemoteRead);
  REQUIRE(readable.ok());
  constexpr int kRules = 6;
  for (int round = 0; round < std::max(scaled(40), kRules); ++round) {
    RawVerbsPeer peer(pair.listener->address());
    const wire::Reach reach = peer.reach(readable.value()->key().key);
    const auto klass = static_cast<Class>(random() % kClasses);
    const uint32_t rkey = reach.rkeys[static_cast<size_t>(klass)];
    const auto move = [&](ibv_wr_opcode how, uint64_t address, uint32_t key, uint32_t bytes) {
      return peer.move(klass, how, address, key, bytes);
    };
    REQUIRE(move(IBV_WR_RDMA_READ, reach.address, rkey, kPart) == IBV_WC_SUCCESS);
    REQUIRE(std::memcmp(peer.memory.base, there.base + kPart, kPart) == 0);
    bool moved = false;
    std::string reason = "the connection is lost";
    switch (round % kRules) {
      case 0:  // writing what may be read
        moved = move(IBV_WR_RDMA_WRITE, reach.address, rkey, 4096) == IBV_WC_SUCCESS;
        break;
      case 1:  // beyond it
        moved = move(IBV_WR_RDMA_READ, reach.address + kPart - 4096, rkey, 8192) == IBV_WC_SUCCESS;
        break;
      case 2:  // before it
        moved = move(IBV_WR_RDMA_READ, reach.address - 1, rkey, 4096) == IBV_WC_SUCCESS;
        break;
      case 3:  // by a key that was not told
        moved = move(IBV_WR_RDMA_WRITE, reach.address, rkey ^ (1u << random() % 32), 4096) ==
                IBV_WC_SUCCESS;
        break;
      case 4:  // frames, whole and cut, among messages
        for (int frame = 0; frame < 50; ++frame) {
          wire::Header bad;
          bad.frame = static_cast<wire::Frame>(random() % 20);
          bad.klass = static_cast<uint8_t>(random() % 6);
          bad.length = static_cast<uint32_t>(random() % 4 == 0 ? random() : random() % 3000);
          bad.operation = random() % 3;
          bad.key = random() % 2 == 0 ? readable.value()->key().key : random();
          std::vector<std::byte> bytes(sizeof bad + std::min<uint32_t>(bad.length, 3000));
          for (auto& byte : bytes) byte = static_cast<std::byte>(random());
          std::memcpy(bytes.data(), &bad, sizeof bad);
          size_t done = 0;
          if (!peer.pairs->messages()->post(bytes, done)) break;
        }
        reason = "the peer broke the protocol";
        break;
      default:  // about keys and rails, where others are asked and answered
        for (int frame = 0; frame < 50; ++frame) {
          wire::Header bad;
          constexpr wire::Frame kAboutKeys[] = {wire::Frame::kReach, wire::Frame::kReached,
                                                wire::Frame::kUnmap, wire::Frame::kRailEnded,
                                                wire::Frame::kMessageRest};
          bad.frame = kAboutKeys[random() % 5];
          bad.index = static_cast<uint32_t>(random() % 3);
          bad.code = static_cast<uint32_t>(random() % 300);
          bad.key = random() % 2 == 0 ? readable.value()->key().key : random();
          std::vector<std::byte> payload(random() % 3 == 0 ? sizeof(wire::Reach) : random() % 80);
          for (auto& byte : payload) byte = static_cast<std::byte>(random());
          if (random() % 2 == 0) payload.clear();
          bad.length = static_cast<uint32_t>(payload.size());
          if (!peer.say(bad, payload)) break;
        }
        reason = "the peer broke the protocol";
    }
    REQUIRE(!moved);
    // Noise ends the link by itself. A card refuses the rest, and neither link hears of that.
    const bool by_noise = round % kRules >= 4;
    if (!by_noise) shutdown(peer.control.fd(), SHUT_RDWR);
    const auto down = pair.server.await(Kind::kDown);
    INFO("rule " << round % kRules << ": " << down.link->reason());
    REQUIRE(down.link->reason().starts_with(reason));
    pair.server.early.clear();
    if (by_noise) REQUIRE(move(IBV_WR_RDMA_READ, reach.address, rkey, 4096) != IBV_WC_SUCCESS);
  }
  REQUIRE(there.holds(6, 0, there.length));
  REQUIRE(pair.up->send(MessageClass::kNotice, bytesOf("still here")) == Outcome::kOk);
  REQUIRE(textOf(pair.server.await(Kind::kMessage).message) == "still here");
}

TEMPLATE_TEST_CASE("many threads, many links, at once", "[faults]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  auto random = seededRandom("threads");
  Options options = optionsFor(TestType::kChoice);
  const bool shared = GENERATE(true, false);
  options.io_threads = 4;
  Pair pair(options);
  // A slot of its own for each operation under way, here and there.
  constexpr uint64_t kThreads = 3, kSlots = 10, kSlot = 256 << 10;
  Buffer there(kThreads * kSlots * kSlot, shared);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> answered{0};
  std::thread server([&] {
    while (!stop) {
      Completion batch[8];
      const size_t got = pair.server.queue->wait(batch, 10ms);
      for (size_t i = 0; i < got; ++i) {
        if (batch[i].kind == Kind::kMessage)
          batch[i].link->send(MessageClass::kReply, batch[i].message.bytes());
      }
    }
  });
  std::vector<std::thread> threads;
  const uint64_t seed = random();
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 own(seed + t);
      auto endpoint = makeEndpoint(options);
      const auto domain = makeDomain();
      const auto queue = endpoint.value()->makeQueue();
      std::vector<std::byte> bytes(kSlots * kSlot);
      auto local = registerMemory(domain, {bytes.data(), bytes.size(), -1, 0}, kLocalOnly);
      std::string last;  // so that nothing of it lands in the next one's slots
      for (int round = 0; round < 3; ++round) {
        auto link = endpoint.value()->connect(pair.listener->address(), {domain, queue, last});
        if (!link.ok()) continue;
        last = link.value()->id();
        uint64_t outstanding = 0;
        std::vector<uint64_t> slots;
        for (uint64_t slot = 0; slot < kSlots; ++slot) slots.push_back(slot);
        const auto take = [&] {
          Completion one;
          if (queue->wait({&one, 1}, kLong) == 0) std::abort();
          if (one.kind == Kind::kMessage) ++answered;
          if (one.kind == Kind::kRead || one.kind == Kind::kWrite) slots.push_back(one.context);
          --outstanding;
        };
        for (int i = 0; i < 200; ++i) {
          const uint64_t slot = slots.back();
          const LocalRange range{local.value().get(), slot * kSlot, 1 + own() % kSlot};
          const RemoteRange remote{region->key(), (t * kSlots + slot) * kSlot, range.length};
          Outcome outcome{};
          OperationId id = 0;
          switch (own() % 3) {
            case 0:
              outcome =
                  link.value()->read({&range, 1}, remote, static_cast<Class>(own() % 4), slot, &id);
              break;
            case 1:
              outcome = link.value()->write({&range, 1}, remote, static_cast<Class>(own() % 4),
                                            slot, &id);
              break;
            default:
              outcome =
                  link.value()->send(MessageClass::kRequest, std::vector<std::byte>(own() % 1000));
          }
          if (id != 0 && own() % 4 == 0) link.value()->raise(id, Class::kDemand);
          if (outcome == Outcome::kOk) ++outstanding;
          if (outcome == Outcome::kOk && id != 0) slots.pop_back();
          while (outstanding > 8) take();  // NOLINT(bugprone-infinite-loop): it counts them
        }
        if (own() % 2 == 0) {
          while (outstanding > 0) take();  // NOLINT(bugprone-infinite-loop): it counts them
        }
        link.value()->close("round over");
        Completion one;
        do {
          if (queue->wait({&one, 1}, kLong) == 0) std::abort();
        } while (one.kind != Kind::kDown);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  server.join();
  REQUIRE(answered != 0);
}
