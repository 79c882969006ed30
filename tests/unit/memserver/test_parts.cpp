// The protocol's messages, the frame pool, the slab store: each by itself.
#include "coherence/codec.h"
#include "coherence/status/status.h"
#include "tests/unit/memserver/rig.h"

namespace olpager::memserver::test {
namespace {

LeaseId randomLease(std::mt19937_64& random) {
  LeaseId id;
  for (auto& byte : id.bytes) byte = static_cast<uint8_t>(random());
  return id;
}

std::vector<protocol::Message> oneOfEach(std::mt19937_64& random) {
  using namespace protocol;
  const Capacity capacity{random(), random(), random(), random(), static_cast<uint32_t>(random())};
  std::vector<LeasedSlab> slabs;
  std::vector<LeaseId> leases;
  for (size_t i = 0; i < random() % kMaxLeases; ++i) {
    slabs.push_back({randomLease(random), random(), random()});
    leases.push_back(randomLease(random));
  }
  std::vector<Message> all;
  for (Body body : std::initializer_list<Body>{
           Hello{"program"}, HelloReply{randomLease(random), 30000, 1 << 28, capacity},
           protocol::Lease{random()}, LeaseReply{slabs, "a reason", capacity}, Attach{leases},
           AttachReply{slabs}, Renew{}, RenewReply{capacity}, Release{leases},
           ReleaseReply{capacity}, Refusal{"no"}, Recall{random(), 500, "why"},
           Revoked{leases, "why"}, Goodbye{}}) {
    all.push_back({random(), std::move(body)});
  }
  return all;
}

}  // namespace

TEST_CASE("every message comes out as it went in", "[protocol]") {
  auto random = seededRandom("messages");
  for (int round = 0; round < 20; ++round) {
    for (const auto& message : oneOfEach(random)) {
      const auto bytes = protocol::encode(message);
      CHECK(bytes.size() <= protocol::kMaxMessageBytes);
      const auto back = protocol::decode(bytes);
      INFO(protocol::bodyName(message.body));
      REQUIRE(back.ok());
      CHECK(back.value() == message);
    }
  }
}

TEST_CASE("the bytes are the same on every machine", "[protocol]") {
  const auto bytes = protocol::encode({0x0102030405060708, protocol::Lease{0x1112131415161718}});
  const uint8_t expected[] = {2, 0, 3,    0,    8,    7,    6,    5,    4,    3,
                              2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  REQUIRE(bytes.size() == sizeof expected);
  CHECK(std::memcmp(bytes.data(), expected, sizeof expected) == 0);
}

TEST_CASE("a message that is cut, longer, of another version or type is refused", "[protocol]") {
  auto random = seededRandom("bad messages");
  for (const auto& message : oneOfEach(random)) {
    auto bytes = protocol::encode(message);
    INFO(protocol::bodyName(message.body));
    for (size_t length = 0; length < bytes.size(); length += 1 + random() % 7) {
      CHECK(!protocol::decode(std::span(bytes).first(length)).ok());
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK(!protocol::decode(longer).ok());
    auto version = bytes;
    version[0] = std::byte{1};
    CHECK(!protocol::decode(version).ok());
    auto type = bytes;
    type[2] = std::byte{99};
    CHECK(!protocol::decode(type).ok());
    type[2] = std::byte{0};
    CHECK(!protocol::decode(type).ok());
  }
}

TEST_CASE("lengths beyond the limits are refused before anything is made for them", "[protocol]") {
  auto bytes = protocol::encode({1, protocol::Attach{}});
  bytes[12] = std::byte{0xff};
  bytes[13] = std::byte{0xff};
  bytes.resize(bytes.size() + 0xffff * 16);
  const auto list = protocol::decode(bytes);
  REQUIRE(!list.ok());
  CHECK(list.error().message.find("too long") != std::string::npos);
  auto text = protocol::encode({1, protocol::Hello{"abc"}});
  text[13] = std::byte{0xff};
  CHECK(!protocol::decode(text).ok());
}

TEST_CASE("what peers say of themselves can't move a terminal's cursor", "[protocol]") {
  const auto message = protocol::decode(protocol::encode({1, protocol::Hello{"a\x1b[2Jb\n"}}));
  REQUIRE(message.ok());
  CHECK(std::get<protocol::Hello>(message.value().body).label == "a?[2Jb?");
}

TEST_CASE("random bytes and changed messages never do harm", "[protocol]") {
  auto random = seededRandom("noise");
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() > 4 && random() % 4 != 0) {
      bytes[0] = std::byte{1};
      bytes[1] = std::byte{0};
      bytes[2] = static_cast<std::byte>(random() % 17);
      bytes[3] = std::byte{0};
    }
    const auto message = protocol::decode(bytes);
    if (message.ok())
      CHECK(protocol::decode(protocol::encode(message.value())).value() == message.value());
  }
}

TEST_CASE("frames never overlap and all of the memory can be had", "[frames]") {
  auto random = seededRandom("frames");
  FramePool pool;
  CHECK(!pool.allocate(FramePool::kPageBytes));
  std::map<SlabId, uint64_t> sizes;
  for (SlabId id = 1; id <= 6; ++id) {
    sizes[id] = (1 + random() % 40) * FramePool::kPageBytes;
    REQUIRE(pool.add({id, sizes[id]}));
    CHECK(!pool.add({id, sizes[id]}));
  }
  std::vector<FrameRange> held;
  std::set<std::pair<SlabId, uint64_t>> busy;  // pages
  const auto pagesOf = [](const FrameRange& frame, auto&& each) {
    for (uint64_t at = 0; at < frame.bytes; at += FramePool::kPageBytes) {
      each(std::pair(frame.slab, (frame.offset + at) / FramePool::kPageBytes));
    }
  };
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      const uint64_t wanted = 1 + random() % (random() % 2 == 0 ? 32 * kMiB : 2 * kMiB);
      const auto frame = pool.allocate(wanted);
      if (!frame) continue;
      REQUIRE(frame->bytes >= wanted);
      REQUIRE(frame->offset % frame->bytes == 0);
      REQUIRE(frame->offset + frame->bytes <= sizes.at(frame->slab));
      pagesOf(*frame, [&](auto page) { REQUIRE(busy.insert(page).second); });
      held.push_back(*frame);
    } else {
      const size_t which = random() % held.size();
      REQUIRE(pool.release(held[which]));
      CHECK(!pool.release(held[which]));
      pagesOf(held[which], [&](auto page) { busy.erase(page); });
      held[which] = held.back();
      held.pop_back();
    }
    REQUIRE(pool.usedBytes() == busy.size() * FramePool::kPageBytes);
    REQUIRE(pool.usedBytes() + pool.freeBytes() == pool.totalBytes());
  }
  while (pool.allocate(FramePool::kPageBytes)) {
  }
  CHECK(pool.freeBytes() == 0);
  CHECK(!pool.allocate(64 * kMiB));
  CHECK(!pool.release({1, kMiB, 2 * kMiB}));
  CHECK(!pool.release({99, 0, 2 * kMiB}));
}

TEST_CASE("a slab is emptied by closing it, and forgotten whole", "[frames]") {
  FramePool pool;
  REQUIRE(pool.add({1, 8 * kMiB}));
  REQUIRE(pool.add({2, 8 * kMiB}));
  const auto first = pool.allocate(4 * kMiB);
  REQUIRE(first);
  CHECK(first->slab == 1);
  CHECK(pool.emptiest() == SlabId{2});
  REQUIRE(pool.close(2));
  CHECK(pool.emptiest() == SlabId{1});
  CHECK(pool.freeBytes() == 4 * kMiB);
  CHECK(pool.allocate(4 * kMiB)->slab == 1);
  CHECK(!pool.allocate(2 * kMiB));
  REQUIRE(pool.close(2, false));
  CHECK(pool.allocate(8 * kMiB)->slab == 2);
  REQUIRE(pool.remove(1));
  CHECK(!pool.remove(1));
  CHECK(!pool.release(*first));
  CHECK(pool.totalBytes() == 8 * kMiB);
  CHECK(pool.usedBytes() == 8 * kMiB);
}

TEST_CASE("slabs are zeros, come back as zeros, and go when they are too many", "[slabs]") {
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  tbb::task_arena arena(4, 0);
  std::atomic<int> freed{0};
  SlabOptions options;
  options.bytes = kSlab;
  options.lock = false;
  SlabStore store(options, arena, [&] { ++freed; });
  store.setTarget(4 * kSlab);
  std::atomic<int> asked{0};
  REQUIRE(store.fill(SlabKind::kPrivate, [&](uint64_t) { return ++asked <= 3; }).ok());
  CHECK(store.figures().free == 3 * kSlab);
  REQUIRE(store.fill(SlabKind::kPrivate, [](uint64_t) { return true; }).ok());
  CHECK(store.figures().free == 4 * kSlab);
  CHECK(!store.grow(SlabKind::kPrivate));
  for (const SlabKind kind : {SlabKind::kPrivate, SlabKind::kShared}) {
    for (const bool handed_out : {false, true}) {
      auto slab = store.take(kind);
      REQUIRE(slab);
      CHECK(slab->kind() == kind);
      CHECK((slab->memory().fd >= 0) == (kind == SlabKind::kShared));
      CHECK(std::all_of(slab->base(), slab->base() + kSlab,
                        [](std::byte b) { return b == std::byte{0}; }));
      std::memset(slab->base(), 0xee, kSlab);
      CHECK(store.figures().lent == kSlab);
      store.giveBack(std::move(slab), handed_out && kind == SlabKind::kShared);
      eventually([&] { return store.figures().free == 4 * kSlab; });
    }
  }
  CHECK(freed.load() == 4);
  auto slab = store.take(SlabKind::kPrivate);
  store.setTarget(2 * kSlab);
  CHECK(store.figures().free == kSlab);
  store.setTarget(0);
  CHECK(store.figures().free == 0);
  store.giveBack(std::move(slab), false);
  eventually([&] { return store.figures().donated() == 0; });
  CHECK(!store.take(SlabKind::kPrivate));
  store.setTarget(kSlab);
  CHECK(store.grow(SlabKind::kShared));
  CHECK(store.figures().returned == 4 * kSlab);
}

TEST_CASE("what is begun is counted until it is touched", "[slabs]") {
  constexpr uint64_t kCount = 16;
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  tbb::task_arena arena(4, 0);
  SlabOptions options;
  options.bytes = 2 * kSlab;
  options.lock = false;
  SlabStore store(options, arena, [] {});
  uint64_t most = 0;
  eventually([&] {  // one thread may have made all of it
    store.setTarget(0);
    store.setTarget(kCount * options.bytes);
    uint64_t begun = 0;  // no lock: asked one at a time
    bool more_than_begun = false;
    const auto more = [&](uint64_t there) {
      const uint64_t untouched = store.untouched();
      most = std::max(most, untouched);
      more_than_begun = more_than_begun || there + untouched > begun;
      begun += options.bytes;
      return true;
    };
    REQUIRE(store.fill(SlabKind::kPrivate, more).ok());
    CHECK(begun == kCount * options.bytes);
    CHECK(!more_than_begun);
    CHECK(store.untouched() == 0);
    return most != 0;
  });
  uint64_t told = 0;
  REQUIRE(
      SlabMemory::make(options, SlabKind::kShared, [&](uint64_t bytes) { told += bytes; }).ok());
  CHECK(told == options.bytes);
  options.bytes = 1ull << 46;
  SlabStore huge(options, arena, [] {});
  huge.setTarget(options.bytes);
  CHECK(!huge.fill(SlabKind::kPrivate, [](uint64_t) { return true; }).ok());
  CHECK(huge.untouched() == 0);
}

TEST_CASE("more memory than there is can't be had, and is said", "[slabs]") {
  SlabOptions options;
  options.bytes = 1ull << 46;
  options.lock = false;
  const auto slab = SlabMemory::make(options, SlabKind::kPrivate);
  REQUIRE(!slab.ok());
  CHECK(slab.error().message.find("can't be had") != std::string::npos);
}

TEST_CASE("a status comes out as it went in, and nothing else does", "[status]") {
  auto random = seededRandom("status");
  status::Answer answer;
  answer.number = random();
  answer.status.kind = "gpunode";
  answer.status.tiers = {{"VRAM 0", random(), random(), random()}, {"RAM", 3, 2, 1}};
  answer.status.figures = {{"moved_bytes_total", random()}, {R"(links{transport="shm"})", 2}};
  answer.status.next = random();
  status::Session session;
  session.node = std::string(codec::kMaxText, 'n');
  session.bytes = {random(), random()};
  session.moved = random();
  session.budgets = {random()};
  session.calls = random();
  session.process = 77;
  session.state = "running";
  status::Device device;
  device.name = "A device";
  device.uuid = "GPU-0";
  device.peers = random();
  device.total = random();
  device.temperature = 33;
  answer.status.devices = {device, {}};
  answer.status.driver = "580.65";
  answer.status.cuda_version = 13000;
  answer.status.sessions.assign(status::kMaxRows, session);
  const auto bytes = status::encode(answer);
  CHECK(bytes.size() <= status::kMaxMessageBytes);
  const auto back = status::decodeAnswer(bytes);
  REQUIRE(back.ok());
  CHECK(back.value() == answer);
  CHECK(back.value().status.figure("moved_bytes_total") == answer.status.figures[0].value);
  CHECK(!status::isQuestion(bytes));
  for (size_t length = 0; length < bytes.size(); ++length)
    CHECK(!status::decodeAnswer(std::span(bytes).first(length)).ok());
  auto longer = bytes;
  longer.push_back({});
  CHECK(!status::decodeAnswer(longer).ok());
  const auto question = status::encode(status::Question{7, 9});
  CHECK(status::isQuestion(question));
  CHECK(status::decodeQuestion(question).value() == status::Question{7, 9});
  CHECK(!protocol::decode(question).ok());
  auto newer = question;
  newer[4] = std::byte{9};
  CHECK(status::decodeQuestion(newer).error().message.find("version 9") != std::string::npos);
}

}  // namespace olpager::memserver::test
