// Disks that are well: what is sent comes back, places are kept account of.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "pager/counters/counters.h"
#include "tests/seed.h"
#include "tests/unit/disk/rig.h"

namespace olpager::disk::test {

TEST_CASE("what was sent to disks comes back", "[transfers]") {
  TemporaryFolder a, b;
  TierOptions options = optionsFor({&a, &b}, 64 * kMiB);
  options.encrypt = GENERATE(true, false);
  options.queues = GENERATE(0, 1) == 0 ? QueueMaker(makeQueue) : QueueMaker(makeBlockingQueue);
  auto& counted = pager::counters().disk;
  const uint64_t written = counted.written_bytes, read = counted.read_bytes;
  Caller caller(options);
  CHECK(caller.tier->figures().capacity_bytes == 128 * kMiB);
  CHECK(caller.tier->figures().disk_bytes == 128 * kMiB);
  CHECK(counted.capacity_bytes == 128 * kMiB);
  std::vector<Bytes> all;
  uint64_t total = 0;
  for (const uint64_t pages : {1, 16, 2, 8, 4, 1}) {
    all.emplace_back(pages * 2 * kMiB);
    total += pages * 2 * kMiB;
  }
  for (uint64_t round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < all.size(); ++i) {
      all[i].fill(round * 100 + i);
      const auto hash = all[i].hash();
      caller.tier->send(i << 30, all[i].base(), all[i].length(), i % 2 == 0 ? &hash : nullptr);
    }
    for (uint64_t i = 0; i < all.size(); ++i) {
      const auto done = caller.await(i << 30);
      REQUIRE(done.outcome == Outcome::kDone);
      CHECK(done.sent);
      CHECK(done.hash == all[i].hash());
      CHECK(caller.tier->holds(i << 30, done.hash));
      CHECK_FALSE(caller.tier->holds(i << 30, {done.hash.low + 1, done.hash.high}));
    }
    CHECK(caller.tier->heldAddresses().size() == all.size());
    for (uint64_t i = 0; i < all.size(); ++i) {
      all[i].clear();
      caller.tier->receive(i << 30, all[i].base(), all[i].length(), i % 2 == 0);
    }
    for (uint64_t i = 0; i < all.size(); ++i) caller.tier->raise(i << 30);
    for (uint64_t i = 0; i < all.size(); ++i) {
      const auto done = caller.await(i << 30);
      REQUIRE(done.outcome == Outcome::kDone);
      CHECK_FALSE(done.sent);
      CHECK(all[i].holds(round * 100 + i));
      CHECK(caller.tier->holds(i << 30, done.hash));
    }
  }
  CHECK(caller.wakes > 0);
  const auto figures = caller.tier->figures();
  CHECK(figures.held_bytes == total);
  CHECK(figures.sent_bytes == 2 * total);
  CHECK(figures.received_bytes == 2 * total);
  CHECK(figures.lost_bytes == 0);
  CHECK(counted.held_bytes == total);
  CHECK(counted.written_bytes - written == 2 * total);
  CHECK(counted.read_bytes - read == 2 * total);
  for (uint64_t i = 0; i < all.size(); ++i) CHECK(caller.tier->drop(i << 30));
  CHECK_FALSE(caller.tier->drop(0));
  CHECK(caller.received(0, all[0]) == Outcome::kLost);
  CHECK(caller.tier->figures().held_bytes == 0);
  CHECK(caller.tier->figures().lost_bytes == 0);
  CHECK(counted.held_bytes == 0);
}

TEST_CASE("a page that has no room on disks stays where it is", "[transfers]") {
  TemporaryFolder folder;
  Caller caller(optionsFor({&folder}, 8 * kMiB));
  Bytes large(8 * kMiB), small(2 * kMiB), back(2 * kMiB);
  large.fill(1);
  small.fill(2);
  REQUIRE(caller.sent(1, large) == Outcome::kDone);
  CHECK(caller.sent(2, small) == Outcome::kNoRoom);
  CHECK_FALSE(caller.tier->holds(2, small.hash()));
  // The former copy has its room.
  large.fill(3);
  REQUIRE(caller.sent(1, large) == Outcome::kDone);
  CHECK(caller.tier->drop(1));
  REQUIRE(caller.sent(2, small) == Outcome::kDone);
  CHECK(caller.sent(1, large) == Outcome::kNoRoom);
  REQUIRE(caller.received(2, back) == Outcome::kDone);
  CHECK(back.holds(2));
}

// The first bytes of the process' nameless file in `folder`.
static std::vector<char> bytesOnDisk(const std::string& folder, size_t bytes) {
  for (int fd = 3; fd < 256; ++fd) {
    char target[512]{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof target - 1) <= 0 ||
        std::string(target).find(folder) != 0)
      continue;
    const int again = open(link.c_str(), O_RDONLY);
    std::vector<char> found(bytes);
    const ssize_t got = pread(again, found.data(), bytes, 0);
    close(again);
    REQUIRE(got == static_cast<ssize_t>(bytes));
    return found;
  }
  FAIL("no file in " << folder);
  return {};
}

TEST_CASE("what lies on a disk says nothing unless it is told to", "[transfers]") {
  TemporaryFolder folder;
  TierOptions options = optionsFor({&folder}, 8 * kMiB);
  options.encrypt = GENERATE(true, false);
  Caller caller(options);
  Bytes bytes(2 * kMiB);
  static constexpr char kSecret[] = "a prompt that is nobody's business";
  for (size_t at = 0; at + sizeof kSecret < bytes.length(); at += 4096)
    std::memcpy(static_cast<char*>(bytes.base()) + at, kSecret, sizeof kSecret);
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  const auto found = bytesOnDisk(folder.path, bytes.length());
  const std::string_view text(found.data(), found.size());
  CHECK((text.find(kSecret) != std::string_view::npos) == !options.encrypt);
  // Blocks of zeros are many in `bytes`, and none looks like another one.
  CHECK((text.find(text.substr(64, 16), 65) != std::string_view::npos) == !options.encrypt);
}

TEST_CASE("sends that a launch waits for and receives that nobody wants end soon", "[transfers]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 128 * kMiB);
  options.workers = 1;
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes first(16 * kMiB), second(16 * kMiB), third(16 * kMiB);
  first.fill(1);
  second.fill(2);
  third.fill(3);
  REQUIRE(caller.sent(3, third) == Outcome::kDone);

  const uint64_t begun = faults.begun;
  faults.held = true;
  caller.tier->send(1, first.base(), first.length(), nullptr);
  while (faults.begun < begun + 4) std::this_thread::yield();
  caller.tier->send(2, second.base(), second.length(), nullptr);
  caller.tier->receive(3, third.base(), third.length(), false);
  caller.tier->raise(1);  // is under way: it begins no more pages
  caller.tier->raise(2);  // was not begun
  caller.tier->giveUp(3);
  caller.tier->raise(4);  // there is none
  caller.tier->giveUp(4);
  faults.held = false;
  CHECK(caller.await(2).outcome == Outcome::kNoRoom);
  CHECK(caller.await(1).outcome == Outcome::kNoRoom);
  const auto third_end = caller.await(3);
  CHECK(third_end.outcome == Outcome::kNotNow);
  CHECK(third_end.hash == third.hash());
  CHECK(caller.tier->holds(3, third.hash()));
  CHECK(faults.begun == begun + 4);
  third.clear();
  REQUIRE(caller.received(3, third) == Outcome::kDone);
  CHECK(third.holds(3));
  CHECK(caller.tier->figures().held_bytes == third.length());
  REQUIRE(caller.sent(1, first) == Outcome::kDone);
  REQUIRE(caller.sent(2, second) == Outcome::kDone);
}

TEST_CASE("an urgent receive goes before others", "[transfers]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 128 * kMiB);
  options.workers = 1;
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes large(32 * kMiB), small(2 * kMiB), other(2 * kMiB);
  small.fill(1);
  large.fill(2);
  other.fill(3);
  REQUIRE(caller.sent(1, small) == Outcome::kDone);
  REQUIRE(caller.sent(3, other) == Outcome::kDone);
  const uint64_t begun = faults.begun;
  faults.held = true;
  caller.tier->send(2, large.base(), large.length(), nullptr);
  while (faults.begun < begun + 4) std::this_thread::yield();
  caller.tier->receive(3, other.base(), other.length(), false);
  caller.tier->receive(1, small.base(), small.length(), true);
  caller.tier->raise(3);
  faults.held = false;
  CHECK(caller.await(1).outcome == Outcome::kDone);
  CHECK(caller.await(3).outcome == Outcome::kDone);
  CHECK(faults.begun < begun + 16 + 2);  // the large one has pages that are not begun
  CHECK(caller.await(2).outcome == Outcome::kDone);
}

TEST_CASE("a tier may end at any time", "[transfers]") {
  TemporaryFolder folder;
  const uint64_t seed = olpager::test::seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::vector<Bytes> all(8, Bytes(8 * kMiB));
  for (int round = 0; round < 10; ++round) {
    Caller caller(optionsFor({&folder}, 64 * kMiB));
    for (size_t i = 0; i < all.size(); ++i)
      caller.tier->send(i, all[i].base(), all[i].length(), nullptr);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    caller.tier->setWake({});
    caller.tier.reset();
  }
  CHECK(std::filesystem::is_empty(folder.path));
}

}  // namespace olpager::disk::test
