// Changes go across, whole and alone, in whichever form; nonsense of every length is refused.
#include "forwarding/wire/runs.h"

#include <random>
#include <vector>

#include "tests/catch.h"
#include "tests/seed.h"

namespace {

using namespace olpager;
using forward::Reader;
using forward::Run;

constexpr uint64_t kBase = 0x1a00'0000'0000;

}  // namespace

TEST_CASE("changes are applied elsewhere byte by byte", "[forward]") {
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  bool masked = false, plain = false;
  for (int turn = 0; turn < 600; ++turn) {
    std::vector<std::byte> before(1 + random() % 20'000);
    for (auto& byte : before) byte = static_cast<std::byte>(random());
    auto now = before, agreed = before, other = before;
    // A few bytes, words here and there, every fourth byte, all of a part.
    const uint64_t begin = random() % now.size(), end = begin + random() % (now.size() - begin + 1);
    const uint64_t step = turn % 4 == 0 ? 1 : turn % 4 == 1 ? 4 : 1 + random() % 700;
    for (uint64_t at = begin; at < end; at += step) now[at] = static_cast<std::byte>(random());
    // Changes of the other end meanwhile stay, where this one made none.
    std::vector<bool> theirs(now.size());
    for (int i = 0; i < 50; ++i) {
      const uint64_t at = random() % now.size();
      other[at] = static_cast<std::byte>(random());
      theirs[at] = true;
    }
    std::vector<std::byte> runs;
    forward::appendChanges(kBase, now.data(), agreed, runs);
    REQUIRE(agreed == now);
    for (Reader reader(runs); reader.left() > 0;) {
      Run run;
      REQUIRE(forward::readRun(reader, &run));
      REQUIRE(run.address - kBase + run.length <= other.size());
      (run.mask.empty() ? plain : masked) = true;
      // The run ends where something changed: the other end's memory may end there.
      const uint64_t last = run.address - kBase + run.length - 1;
      REQUIRE(now[last] != before[last]);
      std::vector<std::byte> pieces(
          other.begin() + static_cast<ptrdiff_t>(run.address - kBase),
          other.begin() + static_cast<ptrdiff_t>(run.address - kBase + run.length));
      run.eachPiece([&](size_t at, std::span<const std::byte> bytes) {
        REQUIRE(bytes.size() <= pieces.size() - at);
        std::copy(bytes.begin(), bytes.end(), pieces.begin() + static_cast<ptrdiff_t>(at));
      });
      run.copyTo(other.data() + (run.address - kBase));
      REQUIRE(std::equal(pieces.begin(), pieces.end(),
                         other.begin() + static_cast<ptrdiff_t>(run.address - kBase)));
    }
    for (uint64_t at = 0; at < now.size(); ++at) {
      if (theirs[at] && now[at] == before[at]) continue;
      REQUIRE(other[at] == now[at]);
    }
    // Never much longer than what changed: a bit for each byte of a grain at most.
    uint64_t changed = 0;
    for (uint64_t at = 0; at < now.size(); ++at) changed += now[at] != before[at] ? 1 : 0;
    const uint64_t grains = now.size() / forward::kGrain + 1;
    CHECK(runs.size() <= changed + grains * (forward::kGrain / 8 + 2 * sizeof(forward::RunHead)));
    runs.clear();
    forward::appendChanges(kBase, now.data(), agreed, runs);
    CHECK(runs.empty());
  }
  CHECK(masked);
  CHECK(plain);
}

TEST_CASE("runs that are none are refused", "[forward]") {
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  const auto reads = [](const std::vector<std::byte>& bytes) {
    Run run;
    Reader reader(bytes);
    return forward::readRun(reader, &run);
  };
  const auto record = [](const forward::RunHead& head, const std::vector<int>& rest) {
    std::vector<std::byte> bytes(sizeof head);
    std::memcpy(bytes.data(), &head, sizeof head);
    for (const int one : rest) bytes.push_back(static_cast<std::byte>(one));
    return bytes;
  };
  CHECK(reads(record({kBase, 3, 0}, {1, 2, 3})));
  CHECK_FALSE(reads(record({kBase, 3, 0}, {1, 2})));
  CHECK_FALSE(reads(record({kBase, 0, 0}, {})));
  CHECK_FALSE(
      reads(record({kBase, forward::kGrain + 1, 0}, std::vector<int>(forward::kGrain + 1))));
  CHECK_FALSE(reads(record({kBase, 3, 2}, {1, 2, 3})));
  CHECK(reads(record({kBase, 3, 1}, {0b101, 7, 8})));
  CHECK_FALSE(reads(record({kBase, 3, 1}, {0b101, 7})));      // fewer bytes than bits
  CHECK_FALSE(reads(record({kBase, 3, 1}, {0b1001, 7, 8})));  // beyond the end
  CHECK_FALSE(reads(record({kBase, 9, 1}, {0xff})));          // a mask that is too short
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<std::byte> bytes(random() % 60);
    for (auto& byte : bytes) byte = static_cast<std::byte>(turn % 2 == 0 ? random() : random() % 3);
    std::vector<std::byte> into(forward::kGrain);
    Reader reader(bytes);
    Run run;
    while (reader.left() > 0 && forward::readRun(reader, &run)) run.copyTo(into.data());
  }
}
