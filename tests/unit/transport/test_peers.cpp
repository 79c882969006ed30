// Peers that have a right to be there and don't keep to the rules: each harms itself and nobody
// else.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "coherence/transport/core/address.h"
#include "coherence/transport/core/choose.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

template <typename Frame>
bool sendAll(int fd, const Frame& frame) {
  return send(fd, &frame, sizeof frame, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof frame);
}

/// The pair that the raw peer is added to goes on working.
void stillWorks(Pair& pair) {
  REQUIRE(pair.up->send(MessageClass::kNotice, bytesOf("still here")) == Outcome::kOk);
  REQUIRE(textOf(pair.server.await(Kind::kMessage).message) == "still here");
}

}  // namespace

TEST_CASE("a peer that asks and does not read the answers holds no memory", "[peers]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.slices = 64;
  Pair pair(options);
  RawPeer peer(pair.listener->address(), 4096);
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  const std::vector<wire::Header> pings(1000, [] {
    wire::Header ping;
    ping.frame = wire::Frame::kPing;
    return ping;
  }());
  // More than all buffers on the way hold; the server ends it long before.
  for (int i = 0; i < 2000 && link->state() == LinkState::kUp; ++i) {
    if (send(peer.control.get(), pings.data(), pings.size() * sizeof pings[0], MSG_NOSIGNAL) < 0)
      break;
  }
  REQUIRE(pair.server.await(Kind::kDown).link == link);
  REQUIRE(link->reason().find("does not read the answers") != std::string::npos);
  stillWorks(pair);
}

TEST_CASE("a peer that asks for mappings and does not read the answers holds no memory",
          "[peers]") {
  Options options = optionsFor(Choice::kShm);
  options.limits.slices = 64;
  Pair pair(options);
  RawShmPeer peer(pair.listener->address());
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  Buffer buffer(64 << 10);  // no memfd
  RegionPtr region = pair.server.add(buffer, kRemoteReadWrite);
  wire::Header ask;
  ask.frame = wire::Frame::kMap;
  ask.key = region->key().key;
  if (GENERATE(false, true)) region.reset();
  // As fast as they are taken, and far more than the ring for the answers holds.
  const auto end = std::chrono::steady_clock::now() + kLong;
  for (int asked = 0; asked < 200'000 && link->state() == LinkState::kUp &&
                      std::chrono::steady_clock::now() < end;) {
    if (!peer.channel->out.fits(sizeof ask)) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    peer.channel->out.put(&ask, sizeof ask);
    if (peer.channel->out.publish()) peer.channel->ringPeer();
    ++asked;
  }
  REQUIRE(pair.server.await(Kind::kDown, 5s).link == link);
  REQUIRE(link->reason().find("does not read the answers") != std::string::npos);
  stillWorks(pair);
}

namespace {

struct Asking {
  wire::Header header;
  char text[8] = {};
};
Asking request() {
  Asking asking;
  asking.header.frame = wire::Frame::kMessage;
  asking.header.klass = static_cast<uint8_t>(MessageClass::kRequest);
  asking.header.length = sizeof asking.text;
  return asking;
}
/// With so many bytes.
void answer(const Completion& asked, size_t bytes) {
  const Outcome sent = asked.link->send(MessageClass::kReply, std::vector<std::byte>(bytes));
  REQUIRE((sent == Outcome::kOk || sent == Outcome::kLinkDown));
}
/// Answers the next message.
void answerOne(Side& side, size_t bytes) { answer(side.await(Kind::kMessage), bytes); }

}  // namespace

TEST_CASE("a key that opens many links and reads none of them holds what one may hold", "[peers]") {
  Options options = optionsFor(Choice::kTcp);
  options.limits.unread_bytes = 1 << 20;
  Pair pair(options);
  constexpr size_t kPeers = 8, kReply = 4096,  // the longest that a raw peer takes
      kRounds = 1000;                          // each alone may have 1024 waiting
  std::deque<RawPeer> peers;
  std::vector<LinkPtr> links;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.emplace_back(pair.listener->address(), 4096);
    links.push_back(pair.server.await(Kind::kUp).link);
  }
  size_t down = 0;
  for (size_t round = 0; round < kRounds && down < kPeers; ++round) {
    down = 0;
    for (size_t i = 0; i < kPeers; ++i) {
      const bool up = links[i]->state() == LinkState::kUp;
      down += up ? 0 : 1;
      if (!up || !sendAll(peers[i].control.get(), request())) continue;
      // A request above the bound ends the link in place of an answer.
      const auto came = pair.server.next(5s);
      REQUIRE(came.has_value());
      if (came->kind == Kind::kMessage) answer(*came, kReply);
    }
  }
  INFO(down << " of " << kPeers << " links are down");
  // Together they may have been sent kRounds * kPeers replies; the bound is far below.
  CHECK(down >= kPeers - 1);
  for (const LinkPtr& link : links) {
    if (link->state() == LinkState::kUp) continue;
    const std::string reason = link->reason();
    INFO(reason);
    CHECK((reason.find("does not read the answers") != std::string::npos ||
           reason.find("asks more than it waits for") != std::string::npos));
  }
  stillWorks(pair);
}

TEST_CASE("replies that a peer on this host does not read end its link", "[peers]") {
  Options options = optionsFor(Choice::kShm);
  options.requests = 16;
  Pair pair(options);
  RawShmPeer peer(pair.listener->address());
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  const Asking asking = request();
  constexpr size_t kReply = 32 << 10, kRounds = 1000;
  size_t asked = 0;
  while (asked < kRounds && link->state() == LinkState::kUp) {
    if (!peer.channel->out.fits(sizeof asking)) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    peer.channel->out.put(&asking, sizeof asking);
    if (peer.channel->out.publish()) peer.channel->ringPeer();
    ++asked;
    answerOne(pair.server, kReply);
  }
  INFO(asked << " requests");
  REQUIRE(pair.server.await(Kind::kDown, 5s).link == link);
  CHECK(link->reason().find("does not read the answers") != std::string::npos);
  stillWorks(pair);
}

TEST_CASE("a peer that asks for a slot which is in use loses its link", "[peers]") {
  Options options = optionsFor(Choice::kShm);
  options.io_threads = 6;  // several threads copy
  Pair pair(options);
  RawShmPeer peer(pair.listener->address());
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  Buffer buffer(Channel::kSlotBytes);  // no memfd
  RegionPtr region = pair.server.add(buffer, kRemoteReadWrite);
  wire::Header ask;
  ask.frame = GENERATE(wire::Frame::kBouncePull, wire::Frame::kBouncePush);
  ask.key = region->key().key;
  ask.bytes = Channel::kSlotBytes;
  for (int i = 0; i < 200; ++i) peer.channel->out.put(&ask, sizeof ask);  // all of slot 0
  peer.channel->out.publish();
  peer.channel->ringPeer();
  REQUIRE(pair.server.await(Kind::kDown, 5s).link == link);
  REQUIRE(link->reason().find("a slot that is in use") != std::string::npos);
  region.reset();  // what was being copied, or waited for that, holds nobody up
  stillWorks(pair);
}

TEST_CASE("a write that is answered before it was sent stays the transport's until it is",
          "[peers]") {
  Pair pair(optionsFor(Choice::kTcp));
  RawPeer peer(pair.listener->address(), 4096);
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  limitSending(peer.lane, 4096);  // else all of it may find room on the way
  Buffer buffer(256 << 10);
  buffer.fill(3);
  RegionPtr local = pair.server.add(buffer, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  const RemoteRange made_up{{42, buffer.length, kRemoteReadWrite, 0}, 0, buffer.length};
  REQUIRE(link->write({&all, 1}, made_up, Class::kDemand, 7) == Outcome::kOk);
  wire::Header push;
  const ssize_t begun = recv(peer.lane.get(), &push, sizeof push, MSG_WAITALL);
  INFO(link->reason());
  REQUIRE(begun == sizeof push);
  REQUIRE(push.frame == wire::Frame::kPush);
  REQUIRE(push.length == buffer.length);
  wire::Header ack;
  ack.frame = wire::Frame::kAck;
  ack.operation = push.operation;
  ack.index = push.index;
  REQUIRE(sendAll(peer.control.get(), ack));
  REQUIRE(!pair.server.next(200ms));  // most of it is still to be sent, out of the region's memory
  std::vector<std::byte> got(push.length);
  REQUIRE(recv(peer.lane.get(), got.data(), got.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(got.size()));
  REQUIRE(std::memcmp(got.data(), buffer.base, got.size()) == 0);
  const auto done = pair.server.await(Kind::kWrite);
  REQUIRE(done.outcome == Outcome::kOk);
  REQUIRE(done.context == 7);
  // A second answer is one to nothing.
  REQUIRE(sendAll(peer.control.get(), ack));
  REQUIRE(pair.server.await(Kind::kDown).link == link);
  REQUIRE(link->reason().find("an answer to nothing") != std::string::npos);
  stillWorks(pair);
}

TEST_CASE("a slice that is left half sent does not hold the memory it goes to", "[peers]") {
  Options options = optionsFor(Choice::kTcp);
  options.ping_ms = 50;
  options.silent_ms = 500;
  Pair pair(options);
  RawPeer peer(pair.listener->address());
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  Buffer buffer(1 << 20);
  RegionPtr region = pair.server.add(buffer, kRemoteReadWrite);
  wire::Header push;
  push.frame = wire::Frame::kPush;
  push.klass = static_cast<uint8_t>(Class::kDemand);
  push.length = 64 << 10;
  push.key = region->key().key;
  REQUIRE(sendAll(peer.lane.get(), push));
  const std::vector<std::byte> half(32 << 10);
  REQUIRE(send(peer.lane.get(), half.data(), half.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(half.size()));
  // The peer is alive otherwise: it answers every ping.
  std::thread alive([&] {
    for (wire::Header header;
         recv(peer.control.get(), &header, sizeof header, MSG_WAITALL) == sizeof header;) {
      if (header.frame != wire::Frame::kPing) break;
      header.frame = wire::Frame::kPong;
      if (!sendAll(peer.control.get(), header)) break;
    }
  });
  std::this_thread::sleep_for(100ms);
  region.reset();  // returns
  REQUIRE(pair.server.await(Kind::kDown).link == link);
  REQUIRE(link->reason().find("half sent") != std::string::npos);
  alive.join();
  stillWorks(pair);
}

TEST_CASE("a peer that is gone while its link begins", "[peers]") {
  Options options = optionsFor(Choice::kTcp);
  options.io_threads = 4;
  options.limits.handshakes_per_second = 100000;
  Pair pair(options);
  for (int round = 0; round < scaled(400); ++round) {
    {
      RawPeer peer(pair.listener->address());
      const linger now{1, 0};
      if (round % 2 == 0) setsockopt(peer.lane.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      (round % 4 < 2 ? peer.lane : peer.control).reset();
    }
    pair.server.await(Kind::kDown);
    pair.server.early.clear();
  }
  // And one that the program itself ends as soon as it hears of it: nothing is left of it.
  std::vector<std::weak_ptr<Link>> ended;
  for (int round = 0; round < scaled(100); ++round) {
    for (const Choice choice : {Choice::kTcp, Choice::kShm}) {
      Options both = options;
      both.choice = choice;
      Pair short_lived(both);
      short_lived.peer->close("enough");
      ended.insert(ended.end(), {short_lived.peer, short_lived.up});
      REQUIRE(short_lived.client.await(Kind::kDown).link == short_lived.up);
    }
  }
  CHECK(std::all_of(ended.begin(), ended.end(), [](const auto& link) { return link.expired(); }));
  stillWorks(pair);
}

TEST_CASE("an acceptor without descriptors waits, and does not spin", "[peers]") {
  Pair pair(optionsFor(Choice::kTcp));
  const auto to = resolve(pair.listener->address(), false).value().front();
  base::UniqueFd waiting(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const bool connected = connect(waiting.get(), to.get(), to.length) == 0;
  const auto used = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  const auto begin = used();
  std::this_thread::sleep_for(500ms);
  const auto took = used() - begin;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(connected);
  REQUIRE(took < 150ms);
  REQUIRE(pair.connect() != nullptr);
  stillWorks(pair);
}

TEST_CASE("an acceptor that answers what was not asked for is refused", "[peers]") {
  const auto what = GENERATE(0, 1, 2, 3);
  const RawAcceptor acceptor([what](wire::Hello& answer) {
    answer.kinds = Kinds{LinkKind::kTcp}.bits();
    if (what == 0) answer.kinds = Kinds{LinkKind::kShm}.bits();
    if (what == 1) answer.kinds = Kinds{LinkKind::kTcp, LinkKind::kVerbs}.bits();
    if (what == 2) answer.lanes = 16;
    if (what == 3) answer.requests = 0xffffffff;
  });
  Side side(optionsFor(Choice::kTcp));
  const auto link = side.endpoint->connect(acceptor.address, {side.domain, side.queue, ""});
  REQUIRE(!link.ok());
  REQUIRE(link.error().message.find("its answer") != std::string::npos);
}
