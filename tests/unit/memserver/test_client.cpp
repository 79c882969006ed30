// A session and a memserver that are both well: leases, frames, quotas, recalls.
#include "base/format.h"
#include "coherence/status/ask.h"
#include "tests/unit/memserver/rig.h"

namespace olpager::memserver::test {

TEMPLATE_TEST_CASE("memory is leased, written, read back and released", "[client]", Tcp, Shm) {
  Server server(TestType::kChoice);
  Session session(server);
  session.open();
  const auto slabs = session.lease(3 * kSlab);
  REQUIRE(slabs.size() == 3);
  CHECK(session.client->slabs().size() == 3);
  CHECK(session.client->figures().leased_bytes == 3 * kSlab);
  CHECK(server.store->figures().lent == 3 * kSlab);

  Buffer out(session.domain, 2 * kMiB), in(session.domain, 2 * kMiB);
  in.fill(99);
  REQUIRE(session.read(in, {slabs[0].id, 0, 2 * kMiB}) == TransferResult::kOk);
  CHECK(in.isZero());
  for (const Slab& slab : slabs) {
    out.fill(slab.id);
    REQUIRE(session.write(out, {slab.id, 2 * kMiB, 2 * kMiB}) == TransferResult::kOk);
  }
  for (const Slab& slab : slabs) {
    REQUIRE(session.read(in, {slab.id, 2 * kMiB, 2 * kMiB}) == TransferResult::kOk);
    CHECK(in.holds(slab.id));
  }
  for (const Slab& slab : slabs) session.client->release(slab.id);
  eventually([&] { return server.store->figures().free == server.bytes; });
  CHECK(session.read(in, {slabs[0].id, 0, 2 * kMiB}) == TransferResult::kBadRange);
  CHECK(server.service->lentBytes() == 0);
}

TEMPLATE_TEST_CASE("scattered pieces, all classes, many at once", "[client]", Tcp, Shm) {
  Server server(TestType::kChoice);
  Session session(server);
  session.options.in_flight = 8;  // the others wait in the client
  session.open();
  const auto slabs = session.lease(8 * kSlab);
  auto random = seededRandom("scattered pieces");
  constexpr int kFrames = 16;
  std::vector<std::unique_ptr<Buffer>> out, in;
  std::vector<FrameRange> frames;
  for (int i = 0; i < kFrames; ++i) {
    out.push_back(std::make_unique<Buffer>(session.domain, 2 * kMiB));
    in.push_back(std::make_unique<Buffer>(session.domain, 2 * kMiB));
    out.back()->fill(random());
    std::memcpy(in.back()->base, out.back()->base, 2 * kMiB);
    frames.push_back({slabs[static_cast<size_t>(i) / 2].id, i % 2 * 2 * kMiB, 2 * kMiB});
  }
  const auto pieces = [&](const Buffer& buffer) {
    std::vector<transport::LocalRange> ranges;
    for (uint64_t at = 0; at < buffer.length;) {
      const uint64_t length = std::min(buffer.length - at, 4096 * (1 + random() % 64));
      ranges.push_back({buffer.region.get(), at, length});
      at += length;
      if (ranges.size() == transport::kMaxLocalRanges - 1 && at < buffer.length) {
        ranges.push_back({buffer.region.get(), at, buffer.length - at});
        break;
      }
    }
    return ranges;
  };
  std::vector<uint64_t> ids;
  for (int i = 0; i < kFrames; ++i) {
    const auto ranges = pieces(*out[static_cast<size_t>(i)]);
    ids.push_back(session.client->write(ranges, frames[static_cast<size_t>(i)],
                                        static_cast<Class>(1 + i % 3),
                                        1000 + static_cast<uint64_t>(i)));
  }
  for (const uint64_t id : ids) session.client->raise(id, Class::kDemand);
  for (int i = 0; i < kFrames; ++i)
    REQUIRE(session.await(1000 + static_cast<uint64_t>(i)) == TransferResult::kOk);
  for (int i = 0; i < kFrames; ++i) {
    std::memset(out[static_cast<size_t>(i)]->base, 0, 2 * kMiB);
    const auto ranges = pieces(*out[static_cast<size_t>(i)]);
    session.client->read(ranges, frames[static_cast<size_t>(i)], static_cast<Class>(1 + i % 3),
                         2000 + static_cast<uint64_t>(i));
  }
  for (int i = 0; i < kFrames; ++i)
    REQUIRE(session.await(2000 + static_cast<uint64_t>(i)) == TransferResult::kOk);
  for (size_t i = 0; i < kFrames; ++i) CHECK(std::memcmp(out[i]->base, in[i]->base, 2 * kMiB) == 0);
  const Figures figures = session.client->figures();
  CHECK(figures.bytes_read == kFrames * 2 * kMiB);
  CHECK(figures.bytes_written == kFrames * 2 * kMiB);
  CHECK(figures.read_bytes_per_s > 0);
  CHECK(figures.write_bytes_per_s > 0);
}

TEST_CASE("what can't be is refused where it is asked for", "[client]") {
  Server server(Choice::kTcp);
  Session session(server);
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, 2 * kMiB);
  CHECK(session.read(buffer, {slabs[0].id + 1, 0, 2 * kMiB}) == TransferResult::kBadRange);
  CHECK(session.read(buffer, {slabs[0].id, 0, 4 * kMiB}) == TransferResult::kBadRange);
  CHECK(session.read(buffer, {slabs[0].id, kSlab - kMiB, 2 * kMiB}) == TransferResult::kBadRange);
  CHECK(session.write(buffer, {slabs[0].id, UINT64_MAX - kMiB, 2 * kMiB}) ==
        TransferResult::kBadRange);
  CHECK(session.read(buffer, {slabs[0].id, 0, 2 * kMiB}) == TransferResult::kOk);

  Session nowhere("127.0.0.1:1", Choice::kTcp);
  const auto refused = Client::connect(nowhere.options, nowhere);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("127.0.0.1:1") != std::string::npos);
}

TEST_CASE("a frame that is released while it is written is written first", "[client]") {
  Server server(Choice::kTcp);
  Session session(server);
  session.open();
  const auto slabs = session.lease(kSlab);
  Buffer buffer(session.domain, 4 * kMiB);
  buffer.fill(7);
  const transport::LocalRange range = buffer.range();
  session.client->write({&range, 1}, {slabs[0].id, 0, 4 * kMiB}, Class::kWriteBack, 500);
  session.client->release(slabs[0].id);
  CHECK(session.await(500) == TransferResult::kOk);
  eventually([&] { return server.store->figures().free == server.bytes; });
  CHECK_FALSE(session.saw(Event::Kind::kSlabLost));
}

TEMPLATE_TEST_CASE("memory is zeroed before it is lent again", "[client][trust]", Tcp, Shm) {
  Server server(TestType::kChoice, 4 * kSlab);
  for (int round = 0; round < 3; ++round) {
    Session session(server);
    session.open();
    const auto slabs = session.lease(4 * kSlab);
    REQUIRE(slabs.size() == 4);
    Buffer buffer(session.domain, kSlab);
    for (const Slab& slab : slabs) {
      REQUIRE(session.read(buffer, {slab.id, 0, kSlab}) == TransferResult::kOk);
      REQUIRE(buffer.isZero());
      buffer.fill(0x5ec3e7);
      REQUIRE(session.write(buffer, {slab.id, 0, kSlab}) == TransferResult::kOk);
    }
    session.close();
    eventually([&] { return server.store->figures().free == 4 * kSlab; });
  }
  const auto figures = server.store->figures();
  if (TestType::kChoice == Choice::kShm) {
    CHECK(figures.replaced == 3 * 4 * kSlab);  // each memfd had been handed out
  } else {
    CHECK(figures.zeroed == 3 * 4 * kSlab);
  }
}

TEST_CASE("quotas bound each session and each key", "[client][quota]") {
  ServiceOptions options;
  options.session_quota = 3 * kSlab;
  options.key_quotas[""] = 5 * kSlab;
  Server server(Choice::kTcp, 16 * kSlab, options);
  Session first(server), second(server);
  first.open();
  second.open();
  CHECK(first.client->figures().available_bytes == 3 * kSlab);
  CHECK(first.lease(10 * kSlab).size() == 3);
  CHECK(second.lease(10 * kSlab).size() == 2);
  const auto refused = second.client->lease(kSlab);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("quota") != std::string::npos);
  first.client->release(first.client->slabs().front().id);
  eventually([&] { return second.client->lease(kSlab).ok(); });
}

TEST_CASE("all memory lent is said, and when there is some again", "[client]") {
  Server server(Choice::kTcp, 2 * kSlab);
  Session first(server), second(server);
  first.open();
  second.open();
  const auto slabs = first.lease(4 * kSlab);
  CHECK(slabs.size() == 2);
  const auto refused = second.client->lease(kSlab);
  REQUIRE(!refused.ok());
  CHECK(refused.error().message.find("all memory is lent") != std::string::npos);
  first.client->release(slabs[0].id);
  CHECK(second.await(Event::Kind::kCapacity).bytes == kSlab);
  CHECK(second.lease(kSlab).size() == 1);
}

TEMPLATE_TEST_CASE("what is recalled and released goes back to the system", "[client][recall]", Tcp,
                   Shm) {
  Server server(TestType::kChoice);
  Session session(server);
  session.open();
  const auto slabs = session.lease(4 * kSlab);
  server.store->setTarget(2 * kSlab);  // the free ones go at once
  CHECK(server.store->figures().free == 0);
  server.service->recall(2 * kSlab, 5000, "a test");
  const Event recall = session.await(Event::Kind::kRecall);
  CHECK(recall.bytes == 2 * kSlab);
  CHECK(recall.deadline_ms > 0);
  CHECK(recall.deadline_ms <= 5000);
  CHECK(!session.client->lease(kSlab).ok());
  session.client->release(slabs[0].id);
  session.client->release(slabs[1].id);
  eventually([&] { return server.store->figures().donated() == 2 * kSlab; });
  eventually([&] { return session.client->figures().recalled_bytes == 0; });
  CHECK(session.client->slabs().size() == 2);
}

TEST_CASE("a recall is shared by the sessions, and can be taken back", "[client][recall]") {
  Server server(Choice::kTcp);
  Session large(server), small(server);
  large.open();
  small.open();
  REQUIRE(large.lease(6 * kSlab).size() == 6);
  REQUIRE(small.lease(2 * kSlab).size() == 2);
  server.service->recall(4 * kSlab, 60000, "a test");
  CHECK(large.await(Event::Kind::kRecall).bytes == 3 * kSlab);
  CHECK(small.await(Event::Kind::kRecall).bytes == kSlab);
  server.service->recall(0, 0, "");
  CHECK(large.await(Event::Kind::kRecall).bytes == 0);
  CHECK(small.await(Event::Kind::kRecall).bytes == 0);
  CHECK(small.lease(kSlab).size() == 1);
  // However they follow each other, the last word arrives.
  auto random = seededRandom("recalls");
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 20; ++i) {
      server.service->recall(random() % 4 * kSlab, 60000, "a test");
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    }
    server.service->recall(0, 0, "");
    while (small.lastRecall() != 0) small.await(Event::Kind::kRecall);
    while (large.lastRecall() != 0) large.await(Event::Kind::kRecall);
  }
}

TEMPLATE_TEST_CASE("what is recalled hard is taken when the time is over", "[client][recall]", Tcp,
                   Shm) {
  ServiceOptions options;
  options.hard_recall = true;
  Server server(TestType::kChoice, 4 * kSlab, options);
  Session session(server);
  session.open();
  const auto slabs = session.lease(4 * kSlab);
  Buffer buffer(session.domain, 2 * kMiB);
  for (const Slab& slab : slabs) {
    buffer.fill(slab.id);
    REQUIRE(session.write(buffer, {slab.id, 0, 2 * kMiB}) == TransferResult::kOk);
  }
  server.service->recall(2 * kSlab, 200, "a test");
  const SlabId lost[] = {session.await(Event::Kind::kSlabLost).slab,
                         session.await(Event::Kind::kSlabLost).slab};
  int kept = 0;
  for (const Slab& slab : slabs) {
    const auto result = session.read(buffer, {slab.id, 0, 2 * kMiB});
    if (slab.id == lost[0] || slab.id == lost[1]) {
      CHECK(result == TransferResult::kBadRange);
    } else {
      REQUIRE(result == TransferResult::kOk);
      CHECK(buffer.holds(slab.id));
      ++kept;
    }
  }
  CHECK(kept == 2);
  CHECK(session.client->figures().slabs_lost == 2);
  eventually([&] { return server.store->figures().free == 2 * kSlab; });
}

TEST_CASE("a daemon tells who has what", "[client][state]") {
  Server server(Choice::kTcp);
  Session first(server), second(server);
  first.options.label = "first program";
  first.open();
  second.open();
  first.lease(2 * kSlab);
  const auto told = server.service->status(0, nullptr);
  CHECK(told.kind == "memserver");
  REQUIRE(told.tiers.size() == 1);
  CHECK(told.tiers[0].total == server.bytes);
  CHECK(told.tiers[0].used == 2 * kSlab);
  CHECK(told.serving == 1);
  CHECK(told.figure("lent_bytes") == 2 * kSlab);
  CHECK(told.figure(R"(links{transport="tcp"})") == 2);
  CHECK(told.figure(R"(links{transport="shm"})") == 0);
  REQUIRE(told.sessions.size() == 2);
  CHECK(told.sessions[0].program == "first program");
  CHECK(told.sessions[0].pieces == 2);
  CHECK(told.sessions[0].connected == 1);
  CHECK(told.sessions[0].transport == "tcp");
  CHECK(told.sessions[1].bytes == std::vector<uint64_t>{0});
  transport::PeerInfo stranger;
  stranger.key_name = "another";
  CHECK(server.service->status(0, &stranger).sessions.empty());
}

TEST_CASE("who asks a daemon for its state is no session", "[client][state]") {
  const auto choice = GENERATE(Choice::kTcp, Choice::kShm);
  Server server(choice);
  Session session(server);
  session.open();
  auto asker = status::Asker::make(optionsFor(choice), server.address());
  REQUIRE(asker.ok());
  const auto told = asker.value()->ask();
  REQUIRE(told.ok());
  const status::Status& status = told.value().status;
  CHECK(status.session_count == 1);
  CHECK(status.sessions.size() == 1);
  for (const char* figure : {"sessions", "sessions_connected", "sessions_total"}) {
    INFO(figure);
    CHECK(status.figure(figure) == 1);
  }
  for (const char* count : {"links", "links_total"}) {
    CHECK(status.figure(base::format(R"({}{{transport="tcp"}})", count)) ==
          (choice == Choice::kTcp ? 1 : 0));
    CHECK(status.figure(base::format(R"({}{{transport="shm"}})", count)) ==
          (choice == Choice::kShm ? 1 : 0));
  }
}

}  // namespace olpager::memserver::test
