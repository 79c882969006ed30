// The scheduler's rules, the ring against a hostile other side, regions, sockets that are left.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/fd.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/core/own_descriptors.h"
#include "coherence/transport/core/peer_keys.h"
#include "coherence/transport/core/reactor.h"
#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/core/scheduler.h"
#include "coherence/transport/making_room.h"
#include "coherence/transport/shm/channel.h"
#include "coherence/transport/tcp/stream.h"
#include "coherence/transport/verbs/queue_pairs.h"
#include "tests/temporary_folder.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

constexpr uint64_t kSlice = 64 << 10;
IssueScheduler scheduler() {
  return IssueScheduler({8 * kSlice, 16 * kSlice, 16 * kSlice, 4 * kSlice, 4 * kSlice, 1000});
}

}  // namespace

TEST_CASE("prefetch is not asked for while a demand is outstanding", "[scheduler]") {
  auto s = scheduler();
  s.enqueue(1, Class::kPrefetch);
  REQUIRE(s.pick() == 1u);
  s.enqueue(2, Class::kDemand);
  REQUIRE(s.pick() == 2u);
  s.issued(Class::kDemand, kSlice);
  s.exhausted(Class::kDemand);
  REQUIRE(!s.pick());
  s.answered(Class::kDemand, kSlice);
  REQUIRE(s.pick() == 1u);
}

TEST_CASE("write-back keeps one slice under way, whatever is urgent", "[scheduler]") {
  auto s = scheduler();
  s.enqueue(1, Class::kWriteBack);
  s.enqueue(2, Class::kDemand);
  for (int i = 0; i < 8; ++i) {
    REQUIRE(s.pick() == 2u);
    s.issued(Class::kDemand, kSlice);
  }
  REQUIRE(s.pick() == 1u);  // the demand's window is full
  s.issued(Class::kWriteBack, kSlice);
  REQUIRE(!s.pick());
  s.answered(Class::kWriteBack, kSlice);
  REQUIRE(s.pick() == 1u);
}

TEST_CASE("a raised operation goes with its new class", "[scheduler]") {
  auto s = scheduler();
  s.enqueue(1, Class::kWriteBack);
  s.enqueue(2, Class::kWriteBack);
  REQUIRE(s.pick() == 1u);
  s.issued(Class::kWriteBack, kSlice);
  s.move(2, Class::kWriteBack, Class::kDemand, 0, true);
  REQUIRE(s.pick() == 2u);
  s.move(1, Class::kWriteBack, Class::kControl, kSlice, true);
  REQUIRE(s.pick() == 1u);
  REQUIRE(s.outstanding(Class::kWriteBack) == 0);
  REQUIRE(s.outstanding(Class::kControl) == kSlice);
}

TEST_CASE("the peer's bound on slices holds for all classes together", "[scheduler]") {
  IssueScheduler s({1 << 30, 1 << 30, 1 << 30, 4 * kSlice, 4 * kSlice, 2});
  s.enqueue(1, Class::kDemand);
  s.issued(Class::kDemand, kSlice);
  REQUIRE(s.pick());
  s.issued(Class::kDemand, kSlice);
  REQUIRE(!s.pick());
}

TEST_CASE("a background window follows what waits on the path", "[scheduler]") {
  constexpr uint64_t kUnit = 256 << 10;
  BackgroundWindow window(kUnit, 64 * kUnit, kUnit);
  // A path of 100 us and one slice each 10 us: ten slices are under way before any of them waits.
  int64_t now = 0;
  const auto run = [&](uint32_t base, uint32_t each, int slices) {
    for (int i = 0; i < slices; ++i) {
      const auto under_way = static_cast<uint32_t>((window.bytes() + kUnit - 1) / kUnit);
      const uint32_t took = std::max(base, under_way * each);
      now += each;
      window.answered(kUnit, took, now);
    }
  };
  run(100, 10, 5000);
  REQUIRE(window.bytes() >= 9 * kUnit);
  REQUIRE(window.bytes() <= 13 * kUnit);
  // A slow path, a quarter of a slice at a time: one and a half slices at the most.
  constexpr uint32_t kPiece = kUnit / 4;
  BackgroundWindow slow(kUnit, 64 * kUnit, kUnit);
  for (int i = 0; i < 20'000; ++i) {
    slow.answered(kPiece, 500 * static_cast<uint32_t>((slow.bytes() + kPiece - 1) / kPiece),
                  i * 500);
    REQUIRE(slow.bytes() <= kUnit + kUnit / 2);
  }
}

TEST_CASE("what is sent goes by class, with a share for write-back", "[scheduler]") {
  EgressQueue<int> queue;
  for (int i = 0; i < 200; ++i) queue.push(Class::kDemand, 1);
  for (int i = 0; i < 10; ++i) queue.push(Class::kWriteBack, 3);
  for (int i = 0; i < 10; ++i) queue.push(Class::kPrefetch, 2);
  queue.push(Class::kControl, 0);
  REQUIRE(queue.pop() == 0);
  int until_write = 1;
  while (queue.pop() == 1) ++until_write;
  REQUIRE(until_write > 8);    // demand first
  REQUIRE(until_write < 100);  // but not for ever
  int seen[4] = {};
  while (!queue.empty()) ++seen[queue.pop()];
  REQUIRE(seen[2] == 10);
  REQUIRE(seen[3] == 9);
}

TEST_CASE("regions: keys, rights, ends", "[regions]") {
  const auto domain = makeDomain(), other = makeDomain();
  Buffer memory(1 << 16);
  auto region = registerMemory(domain, memory.memory(), kRemoteRead).value();
  const RemoteKey key = region->key();
  REQUIRE(key.key != 0);
  Pin pin;
  REQUIRE(domain->pin(key.key, 0, 1 << 16, kRemoteRead, pin) == Outcome::kOk);
  pin.reset();
  REQUIRE(domain->pin(key.key, 0, 1, kRemoteWrite, pin) == Outcome::kBadRange);
  REQUIRE(domain->pin(key.key, 1, 1 << 16, kRemoteRead, pin) == Outcome::kBadRange);
  REQUIRE(domain->pin(key.key, UINT64_MAX, 2, kRemoteRead, pin) == Outcome::kBadRange);
  REQUIRE(domain->pin(key.key + 1, 0, 1, kRemoteRead, pin) == Outcome::kBadRange);
  REQUIRE(other->pin(key.key, 0, 1, kRemoteRead, pin) == Outcome::kBadRange);
  // The region's end waits for who is touching it.
  REQUIRE(domain->pin(key.key, 0, 1, kRemoteRead, pin) == Outcome::kOk);
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    region.reset();
    ended = true;
  });
  std::this_thread::sleep_for(20ms);
  REQUIRE(!ended);
  pin.reset();
  ending.join();
  REQUIRE(domain->pin(key.key, 0, 1, kRemoteRead, pin) == Outcome::kRevoked);

  REQUIRE(!registerMemory(domain, {nullptr, 1, -1, 0}, kRemoteRead).ok());
  REQUIRE(!registerMemory(domain, {memory.base, 0, -1, 0}, kRemoteRead).ok());
  REQUIRE(!registerMemory(domain, {memory.base, 1, 0, 0}, kRemoteRead).ok());  // no memfd
  Buffer shared(1 << 16, true);
  REQUIRE(!registerMemory(domain, {shared.base, shared.length, shared.fd, 4096}, kRemoteRead).ok());
}

namespace {

/// A card that knows every region but those it is told to refuse, and lets them go when it likes.
struct Card final : ProtectionDomain {
  struct Known final : Registration {
    explicit Known(Card& of) : card(of) {}
    bool end() override {
      if (card.holds) return false;
      --card.known;
      return true;
    }
    Card& card;
  };
  Result<std::unique_ptr<Registration>> make(const RegionEntry&) override {
    ++asked;
    if (refuses) return Error{"a card that refuses"};
    ++known;
    return std::unique_ptr<Registration>(std::make_unique<Known>(*this));
  }
  int asked = 0, known = 0;
  bool refuses = false, holds = false;
};

struct Given final : KeyWatcher {
  explicit Given(Card& of) : card(of) {}
  void keyRevoked(uint64_t key) override { told.push_back(key); }
  void cutOff(const std::string&) override {
    cut = true;
    card.holds = false;
  }
  Card& card;
  std::vector<uint64_t> told;
  bool cut = false;
};

}  // namespace

TEST_CASE("regions: a card knows each once, until it ends", "[regions]") {
  const auto domain = makeDomain();
  const auto card = std::make_shared<Card>(), other = std::make_shared<Card>();
  int made = 0;
  const auto on = [&](const std::shared_ptr<Card>& which) {
    return domain
        ->on(which.get(),
             [&]() -> Result<std::shared_ptr<ProtectionDomain>> {
               ++made;
               return std::shared_ptr<ProtectionDomain>(which);
             })
        .value();
  };
  CHECK(on(card) == on(card));
  CHECK(on(other) != on(card));
  CHECK(made == 2);
  const auto watcher = std::make_shared<Given>(*card);
  domain->watch(watcher);
  Buffer buffer(4096);
  auto region = registerMemory(domain, buffer.memory(), kRemoteRead).value();
  CHECK(card->known == 0);  // nobody has asked yet
  Registration* const as = region->entry()->registered(on(card));
  REQUIRE(as != nullptr);
  CHECK(region->entry()->registered(on(card)) == as);
  CHECK(region->entry()->registered(on(other)) != as);
  CHECK(card->asked == 1);
  region.reset();
  CHECK(card->known == 0);
  CHECK(other->known == 0);
  CHECK(watcher->told.empty());  // no peer could reach it
  // A registration that a card refuses is asked for once.
  card->refuses = true;
  region = registerMemory(domain, buffer.memory(), kRemoteRead).value();
  CHECK(region->entry()->registered(on(card)) == nullptr);
  CHECK(region->entry()->registered(on(card)) == nullptr);
  CHECK(card->asked == 2);
  card->refuses = false;
  // The end of a region that a peer could reach is told to it; one that the card still holds then
  // ends the domain's links.
  region = registerMemory(domain, buffer.memory(), kRemoteRead).value();
  region->entry()->registered(on(card));
  region->entry()->reachable = true;
  card->holds = true;
  const uint64_t key = region->key().key;
  region.reset();
  CHECK(watcher->told == std::vector<uint64_t>{key});
  CHECK(watcher->cut);
  CHECK(card->known == 0);
}

TEST_CASE("a peer's key is asked for once and kept until it is taken back", "[regions]") {
  using Keys = PeerKeys<int, int>;
  Keys keys;
  int reach = 0;
  std::vector<int> waited;
  CHECK_FALSE(keys.answer(7, 70, false, waited));
  CHECK(keys.find(7, 1, reach) == Keys::Found::kAsk);
  CHECK(keys.find(7, 2, reach) == Keys::Found::kWaits);
  keys.takenBack(7);  // crossed the question: its answer is to come
  REQUIRE(keys.answer(7, 70, false, waited));
  CHECK(waited == std::vector{1, 2});
  CHECK(keys.find(7, 3, reach) == Keys::Found::kReach);
  CHECK(reach == 70);
  CHECK_FALSE(keys.answer(7, 71, false, waited));
  CHECK(keys.find(8, 4, reach) == Keys::Found::kAsk);
  REQUIRE(keys.answer(8, std::nullopt, false, waited));
  CHECK(keys.find(8, 5, reach) == Keys::Found::kOtherwise);
  CHECK(keys.find(9, 6, reach) == Keys::Found::kAsk);
  REQUIRE(keys.answer(9, std::nullopt, true, waited));
  CHECK(waited == std::vector{6});
  keys.takenBack(7);
  CHECK(keys.size() == 1);
  CHECK(keys.find(7, 8, reach) == Keys::Found::kAsk);
}

TEST_CASE("regions: who heard that it was read waits until it is let go of", "[regions]") {
  auto domain = makeDomain();
  Buffer memory(1 << 16);
  auto region = registerMemory(domain, memory.memory(), kRemoteRead).value();
  CHECK(region->waitIdle(0ms));
  Pin pin;
  REQUIRE(domain->pin(region->key().key, 0, 4096, kRemoteRead, pin) == Outcome::kOk);
  CHECK_FALSE(region->waitIdle(10ms));
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    pin.reset();
  });
  CHECK(region->waitIdle(60s));
  other.join();
}

TEST_CASE("a ring carries bytes between threads", "[ring]") {
  auto random = seededRandom("ring");
  auto made = Channel::make(4096);
  REQUIRE(made.ok());
  auto opened = Channel::open(base::UniqueFd(dup(made.value()->memoryFd())),
                              base::UniqueFd(dup(made.value()->peerBell())),
                              base::UniqueFd(dup(made.value()->ownBell())), 4096);
  REQUIRE(opened.ok());
  Ring& out = made.value()->out;
  Ring& in = opened.value()->in;
  const uint64_t seed = random();
  std::thread producer([&] {
    std::mt19937_64 own(seed);
    for (uint32_t i = 0; i < 20000; ++i) {
      std::vector<uint32_t> frame(1 + own() % 300, i);
      frame[0] = static_cast<uint32_t>(frame.size());
      while (!out.fits(frame.size() * 4)) std::this_thread::yield();
      out.put(frame.data(), frame.size() * 4);
      out.publish();
    }
  });
  bool right = true;
  for (uint32_t i = 0; i < 20000; ++i) {
    while (in.available() == 0) std::this_thread::yield();
    uint32_t length = 0;
    in.copyOut(&length, 0, 4);
    std::vector<uint32_t> frame(length);
    in.copyOut(frame.data(), 0, length * 4);
    in.consumed(length * 4);
    for (uint32_t k = 1; k < length; ++k) right = right && frame[k] == i;
  }
  producer.join();
  REQUIRE(right);
}

TEST_CASE("a channel that is not sealed, or of another size, is refused", "[ring]") {
  const auto offer = [](bool seal, off_t size) {
    base::UniqueFd memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(memory.get(), size) == 0);
    if (seal) REQUIRE(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return Channel::open(std::move(memory), base::UniqueFd(eventfd(0, 0)),
                         base::UniqueFd(eventfd(0, 0)), 4096)
        .ok();
  };
  auto good = Channel::make(4096);
  REQUIRE(good.ok());
  struct stat about {};
  REQUIRE(fstat(good.value()->memoryFd(), &about) == 0);
  REQUIRE(offer(true, about.st_size));
  REQUIRE(!offer(false, about.st_size));
  REQUIRE(!offer(true, about.st_size - 4096));
}

namespace {

bool isThere(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) == 0;
}

// A socket at `path`, made a minute ago.
base::UniqueFd oldSocket(const std::string& path, bool listens) {
  const auto address = unixAddress(path);
  REQUIRE(address.ok());
  base::UniqueFd fd = makeSocket(AF_UNIX);
  REQUIRE(bind(fd.get(), address.value().get(), address.value().length) == 0);
  if (listens) REQUIRE(::listen(fd.get(), 8) == 0);
  const timespec times[2] = {{time(nullptr) - 60, 0}, {time(nullptr) - 60, 0}};
  REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  return fd;
}

}  // namespace

TEST_CASE("the best kind that both ends have is chosen", "[transport]") {
  const Kinds all{LinkKind::kTcp, LinkKind::kShm, LinkKind::kVerbs};
  CHECK(choose(all, all) == LinkKind::kShm);
  CHECK(choose(all, {LinkKind::kTcp, LinkKind::kVerbs}) == LinkKind::kVerbs);
  CHECK(choose({LinkKind::kTcp}, all) == LinkKind::kTcp);
  CHECK(choose({LinkKind::kShm}, {LinkKind::kTcp}) == std::nullopt);
  CHECK(choose(allowedBy(Choice::kAuto), allowedBy(Choice::kTcp)) == LinkKind::kTcp);
  CHECK(choose(allowedBy(Choice::kShm), allowedBy(Choice::kTcp)) == std::nullopt);
  // On the wire: what a peer says may have any bits.
  CHECK(Kinds::fromBits(0xff).single() == std::nullopt);
  CHECK(Kinds::fromBits(0).single() == std::nullopt);
  CHECK(Kinds::fromBits(0xf8).text() == "nothing");
  CHECK(Kinds{LinkKind::kVerbs}.single() == LinkKind::kVerbs);
  CHECK(all.text() == "shm, verbs, tcp");
}

TEST_CASE("who holds most places makes room, of these the oldest", "[transport]") {
  const auto peer = [](const char* key, const char* address) {
    PeerInfo made;
    made.key_name = key;
    made.address = address;
    return made;
  };
  const PeerInfo few = peer("few", "10.0.0.1:1000"), one = peer("many", "10.0.0.2:1000"),
                 other = peer("many", "10.0.0.3:1000"), again = peer("many", "10.0.0.3:2000");
  const auto made = whoMakesRoom({{&few, 1}, {&one, 2}, {&few, 3}, {&other, 5}, {&again, 4}});
  CHECK(made.which == 4);
  CHECK(made.of_key == 3);
  CHECK(made.of_address == 2);
  CHECK(whoMakesRoom({{&one, 2}, {&few, 1}}).which == 1);
  // One who has a network of IPv6 has all of its addresses.
  CHECK(sourceOf(peer("", "[2001:db8::1]:70")) == sourceOf(peer("", "[2001:db8::2]:71")));
  CHECK(sourceOf(peer("", "[2001:db8:0:1::1]:70")) != sourceOf(peer("", "[2001:db8::1]:70")));
  CHECK(sourceOf(peer("", "unix:/run/a")) == sourceOf(peer("", "unix:/run/b")));
}

TEST_CASE("a ticket for a queue pair is good as it was made, and not otherwise", "[transport]") {
  LinkSecrets secrets{};
  secrets.ticket.fill(7);
  LinkId link{};
  link.fill(9);
  std::vector<Secret> answers;
  for (uint32_t which = 0; which <= verbs::kMessages; ++which) {
    const verbs::Ticket made = verbs::makeTicket(secrets, link, 0, which);
    REQUIRE(verbs::checkTicket(secrets, made));
    for (size_t at = 0; at < sizeof made; ++at) {
      verbs::Ticket other = made;
      reinterpret_cast<uint8_t*>(&other)[at] ^= 1;
      REQUIRE_FALSE(verbs::checkTicket(secrets, other));
    }
    answers.push_back(verbs::answerTicket(secrets, made));
  }
  // The answer to one is none to another.
  std::sort(answers.begin(), answers.end());
  REQUIRE(std::adjacent_find(answers.begin(), answers.end()) == answers.end());
  REQUIRE_FALSE(
      verbs::checkTicket(secrets, verbs::makeTicket(secrets, link, 0, verbs::kMessages + 1)));
  LinkSecrets others = secrets;
  others.ticket.fill(8);
  REQUIRE_FALSE(verbs::checkTicket(others, verbs::makeTicket(secrets, link, 0, 0)));
}

TEST_CASE("sockets of processes that were killed are removed, and no others", "[transport]") {
  const olpager::test::TemporaryFolder temporary;
  const std::string& folder = temporary.path;
  const std::string dead = newSocketPath(folder), live = newSocketPath(folder),
                    silent = newSocketPath(folder), fresh = newSocketPath(folder),
                    file = newSocketPath(folder), link = newSocketPath(folder),
                    other = folder + "/other.sock";
  oldSocket(dead, true).reset();
  oldSocket(other, true).reset();
  const base::UniqueFd listening = oldSocket(live, true);
  const base::UniqueFd bound = oldSocket(silent, false);
  oldSocket(fresh, true).reset();
  utimensat(AT_FDCWD, fresh.c_str(), nullptr, 0);
  base::UniqueFd(open(file.c_str(), O_CREAT | O_WRONLY, 0600)).reset();
  REQUIRE(symlink(other.c_str(), link.c_str()) == 0);
  CHECK(isDeadSocket(dead));
  CHECK(!isDeadSocket(live));
  CHECK(!isDeadSocket(silent));
  CHECK(!isDeadSocket(file));
  CHECK(!isDeadSocket(link));
  removeDeadSockets(folder);
  CHECK(!isThere(dead));
  for (const auto& kept : {live, silent, fresh, file, link, other}) CHECK(isThere(kept));
  // The listener has not heard of it.
  CHECK(accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK) == -1);
  CHECK(errno == EAGAIN);
  removeDeadSockets(folder + "/none");
}

TEST_CASE("a pair of one host whose file systems are not the same has TCP", "[transport]") {
  const olpager::test::TemporaryFolder folder;
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string usual = before == nullptr ? "" : before;
  setenv("XDG_RUNTIME_DIR", folder.path.c_str(), 1);
  Pair pair(optionsFor(Choice::kAuto));
  usual.empty() ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", usual.c_str(), 1);
  REQUIRE(pair.up->peer().kind == LinkKind::kShm);
  // As a client in a container of its own finds it.
  std::filesystem::remove_all(folder.path + "/olpager");
  const LinkPtr next = pair.connect(pair.up->id());
  CHECK(next->peer().kind == LinkKind::kTcp);
  CHECK(pair.peer->state() == LinkState::kDown);
  REQUIRE(next->send(MessageClass::kNotice, bytesOf("by TCP")) == Outcome::kOk);
  CHECK(textOf(pair.server.await(Kind::kMessage).message) == "by TCP");
  // A side that wants nothing else hears what is in the way.
  Side strict(optionsFor(Choice::kShm));
  const auto refused =
      strict.endpoint->connect(pair.listener->address(), {strict.domain, strict.queue, ""});
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("No such file") != std::string::npos);
}

TEST_CASE("a path where a killed process listened can be listened at again, a live one's can't",
          "[transport]") {
  const olpager::test::TemporaryFolder folder;
  const std::string path = folder.path + "/mine.sock";
  oldSocket(path, true).reset();
  const auto refuseAll = [](const PeerInfo&) -> Result<Accepted> { return Error{"not here"}; };
  auto first = makeEndpoint({}), second = makeEndpoint({});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  const auto listener = first.value()->listen("unix:" + path, refuseAll);
  REQUIRE(listener.ok());
  const auto refused = second.value()->listen("unix:" + path, refuseAll);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("in use") != std::string::npos);
  CHECK(isThere(path));
}

TEST_CASE("what has come counts, however late it is looked at", "[transport]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const base::UniqueFd out(ends[0]), in(ends[1]);
  CHECK_FALSE(waitFor(out.get(), POLLIN, nowMs() - 1000));
  REQUIRE(write(in.get(), "x", 1) == 1);
  CHECK(waitFor(out.get(), POLLIN, nowMs() - 1000));
}

TEST_CASE("what a write has failed with is told to who reads", "[transport]") {
  const auto to = resolve("127.0.0.1:0", true).value().front();
  base::UniqueFd listener = makeSocket(to.family());
  REQUIRE(bind(listener.get(), to.get(), to.length) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) ==
          0);
  auto fd = connectSocket(bound, {nowMs() + 5000});
  REQUIRE(fd.ok());
  REQUIRE(waitFor(listener.get(), POLLIN, nowMs() + 5000));
  base::UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const linger now{1, 0};
  REQUIRE(setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
  peer.reset();
  REQUIRE(waitFor(fd.value().get(), POLLIN, nowMs() + 5000));  // it has heard of it
  Stream stream(std::move(fd.value()), nullptr);
  char byte = 0;
  const iovec part{&byte, 1};
  REQUIRE(stream.write(&part, 1) == -ECONNRESET);
  const ssize_t got = stream.read(&part, 1);
  REQUIRE(got == -ECONNRESET);
  REQUIRE(stream.errorText(got).find("reset") != std::string::npos);
}

TEST_CASE("a forked child closes what the transport opened and nothing else", "[transport]") {
  const base::UniqueFd own(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const base::UniqueFd programs(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // The transport had one of this number before, and has closed it.
  int reused = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE((own && programs && reused >= 0));
  transport::noteOwnDescriptor(own.get());
  transport::noteOwnDescriptor(reused);
  transport::noteOwnDescriptor(-1);
  const base::UniqueFd file(memfd_create("olpager-of-the-program", MFD_CLOEXEC));
  REQUIRE(dup2(file.get(), reused) == reused);
  // Event channels all look alike.
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC)), gone(eventfd(0, EFD_CLOEXEC));
  const base::UniqueFd programs_channel(eventfd(0, EFD_CLOEXEC));
  REQUIRE((channel && gone && programs_channel));
  transport::noteOwnDescriptor(channel.get());
  transport::noteOwnDescriptor(gone.get());
  transport::forgetOwnDescriptor(gone.get());
  REQUIRE(dup2(programs_channel.get(), gone.get()) == gone.get());
  const pid_t child = fork();
  if (child == 0) {
    transport::closeInForkedChild();
    const bool own_open = fcntl(own.get(), F_GETFD) >= 0 || fcntl(channel.get(), F_GETFD) >= 0;
    const bool others_open = fcntl(programs.get(), F_GETFD) >= 0 && fcntl(reused, F_GETFD) >= 0 &&
                             fcntl(file.get(), F_GETFD) >= 0 && fcntl(gone.get(), F_GETFD) >= 0 &&
                             fcntl(programs_channel.get(), F_GETFD) >= 0;
    _exit(own_open ? 1 : others_open ? 0 : 2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  close(reused);
}
