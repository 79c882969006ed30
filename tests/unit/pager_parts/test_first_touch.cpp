// Who touches memory ahead of the driver, and what is touched.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pager/residency/first_touch.h"
#include "tests/catch.h"

using namespace olpager::pager;

namespace {

constexpr uint64_t kPortion = FirstTouch::kPortion;
constexpr uint64_t kMuch = 100 * kPortion;
constexpr unsigned kPortions = FirstTouch::kAhead / kPortion;
constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSlowNs = 80 * kMs, kFastNs = 6 * kMs;        // of the driver, for a portion
constexpr uint64_t kUnbackedNs = 20 * kMs, kBackedNs = 2 * kMs;  // of a touch
using Task = FirstTouch::Task;

/// Threads that make chunks, on a clock of the test's.
struct Makers {
  FirstTouch touch;
  uint64_t now = 1;

  /// A thread makes a chunk while nobody else does. How much was given back first.
  size_t make(uint64_t ns, uint64_t bytes = kPortion) {
    const FirstTouch::Making making = touch.beginMaking(bytes);
    const uint64_t began = std::exchange(now, now + ns);
    touch.endMaking(making, bytes, began, now);
    return making.back.size();
  }
  /// One thread touches so many portions.
  void touchSome(unsigned portions, uint64_t ns) {
    for (unsigned i = 0; i < portions; ++i) {
      REQUIRE(touch.next(kMuch) == Task::kTouch);
      touch.beginTouch(now);
      now += ns;
      touch.endTouch(TouchedMemory::of(kPortion), ns);
    }
  }
  /// A wave of all that may be touched, by threads that together take `touch_ns` for a portion.
  void wave(uint64_t touch_ns, uint64_t make_ns) {
    touchSome(kPortions, touch_ns);
    for (unsigned i = 0; i < kPortions; ++i) {
      REQUIRE(touch.next(kMuch) == Task::kMake);
      CHECK(make(make_ns) == (i == 0 ? kPortions : 0));
    }
  }
};

/// Pages of this memory that are there.
size_t residentPages(const TouchedMemory& memory) {
  std::vector<unsigned char> pages(memory.bytes() / static_cast<size_t>(getpagesize()));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): mincore reads nothing of it
  if (mincore(const_cast<void*>(memory.data()), memory.bytes(), pages.data()) != 0) return 0;
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                           [](unsigned char page) { return (page & 1) != 0; }));
}

}  // namespace

TEST_CASE("touched memory is all there, and gone with its owner", "[first touch]") {
  std::optional<TouchedMemory> memory = TouchedMemory::of(kPortion);
  REQUIRE(memory.has_value());
  REQUIRE(memory->bytes() == kPortion);
  CHECK(reinterpret_cast<uintptr_t>(memory->data()) % (2u << 20) == 0);
  CHECK(residentPages(*memory) == kPortion / static_cast<size_t>(getpagesize()));
  const void* const at = memory->data();
  // A forked child does not have it.
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    unsigned char page = 0;
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
    _exit(mincore(const_cast<void*>(at), 1, &page) == 0 ? 1 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  TouchedMemory moved = std::move(*memory);
  memory.reset();
  CHECK(residentPages(moved) == kPortion / static_cast<size_t>(getpagesize()));
  moved.giveBack();
  CHECK(moved.bytes() == 0);
  unsigned char page = 0;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  CHECK(mincore(const_cast<void*>(at), 1, &page) != 0);
}

TEST_CASE("what the system refuses to map is not touched", "[first touch]") {
  CHECK_FALSE(TouchedMemory::of(size_t{1} << 46).has_value());
}

TEST_CASE("nothing is touched where the driver is fast", "[first touch]") {
  Makers makers;
  for (int i = 0; i < 50; ++i) {
    REQUIRE(makers.touch.next(kMuch) == Task::kMake);
    CHECK(makers.make(kFastNs) == 0);
  }
  CHECK_FALSE(makers.touch.slow());
  CHECK(makers.touch.touchedAhead() == 0);
  CHECK(makers.touch.rate() > FirstTouch::kSlowRate);
}

TEST_CASE("a driver that threads wait for by turns is judged by what a chunk takes alone",
          "[first touch]") {
  FirstTouch touch;
  // Four ask at once; one after the other is served.
  std::vector<FirstTouch::Making> asked;
  for (int i = 0; i < 4; ++i) asked.push_back(touch.beginMaking(kPortion));
  for (uint64_t i = 0; i < 4; ++i) touch.endMaking(asked[i], kPortion, 1, 1 + (i + 1) * 10 * kMs);
  CHECK_FALSE(touch.slow());  // 32 MiB in 10 ms, not in 40
}

TEST_CASE("small chunks are judged together", "[first touch]") {
  Makers makers;
  constexpr uint64_t kPage = uint64_t{2} << 20;
  for (uint64_t i = 1; i < kPortion / kPage; ++i) makers.make(5 * kMs, kPage);
  CHECK_FALSE(makers.touch.slow());
  makers.make(5 * kMs, kPage);
  CHECK(makers.touch.slow());
}

TEST_CASE("where the driver is slow all touch a bounded part, and one makes chunks of it",
          "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  REQUIRE(makers.touch.slow());
  for (uint64_t ahead = kPortion; ahead <= FirstTouch::kAhead; ahead += kPortion) {
    REQUIRE(makers.touch.next(kMuch) == Task::kTouch);
    makers.touch.beginTouch(makers.now);
    CHECK(makers.touch.touchedAhead() == ahead);
  }
  CHECK(makers.touch.next(kMuch) == Task::kWait);
  makers.now += kUnbackedNs;
  for (unsigned i = 0; i < kPortions; ++i)
    makers.touch.endTouch(TouchedMemory::of(kPortion), kUnbackedNs);
  // All of it goes back with the first chunk, while nobody touches.
  REQUIRE(makers.touch.next(kMuch) == Task::kMake);
  const FirstTouch::Making making = makers.touch.beginMaking(kPortion);
  CHECK(making.back.size() == kPortions);
  CHECK(makers.touch.next(kMuch) == Task::kWait);
  makers.touch.endMaking(making, kPortion, makers.now, makers.now + kFastNs);
  makers.now += kFastNs;
  for (unsigned i = 1; i < kPortions; ++i) {
    REQUIRE(makers.touch.next(kMuch) == Task::kMake);
    CHECK(makers.make(kFastNs) == 0);
  }
  CHECK(makers.touch.slow());
  CHECK(makers.touch.next(kMuch) == Task::kTouch);
  // Nothing more is wanted: what is touched goes back.
  makers.touchSome(2, kUnbackedNs);
  CHECK(makers.touch.takeAll().size() == 2);
  CHECK(makers.touch.touchedAhead() == 0);
}

TEST_CASE("no more is touched than is to be made", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  CHECK(makers.touch.next(kPortion - 1) == Task::kMake);  // less than a portion
  CHECK(makers.touch.next(kPortion) == Task::kTouch);
  makers.touch.beginTouch(makers.now);
  CHECK(makers.touch.next(2 * kPortion - 1) == Task::kWait);  // for the portion
  CHECK(makers.touch.next(2 * kPortion) == Task::kTouch);
}

TEST_CASE("who needs a chunk at once takes what is touched by then", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  makers.touchSome(3, kUnbackedNs);
  CHECK(makers.make(kFastNs, kPortion / 2) == 3);
  CHECK(makers.touch.next(kMuch) == Task::kMake);  // the rest of it
  for (int i = 0; i < 5; ++i) CHECK(makers.make(kFastNs / 2, kPortion / 2) == 0);
  CHECK(makers.touch.next(kMuch) == Task::kTouch);
}

TEST_CASE("touching goes on as long as it pays", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  for (int wave = 0; wave < 3; ++wave) {
    makers.wave(kUnbackedNs, kFastNs);  // 26 ms a portion, not 80
    CHECK(makers.touch.slow());
  }
  // Memory that comes fast needs no touch.
  makers.wave(kBackedNs, kFastNs);
  CHECK_FALSE(makers.touch.slow());
  CHECK_FALSE(makers.touch.useless());
  makers.make(kSlowNs);
  CHECK(makers.touch.slow());
  // The driver is as slow as before: the kernel gave it other memory.
  makers.wave(kUnbackedNs, kSlowNs);
  CHECK(makers.touch.useless());
  for (int i = 0; i < 50; ++i) {
    REQUIRE(makers.touch.next(kMuch) == Task::kMake);
    CHECK(makers.make(kSlowNs) == 0);
  }
}

TEST_CASE("a chunk that is made beside a wave does not make it longer", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  makers.touchSome(kPortions, kUnbackedNs);
  for (unsigned i = 1; i < kPortions; ++i) makers.make(kFastNs);
  // The last of the wave, and beside it one that somebody needs at once, for which nothing was
  // touched.
  const FirstTouch::Making last = makers.touch.beginMaking(kPortion);
  const FirstTouch::Making other = makers.touch.beginMaking(kPortion);
  CHECK(last.touched);
  CHECK_FALSE(other.touched);
  CHECK(makers.touch.next(kMuch) == Task::kWait);  // the next wave is not yet
  makers.touch.endMaking(last, kPortion, makers.now, makers.now + kFastNs);
  makers.touch.endMaking(other, kPortion, makers.now, makers.now + kFastNs + kSlowNs);
  makers.now += 100 * kSlowNs;  // nothing is wanted for a while
  makers.wave(kUnbackedNs, kFastNs);
  CHECK(makers.touch.slow());
  CHECK_FALSE(makers.touch.useless());
}

TEST_CASE("a wave that is given up tells nothing", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  makers.touchSome(2, kUnbackedNs);
  const FirstTouch::Making making = makers.touch.beginMaking(kPortion);
  CHECK(makers.touch.takeAll().empty());  // nothing more is wanted, and all is given back
  makers.touch.endMaking(making, kPortion, makers.now, makers.now + kSlowNs);
  CHECK(makers.touch.slow());
  CHECK_FALSE(makers.touch.useless());
  CHECK(makers.touch.next(kMuch) == Task::kTouch);
}

TEST_CASE("a refused portion ends touching until the driver is slow again", "[first touch]") {
  Makers makers;
  makers.make(kSlowNs);
  REQUIRE(makers.touch.next(kMuch) == Task::kTouch);
  makers.touch.beginTouch(makers.now);
  makers.touch.endTouch(std::nullopt, kMs);
  CHECK_FALSE(makers.touch.slow());
  CHECK(makers.touch.touchedAhead() == 0);
  CHECK(makers.touch.next(kMuch) == Task::kMake);
  makers.make(kSlowNs);
  CHECK(makers.touch.slow());
  // What the driver refuses tells nothing.
  FirstTouch other;
  other.endMaking(other.beginMaking(kPortion), 0, 1, 1 + kSlowNs);
  CHECK_FALSE(other.slow());
}
