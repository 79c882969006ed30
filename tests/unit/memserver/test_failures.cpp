// Lost connections, stalls, restarts, sessions that die: nothing is lost that need not be, nothing
// stale is believed.
#include <fcntl.h>
#include <sys/resource.h>

#include <fstream>

#include "base/sanitizer.h"
#include "coherence/status/ask.h"
#include "coherence/transport/core/region_entry.h"
#include "tests/unit/memserver/rig.h"

namespace olpager::memserver::test {
namespace {

// AddressSanitizer keeps what was freed for a while.
constexpr uint64_t kSpare = (base::kAddressSanitizer || base::kThreadSanitizer ? 384 : 32) * kMiB;

ServiceOptions shortLease(uint32_t ms) {
  ServiceOptions options;
  options.lease_ms = ms;
  return options;
}

std::unique_ptr<transport::FaultyWire> wireTo(const Server& server) {
  auto wire = transport::makeFaultyWire(server.address(), {});
  REQUIRE(wire.ok());
  return std::move(wire.value());
}

/// Speaks the protocol by itself.
struct RawSession {
  explicit RawSession(const Server& server)
      : rig(server), queue(rig.endpoint->makeQueue()), domain(server.accepted()) {
    auto made = rig.endpoint->connect(server.address(), {rig.domain, queue, ""});
    REQUIRE(made.ok());
    link = made.value();
    ask(protocol::Hello{"raw"});
  }
  void say(protocol::Body body) const {
    const auto bytes = protocol::encode({1, std::move(body)});
    REQUIRE(link->send(transport::MessageClass::kRequest, bytes) == transport::Outcome::kOk);
  }
  protocol::Body ask(protocol::Body body) const {
    say(std::move(body));
    transport::Completion completion;
    do REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
    while (completion.kind != transport::Completion::Kind::kMessage);
    auto reply = protocol::decode(completion.message.bytes());
    REQUIRE(reply.ok());
    return reply.value().body;
  }
  Session rig;
  transport::QueuePtr queue;
  const size_t domain;  // its number at the server
  transport::LinkPtr link;
};

/// A memserver that greets, lends one slab, ends the first connection when it is told to, and
/// registers nothing anew.
class Refuser {
 public:
  Refuser() : endpoint_(need(transport::makeEndpoint(optionsFor(Choice::kTcp)))) {
    queue_ = endpoint_->makeQueue();
    region_ = need(transport::registerMemory(domain_, {memory_.data(), memory_.size(), -1, 0},
                                             transport::kRemoteReadWrite));
    listener_ = need(endpoint_->listen(
        "127.0.0.1:0", [this](const transport::PeerInfo&) -> Result<transport::Accepted> {
          return transport::Accepted{domain_, queue_};
        }));
    thread_ = std::thread([this] { serve(); });
  }
  ~Refuser() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return listener_->address(); }
  void cut() { cut_ = true; }
  size_t refused() const { return refused_; }

 private:
  template <typename T>
  static T need(Result<T> result) {
    REQUIRE(result.ok());
    return std::move(result.value());
  }
  void serve() {
    while (!stop_) {
      transport::Completion completion;
      if (queue_->wait({&completion, 1}, 20ms) == 0) continue;
      if (completion.kind != transport::Completion::Kind::kMessage) continue;
      const auto asked = protocol::decode(completion.message.bytes());
      if (!asked.ok()) continue;
      protocol::Body reply = protocol::RenewReply{};
      if (std::holds_alternative<protocol::Hello>(asked.value().body))
        reply = protocol::HelloReply{{}, 1500, kSlab, {}};
      if (std::holds_alternative<protocol::Lease>(asked.value().body))
        reply = protocol::LeaseReply{{{LeaseId{}, kSlab, region_->key().key}}, "", {}};
      if (std::holds_alternative<protocol::Attach>(asked.value().body)) {
        reply = protocol::Refusal{"not now"};
        ++refused_;
      }
      (void)completion.link->send(transport::MessageClass::kReply,
                                  protocol::encode({asked.value().number, std::move(reply)}));
      if (cut_.exchange(false)) completion.link->close("it is cut");
    }
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kSlab);
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::DomainPtr domain_ = transport::makeDomain();
  transport::QueuePtr queue_;
  transport::RegionPtr region_;
  std::unique_ptr<transport::Listener> listener_;
  std::atomic<bool> stop_{false}, cut_{false};
  std::atomic<size_t> refused_{0};
  std::thread thread_;
};

uint64_t residentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("a connection that is lost only delays", "[failures]") {
  Server server(Choice::kTcp);
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.open();
  const auto slabs = session.lease(4 * kSlab);
  auto random = seededRandom("lost connections");
  Buffer buffer(session.domain, kSlab);
  std::vector<uint64_t> holds(slabs.size(), 0);
  for (int round = 0; round < 12; ++round) {
    const size_t which = random() % slabs.size();
    const transport::LocalRange range = buffer.range();
    const uint64_t context = session.next_context++;
    if (holds[which] == 0 || random() % 2 == 0) {
      holds[which] = random() | 1;
      buffer.fill(holds[which]);
      session.client->write({&range, 1}, {slabs[which].id, 0, kSlab}, Class::kWriteBack, context);
    } else {
      session.client->read({&range, 1}, {slabs[which].id, 0, kSlab}, Class::kDemand, context);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    wire->cut();
    REQUIRE(session.await(context) == TransferResult::kOk);
    CHECK(buffer.holds(holds[which]));
  }
  for (size_t i = 0; i < slabs.size(); ++i) {
    REQUIRE(session.read(buffer, {slabs[i].id, 0, kSlab}) == TransferResult::kOk);
    CHECK((holds[i] == 0 ? buffer.isZero() : buffer.holds(holds[i])));
  }
  CHECK(session.saw(Event::Kind::kDown));
  CHECK_FALSE(session.saw(Event::Kind::kSlabLost));
  CHECK(server.service->lentBytes() == 4 * kSlab);
  eventually([&] {
    return server.service->figures().sessions == 1;
  });  // the earlier ones hold nothing and are gone
}

TEST_CASE("a connection that is lost again and again only delays", "[failures]") {
  Server server(Choice::kTcp);
  transport::WirePlan slow;  // so that no transfer is done before its connection is cut
  slow.delay = 1'000'000;
  slow.delay_us = 2000;
  auto wire = transport::makeFaultyWire(server.address(), slow);
  REQUIRE(wire.ok());
  Session session(wire.value()->address(), Choice::kTcp);
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(5);
  const transport::LocalRange range = buffer.range();
  const uint64_t context = session.next_context++;
  session.client->write({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kWriteBack, context);
  constexpr unsigned kCuts =
      30;  // more than the attempts that are too many once the lease time is over
  for (unsigned cuts = 0; cuts < kCuts; ++cuts) {
    eventually(
        [&] { return session.client->figures().connects > cuts && session.client->figures().up; });
    std::this_thread::sleep_for(10ms);  // it is under way again
    wire.value()->cut();
  }
  REQUIRE(session.await(context) == TransferResult::kOk);
  CHECK_FALSE(session.saw(Event::Kind::kSlabLost));
  Buffer back(session.domain, kSlab);
  REQUIRE(session.read(back, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  CHECK(back.holds(5));
}

TEMPLATE_TEST_CASE("faults of the transport at random moments lose nothing", "[failures]", Tcp,
                   Shm) {
  Server server(TestType::kChoice, 8 * kSlab);
  auto random = seededRandom("random faults");
  transport::FaultPlan plan;
  plan.seed = random();
  plan.delay = 100'000;
  plan.delay_us = 2000;
  plan.drop = 20'000;
  Session session(server.address(), TestType::kChoice, &plan);
  for (int tries = 0;; ++tries) {
    auto connected = Client::connect(session.options, session);
    if (connected.ok()) {
      session.client = std::move(connected.value());
      break;
    }
    REQUIRE(tries < 20);
  }
  std::vector<Slab> slabs;
  eventually([&] {
    if (auto leased = session.client->lease(kSlab); leased.ok()) {
      slabs.insert(slabs.end(), leased.value().begin(), leased.value().end());
    }
    return slabs.size() >= 4;
  });
  constexpr size_t kFrames = 8;  // two in each slab
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<uint64_t> holds(kFrames, 0);
  for (size_t i = 0; i < kFrames; ++i)
    buffers.push_back(std::make_unique<Buffer>(session.domain, 2 * kMiB));
  const auto frame = [&](size_t i) {
    return FrameRange{slabs[i / 2].id, i % 2 * 2 * kMiB, 2 * kMiB};
  };
  for (int round = 0; round < 40; ++round) {
    uint64_t first = session.next_context.fetch_add(kFrames);
    for (size_t i = 0; i < kFrames; ++i) {
      const transport::LocalRange range = buffers[i]->range();
      if (holds[i] == 0 || random() % 2 == 0) {
        holds[i] = random() | 1;
        buffers[i]->fill(holds[i]);
        session.client->write({&range, 1}, frame(i), Class::kWriteBack, first + i);
      } else {
        std::memset(buffers[i]->base, 0x55, 4096);
        session.client->read({&range, 1}, frame(i),
                             random() % 2 == 0 ? Class::kDemand : Class::kPrefetch, first + i);
      }
    }
    for (size_t i = 0; i < kFrames; ++i) {
      REQUIRE(session.await(first + i) == TransferResult::kOk);
      REQUIRE(buffers[i]->holds(holds[i]));
    }
  }
  CHECK_FALSE(session.saw(Event::Kind::kSlabLost));
}

TEST_CASE("a stall below the lease time only delays, and is said", "[failures]") {
  Server server(Choice::kTcp, 16 * kSlab, shortLease(6000));
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.options.stall_ms = 300;
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(3);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  wire->freeze();
  const transport::LocalRange range = buffer.range();
  std::memset(buffer.base, 0, 4096);
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  session.await(Event::Kind::kStalled);
  CHECK(session.client->figures().stalled);
  wire->thaw();
  CHECK(session.await(700) == TransferResult::kOk);
  CHECK(buffer.holds(3));
  session.await(Event::Kind::kResumed);
  CHECK_FALSE(session.saw(Event::Kind::kDown));
}

TEST_CASE("a stall beyond the lease time loses the pages, once and for good", "[failures]") {
  Server server(Choice::kTcp, 16 * kSlab, shortLease(800));
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.options.stall_ms = 200;
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(3);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  wire->freeze();
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  CHECK(session.await(Event::Kind::kSlabLost).slab == slabs[0].id);
  CHECK(session.await(700) == TransferResult::kLost);
  wire->thaw();
  session.await(Event::Kind::kUp);  // the first
  session.await(Event::Kind::kUp);
  CHECK(session.client->slabs().empty());
  CHECK(session.read(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kBadRange);
  eventually([&] { return server.store->figures().lent == 0; });
  eventually(
      [&] { return session.client->lease(kSlab).ok(); });  // a busy machine may stall it once more
}

TEST_CASE("a memserver that answers and moves nothing is given up in the lease time",
          "[failures]") {
  Server server(Choice::kTcp, 16 * kSlab, shortLease(1000));
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(3);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  std::this_thread::sleep_for(1500ms);  // to have nothing to move is no fault
  REQUIRE(session.read(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  wire->drip();
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  CHECK(session.await(700) == TransferResult::kLost);
  CHECK(session.await(Event::Kind::kSlabLost).text.find("nothing has been read or written") !=
        std::string::npos);
}

TEST_CASE("a memserver that greets and refuses is given up in the lease time", "[failures]") {
  Refuser server;
  Session session(server.address(), Choice::kTcp);
  session.open();
  const auto slabs = session.lease(kSlab);
  REQUIRE(slabs.size() == 1);
  server.cut();
  session.await(Event::Kind::kDown);
  Buffer buffer(session.domain, kSlab);
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  CHECK(session.await(700) == TransferResult::kLost);
  CHECK(session.await(Event::Kind::kSlabLost).slab == slabs[0].id);
  CHECK(server.refused() >= 1);
}

TEST_CASE("who does not let go of memory keeps nobody else waiting", "[failures][trust]") {
  constexpr size_t kMany = 12;  // more than the arena has threads
  Server server(Choice::kTcp, 2 * kMany * kSlab);
  const RawSession hangs(server);
  Session other(server);
  other.open();
  const auto lent = std::get<protocol::LeaseReply>(hangs.ask(protocol::Lease{kMany * kSlab}));
  REQUIRE(lent.slabs.size() == kMany);
  // As a peer that has asked for bytes of each and does not take them.
  std::vector<transport::Pin> pins(kMany);
  protocol::Release release;
  for (size_t i = 0; i < kMany; ++i) {
    release.leases.push_back(lent.slabs[i].lease);
    REQUIRE(server.domain(hangs.domain)
                ->pin(lent.slabs[i].key, 0, 1, transport::kRemoteRead, pins[i]) ==
            transport::Outcome::kOk);
  }
  hangs.ask(release);
  // By the arena, and of what nobody is at.
  CHECK(other.lease(kMany * kSlab).size() == kMany);
  CHECK(server.service->lentBytes() == 2 * kMany * kSlab);
  CHECK(!other.client->lease(kSlab, 20'000).ok());
  pins.clear();
  eventually([&] { return server.service->lentBytes() == kMany * kSlab; });
  eventually([&] { return other.client->lease(kSlab, 20'000).ok(); });
}

TEST_CASE("renewals are answered whatever the daemon's threads are at", "[failures]") {
  constexpr size_t kThreads = 4;  // of the arena
  std::atomic<size_t> held{0};
  std::atomic<bool> end{false};
  Server server(Choice::kTcp, 4 * kSlab, shortLease(500));
  const std::shared_ptr<void> opens(nullptr, [&](void*) { end = true; });
  Session session(server);
  session.open();
  session.lease(kSlab);
  for (size_t i = 0; i < kThreads; ++i) {
    server.arena.enqueue([&] {
      ++held;
      while (!end) std::this_thread::sleep_for(1ms);
    });
  }
  eventually([&] { return held == kThreads; });
  const uint64_t before = server.service->figures().requests;
  eventually([&] { return server.service->figures().requests >= before + 10; });
  CHECK(session.client->slabs().size() == 1);
  CHECK(!session.saw(Event::Kind::kDown));
}

TEST_CASE("a transfer to a memserver that stalls can be interrupted", "[failures]") {
  Server server(Choice::kTcp);
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.options.stall_ms = 200;
  session.open();
  const auto slabs = session.lease(2 * kSlab);
  Buffer buffer(session.domain, kSlab), other(session.domain, kSlab);
  buffer.fill(3);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  wire->freeze();
  const transport::LocalRange range = buffer.range(), more = other.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  session.client->write({&more, 1}, {slabs[1].id, 0, kSlab}, Class::kWriteBack, 701);
  session.await(Event::Kind::kStalled);
  CHECK(session.client->interrupt());
  CHECK(session.await(700) == TransferResult::kInterrupted);
  CHECK(session.await(701) == TransferResult::kInterrupted);
  // Nor does it matter that it hangs while it is connected to anew.
  session.await(Event::Kind::kDown);
  for (uint64_t context = 702; context < 720; ++context) {
    session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, context);
    CHECK(!session.client->interrupt());  // there is no connection to give up
    CHECK(session.await(context) == TransferResult::kInterrupted);
    std::this_thread::sleep_for(10ms);
  }
  wire->thaw();
  REQUIRE(session.read(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  CHECK(buffer.holds(3));
}

TEST_CASE("a memserver that has no descriptors for a slab loses nothing", "[failures]") {
  // Some low numbers, which are all that there is later.
  std::vector<base::UniqueFd> low;
  low.reserve(48);
  for (int i = 0; i < 48; ++i) low.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto limit_then = static_cast<rlim_t>(low.back().get()) + 1;
  constexpr size_t kSlabs = 64;
  Server server(Choice::kShm, kSlabs * kSlab);
  Session session(server);
  session.open();
  const auto slabs = session.lease(kSlabs * kSlab);
  Buffer buffer(session.domain, kSlab);
  for (const Slab& slab : slabs) {
    buffer.fill(slab.id);
    REQUIRE(session.write(buffer, {slab.id, 0, kSlab}) == TransferResult::kOk);
  }
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = limit_then;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  low.clear();
  const transport::LocalRange range = buffer.range();
  while (!session.client->interrupt())  // until it hits a transfer that is under way
    session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand,
                         session.next_context++);
  session.await(Event::Kind::kDown);
  std::this_thread::sleep_for(1500ms);  // it connects, and is refused, again and again
  const bool up = session.saw(Event::Kind::kUp) && session.client->figures().up;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(!up);
  eventually([&] { return session.client->figures().up; });
  CHECK(!session.saw(Event::Kind::kSlabLost));
  CHECK(session.client->figures().connects >= 2);
  for (const Slab& slab : slabs) {
    REQUIRE(session.read(buffer, {slab.id, 0, kSlab}) == TransferResult::kOk);
    CHECK(buffer.holds(slab.id));
  }
}

TEMPLATE_TEST_CASE("a memserver that was started anew is not believed", "[failures]", Tcp, Shm) {
  Server server(TestType::kChoice);
  Session session(server);
  session.open();
  const auto slabs = session.lease(2 * kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(1);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  server.stop();
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  server.start();
  CHECK(session.await(700) == TransferResult::kLost);
  session.await(Event::Kind::kSlabLost);
  session.await(Event::Kind::kSlabLost);
  CHECK(session.lease(2 * kSlab).size() == 2);
  REQUIRE(session.read(buffer, {session.client->slabs()[0].id, 0, kSlab}) == TransferResult::kOk);
  CHECK(buffer.isZero());
}

TEST_CASE("a memserver that is gone is given up when its lease time is over", "[failures]") {
  Server server(Choice::kTcp, 16 * kSlab, shortLease(600));
  Session session(server);
  session.open();
  const auto slabs = session.lease(2 * kSlab);
  Buffer buffer(session.domain, kSlab);
  server.stop();
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  session.await(Event::Kind::kDown);
  CHECK(session.await(700) == TransferResult::kLost);
  CHECK(session.client->slabs().empty());
  CHECK(!session.client->lease(kSlab).ok());
}

TEMPLATE_TEST_CASE("a memserver that ends says so: nobody waits for its lease time", "[failures]",
                   Tcp, Shm) {
  Server server(TestType::kChoice, 16 * kSlab, shortLease(600'000));
  Session session(server), idle(server);
  for (Session* one : {&session, &idle}) one->open();
  const auto slabs = session.lease(3 * kSlab);
  Buffer buffer(session.domain, kSlab);
  buffer.fill(7);
  REQUIRE(session.write(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
  server.service->dismiss();
  server.stop();
  session.await(Event::Kind::kDown);
  CHECK(session.client->slabs().empty());
  CHECK(session.client->figures().slabs_lost == 3);
  const transport::LocalRange range = buffer.range();
  session.client->read({&range, 1}, {slabs[0].id, 0, kSlab}, Class::kDemand, 700);
  CHECK(session.await(700) != TransferResult::kOk);
  idle.await(Event::Kind::kDown);
  // Started anew it is another one.
  server.start();
  eventually([&] { return session.client->lease(kSlab).ok(); });
}

TEST_CASE("leases run out only when the connection has been down for the lease time",
          "[failures]") {
  Server server(Choice::kTcp, 16 * kSlab, shortLease(1000));
  const auto wire = wireTo(server);
  Session session(wire->address(), Choice::kTcp);
  session.options.stall_ms = 60'000;
  session.open();
  session.lease(2 * kSlab);
  wire->freeze();
  std::this_thread::sleep_for(700ms);
  CHECK(server.service->lentBytes() == 2 * kSlab);
  const auto cut = std::chrono::steady_clock::now();
  wire->cut();  // counted from now on
  eventually([&] { return server.service->lentBytes() == 0; });
  CHECK(std::chrono::steady_clock::now() - cut >= 990ms);
  eventually([&] { return server.store->figures().free == server.bytes; });
  CHECK(server.service->figures().leases_expired == 2);
}

TEST_CASE("a session's leases are nobody else's to claim", "[failures][trust]") {
  Server server(Choice::kTcp);
  Session session(server);
  session.open();
  session.lease(kSlab);
  // Speaks the protocol by itself.
  Session thief(server);
  auto queue = thief.endpoint->makeQueue();
  auto link = thief.endpoint->connect(server.address(), {thief.domain, queue, ""});
  REQUIRE(link.ok());
  const auto ask = [&](protocol::Body body) {
    const auto bytes = protocol::encode({1, std::move(body)});
    REQUIRE(link.value()->send(transport::MessageClass::kRequest, bytes) ==
            transport::Outcome::kOk);
    transport::Completion completion;
    REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
    REQUIRE(completion.kind == transport::Completion::Kind::kMessage);
    auto reply = protocol::decode(completion.message.bytes());
    REQUIRE(reply.ok());
    return reply.value().body;
  };
  ask(protocol::Hello{"thief"});
  protocol::Attach guess;
  guess.leases.resize(8);
  for (size_t i = 0; i < guess.leases.size(); ++i)
    guess.leases[i].bytes[0] = static_cast<uint8_t>(i);
  const auto attached = std::get<protocol::AttachReply>(ask(guess));
  REQUIRE(attached.slabs.size() == 8);
  for (const auto& slab : attached.slabs) CHECK(slab.key == 0);
  protocol::Release release;
  release.leases = guess.leases;
  ask(release);
  CHECK(server.service->lentBytes() == kSlab);
}

TEST_CASE("who breaks the protocol is closed, others notice nothing", "[failures][trust]") {
  Server server(Choice::kTcp);
  Session session(server);
  session.open();
  const auto slabs = session.lease(kSlab);
  const auto say = [&](std::vector<std::byte> bytes, transport::MessageClass klass) {
    Session rude(server);
    auto queue = rude.endpoint->makeQueue();
    auto link = rude.endpoint->connect(server.address(), {rude.domain, queue, ""});
    REQUIRE(link.ok());
    REQUIRE(link.value()->send(klass, bytes) == transport::Outcome::kOk);
    eventually([&] { return link.value()->state() == transport::LinkState::kDown; });
    CHECK(link.value()->reason().find("protocol") != std::string::npos);
  };
  say({}, transport::MessageClass::kRequest);
  say(std::vector<std::byte>(100), transport::MessageClass::kRequest);
  say(protocol::encode({1, protocol::Renew{}}), transport::MessageClass::kRequest);  // no greeting
  say(protocol::encode({1, protocol::Hello{}}), transport::MessageClass::kNotice);   // no request
  say(protocol::encode({1, protocol::RenewReply{}}),
      transport::MessageClass::kRequest);  // not a session's
  auto cut = protocol::encode({1, protocol::Hello{"x"}});
  cut.pop_back();
  say(cut, transport::MessageClass::kRequest);
  CHECK(server.service->figures().broken == 6);
  Buffer buffer(session.domain, kSlab);
  CHECK(session.read(buffer, {slabs[0].id, 0, kSlab}) == TransferResult::kOk);
}

TEST_CASE("who does not take its answer is closed, and what was lent with it ends", "[failures]") {
  ServiceOptions options;
  options.lease_ms = 500;
  Server server(Choice::kTcp, 16 * kSlab, options);
  auto narrow = optionsFor(Choice::kTcp);
  narrow.limits.message_bytes = 256;  // enough to be greeted
  auto endpoint = transport::makeEndpoint(narrow);
  REQUIRE(endpoint.ok());
  auto queue = endpoint.value()->makeQueue();
  auto link = endpoint.value()->connect(server.address(), {transport::makeDomain(), queue, ""});
  REQUIRE(link.ok());
  for (const auto& bytes : {protocol::encode({1, protocol::Hello{"narrow"}}),
                            protocol::encode({2, protocol::Lease{16 * kSlab}})})
    REQUIRE(link.value()->send(transport::MessageClass::kRequest, bytes) ==
            transport::Outcome::kOk);
  eventually([&] { return link.value()->state() == transport::LinkState::kDown; });
  CHECK(link.value()->reason().find("it takes messages of 256 bytes") != std::string::npos);
  eventually([&] { return server.service->lentBytes() == 0; });
  CHECK(server.service->figures().leases_granted == 16);
  CHECK(server.service->figures().broken == 1);
}

TEST_CASE("who does not take a recall is closed once", "[failures]") {
  constexpr size_t kThreads = 4;  // of the arena
  std::atomic<size_t> held{0};
  std::atomic<bool> end{false};
  Server server(Choice::kTcp);
  const std::shared_ptr<void> opens(nullptr, [&](void*) { end = true; });
  auto narrow = optionsFor(Choice::kTcp);
  narrow.limits.message_bytes = 256;
  auto endpoint = transport::makeEndpoint(narrow);
  REQUIRE(endpoint.ok());
  auto queue = endpoint.value()->makeQueue();
  auto link = endpoint.value()->connect(server.address(), {transport::makeDomain(), queue, ""});
  REQUIRE(link.ok());
  for (const auto& bytes : {protocol::encode({1, protocol::Hello{"narrow"}}),
                            protocol::encode({2, protocol::Lease{kSlab}})})
    REQUIRE(link.value()->send(transport::MessageClass::kRequest, bytes) ==
            transport::Outcome::kOk);
  eventually([&] {
    return server.service->lentBytes() == kSlab && server.service->figures().waiting == 0;
  });
  // Nobody is left to work off that it is down.
  for (size_t i = 0; i < kThreads; ++i) {
    server.arena.enqueue([&] {
      ++held;
      while (!end) std::this_thread::sleep_for(1ms);
    });
  }
  eventually([&] { return held == kThreads; });
  server.service->recall(kSlab, 60'000, std::string(300, 'x'));
  eventually([&] { return link.value()->state() == transport::LinkState::kDown; });
  std::this_thread::sleep_for(300ms);  // some looks at the clocks
  CHECK(server.service->figures().broken == 1);
}

TEST_CASE("a link that neither greets nor asks for the state does not keep a session's place",
          "[failures][trust]") {
  ServiceOptions options;
  options.greet_ms = 1500;
  options.most_sessions = 2;
  Server server(Choice::kTcp, 4 * kSlab, options);
  Session rig(server);
  auto queue = rig.endpoint->makeQueue();
  const auto connect = [&] {
    return rig.endpoint->connect(server.address(), {rig.domain, queue, ""});
  };
  auto silent = connect(), asking = connect();
  REQUIRE(silent.ok());
  REQUIRE(asking.ok());
  const auto ask = [&] {
    const auto bytes = status::encode(status::Question{1, 0});
    return asking.value()->send(transport::MessageClass::kRequest, bytes) ==
           transport::Outcome::kOk;
  };
  // Every answer is taken, so that there is room for the next question.
  const auto until = std::chrono::steady_clock::now() + 2250ms;
  size_t answers = 0;
  for (size_t asked = 0; std::chrono::steady_clock::now() < until;) {
    if (asked == answers) {
      REQUIRE(ask());
      ++asked;
    }
    transport::Completion completion;
    if (queue->wait({&completion, 1}, 50ms) == 1 &&
        completion.kind == transport::Completion::Kind::kMessage)
      ++answers;
    std::this_thread::sleep_for(10ms);
  }
  CHECK(silent.value()->state() == transport::LinkState::kDown);
  CHECK(silent.value()->reason().find("neither greeted nor asked") != std::string::npos);
  CHECK(asking.value()->state() == transport::LinkState::kUp);
  CHECK(server.service->figures().broken == 0);
  // A session that has greeted stays, and who asks now and then connects anew.
  Session session(server);
  eventually([&] {
    auto connected = Client::connect(session.options, session);
    if (connected.ok()) session.client = std::move(connected.value());
    return session.client != nullptr;
  });
  eventually([&] { return asking.value()->state() == transport::LinkState::kDown; });
  auto asker = status::Asker::make(optionsFor(Choice::kTcp), server.address());
  REQUIRE(asker.ok());
  for (const auto pause : {0ms, 2000ms}) {
    std::this_thread::sleep_for(pause);
    std::optional<Result<status::Told>> told;
    eventually([&] {  // the place is free when it is worked off that the other is down
      told.emplace(asker.value()->ask());
      return told->ok();
    });
    CHECK(told->value().status.session_count == 1);
  }
  CHECK(session.client->figures().connects == 1);
}

TEST_CASE("sessions that hold nothing do not keep a place for ever", "[failures][trust]") {
  ServiceOptions options = shortLease(1500);
  options.most_sessions = 2;
  Server server(Choice::kTcp, 4 * kSlab, options);
  Session holds(server), empty(server), comes(server);
  holds.open();
  holds.lease(kSlab);
  empty.open();
  const auto refused = Client::connect(comes.options, comes);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("more than 2 sessions") != std::string::npos);
  // An asker for the state is no session.
  auto asker = status::Asker::make(optionsFor(Choice::kTcp), server.address());
  REQUIRE(asker.ok());
  const auto told = asker.value()->ask();
  REQUIRE(told.ok());
  CHECK(told.value().status.session_count == 2);
  eventually([&] {
    auto connected = Client::connect(comes.options, comes);
    if (connected.ok()) comes.client = std::move(connected.value());
    return comes.client != nullptr;
  });
  CHECK(empty.await(Event::Kind::kDown).text.find("it holds no memory") != std::string::npos);
  CHECK(!holds.saw(Event::Kind::kDown));
}

TEST_CASE("who sends without end leaves others their turn", "[failures][trust]") {
  constexpr size_t kThreads = 4;  // of the arena
  constexpr size_t kMany = 4, kFew = 8, kEach = 250;
  std::atomic<size_t> held{0};
  std::atomic<bool> go{false}, end{false};
  Server server(Choice::kTcp);
  const std::shared_ptr<void> opens(nullptr, [&](void*) { go = end = true; });
  // By hand: a client would renew its leases, and what waits is counted.
  auto endpoint = transport::makeEndpoint(sessionTransport(optionsFor(Choice::kTcp)));
  REQUIRE(endpoint.ok());
  const auto domain = transport::makeDomain();
  auto queue = endpoint.value()->makeQueue();
  std::vector<transport::LinkPtr> many, few;
  const auto ask = [&](const transport::LinkPtr& link, protocol::Body body) {
    const auto bytes = protocol::encode({1, std::move(body)});
    REQUIRE(link->send(transport::MessageClass::kRequest, bytes) == transport::Outcome::kOk);
  };
  const auto hear = [&] {
    transport::Completion completion;
    do REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
    while (completion.kind != transport::Completion::Kind::kMessage);
    auto reply = protocol::decode(completion.message.bytes());
    REQUIRE(reply.ok());
    return reply.value().body;
  };
  for (size_t i = 0; i < kMany + kFew; ++i) {
    auto link = endpoint.value()->connect(server.address(), {domain, queue, ""});
    REQUIRE(link.ok());
    (i < kMany ? many : few).push_back(link.value());
    ask(link.value(), protocol::Hello{"one of many"});
    hear();
  }
  const auto waiting = [&](size_t count) {
    eventually([&] { return server.service->figures().waiting == count; });
  };
  waiting(0);
  // One thread is at work, and not until everything has been said: by those who say little last.
  for (size_t i = 0; i < kThreads; ++i) {
    server.arena.enqueue([&, i] {
      ++held;
      while (!(i == 0 ? go : end)) std::this_thread::sleep_for(1ms);
    });
  }
  eventually([&] { return held == kThreads; });
  for (const auto& link : many) {
    for (size_t i = 0; i < kEach; ++i) ask(link, protocol::Release{});
  }
  waiting(kMany * kEach);
  for (const auto& link : few) ask(link, protocol::Lease{kSlab});
  waiting(kMany * kEach + kFew);
  go = true;
  // The free bytes in a reply show how many of `few` had been answered before.
  size_t before = 0;
  for (size_t i = 0; i < kMany * kEach + kFew; ++i) {
    const auto body = hear();
    const auto* released = std::get_if<protocol::ReleaseReply>(&body);
    if (released != nullptr && released->capacity.free > server.bytes - kFew * kSlab) ++before;
  }
  CHECK(before == kMany * kTurn);
}

TEMPLATE_TEST_CASE("memory stays bounded over sessions that come and go", "[failures][long]", Tcp,
                   Shm) {
  ServiceOptions options = shortLease(100);
  options.most_sessions = 256;
  Server server(TestType::kChoice, 8 * kSlab, options);
  auto random = seededRandom("sessions");
  auto endpoint = transport::makeEndpoint(sessionTransport(optionsFor(TestType::kChoice)));
  REQUIRE(endpoint.ok());
  const auto domain = transport::makeDomain();
  Buffer buffer(domain, 64 << 10);
  uint64_t settled = 0;
  constexpr int kSessions = 1000;
  for (int i = 0; i < kSessions; ++i) {
    // By hand: one that dies does not say goodbye.
    auto queue = endpoint.value()->makeQueue();
    auto link = endpoint.value()->connect(server.address(), {domain, queue, ""});
    if (!link.ok()) {  // the dead ones hold their places for the lease time
      std::this_thread::sleep_for(50ms);
      --i;
      continue;
    }
    const auto ask = [&](protocol::Body body) {
      const auto bytes = protocol::encode({1, std::move(body)});
      REQUIRE(link.value()->send(transport::MessageClass::kRequest, bytes) ==
              transport::Outcome::kOk);
      transport::Completion completion;
      REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
      REQUIRE(completion.kind == transport::Completion::Kind::kMessage);
      auto reply = protocol::decode(completion.message.bytes());
      REQUIRE(reply.ok());
      return reply.value().body;
    };
    ask(protocol::Hello{"one of many"});
    const auto leased = std::get<protocol::LeaseReply>(ask(protocol::Lease{kSlab}));
    if (!leased.slabs.empty()) {
      const transport::LocalRange range = buffer.range();
      const transport::RemoteRange there{
          {leased.slabs[0].key, kSlab, transport::kRemoteReadWrite, 0}, 0, 64 << 10};
      REQUIRE(link.value()->read({&range, 1}, there, Class::kDemand, 1) == transport::Outcome::kOk);
      transport::Completion completion;
      REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
      REQUIRE(completion.outcome == transport::Outcome::kOk);
      REQUIRE(buffer.isZero());
      buffer.fill(random());
      REQUIRE(link.value()->write({&range, 1}, there, Class::kWriteBack, 2) ==
              transport::Outcome::kOk);
      REQUIRE(queue->wait({&completion, 1}, kLong) == 1);
    }
    switch (random() % 3) {
      case 0: {
        const auto bytes = protocol::encode({0, protocol::Goodbye{}});
        link.value()->send(transport::MessageClass::kNotice, bytes);
        break;
      }
      case 1: {
        protocol::Release release;
        for (const auto& slab : leased.slabs) release.leases.push_back(slab.lease);
        ask(release);
        break;
      }
      default:
        break;  // it dies
    }
    link.value()->close("over");
    for (transport::Completion last;;) {  // a queue that is not emptied keeps its link
      REQUIRE(queue->wait({&last, 1}, kLong) == 1);
      if (last.kind == transport::Completion::Kind::kDown) break;
    }
    if (i == kSessions / 4) settled = residentBytes();
  }
  eventually([&] { return server.service->figures().sessions == 0; });
  eventually([&] { return server.store->figures().free == 8 * kSlab; });
  CHECK(server.service->figures().sessions_accepted >= kSessions);
  CHECK(residentBytes() < settled + kSpare);
}

}  // namespace olpager::memserver::test
