// Disks that fail: never wrong bytes.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "base/fd.h"
#include "tests/seed.h"
#include "tests/unit/disk/rig.h"

namespace olpager::disk::test {

TEST_CASE("requests that move a part, or nothing for now, go on", "[failures]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 64 * kMiB);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes bytes(16 * kMiB);
  bytes.fill(5);
  faults.short_ones = 10;
  faults.interrupted = 7;
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  CHECK(faults.short_ones == 0);
  CHECK(faults.interrupted == 0);
  bytes.clear();
  faults.short_ones = 10;
  faults.interrupted = 7;
  REQUIRE(caller.received(1, bytes) == Outcome::kDone);
  CHECK(faults.short_ones == 0);
  CHECK(bytes.holds(5));
}

TEST_CASE("what can't be read, or comes back wrong, is lost", "[failures]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 64 * kMiB);
  options.encrypt = GENERATE(true, false);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes bytes(8 * kMiB), other(2 * kMiB);
  bytes.fill(5);
  other.fill(6);
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  REQUIRE(caller.sent(2, other) == Outcome::kDone);
  std::atomic<int>* const faulted[] = {&faults.failing_reads, &faults.wrong_reads, &faults.ended};
  const int which = GENERATE(0, 1, 2);
  *faulted[which] = which == 1 ? 1 : 100;
  const auto hash = bytes.hash();
  const uint64_t capacity = caller.tier->figures().capacity_bytes;
  CHECK(caller.received(1, bytes) == Outcome::kLost);
  faults.failing_reads = faults.ended = 0;
  // Nothing is written again where the disk failed; nobody knows which page is wrong.
  const uint64_t out = capacity - caller.tier->figures().capacity_bytes;
  CHECK(out >= 2 * kMiB);
  CHECK(out <= bytes.length());
  if (which == 1) CHECK(out == bytes.length());
  CHECK_FALSE(caller.tier->holds(1, hash));
  CHECK_FALSE(caller.tier->drop(1));
  CHECK(caller.tier->figures().lost_bytes == bytes.length());
  CHECK(caller.tier->figures().held_bytes == other.length());
  // Others are as good as they were, and so is the disk.
  REQUIRE(caller.received(2, other) == Outcome::kDone);
  CHECK(other.holds(6));
  bytes.fill(7);
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
}

TEST_CASE("a read that fails once is made again", "[failures]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 16 * kMiB);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes bytes(2 * kMiB);
  bytes.fill(5);
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  bytes.clear();
  faults.failing_reads = 1;
  REQUIRE(caller.received(1, bytes) == Outcome::kDone);
  CHECK(bytes.holds(5));
}

TEST_CASE("what passes loses nothing", "[failures]") {
  TemporaryFolder folder;
  Faults faults;
  TierOptions options = optionsFor({&folder}, 16 * kMiB);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes bytes(4 * kMiB), other(2 * kMiB);
  bytes.fill(5);
  other.fill(6);
  const auto hash = bytes.hash();
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  bytes.clear();
  std::atomic<int>* of_reads = &faults.failing_reads;
  std::atomic<int>* of_writes = &faults.failing_writes;
  SECTION("memory that the kernel refuses") { faults.error = ENOMEM; }
  SECTION("requests that it refuses") { faults.error = EAGAIN; }
  SECTION("memory that a thread is refused") { of_reads = of_writes = &faults.throwing; }
  *of_reads = 1000;
  CHECK(caller.received(1, bytes) == Outcome::kNotNow);
  CHECK(caller.tier->holds(1, hash));
  CHECK(caller.tier->figures().lost_bytes == 0);
  *of_reads = 0;
  *of_writes = 1000;
  CHECK(caller.sent(2, other) == Outcome::kNoRoom);
  *of_writes = 0;
  CHECK(caller.tier->figures().capacity_bytes == 16 * kMiB);
  REQUIRE(caller.received(1, bytes) == Outcome::kDone);
  CHECK(bytes.holds(5));
  REQUIRE(caller.sent(2, other) == Outcome::kDone);
}

// Descriptors of this process whose link has `text` in it.
static std::vector<int> descriptorsOf(const std::string& text) {
  std::vector<int> found;
  for (int fd = 3; fd < 256; ++fd) {
    char target[512]{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof target - 1) > 0 &&
        std::string(target).find(text) != std::string::npos)
      found.push_back(fd);
  }
  return found;
}

TEST_CASE("a tier ends though a disk hangs", "[failures]") {
  TemporaryFolder folder;
  static Faults faults;  // a thread that is left behind has them
  TierOptions options = optionsFor({&folder}, 16 * kMiB);
  options.workers = 2;
  options.queues = faulty(faults);
  Bytes bytes(4 * kMiB);
  bytes.fill(5);
  {
    Caller caller(options);
    REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
    bytes.clear();
    faults.held = true;
    caller.tier->receive(1, bytes.base(), bytes.length(), true);
    while (faults.begun < 4) std::this_thread::yield();
    const auto begun = std::chrono::steady_clock::now();
    caller.tier->setWake({});
    caller.tier.reset();
    CHECK(std::chrono::steady_clock::now() - begun < kLong / 2);
  }
  // The disk answers after all: memory of the transfer is not touched.
  faults.held = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(static_cast<const uint64_t*>(bytes.base())[0] == 0);
  CHECK(static_cast<const uint64_t*>(bytes.base())[bytes.length() / 8 - 1] == 0);
}

TEST_CASE("a file that takes the number of a closed descriptor is not written to", "[failures]") {
  TemporaryFolder folder;
  TierOptions options = optionsFor({&folder}, 16 * kMiB);
  options.queues = GENERATE(0, 1) == 0 ? makeQueue : makeBlockingQueue;
  Bytes bytes(4 * kMiB);
  bytes.fill(5);
  int number = -1;
  {
    Caller caller(options);
    REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
    const std::vector<int> files = descriptorsOf(folder.path);
    REQUIRE(files.size() == 1);
    number = files[0];
    // The program's next file, which takes the number, and the inode's where that is free.
    close(number);
    base::UniqueFd next(open((folder.path + "/next").c_str(), O_CREAT | O_RDWR, 0600));
    REQUIRE(next);
    if (next.get() != number) {
      REQUIRE(dup2(next.get(), number) == number);
    } else {
      (void)next.release();
    }
    CHECK(caller.sent(2, bytes) == Outcome::kNoRoom);
    CHECK(caller.received(1, bytes) == Outcome::kLost);
    CHECK(caller.tier->figures().capacity_bytes == 0);
    CHECK(std::filesystem::file_size(folder.path + "/next") == 0);
  }
  CHECK(fcntl(number, F_GETFD) != -1);  // is still the program's
  close(number);
}

TEST_CASE("rings whose descriptors were closed are left alone", "[failures]") {
  TemporaryFolder folder;
  // The program has a ring too: a request to it would never end.
  const std::vector<int> earlier = descriptorsOf("io_uring");
  const auto programs = makeUringQueue(4);
  if (!programs.ok()) {
    WARN("no io_uring here: " << programs.error().message);
    return;
  }
  const auto without = [](std::vector<int> all, const std::vector<int>& some) {
    std::erase_if(all, [&](int fd) { return std::ranges::find(some, fd) != some.end(); });
    return all;
  };
  const std::vector<int> before = descriptorsOf("io_uring");
  const std::vector<int> own = without(before, earlier);
  REQUIRE(own.size() == 1);
  std::vector<int> rings;
  {
    Caller caller(optionsFor({&folder}, 32 * kMiB));
    Bytes bytes(8 * kMiB);
    bytes.fill(5);
    REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
    rings = without(descriptorsOf("io_uring"), before);
    REQUIRE(rings.size() >= 2);
    for (const int ring : rings) REQUIRE(dup2(own[0], ring) == ring);
    for (uint64_t round = 6; round < 9; ++round) {
      bytes.clear();
      REQUIRE(caller.received(1, bytes) == Outcome::kDone);
      CHECK(bytes.holds(round - 1));
      bytes.fill(round);
      REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
    }
  }
  for (const int ring : rings) {
    CHECK(fcntl(ring, F_GETFD) != -1);
    close(ring);
  }
}

TEST_CASE("pages that a full or broken disk does not take go to another one", "[failures]") {
  TemporaryFolder a, b;
  Faults faults;
  faults.error = GENERATE(ENOSPC, EIO);
  TierOptions options = optionsFor({&a, &b}, 16 * kMiB);
  options.encrypt = GENERATE(true, false);
  options.workers = 1;
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes bytes(4 * kMiB);
  bytes.fill(5);
  faults.failing_writes = 1;
  REQUIRE(caller.sent(1, bytes) == Outcome::kDone);
  CHECK(faults.failing_writes == 0);
  bytes.clear();
  REQUIRE(caller.received(1, bytes) == Outcome::kDone);
  CHECK(bytes.holds(5));
  CHECK(caller.tier->figures().capacity_bytes < 32 * kMiB);
  // No third attempt where neither takes it.
  faults.failing_writes = 2;
  CHECK(caller.sent(2, bytes) == Outcome::kNoRoom);
}

TEST_CASE("a disk that fails to write gets nothing more", "[failures]") {
  TemporaryFolder a;
  Faults faults;
  TierOptions options = optionsFor({&a}, 32 * kMiB);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes held(4 * kMiB), bytes(4 * kMiB);
  held.fill(1);
  REQUIRE(caller.sent(1, held) == Outcome::kDone);
  faults.failing_writes = 1;
  const uint64_t wakes = caller.wakes;
  CHECK(caller.sent(2, bytes) == Outcome::kNoRoom);
  CHECK(caller.wakes > wakes);
  CHECK(caller.tier->figures().capacity_bytes == held.length());
  const uint64_t begun = faults.begun;
  CHECK(caller.sent(2, bytes) == Outcome::kNoRoom);
  CHECK(faults.begun == begun);
  held.clear();
  REQUIRE(caller.received(1, held) == Outcome::kDone);
  CHECK(held.holds(1));
}

TEST_CASE("a full disk is asked again after a while", "[failures]") {
  TemporaryFolder folder;
  Faults faults;
  faults.error = ENOSPC;
  TierOptions options = optionsFor({&folder}, 32 * kMiB);
  options.queues = faulty(faults);
  Caller caller(options);
  Bytes held(4 * kMiB), bytes(4 * kMiB);
  REQUIRE(caller.sent(1, held) == Outcome::kDone);
  faults.failing_writes = 1;
  CHECK(caller.sent(2, bytes) == Outcome::kNoRoom);
  // The pages that had been written have room.
  CHECK(caller.tier->figures().capacity_bytes < 32 * kMiB);
  CHECK(caller.tier->figures().capacity_bytes >= held.length());
  REQUIRE(caller.sent(1, held) == Outcome::kDone);
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (caller.tier->figures().capacity_bytes < 32 * kMiB) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  bytes.fill(8);
  REQUIRE(caller.sent(2, bytes) == Outcome::kDone);
}

// With all of this each transfer ends once, what is held comes back as it was sent or is lost, and
// places add up.
TEST_CASE("any order of calls over disks that fail", "[failures]") {
  const uint64_t seed = olpager::test::seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  TemporaryFolder a, b;
  Faults faults;
  TierOptions options = optionsFor({&a, &b}, 24 * kMiB);
  options.encrypt = random() % 2 == 0;
  options.workers = 1 + static_cast<unsigned>(random() % 4);
  options.queues = faulty(faults, random() % 2 == 0 ? makeQueue : makeBlockingQueue);
  Caller caller(options);
  struct Known {
    explicit Known(uint64_t bytes) : memory(bytes) {}
    Bytes memory;
    uint64_t seed = 0;  // of the bytes that are held or sent
    bool held = false, under_way = false, sending = false;
    bool excused = false;  // raised or given up, or a fault may have met it
  };
  std::vector<Known> all;
  for (int i = 0; i < 12; ++i) all.emplace_back(2 * kMiB << random() % 3);
  uint64_t done = 0, lost = 0, no_room = 0;
  const auto await = [&](uint64_t id) {
    Known& one = all[id];
    if (!one.under_way) return;
    const auto end = caller.await(id);
    one.under_way = false;
    REQUIRE(end.sent == one.sending);
    if (one.sending) {
      REQUIRE((end.outcome == Outcome::kDone || end.outcome == Outcome::kNoRoom));
      one.held = end.outcome == Outcome::kDone;
      if (one.held) REQUIRE(end.hash == one.memory.hash());
      ++(one.held ? done : no_room);
      return;
    }
    if (end.outcome == Outcome::kDone) {
      REQUIRE(one.held);
      REQUIRE(one.memory.holds(one.seed));
      ++done;
    } else if (end.outcome == Outcome::kNotNow) {
      REQUIRE(one.excused);
      REQUIRE(one.held);
    } else {
      REQUIRE(end.outcome == Outcome::kLost);
      lost += one.held;
      one.held = false;
    }
  };
  for (int step = 0; step < 600; ++step) {
    const uint64_t id = random() % all.size();
    Known& one = all[id];
    switch (random() % 8) {
      case 0:
      case 1: {
        await(id);
        one.seed = random();
        one.memory.fill(one.seed);
        const auto hash = one.memory.hash();
        one.held = false;
        one.under_way = one.sending = true;
        one.excused = false;
        caller.tier->send(id, one.memory.base(), one.memory.length(),
                          random() % 2 == 0 ? &hash : nullptr);
        break;
      }
      case 2:
      case 3:
        await(id);
        one.memory.clear();
        one.under_way = true;
        one.sending = one.excused = false;
        caller.tier->receive(id, one.memory.base(), one.memory.length(), random() % 2 == 0);
        break;
      case 4:
        one.excused = true;
        caller.tier->raise(id);
        break;
      case 5:
        one.excused = true;
        caller.tier->giveUp(id);
        break;
      case 6:
        await(id);
        REQUIRE(caller.tier->drop(id) == one.held);
        one.held = false;
        break;
      default:
        faults.short_ones = static_cast<int>(random() % 3);
        faults.interrupted = static_cast<int>(random() % 3);
        faults.wrong_reads = random() % 6 == 0;
        faults.failing_reads = random() % 6 == 0;
        faults.error = ENOSPC;  // of reads as good as any other
        faults.failing_writes = random() % 6 == 0;
        break;
    }
  }
  for (uint64_t id = 0; id < all.size(); ++id) await(id);
  uint64_t held = 0;
  for (const Known& one : all) held += one.held ? one.memory.length() : 0;
  CHECK(caller.tier->figures().held_bytes == held);
  for (uint64_t id = 0; id < all.size(); ++id) CHECK(caller.tier->drop(id) == all[id].held);
  CHECK(caller.tier->figures().held_bytes == 0);
  CHECK(done > 20);
  INFO(done << " done, " << lost << " lost, " << no_room << " without room");
  CHECK(lost + no_room > 0);
}

}  // namespace olpager::disk::test
