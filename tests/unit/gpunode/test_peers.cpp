// Links between workers: who may make one, what is said over it, and what becomes of a peer that
// says what makes no sense. Without a driver.
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "coherence/transport/routes.h"
#include "forwarding/wire/peer_keys.h"
#include "forwarding/wire/straight.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/peer.h"
#include "gpunode/worker/peers.h"
#include "gpunode/worker/worker.h"
#include "tests/catch.h"

namespace {

using namespace olpager;
using namespace std::chrono_literals;
using gpunode::isNextOffer;
using gpunode::Peer;
using gpunode::PeerMessage;
using gpunode::Peers;
using gpunode::PeerSays;
using Event = Peer::Event;

constexpr uint64_t kPiece = 1024;  // of the copies that are only talked of
constexpr unsigned kHere = 2, kThere = 0;
constexpr transport::Secret kSession{7, 7, 7};

constexpr uint64_t kRoute = 77;

// A worker of slot kHere that listens as main.cpp has it listen: behind a gpunode, which takes
// nobody itself.
struct Listening {
  explicit Listening(bool allowed = true) {
    peers.configure({kHere, allowed, transport::Choice::kAuto, transport::Tls::kOff});
    transport::Options options;
    options.tls = transport::Tls::kOff;
    options.keys = std::make_shared<const transport::KeyRing>(
        std::vector{transport::NamedKey{"session", kSession}, forward::peerKey(kSession, kThere)});
    endpoint = std::move(transport::makeEndpoint(options).value());
    auto sockets = std::move(transport::makeHandoverSockets().value());
    listener = std::move(
        endpoint
            ->listenBehind(std::move(sockets.to),
                           [this](const transport::PeerInfo& who) -> Result<transport::Accepted> {
                             const auto slot = forward::peerSlot(who.key_name);
                             if (!slot) return Error{"not a peer"};
                             return peers.accept(*slot, *endpoint);
                           })
            .value());
    const auto routes = std::make_shared<transport::Routes>();
    routes->add(kRoute, std::move(sockets.from));
    const auto refuse = [](const transport::PeerInfo&) -> Result<transport::Accepted> {
      return Error{"no peer"};
    };
    gpunode = std::move(transport::makeEndpoint({}).value());
    front = std::move(gpunode->listen("127.0.0.1:0", refuse, routes).value());
  }
  Peers peers;
  std::unique_ptr<transport::Endpoint> endpoint, gpunode;
  std::unique_ptr<transport::Listener> listener, front;
};

// A stranger that connects to it, and may say anything.
struct Stranger {
  explicit Stranger(const Listening& there) {
    transport::Options options;
    options.tls = transport::Tls::kOff;
    options.keys =
        std::make_shared<const transport::KeyRing>(std::vector{forward::peerKey(kSession, kThere)});
    endpoint = std::move(transport::makeEndpoint(options).value());
    queue = endpoint->makeQueue();
    link = std::move(
        endpoint->connect(there.front->address(), {transport::makeDomain(), queue, "", kRoute})
            .value());
  }
  void say(const PeerMessage& message) { say(std::as_bytes(std::span(&message, 1))); }
  // Messages lost because the link is down are no matter here.
  void say(std::span<const std::byte> bytes) {
    for (int i = 0; i < 1000; ++i) {
      const auto outcome = link->send(transport::MessageClass::kNotice, bytes);
      if (outcome != transport::Outcome::kNoCredit && outcome != transport::Outcome::kFull) return;
      std::array<transport::Completion, 16> none;
      (void)queue->wait(none, 5ms);
    }
  }
  // True if the other end has ended the link.
  bool ended() {
    for (int i = 0; i < 400 && link->state() != transport::LinkState::kDown; ++i) {
      std::array<transport::Completion, 16> happened;
      (void)queue->wait(happened, 10ms);
    }
    return link->state() == transport::LinkState::kDown;
  }
  std::unique_ptr<transport::Endpoint> endpoint;
  transport::QueuePtr queue;
  transport::LinkPtr link;
};

bool comes(const gpunode::PeerPtr& peer, const Peer::CopyPtr& copy, Event::Kind kind,
           Event* event = nullptr) {
  Event next;
  if (!peer->next(copy, next, 5000ms)) return false;
  if (event != nullptr) *event = next;
  return next.kind == kind;
}

}  // namespace

TEST_CASE("keys of peers are of one pair and one direction each", "[gpunode]") {
  std::set<transport::Secret> all{kSession};
  for (unsigned slot = 0; slot < forward::kMostSlots; ++slot) {
    const auto key = forward::peerKey(kSession, slot);
    CHECK(forward::peerSlot(key.name) == slot);
    CHECK(all.insert(key.secret).second);
    CHECK(all.insert(forward::peerKey({1}, slot).secret).second);
    CHECK(transport::checkKeyName(key.name).ok());
  }
  for (const char* name :
       {"session", "peer-", "peer-16", "peer--1", "peer-1x", "peer-4294967296", "Peer-1", ""})
    CHECK_FALSE(forward::peerSlot(name).has_value());
}

TEST_CASE("an offer is the next piece of what was agreed to, or nothing", "[gpunode]") {
  constexpr uint64_t kBytes = 2500;
  const auto offer = [](uint64_t at, uint64_t bytes, uint64_t offset = 0,
                        uint64_t length = kPiece) {
    return PeerMessage{
        PeerSays::kOffer, 0, 1, at, bytes, offset, {5, length, transport::kRemoteRead, 0}};
  };
  CHECK(isNextOffer(offer(0, 1024), kBytes, 0, kPiece));
  CHECK(isNextOffer(offer(1024, 1024), kBytes, 1024, kPiece));
  CHECK(isNextOffer(offer(2048, 452), kBytes, 2048, kPiece));
  CHECK(isNextOffer(offer(2048, 452, 572), kBytes, 2048, kPiece));
  CHECK_FALSE(isNextOffer(offer(2048, 452, 573), kBytes, 2048, kPiece));  // beyond its region
  CHECK_FALSE(isNextOffer(offer(2048, 452, ~0ull), kBytes, 2048, kPiece));
  CHECK_FALSE(isNextOffer(offer(2048, 453), kBytes, 2048, kPiece));  // beyond the copy
  CHECK_FALSE(isNextOffer(offer(2500, 0), kBytes, 2500, kPiece));    // all were offered
  CHECK_FALSE(isNextOffer(offer(0, 1024), kBytes, 1024, kPiece));    // again
  CHECK_FALSE(isNextOffer(offer(1024, 1024), kBytes, 0, kPiece));    // not its turn
  CHECK_FALSE(isNextOffer(offer(0, 1000), kBytes, 0, kPiece));       // shorter than agreed
  CHECK_FALSE(isNextOffer(offer(0, 1024, 0, 1000), kBytes, 0, kPiece));
  // Bytes that come along are in no region.
  const auto bytes = [](uint64_t at, uint64_t count) {
    return PeerMessage{PeerSays::kBytes, 0, 1, at, count, 0, {}};
  };
  CHECK(isNextOffer(bytes(2048, 452), kBytes, 2048, kPiece));
  CHECK_FALSE(isNextOffer(bytes(2048, 453), kBytes, 2048, kPiece));
  CHECK_FALSE(isNextOffer(bytes(1024, 452), kBytes, 2048, kPiece));
  CHECK_FALSE(
      isNextOffer(bytes(0, gpunode::kInlineBytes + 1), gpunode::kInlineBytes + 1, 0, 1 << 20));
}

TEST_CASE("workers offer, read and say what they have", "[gpunode]") {
  for (const bool tcp : {true, false}) {
    INFO((tcp ? "tcp" : "shm"));
    Listening there;
    Peers here;
    here.configure({kThere, true, transport::Choice::kAuto, transport::Tls::kOff});
    auto linked = here.connect(kHere, there.front->address(), kRoute,
                               forward::peerKey(kSession, kThere), transport::Tls::kOff, tcp);
    REQUIRE(linked.ok());
    const gpunode::PeerPtr sender = linked.value();
    CHECK(sender->is(transport::LinkKind::kShm) == !tcp);
    const gpunode::PeerPtr taker = there.peers.find(kThere);
    REQUIRE(taker != nullptr);
    const api::DriverTable none{};
    auto* const from = sender->staging().take(none, 0);
    auto* const into = taker->staging().take(none, 0);
    REQUIRE(from != nullptr);
    REQUIRE(into != nullptr);
    const auto out = sender->begin(9);
    REQUIRE(out != nullptr);
    CHECK(sender->begin(9) == nullptr);  // one user
    // A look for messages does not sleep.
    rusage before{}, after{};
    REQUIRE(getrusage(RUSAGE_THREAD, &before) == 0);
    for (int look = 0; look < 1000; ++look) {
      Event nothing;
      REQUIRE_FALSE(sender->next(out, nothing, 0ms));
    }
    REQUIRE(getrusage(RUSAGE_THREAD, &after) == 0);
    CHECK(after.ru_nvcsw - before.ru_nvcsw < 200);
    for (size_t i = 0; i < gpunode::Staging::kPieceBytes; ++i)
      from->bytes[i] = static_cast<std::byte>(i * 7 + 1);
    std::memset(into->bytes, 0, gpunode::Staging::kPieceBytes);
    // The offer is there before the copy is begun at the other end, and waits.
    CHECK(sender->say({PeerSays::kOffer, 0, 9, 0, 4096, 64, from->region->key()}));
    std::this_thread::sleep_for(20ms);
    const auto in = taker->begin(9);
    Event event;
    REQUIRE(comes(taker, in, Event::Kind::kOffer, &event));
    CHECK(event.said.bytes == 4096);
    CHECK(taker->read(in, 3, {into->region.get(), 0, event.said.bytes},
                      {event.said.region, event.said.offset, event.said.bytes}));
    REQUIRE(comes(taker, in, Event::Kind::kRead, &event));
    CHECK((event.good && event.read == 3));
    CHECK(std::memcmp(into->bytes, from->bytes + 64, 4096) == 0);
    CHECK(taker->say({PeerSays::kTaken, 0, 9, 0, 4096, 0, {}}));
    CHECK(comes(sender, out, Event::Kind::kTaken));
    const std::vector<std::byte> few(from->bytes, from->bytes + 100);
    CHECK(sender->say({PeerSays::kBytes, 0, 9, 4096, 100, 0, {}}, few));
    REQUIRE(comes(taker, in, Event::Kind::kOffer, &event));
    CHECK((event.said.says == PeerSays::kBytes && event.bytes == few));
    // Nobody writes into another's memory, nor reads what is not a region of the pair's.
    const auto key = from->region->key();
    CHECK(key.access == transport::kRemoteRead);
    // A transfer that is stopped here hears of it, also before it begins; a message that comes late
    // for it is nobody's.
    taker->end(in);
    CHECK(sender->say({PeerSays::kOver, 0, 9, 0, 0, 0, {}}));
    CHECK(taker->begin(9) == nullptr);
    taker->stop(10);
    const auto stopped = taker->begin(10);
    CHECK(comes(taker, stopped, Event::Kind::kStopped));
    sender->close("done");
    CHECK(comes(taker, stopped, Event::Kind::kLost));
    CHECK(comes(sender, out, Event::Kind::kLost));
    CHECK_FALSE(taker->say({PeerSays::kOver, 0, 10, 0, 0, 0, {}}));
    CHECK(there.peers.find(kThere) == nullptr);
  }
}

TEST_CASE("a peer that makes no sense loses its link, and what waits for it hears of it",
          "[gpunode]") {
  for (int kind = 0; kind < 7; ++kind) {
    INFO("kind " << kind);
    Listening there;
    Stranger stranger(there);
    const gpunode::PeerPtr peer = there.peers.find(kThere);
    REQUIRE(peer != nullptr);
    const auto copy = peer->begin(1);
    PeerMessage message{
        PeerSays::kOffer, 0, 1, 0, 4096, 0, {0x1234, 4096, transport::kRemoteRead, 0}};
    if (kind == 0) stranger.say(std::as_bytes(std::span(&message, 1)).first(17));
    if (kind == 1) stranger.say({static_cast<PeerSays>(77), 0, 1, 0, 0, 0, {}});
    if (kind == 2) {  // for copies that nobody has asked for
      for (uint64_t i = 0; i < 6000 && stranger.link->state() == transport::LinkState::kUp; ++i)
        stranger.say({PeerSays::kOffer, 0, 1000 + i, 0, 4096, 0, {}});
    }
    if (kind == 4) stranger.say({PeerSays::kBytes, 0, 1, 0, 16, 0, {}});  // that do not follow
    if (kind == 6)                                                        // the same of a page
      stranger.say({PeerSays::kPage, gpunode::kBlocksHashed, 1, 0, 2 << 20, 0, {}});
    if (kind == 5) {  // more than may
      message = {PeerSays::kBytes, 0, 1, 0, gpunode::kInlineBytes + 8, 0, {}};
      std::vector<std::byte> all(sizeof message + message.bytes);
      std::memcpy(all.data(), &message, sizeof message);
      stranger.say(all);
    }
    if (kind == 3) {  // what it does not have
      stranger.say(message);
      Event event;
      REQUIRE(comes(peer, copy, Event::Kind::kOffer, &event));
      const api::DriverTable none{};
      auto* const into = peer->staging().take(none, 0);
      CHECK(peer->read(copy, 0, {into->region.get(), 0, 4096}, {event.said.region, 0, 4096}));
      REQUIRE(comes(peer, copy, Event::Kind::kRead, &event));
      CHECK_FALSE(event.good);
      stranger.link->close("done");
    }
    CHECK((kind == 3 || stranger.ended()));
    CHECK(comes(peer, copy, Event::Kind::kLost));
  }
}

TEST_CASE("what was offered is the other end's until it says that it is over, or the link is down",
          "[gpunode]") {
  const auto settled = [](const gpunode::PeerPtr& peer, const Peer::CopyPtr& copy,
                          std::chrono::milliseconds patience) {
    const auto begun = std::chrono::steady_clock::now();
    peer->settle(copy, patience);
    return std::chrono::steady_clock::now() - begun;
  };
  Listening there;
  Stranger stranger(there);
  const gpunode::PeerPtr peer = there.peers.find(kThere);
  REQUIRE(peer != nullptr);
  const auto first = peer->begin(1);
  // That the client gave it up is no answer, nor is what was taken on the way.
  peer->stop(1);
  std::thread other([&] {
    std::this_thread::sleep_for(150ms);
    stranger.say({PeerSays::kTaken, 0, 1, 0, kPiece, 0, {}});
    std::this_thread::sleep_for(150ms);
    stranger.say({PeerSays::kOver, 0, 1, 0, 0, 0, {}});
  });
  CHECK(settled(peer, first, 60s) >= 300ms);
  other.join();
  CHECK(stranger.link->state() == transport::LinkState::kUp);
  // One that says nothing loses the link, and with it what it could read.
  CHECK(settled(peer, peer->begin(2), 200ms) >= 200ms);
  CHECK(stranger.ended());
  CHECK(settled(peer, peer->begin(3), 60s) < 30s);
}

TEST_CASE("calls for peers take nonsense, and say so where there is no link", "[gpunode]") {
  gpunode::Worker worker({});
  const auto called = [&](forward::Operation operation, const forward::Writer& said,
                          forward::Writer* results = nullptr) {
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(operation);
    gpunode::Invocation in(worker, head, forward::Reader(said.bytes));
    const CUresult result = gpunode::writtenService(head.function)(in);
    if (results != nullptr) *results = in.results();
    return result == CUDA_SUCCESS && in.arguments().ok();
  };
  const auto straight = [](uint32_t slot, uint64_t bytes) {
    forward::Writer said;
    said.value(forward::StraightHead{1, 0x1000, bytes, 0, slot, 0});
    return said;
  };
  for (const auto operation : {forward::Operation::kStraightIn, forward::Operation::kStraightOut}) {
    CHECK_FALSE(called(operation, straight(forward::kMostSlots, 4096)));
    CHECK_FALSE(called(operation, straight(1, 0)));
    CHECK_FALSE(called(operation, {}));
    forward::Writer results;
    CHECK(called(operation, straight(1, 4096), &results));
    CHECK(forward::Reader(results.bytes).value<forward::Straight>() == forward::Straight::kNoLink);
  }
  const auto link = [](uint32_t slot, uint32_t tls, std::string_view address) {
    forward::Writer said;
    said.value(forward::PeerLinkHead{slot, tls, 0, 0, 0, {}});
    said.text(address);
    return said;
  };
  constexpr auto kLink = forward::Operation::kPeerLink;
  CHECK_FALSE(called(kLink, link(forward::kMostSlots, 0, "127.0.0.1:1")));
  CHECK_FALSE(called(kLink, link(0, 0, "127.0.0.1:1")));  // to itself
  CHECK_FALSE(called(kLink, link(1, 3, "127.0.0.1:1")));
  CHECK_FALSE(called(kLink, link(1, 0, std::string(300, 'a'))));
  for (const char* address : {"127.0.0.1:1", "", "nonsense", "unix:/nowhere"}) {
    for (const bool allowed : {false, true}) {
      worker.peers().configure({0, allowed, transport::Choice::kAuto, transport::Tls::kOff});
      forward::Writer results;
      CHECK(called(kLink, link(1, 0, address), &results));
      CHECK(forward::Reader(results.bytes).value<forward::PeerLinked>() ==
            forward::PeerLinked::kNo);
    }
  }
  forward::Writer stop;
  stop.value(forward::StraightStopHead{1, 99, 0});
  CHECK(called(forward::Operation::kStraightStop, stop));
}

namespace {

// The links that it hears of: the numbers of those that were up and that were lost.
struct HeardLinks : gpunode::PageHearer {
  void peerUp(unsigned /*slot*/, uint64_t link) override { note(up, link); }
  void offered(unsigned /*slot*/, uint64_t /*link*/, const PeerMessage& /*page*/,
               std::span<const std::byte> /*behind*/) override {}
  void read(uint64_t /*read*/, ReadIs /*how*/) override {}
  void peerLost(unsigned /*slot*/, uint64_t link, bool refused) override {
    note(refused ? refusals : lost, link);
  }
  void note(std::vector<uint64_t>& numbers, uint64_t link) {
    const std::lock_guard lock(mutex);
    numbers.push_back(link);
    changed.notify_all();
  }
  bool hears(const std::vector<uint64_t>& numbers, const std::vector<uint64_t>& all) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 5000ms, [&] { return numbers == all; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> up, lost, refusals;
};

}  // namespace

TEST_CASE("a link of workers that is lost is made again by who had made it", "[gpunode]") {
  for (const bool tcp : {true, false}) {
    INFO((tcp ? "tcp" : "shm"));
    static std::list<HeardLinks> kept;  // threads of links outlive a case
    HeardLinks &heard = kept.emplace_back(), &heard_there = kept.emplace_back();
    Listening there;
    there.peers.setPageHearer(&heard_there);
    Peers here;
    here.configure({kThere, true, transport::Choice::kAuto, transport::Tls::kOff, {}, 60s});
    here.setPageHearer(&heard);
    REQUIRE(here.connect(kHere, there.front->address(), kRoute, forward::peerKey(kSession, kThere),
                         transport::Tls::kOff, tcp)
                .ok());
    for (uint64_t cuts = 1; cuts < 4; ++cuts) {
      std::vector<uint64_t> all;
      for (uint64_t link = 1; link <= cuts; ++link) all.push_back(link);
      CHECK(heard.hears(heard.up, all));
      CHECK(heard_there.hears(heard_there.up, all));
      const gpunode::PeerPtr cut = cuts % 2 != 0 ? here.find(kHere) : there.peers.find(kThere);
      REQUIRE(cut != nullptr);
      cut->close("cut");
      CHECK(heard.hears(heard.lost, all));
      CHECK(heard_there.hears(heard_there.lost, all));
      there.peers.connectAgain(kThere, 5000ms);  // it had not made it
      here.connectAgain(kHere, 5000ms);
      here.connectAgain(kHere, 5000ms);  // that is being done
    }
    CHECK(heard.hears(heard.up, {1, 2, 3, 4}));
    CHECK(heard_there.hears(heard_there.up, {1, 2, 3, 4}));
    // A late report of a loss makes no second link in the place of the one that is there.
    here.connectAgain(kHere, 5000ms);
    std::this_thread::sleep_for(500ms);
    REQUIRE(here.upNow(kHere) != nullptr);
    CHECK(here.upNow(kHere)->number() == 4);
    CHECK(heard.hears(heard.up, {1, 2, 3, 4}));
    CHECK(here.find(kHere)->is(transport::LinkKind::kShm) == !tcp);
    CHECK(heard.refusals.empty());
  }
}

TEST_CASE("links of workers are made by who may alone", "[gpunode]") {
  Listening there;
  Peers here;
  const auto connect = [&](const transport::NamedKey& key) {
    return here.connect(kHere, there.front->address(), kRoute, key, transport::Tls::kOff, true);
  };
  const auto good = forward::peerKey(kSession, kThere);
  CHECK_FALSE(connect(good).ok());  // this worker may not
  here.configure({kThere, true, transport::Choice::kAuto, transport::Tls::kOff});
  CHECK_FALSE(connect({good.name, {9}}).ok());
  CHECK_FALSE(connect(forward::peerKey(kSession, 5)).ok());  // of no session that there is
  CHECK_FALSE(connect({"session", kSession}).ok());
  CHECK(connect(good).ok());
  Listening refuses(false);
  CHECK_FALSE(
      here.connect(kHere, refuses.front->address(), kRoute, good, transport::Tls::kOff, true).ok());
  // A later link replaces an earlier one.
  const gpunode::PeerPtr first = there.peers.find(kThere);
  REQUIRE(first != nullptr);
  const auto copy = first->begin(1);
  REQUIRE(connect(good).ok());
  CHECK(comes(first, copy, Event::Kind::kLost));
  CHECK(there.peers.find(kThere) != nullptr);
  CHECK(there.peers.find(kThere) != first);
}
