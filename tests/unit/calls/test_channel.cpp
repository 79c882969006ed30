// Records over real links, whole, in order and once, also when links are cut at random moments.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "base/sanitizer.h"
#include "coherence/calls/channel.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/faults/faulty.h"
#include "tests/catch.h"
#include "tests/seed.h"

namespace {

using namespace olpager;
using namespace std::chrono_literals;
using calls::Channel;

/// A sanitizer makes it all take longer.
constexpr auto kLongest = base::kThreadSanitizer || base::kAddressSanitizer ? 200s : 40s;

transport::Options optionsFor(transport::Choice choice) {
  transport::Options options;
  options.choice = choice;
  return options;
}

/// Two channels of one process, joined by a real link that can be cut and made anew; with a plan of
/// faults it also breaks by itself, and what comes over it is delayed.
class Pair {
 public:
  explicit Pair(transport::Choice choice, const calls::ChannelOptions& options = {},
                const transport::FaultPlan* faults = nullptr)
      : near(options), far(options) {
    const auto node = [&](uint64_t seed) {
      auto made = transport::makeEndpoint(optionsFor(choice)).value();
      if (faults == nullptr) return made;
      transport::FaultPlan plan = *faults;
      plan.seed += seed;
      return transport::makeFaulty(std::move(made), plan, &counts);
    };
    near_node_ = node(0);
    far_node_ = node(1);
    listener_ = far_node_
                    ->listen("127.0.0.1:0",
                             [this](const transport::PeerInfo&) -> Result<transport::Accepted> {
                               return transport::Accepted{far_domain, far_queue_};
                             })
                    .value();
  }

  void join() { REQUIRE(tryJoin().empty()); }

  /// Why there is no link; "" when there is one, at both ends.
  std::string tryJoin() {
    far_queue_ = far_node_->makeQueue();
    auto near_queue = near_node_->makeQueue();
    // The failure at the far end, or "": only the test's own thread may assert.
    auto answer = std::async(std::launch::async, [&]() -> std::string {
      transport::Completion up[1];
      far_link_.reset();
      if (far_queue_->wait(up, 5s) != 1 || up[0].kind != transport::Completion::Kind::kUp)
        return "no link came up";
      far_link_ = up[0].link;
      const auto heard = calls::answerGreeting(*far_link_, *far_queue_, far.taken(), 5s);
      if (!heard.ok()) return heard.error().message;
      const auto attached = far.attach(far_link_, far_queue_, heard.value());
      return attached.ok() ? "" : attached.error().message;
    });
    auto link = near_node_->connect(listener_->address(), {near_domain, near_queue, replaces_});
    if (!link.ok()) {
      (void)answer.get();
      return link.error().message;
    }
    near_link_ = link.value();
    replaces_ = near_link_->id();
    auto heard = calls::greet(*near_link_, *near_queue, near.taken(), 5s);
    std::string answered = answer.get();
    if (!answered.empty()) return answered;
    if (!heard.ok()) return heard.error().message;
    const auto attached = near.attach(near_link_, near_queue, heard.value());
    return attached.ok() ? "" : attached.error().message;
  }

  void cut() {
    near_link_->close("cut by the test");
    if (far_link_) far_link_->close("cut by the test");
  }

  const transport::DomainPtr near_domain = transport::makeDomain(),
                             far_domain = transport::makeDomain();
  transport::FaultCounts counts;  // outlives the links
  Channel near, far;

 private:
  std::unique_ptr<transport::Endpoint> near_node_, far_node_;
  std::unique_ptr<transport::Listener> listener_;
  transport::QueuePtr far_queue_;
  transport::LinkPtr near_link_, far_link_;
  std::string replaces_;
};

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string textOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A record whose bytes tell its number and seed.
std::vector<std::byte> numbered(uint64_t number, size_t bytes) {
  std::vector<std::byte> record(std::max(bytes, sizeof number));
  std::memcpy(record.data(), &number, sizeof number);
  for (size_t i = sizeof number; i < record.size(); ++i)
    record[i] = static_cast<std::byte>(number * 31 + i);
  return record;
}

}  // namespace

TEST_CASE("records arrive whole and in order", "[calls]") {
  const auto choice = GENERATE(transport::Choice::kTcp, transport::Choice::kShm);
  Pair pair(choice);
  pair.join();
  REQUIRE(pair.near.write({bytesOf("one"), bytesOf(" record")}));
  REQUIRE(pair.near.unsent());
  REQUIRE(pair.near.write({bytesOf("")}));
  REQUIRE(pair.near.write({bytesOf("two")}, true));
  std::vector<std::byte> record;
  REQUIRE(pair.far.read(record, 5s) == Channel::Read::kRecord);
  CHECK(textOf(record) == "one record");
  REQUIRE(pair.far.read(record, 5s) == Channel::Read::kRecord);
  CHECK(record.empty());
  REQUIRE(pair.far.read(record, 5s) == Channel::Read::kRecord);
  CHECK(textOf(record) == "two");
  CHECK(pair.far.read(record, 1ms) == Channel::Read::kNothing);
}

TEST_CASE("a record longer than a message comes in one piece", "[calls]") {
  Pair pair(transport::Choice::kTcp, {.kept_bytes = 1 << 20, .record_bytes = 16 << 20});
  pair.join();
  const auto sent =
      numbered(7, 10'000'003);  // more than may be kept: the writer waits for acknowledgements
  bool written = false;
  std::thread writer([&] { written = pair.near.write({sent}, true); });
  std::vector<std::byte> record;
  const auto read = pair.far.read(record, 20s);
  if (read != Channel::Read::kRecord) pair.near.close("nothing came");
  writer.join();
  REQUIRE(read == Channel::Read::kRecord);
  CHECK(written);
  CHECK(record == sent);
}

TEST_CASE("a record above the limit ends the link", "[calls]") {
  Pair pair(transport::Choice::kTcp, {.kept_bytes = 1 << 20, .record_bytes = 1000});
  pair.join();
  REQUIRE(pair.near.write({numbered(1, 2000)}, true));
  std::vector<std::byte> record;
  CHECK(pair.far.read(record, 5s) == Channel::Read::kDown);
  CHECK(pair.far.reason() == "a record above the limit");
}

TEST_CASE("a record above the limit is not taken over the next link either", "[calls]") {
  Pair pair(transport::Choice::kTcp, {.kept_bytes = 32ull << 20, .record_bytes = 1000});
  pair.join();
  std::vector<std::byte> big(200'000), record;
  REQUIRE(pair.near.write({big}, true));
  REQUIRE(pair.far.read(record, 5s) == Channel::Read::kDown);
  CHECK(pair.far.reason() == "a record above the limit");
  CHECK(pair.far.closed());
  CHECK_FALSE(pair.far.attach(nullptr, nullptr, 0).ok());
  // Records that had come before the breach was seen are not read either.
  for (int i = 0; i < 3; ++i) CHECK(pair.far.read(record, 10ms) == Channel::Read::kDown);
  CHECK_FALSE(pair.far.write({bytesOf("more")}, true));
}

TEST_CASE("a closed channel lets nobody wait", "[calls]") {
  Pair pair(transport::Choice::kTcp, {.kept_bytes = 1 << 20});
  pair.join();
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    while (pair.near.write({numbered(1, 100'000)})) {
    }
    ended = true;
  });
  std::this_thread::sleep_for(50ms);
  CHECK_FALSE(ended);  // nobody reads at the far end
  pair.near.close("enough");
  writer.join();
  std::vector<std::byte> record;
  CHECK(pair.near.read(record, 5s) == Channel::Read::kDown);
}

TEST_CASE("who answers can tell that nobody takes its answers", "[calls]") {
  Pair pair(transport::Choice::kTcp, {.kept_bytes = 1 << 20, .record_bytes = 16 << 20});
  pair.join();
  CHECK(pair.near.awaitRoom(0us));
  const auto sent = numbered(7, 4'000'000);
  CHECK(pair.near.write({sent}, true));  // a record may be longer than what is kept
  CHECK_FALSE(pair.near.awaitRoom(50ms));
  std::vector<std::byte> record;
  std::thread reader([&] { (void)pair.far.read(record, 20s); });
  CHECK(pair.near.awaitRoom(20s));
  reader.join();
  CHECK(record == sent);
  // Without a link none comes free, and nobody waits for it.
  CHECK(pair.near.write({sent}, true));
  pair.cut();
  const auto begun = std::chrono::steady_clock::now();
  CHECK_FALSE(pair.near.awaitRoom(20s));
  CHECK(std::chrono::steady_clock::now() - begun < 10s);
  pair.near.close("enough");
  CHECK(pair.near.awaitRoom(20s));
}

TEST_CASE("both ends write more than they keep, and whoever reads goes on", "[calls]") {
  constexpr uint64_t kRecords = 400;
  for (const auto choice : {transport::Choice::kTcp, transport::Choice::kShm}) {
    Pair pair(choice, {.kept_bytes = 1});
    pair.join();
    std::atomic<uint64_t> wrong{0};
    std::vector<std::thread> threads;
    for (Channel* const end : {&pair.near, &pair.far}) {
      for (uint64_t writer = 0; writer < 2; ++writer)
        threads.emplace_back([end, writer] {
          for (uint64_t number = writer; number < kRecords; number += 2)
            (void)end->write({numbered(number, 100'000)}, true);
        });
      threads.emplace_back([end, &wrong] {
        std::vector<std::byte> record;
        for (uint64_t taken = 0; taken < kRecords; ++taken) {
          uint64_t number = 0;
          if (end->read(record, 20s) != Channel::Read::kRecord) {
            ++wrong;
            end->close("nothing comes");  // nobody waits for it
            return;
          }
          std::memcpy(&number, record.data(), sizeof number);
          if (record != numbered(number, 100'000)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("links are cut at random moments and nothing is lost or comes twice", "[calls]") {
  const auto choice = GENERATE(transport::Choice::kTcp, transport::Choice::kShm);
  const bool faulty = GENERATE(false, true);
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  constexpr uint64_t kRecords = 20'000;
  const transport::FaultPlan plan{.seed = chosen, .delay = 100'000, .delay_us = 3000, .drop = 1000};
  Pair pair(choice, {.kept_bytes = 2 << 20}, faulty ? &plan : nullptr);
  while (!pair.tryJoin().empty()) pair.cut();

  std::atomic<uint64_t> echoed{0};
  std::atomic<bool> wrong{false}, stop{false};
  const auto reader = [&](Channel& channel, auto&& take) {
    std::vector<std::byte> record;
    while (!stop) {
      const auto got = channel.read(record, 10ms);
      if (got == Channel::Read::kRecord) take(record);
      while (got == Channel::Read::kDown && !channel.attached() && !stop)
        std::this_thread::sleep_for(100us);
    }
  };
  uint64_t far_expects = 0;
  std::thread far([&] {
    reader(pair.far, [&](const std::vector<std::byte>& record) {
      if (record != numbered(far_expects, record.size())) wrong = true;
      ++far_expects;
      if (!pair.far.write({record}, far_expects % 3 == 0 || far_expects == kRecords)) wrong = true;
    });
  });
  std::thread near([&] {
    reader(pair.near, [&](const std::vector<std::byte>& record) {
      if (record != numbered(echoed, record.size())) wrong = true;
      if (++echoed == kRecords) stop = true;
    });
  });
  std::thread writer([&] {
    std::mt19937_64 random(chosen);
    for (uint64_t i = 0; i < kRecords; ++i) {
      const size_t bytes = random() % 50 == 0 ? random() % 200'000 : random() % 500;
      if (!pair.near.write({numbered(i, bytes)}, random() % 7 == 0 || i + 1 == kRecords))
        wrong = true;
    }
  });
  std::mt19937_64 random(chosen + 1);
  int cuts = 0;
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!stop && !wrong && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    const bool broken = faulty && !(pair.near.linkUp() && pair.far.linkUp());
    if (stop || (cuts >= 12 && !broken)) continue;
    do {
      pair.cut();
      ++cuts;
      while ((pair.near.attached() || pair.far.attached()) && !stop)
        std::this_thread::sleep_for(100us);
    } while (!stop && !pair.tryJoin().empty());
  }
  const bool all = echoed == kRecords;
  stop = true;
  if (!all) {
    pair.near.close("gave up");
    pair.far.close("gave up");
  }
  writer.join();
  near.join();
  far.join();
  CHECK_FALSE(wrong);
  CHECK(far_expects == kRecords);
  CHECK(all);
  CHECK(cuts > 0);
  CHECK((pair.counts.delayed > 0) == faulty);
}

TEST_CASE("transfers go on over the next link and move every byte", "[calls]") {
  const auto choice = GENERATE(transport::Choice::kTcp, transport::Choice::kShm);
  const bool somebody_reads = GENERATE(false, true);
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  constexpr uint64_t kPiece = 300'000, kPieces = 200, kAtOnce = 6;
  Pair pair(choice);
  std::vector<std::byte> from(kPiece * kPieces), into(from.size()), staging(kPiece * kAtOnce);
  std::mt19937_64 random(chosen);
  for (auto& byte : from) byte = static_cast<std::byte>(random());
  const auto named = [&](const transport::DomainPtr& domain, std::vector<std::byte>& memory,
                         uint32_t access) {
    return transport::registerMemory(domain, {memory.data(), memory.size(), -1, 0}, access).value();
  };
  const auto source = named(pair.near_domain, from, transport::kRemoteRead);
  const auto target = named(pair.near_domain, into, transport::kRemoteWrite);
  const auto between = named(pair.far_domain, staging, transport::kLocalOnly);
  pair.join();

  std::atomic<bool> stop{false}, failed{false};
  std::vector<std::thread> readers;
  for (Channel* channel : {&pair.near, &pair.far}) {
    if (channel == &pair.far && !somebody_reads) continue;
    readers.emplace_back([&, channel] {
      std::vector<std::byte> record;
      while (!stop) {
        if (channel->read(record, 10ms) == Channel::Read::kDown) std::this_thread::sleep_for(100us);
      }
    });
  }
  std::thread mover([&] {
    const auto over = [&](const calls::Transfer& transfer) {
      while (!stop) {
        const auto state = pair.far.wait(transfer, 10ms);
        if (state == Channel::Over::kDone) return true;
        if (state == Channel::Over::kFailed) break;
        if (state == Channel::Over::kDown) std::this_thread::sleep_for(100us);
      }
      failed = true;
      return false;
    };
    for (uint64_t at = 0; at < kPieces && !failed; at += kAtOnce) {
      const uint64_t count = std::min(kAtOnce, kPieces - at);
      std::vector<calls::TransferPtr> all;
      // One by one, and in one transfer to as many places.
      std::vector<transport::LocalRange> places;
      for (uint64_t i = 0; i < count; ++i) places.push_back({between.get(), i * kPiece, kPiece});
      if (at / kAtOnce % 2 == 0) {
        for (uint64_t i = 0; i < count; ++i)
          all.push_back(pair.far.fetch(places[i], {source->key(), (at + i) * kPiece, kPiece}));
      } else {
        all.push_back(pair.far.fetch(places, {source->key(), at * kPiece, count * kPiece}));
      }
      for (const auto& one : all) (void)over(*one);
      all.clear();
      for (uint64_t i = 0; i < count; ++i)
        all.push_back(pair.far.put({between.get(), i * kPiece, kPiece},
                                   {target->key(), (at + i) * kPiece, kPiece}));
      for (const auto& one : all) (void)over(*one);
    }
    stop = true;
  });
  int cuts = 0;
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!stop) {
    if (std::chrono::steady_clock::now() > end) {
      pair.far.close("gave up");
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    if (stop || cuts == 8) continue;
    pair.cut();
    ++cuts;
    while ((pair.near.attached() || pair.far.attached()) && !stop)
      std::this_thread::sleep_for(100us);
    if (!stop) pair.join();
  }
  mover.join();
  for (auto& reader : readers) reader.join();
  CHECK_FALSE(failed);
  CHECK(cuts > 0);
  CHECK(from == into);
}

TEST_CASE("a transfer ends with its channel, and one of memory that is gone fails", "[calls]") {
  const auto choice = GENERATE(transport::Choice::kTcp, transport::Choice::kShm);
  Pair pair(choice);
  std::vector<std::byte> here(4096), there(4096);
  auto source = transport::registerMemory(pair.near_domain, {there.data(), there.size(), -1, 0},
                                          transport::kRemoteRead)
                    .value();
  const auto local =
      transport::registerMemory(pair.far_domain, {here.data(), here.size(), -1, 0}, 0).value();
  pair.join();
  const transport::RemoteKey key = source->key();
  const auto fetched = pair.far.fetch({local.get(), 0, 4096}, {key, 0, 4096});
  CHECK(pair.far.wait(*fetched, 5s) == Channel::Over::kDone);
  source.reset();
  const auto late = pair.far.fetch({local.get(), 0, 4096}, {key, 0, 4096});
  CHECK(pair.far.wait(*late, 5s) == Channel::Over::kFailed);
  pair.cut();
  std::vector<std::byte> record;
  while (pair.far.read(record, 1ms) != Channel::Read::kDown) {
  }
  const auto waiting = pair.far.fetch({local.get(), 0, 4096}, {key, 0, 4096});
  CHECK(pair.far.wait(*waiting, 1ms) == Channel::Over::kDown);
  pair.far.close("enough");
  CHECK(pair.far.wait(*waiting, 5s) == Channel::Over::kFailed);
  CHECK(pair.far.wait(*pair.far.fetch({local.get(), 0, 4096}, {key, 0, 4096}), 5s) ==
        Channel::Over::kFailed);
}

TEST_CASE("memory that one end has by a descriptor is had at the other, on one host", "[calls]") {
  const auto choice = GENERATE(transport::Choice::kTcp, transport::Choice::kShm);
  constexpr uint64_t kBytes = 1 << 20, kSkip = 4096;
  const base::UniqueFd memfd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(memfd.get(), kSkip + kBytes) == 0);
  REQUIRE(fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto map = [](int fd) {
    auto* const at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, kSkip);
    REQUIRE(at != MAP_FAILED);
    return static_cast<volatile uint32_t*>(at);
  };
  volatile uint32_t* const near = map(memfd.get());
  auto* const memory = const_cast<uint32_t*>(near);
  Pair pair(choice);
  const auto named = [&](int fd, uint32_t access) {
    return transport::registerMemory(pair.near_domain, {memory, kBytes, fd, fd >= 0 ? kSkip : 0},
                                     access)
        .value();
  };
  auto shared = named(memfd.get(), transport::kRemoteReadWrite);
  const auto read_only = named(memfd.get(), transport::kRemoteRead);
  const auto own = named(-1, transport::kRemoteReadWrite);
  pair.join();
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::vector<std::byte> record;
    while (!stop) (void)pair.near.read(record, 1ms);
  });
  const auto over = [&](const calls::TransferPtr& transfer) {
    return pair.far.wait(*transfer, 5s);
  };
  // Memory without a descriptor, or that may not be written, is not had; nor is anything over a
  // network. The link lives on.
  CHECK(over(pair.far.share(read_only->key())) == Channel::Over::kFailed);
  CHECK(over(pair.far.share(own->key())) == Channel::Over::kFailed);
  const bool same_host = choice == transport::Choice::kShm;
  const auto asked = pair.far.share(shared->key());
  CHECK(over(asked) == (same_host ? Channel::Over::kDone : Channel::Over::kFailed));
  if (same_host) {
    const auto got = Channel::memoryOf(*asked);
    CHECK(got.offset == kSkip);
    CHECK(got.length == kBytes);
    volatile uint32_t* const far = map(got.fd.get());
    near[5] = 17;
    CHECK(far[5] == 17);
    // Asked for again beside bytes that move in the same memory.
    std::vector<std::byte> staging(kBytes);
    const auto between = transport::registerMemory(pair.far_domain, {staging.data(), kBytes, -1, 0},
                                                   transport::kLocalOnly)
                             .value();
    std::vector<calls::TransferPtr> all;
    for (int i = 0; i < 8; ++i) {
      all.push_back(pair.far.share(shared->key()));
      all.push_back(pair.far.fetch({between.get(), 0, kBytes}, {shared->key(), 0, kBytes}));
    }
    for (const auto& one : all) CHECK(over(one) == Channel::Over::kDone);
    uint32_t word = 0;
    std::memcpy(&word, staging.data() + 5 * sizeof word, sizeof word);
    CHECK(word == 17);
    // The mapping outlives its region and the link, and is had over the next as well.
    pair.cut();
    while (pair.near.attached() || pair.far.attached()) {
      std::vector<std::byte> record;
      (void)pair.far.read(record, 1ms);
    }
    const auto waiting = pair.far.share(shared->key());
    CHECK(pair.far.wait(*waiting, 1ms) == Channel::Over::kDown);
    pair.join();
    CHECK(over(waiting) == Channel::Over::kDone);
    const auto key = shared->key();
    shared.reset();
    CHECK(over(pair.far.share(key)) == Channel::Over::kFailed);
    far[6] = 18;
    CHECK(near[6] == 18);
    munmap(const_cast<uint32_t*>(far), kBytes);
  }
  CHECK(pair.far.attached());
  stop = true;
  reader.join();
  munmap(memory, kBytes);
}
