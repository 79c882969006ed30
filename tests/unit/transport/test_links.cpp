// The promises of every transport, on each of them.
#include <dlfcn.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "coherence/transport/verbs/api.h"
#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

TEMPLATE_TEST_CASE("reads and writes move the right bytes", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  const bool shared = GENERATE(false, true);
  Pair pair(anyThreads(TestType::kChoice));
  REQUIRE(pair.up->peer().kind == TestType::kKind);
  REQUIRE(pair.peer->peer().kind == TestType::kKind);
  Buffer there(8 << 20, shared), here(8 << 20);
  there.fill(1);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);

  for (const uint64_t length : {uint64_t{1}, uint64_t{4096}, uint64_t{65536}, uint64_t{65537},
                                uint64_t{2 << 20}, uint64_t{(8 << 20) - 13}}) {
    const LocalRange into{local.get(), 13, length};
    REQUIRE(pair.up->read({&into, 1}, {region->key(), 5, length}, Class::kDemand, length) ==
            Outcome::kOk);
    const auto done = pair.client.await(Kind::kRead);
    REQUIRE(done.outcome == Outcome::kOk);
    REQUIRE(done.context == length);
    REQUIRE(done.bytes == length);
    bool same = true;
    for (uint64_t i = 0; i < length; ++i)
      same = same && here.base[13 + i] == Buffer::patternAt(1, 5 + i);
    REQUIRE(same);
  }

  here.fill(2);
  const LocalRange from = wholeLocal(local);
  REQUIRE(pair.up->write({&from, 1}, whole(region), Class::kWriteBack, 7) == Outcome::kOk);
  const auto done = pair.client.await(Kind::kWrite);
  REQUIRE(done.outcome == Outcome::kOk);
  REQUIRE(done.context == 7);
  REQUIRE(there.holds(2, 0, there.length));
}

TEMPLATE_TEST_CASE("local ranges scatter and gather", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  auto random = seededRandom("scatter");
  const bool shared = GENERATE(false, true);
  Pair pair(optionsFor(TestType::kChoice));
  Buffer there(4 << 20, shared), here(8 << 20);
  there.fill(3);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  for (int round = 0; round < scaled(20); ++round) {
    std::vector<LocalRange> ranges;
    uint64_t total = 0, place = 0;
    const size_t count = 1 + random() % kMaxLocalRanges;
    for (size_t i = 0; i < count; ++i) {
      place += random() % 1000;
      const uint64_t length = 1 + random() % 60000;
      ranges.push_back({local.get(), place, length});
      place += length;
      total += length;
    }
    const uint64_t offset = random() % (there.length - total);
    REQUIRE(pair.up->read(ranges, {region->key(), offset, total}, Class::kPrefetch, 0) ==
            Outcome::kOk);
    REQUIRE(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
    uint64_t at = offset;
    bool same = true;
    for (const auto& range : ranges) {
      for (uint64_t i = 0; i < range.length; ++i)
        same = same && here.base[range.offset + i] == Buffer::patternAt(3, at++);
    }
    REQUIRE(same);
    // And back to where they came from: nothing changes.
    REQUIRE(pair.up->write(ranges, {region->key(), offset, total}, Class::kDemand, 0) ==
            Outcome::kOk);
    REQUIRE(pair.client.await(Kind::kWrite).outcome == Outcome::kOk);
    REQUIRE(there.holds(3, 0, there.length));
  }
}

TEST_CASE("an operation alone uses all lanes, many at once move in large slices", "[links]") {
  constexpr uint64_t kEach = 1 << 20, kMany = 32;
  Options options = optionsFor(Choice::kTcp);
  options.lanes = 4;
  Pair pair(options);
  Buffer there(kMany * kEach, false), here(kMany * kEach);
  there.fill(4);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  const auto move = [&](bool write, uint64_t count) {
    const uint64_t before = pair.up->stats().slices;
    for (uint64_t i = 0; i < count; ++i) {
      const LocalRange range{local.get(), i * kEach, kEach};
      const RemoteRange remote{region->key(), i * kEach, kEach};
      REQUIRE((write ? pair.up->write({&range, 1}, remote, Class::kDemand, i)
                     : pair.up->read({&range, 1}, remote, Class::kDemand, i)) == Outcome::kOk);
    }
    for (uint64_t i = 0; i < count; ++i)
      REQUIRE(pair.client.await(write ? Kind::kWrite : Kind::kRead).outcome == Outcome::kOk);
    return pair.up->stats().slices - before;
  };
  REQUIRE(move(false, 1) == options.lanes);
  REQUIRE(move(true, 1) == options.lanes);
  for (const bool write : {false, true}) {
    uint64_t slices = 0;
    // How far the first ones have come when others are asked for, the machine decides.
    for (int tries = 0; tries < 20 && (tries == 0 || slices > kMany * options.lanes / 2); ++tries)
      slices = move(write, kMany);
    REQUIRE(slices <= kMany * options.lanes / 2);
    REQUIRE(slices >= kMany);
  }
  REQUIRE(here.holds(4, 0, here.length));
}

TEMPLATE_TEST_CASE("messages arrive in order, within their room", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  Options options = optionsFor(TestType::kChoice);
  options.stream = 8;
  Pair pair(options);
  int sent = 0, got = 0;
  bool refused = false;
  while (got < 1000) {
    while (sent < 1000) {
      const auto outcome =
          pair.up->send(MessageClass::kStream, bytesOf(std::to_string(sent)), bytesOf("!"));
      if (outcome == Outcome::kNoCredit) {
        refused = true;
        break;
      }
      REQUIRE(outcome == Outcome::kOk);
      ++sent;
    }
    REQUIRE(sent - got <= 8);
    if (sent == got) {  // nothing is on its way: then room has to come back
      REQUIRE(pair.client.await(Kind::kCredit).message_class == MessageClass::kStream);
    } else {
      const auto message = pair.server.await(Kind::kMessage);
      REQUIRE(message.message_class == MessageClass::kStream);
      REQUIRE(textOf(message.message) == std::to_string(got) + "!");
      ++got;
    }
  }
  REQUIRE(refused);
  REQUIRE(pair.up->send(MessageClass::kNotice, std::vector<std::byte>(pair.up->maxMessageBytes() +
                                                                      1)) == Outcome::kTooLong);
  const std::vector<std::byte> longest(pair.up->maxMessageBytes(), std::byte{7});
  REQUIRE(pair.up->send(MessageClass::kNotice, longest) == Outcome::kOk);
  REQUIRE(pair.server.await(Kind::kMessage).message.bytes().size() == longest.size());
}

TEMPLATE_TEST_CASE("messages stay in order, whoever receives them", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  // The receiver waits (and receives itself), polls, or is away (and the I/O thread receives), in
  // turns.
  auto random = seededRandom("order");
  Pair pair(optionsFor(TestType::kChoice));
  constexpr int kCount = 8000;
  std::thread sender([&] {
    for (int i = 0; i < kCount;) {
      const auto outcome = pair.up->send(MessageClass::kStream, std::as_bytes(std::span(&i, 1)));
      if (outcome == Outcome::kLinkDown) break;
      if (outcome == Outcome::kOk) {
        ++i;
      } else {
        Completion one;
        pair.client.queue->wait({&one, 1}, 1ms);
      }
    }
  });
  int expected = 0;
  bool right = true;
  while (expected < kCount && right) {
    Completion some[7];
    const uint64_t how = random() % 8;
    if (how == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    const size_t got =
        how < 4 ? pair.server.queue->poll(some) : pair.server.queue->wait(some, kLong);
    for (size_t i = 0; i < got; ++i) {
      int number = -1;
      std::memcpy(&number, some[i].message.bytes().data(), sizeof number);
      right = right && number == expected++;
    }
  }
  if (!right) pair.up->close("out of order");
  sender.join();
  REQUIRE(right);
}

TEMPLATE_TEST_CASE("a reply has its room from the request on", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  Options options = optionsFor(TestType::kChoice);
  options.requests = 4;
  options.notices = 1;
  Pair pair(options);
  REQUIRE(pair.peer->send(MessageClass::kReply, bytesOf("to nothing")) == Outcome::kNoCredit);
  for (int i = 0; i < 4; ++i)
    REQUIRE(pair.up->send(MessageClass::kRequest, bytesOf("?")) == Outcome::kOk);
  REQUIRE(pair.up->send(MessageClass::kRequest, bytesOf("?")) == Outcome::kNoCredit);
  for (int i = 0; i < 4; ++i) pair.server.await(Kind::kMessage);
  // Taken, but not answered: still no room for more.
  REQUIRE(!pair.client.next(50ms));
  for (int i = 0; i < 4; ++i)
    REQUIRE(pair.peer->send(MessageClass::kReply, bytesOf("!")) == Outcome::kOk);
  for (int i = 0; i < 4; ++i) {
    auto reply = pair.client.await(Kind::kMessage);
    REQUIRE(reply.message_class == MessageClass::kReply);
  }
  REQUIRE(pair.client.await(Kind::kCredit).message_class == MessageClass::kRequest);
  REQUIRE(pair.up->send(MessageClass::kRequest, bytesOf("?")) == Outcome::kOk);
  REQUIRE(textOf(pair.server.await(Kind::kMessage).message) == "?");
}

TEMPLATE_TEST_CASE("what is wrong is refused where it is asked", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  Pair pair(optionsFor(TestType::kChoice));
  Buffer there(1 << 20), here(1 << 20);
  const auto region = pair.server.add(there, kRemoteRead);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local), beyond{local.get(), 1, here.length},
                   none{nullptr, 0, here.length};
  REQUIRE(pair.up->read({&beyond, 1}, whole(region), Class::kDemand, 0) == Outcome::kBadRange);
  REQUIRE(pair.up->read({&none, 1}, whole(region), Class::kDemand, 0) == Outcome::kBadRange);
  REQUIRE(pair.up->read({&all, 1}, {region->key(), 1, there.length}, Class::kDemand, 0) ==
          Outcome::kBadRange);
  REQUIRE(pair.up->read({&all, 1}, {region->key(), 0, there.length - 1}, Class::kDemand, 0) ==
          Outcome::kBadRange);
  REQUIRE(pair.up->state() == LinkState::kUp);
}

TEMPLATE_TEST_CASE("memory without a CPU address is told to be out of reach", "[links]", Tcp, Shm,
                   Rdma) {
  NEEDS_CARD(TestType);
  Pair pair(optionsFor(TestType::kChoice));
  Buffer here(1 << 20);
  const auto local = pair.client.add(here, kLocalOnly);
  Memory device;
  device.length = here.length;
  const base::UniqueFd stands_for_it(eventfd(0, EFD_CLOEXEC));
  device.dma_buf = stands_for_it.get();
  const auto there = registerMemory(pair.server.domain, device, kRemoteReadWrite).value();
  const auto own = registerMemory(pair.client.domain, device, kLocalOnly).value();
  CHECK(there->base() == nullptr);
  const LocalRange all = wholeLocal(local), unreached = wholeLocal(own);
  REQUIRE(pair.up->read({&all, 1}, whole(there), Class::kDemand, 0) == Outcome::kOk);
  CHECK(pair.client.await(Kind::kRead).outcome == Outcome::kUnreachable);
  REQUIRE(pair.up->write({&all, 1}, whole(there), Class::kDemand, 0) == Outcome::kOk);
  CHECK(pair.client.await(Kind::kWrite).outcome == Outcome::kUnreachable);
  // A question shows whether a card reaches it.
  const auto posted = pair.up->read({&unreached, 1}, whole(there), Class::kDemand, 0);
  const bool asked = TestType::kKind == LinkKind::kVerbs && posted == Outcome::kOk;
  CHECK((asked ? pair.client.await(Kind::kRead).outcome : posted) == Outcome::kUnreachable);
  CHECK(pair.up->state() == LinkState::kUp);
}

namespace {

// Software RDMA has no dma-bufs: until this goes the memfd of a buffer stands for one, which the
// card knows by the addresses that it has for a dma-buf, from 0 on.
class StandInForDmaBufs {
 public:
  explicit StandInForDmaBufs(const std::vector<const Buffer*>& buffers)
      : table_(const_cast<verbs::Api&>(*verbs::api())), real_(table_.ibv_reg_dmabuf_mr) {
    buffers_ = buffers;
    void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    register_ = reinterpret_cast<decltype(register_)>(dlsym(library, "ibv_reg_mr_iova2"));
    REQUIRE(register_ != nullptr);
    dlclose(library);
    table_.ibv_reg_dmabuf_mr = [](ibv_pd* domain, uint64_t offset, size_t length, uint64_t address,
                                  int fd, int rights) -> ibv_mr* {
      struct stat given {};
      fstat(fd, &given);
      for (const Buffer* const buffer : buffers_) {
        struct stat own {};
        fstat(buffer->fd, &own);
        if (own.st_ino == given.st_ino)
          return register_(domain, buffer->base + offset, length, address,
                           static_cast<unsigned>(rights));
      }
      errno = EBADF;
      return nullptr;
    };
  }
  ~StandInForDmaBufs() { table_.ibv_reg_dmabuf_mr = real_; }
  StandInForDmaBufs(const StandInForDmaBufs&) = delete;
  StandInForDmaBufs& operator=(const StandInForDmaBufs&) = delete;

 private:
  verbs::Api& table_;
  const decltype(verbs::Api::ibv_reg_dmabuf_mr) real_;
  inline static std::vector<const Buffer*> buffers_;
  inline static ibv_mr* (*register_)(ibv_pd*, void*, size_t, uint64_t, unsigned) = nullptr;
};

}  // namespace

TEST_CASE("memory without a CPU address is moved by a card that can have it - Rdma", "[links]") {
  NEEDS_CARD(Rdma);
  constexpr uint64_t kBytes = 1 << 20, kOffset = 64 << 10;
  Buffer here(kBytes + kOffset, true), there(kBytes + kOffset, true), plain(kBytes);
  Pair pair(optionsFor(Choice::kVerbs));
  const StandInForDmaBufs stands_in({&here, &there});
  const auto device = [](const Buffer& buffer) {
    Memory memory;
    memory.length = kBytes;
    memory.dma_buf = buffer.fd;
    memory.dma_buf_offset = kOffset;
    return memory;
  };
  const auto remote = registerMemory(pair.server.domain, device(there), kRemoteReadWrite).value();
  const auto local = registerMemory(pair.client.domain, device(here), kLocalOnly).value();
  const auto host = pair.client.add(plain, kLocalOnly);
  CHECK(remote->base() == nullptr);
  CHECK(local->base() == nullptr);
  for (const Class klass : {Class::kDemand, Class::kWriteBack}) {
    there.fill(1);
    const LocalRange all = wholeLocal(local), in_host = wholeLocal(host);
    REQUIRE(pair.up->read({&all, 1}, whole(remote), klass, 0) == Outcome::kOk);
    CHECK(pair.client.await(Kind::kRead).outcome == Outcome::kOk);
    CHECK(here.holds(1, kOffset, kBytes));
    plain.fill(2);
    REQUIRE(pair.up->write({&in_host, 1}, whole(remote), klass, 0) == Outcome::kOk);
    CHECK(pair.client.await(Kind::kWrite).outcome == Outcome::kOk);
    CHECK(std::memcmp(there.base + kOffset, plain.base, kBytes) == 0);
    CHECK(there.holds(1, 0, kOffset));
  }
  CHECK(pair.up->stats().bounced_bytes == 0);
  CHECK(pair.up->state() == LinkState::kUp);
}

// The kernel opens no windows there: each part is registered for itself.
TEST_CASE("a part of memory without a CPU address is lent - Rdma", "[links]") {
  NEEDS_CARD(Rdma);
  constexpr uint64_t kBytes = 1 << 20, kOffset = 64 << 10;
  Buffer there(kBytes, true), plain(kBytes);
  Pair pair(optionsFor(Choice::kVerbs));
  const auto lender = makeDomain();
  const StandInForDmaBufs stands_in({&there});
  Memory memory;
  memory.length = kBytes;
  memory.dma_buf = there.fd;
  const auto all = registerMemory(lender, memory, kLends).value();
  const auto part =
      lendMemory(pair.server.domain, *all, kOffset, kBytes - kOffset, kRemoteReadWrite).value();
  CHECK(part->base() == nullptr);
  const auto host = pair.client.add(plain, kLocalOnly);
  there.fill(1);
  plain.fill(2);
  const LocalRange from{host.get(), kOffset, kBytes - kOffset};
  REQUIRE(pair.up->write({&from, 1}, whole(part), Class::kWriteBack, 0) == Outcome::kOk);
  CHECK(pair.client.await(Kind::kWrite).outcome == Outcome::kOk);
  CHECK(there.holds(1, 0, kOffset));
  CHECK(std::memcmp(there.base + kOffset, plain.base + kOffset, kBytes - kOffset) == 0);
  CHECK(pair.up->stats().bounced_bytes == 0);
}

TEMPLATE_TEST_CASE("closing completes everything once, and tells both sides why", "[links]", Tcp,
                   Shm, Rdma) {
  NEEDS_CARD(TestType);
  Pair pair(anyThreads(TestType::kChoice));
  Buffer there(32 << 20), here(32 << 20);
  const auto region = pair.server.add(there, kRemoteReadWrite);
  const auto local = pair.client.add(here, kLocalOnly);
  const LocalRange all = wholeLocal(local);
  constexpr uint64_t kCount = 40;
  for (uint64_t i = 0; i < kCount; ++i) {
    const auto outcome = i % 2 == 0
                             ? pair.up->read({&all, 1}, whole(region), Class::kPrefetch, i)
                             : pair.up->write({&all, 1}, whole(region), Class::kWriteBack, i);
    REQUIRE(outcome == Outcome::kOk);
  }
  const bool here_first = GENERATE(true, false);
  (here_first ? pair.up : pair.peer)->close("enough");
  std::vector<int> seen(kCount);
  for (;;) {
    const auto one = pair.client.next(kLong);
    REQUIRE(one);
    if (one->kind == Kind::kDown) break;
    REQUIRE((one->outcome == Outcome::kOk || one->outcome == Outcome::kLinkDown));
    ++seen[one->context];
  }
  REQUIRE(seen == std::vector<int>(kCount, 1));
  REQUIRE(!pair.client.next(50ms));
  REQUIRE(pair.up->state() == LinkState::kDown);
  REQUIRE(pair.up->read({&all, 1}, whole(region), Class::kDemand, 0) == Outcome::kLinkDown);
  REQUIRE(pair.up->send(MessageClass::kNotice, {}) == Outcome::kLinkDown);
  pair.server.await(Kind::kDown);
  INFO((here_first ? pair.peer : pair.up)->reason());
  REQUIRE((here_first ? pair.peer : pair.up)->reason().find("enough") != std::string::npos);
}

TEMPLATE_TEST_CASE("a thread that waits for some links hears them when there are many", "[links]",
                   Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  Pair pair(optionsFor(TestType::kChoice));
  std::vector<LinkPtr> links = {pair.up};
  std::atomic<size_t> heard{0};
  std::atomic<bool> stop{false};
  std::thread waiter([&] {
    Completion one;
    while (!stop) {
      if (pair.server.queue->wait({&one, 1}, 50ms) != 0 && one.kind == Kind::kMessage) ++heard;
      one = {};
    }
  });
  const std::shared_ptr<void> joins(nullptr, [&](void*) {
    stop = true;
    waiter.join();
  });
  for (size_t all = 2; all <= 12; ++all) {
    auto link = pair.client.endpoint->connect(pair.listener->address(),
                                              {pair.client.domain, pair.client.queue, ""});
    REQUIRE(link.ok());
    links.push_back(link.value());
    for (const auto& each : links)
      REQUIRE(each->send(MessageClass::kNotice, bytesOf("hello")) == Outcome::kOk);
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (heard < links.size()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(1ms);
    }
    heard = 0;
  }
}

TEMPLATE_TEST_CASE("a queue that nobody holds any more holds nothing", "[links]", Tcp, Shm, Rdma) {
  NEEDS_CARD(TestType);
  std::weak_ptr<Link> up, peer;
  std::weak_ptr<Domain> domain;
  {
    Pair pair(optionsFor(TestType::kChoice));
    up = pair.up;
    peer = pair.peer;
    domain = pair.server.domain;
    REQUIRE(pair.up->send(MessageClass::kStream, bytesOf("to nobody")) == Outcome::kOk);
    if (GENERATE(true, false)) std::this_thread::sleep_for(20ms);  // on its way, or in the queue
  }
  // The links end on the I/O threads of the endpoints, which are gone by now.
  REQUIRE(up.expired());
  REQUIRE(peer.expired());
  REQUIRE(domain.expired());
}
