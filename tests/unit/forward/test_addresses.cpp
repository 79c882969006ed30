// Addresses of the window are found wherever they lie, and nothing else is taken for one.
#include "interpose/forward/addresses.h"

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "forwarding/wire/wire.h"
#include "tests/catch.h"
#include "tests/seed.h"

namespace {

using namespace olpager;
using forward::kWindow;
using forward::kWindowBytes;

using Found = std::map<uint64_t, int>;  // how often each was found

Found foundIn(const std::byte* bytes, uint64_t count) {
  std::mutex mutex;
  Found found;
  (void)forward::eachAddress(bytes, count, [&](uint64_t word) {
    std::lock_guard lock(mutex);
    ++found[word];
    return false;
  });
  return found;
}

// The same, word by word.
Found expectedIn(const std::byte* bytes, uint64_t count) {
  Found found;
  for (uint64_t at = 0; at + sizeof(uint64_t) <= count; at += 4) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    if (word >= kWindow && word - kWindow < kWindowBytes) ++found[word];
  }
  return found;
}

}  // namespace

TEST_CASE("addresses are found in bytes of every length and place", "[forward]") {
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  for (int turn = 0; turn < 4000; ++turn) {
    const uint64_t count = random() % 1500, start = random() % 8;
    std::vector<std::byte> bytes(start + count);
    // Zeros, noise, and upper halves without their lower ones and beside them.
    for (auto& byte : bytes) byte = turn % 3 == 0 ? std::byte{0} : static_cast<std::byte>(random());
    for (uint64_t i = random() % 6; i > 0 && count >= 8; --i) {
      const uint64_t word = random() % 4 == 0   ? kWindow - 1 - random() % 3
                            : random() % 4 == 0 ? kWindow + kWindowBytes + random() % 3
                                                : kWindow + random() % kWindowBytes;
      std::memcpy(bytes.data() + start + random() % (count - 7), &word, sizeof word);
    }
    // The end of the vector is the heap's: a sanitizer sees what is read beyond it.
    REQUIRE(foundIn(bytes.data() + start, count) == expectedIn(bytes.data() + start, count));
  }
}

TEST_CASE("addresses are found in large memory, at the seams of its parts too", "[forward]") {
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  for (const uint64_t count : {(64ull << 20), (33ull << 20) + 4 * (random() % 1000) + 3}) {
    std::vector<std::byte> bytes(count, std::byte{7});
    Found expected;
    const auto plant = [&](uint64_t at) {
      const uint64_t word = kWindow + at;
      std::memcpy(bytes.data() + at, &word, sizeof word);
      ++expected[word];
    };
    for (uint64_t parts = 2; parts <= 4; ++parts) {
      const uint64_t seam = count / parts / 256 * 256;
      plant(seam - 4 * (2 * parts - 3));  // across it, or before it
    }
    for (uint64_t at = 256; at < count - 4096; at += 1 + random() % (4ull << 20))
      plant(at / 4096 * 4096 + 1024);
    for (auto& one : expected) one.second = 1;
    plant((count - 8) / 4 * 4);
    CHECK(foundIn(bytes.data(), count) == expected);
  }
  const uint64_t word = kWindow;
  CHECK(forward::eachAddress(&word, sizeof word, [](uint64_t) { return true; }));
  CHECK_FALSE(forward::eachAddress(&word, sizeof word, [](uint64_t) { return false; }));
  CHECK_FALSE(forward::eachAddress(&word, sizeof word - 1, [](uint64_t) { return true; }));
  CHECK_FALSE(forward::eachAddress(nullptr, 0, [](uint64_t) { return true; }));
}
