// Rows::touch() against each byte of a box.
#include "interpose/forward/rows.h"

#include <random>
#include <vector>

#include "tests/catch.h"
#include "tests/seed.h"

TEST_CASE("what lies between the rows of a box is not in it", "[forward]") {
  const uint64_t chosen = olpager::test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  bool between = false;
  for (int turn = 0; turn < 300; ++turn) {
    constexpr uint64_t kBefore = 8;
    olpager::forward::Rows rows;
    rows.width = 1 + random() % 9;
    rows.pitch = rows.width + random() % 9;
    rows.height = 1 + random() % 5;
    rows.layer = rows.pitch * (rows.height + random() % 3);
    rows.depth = 1 + random() % 4;
    std::vector<std::byte> memory(kBefore + rows.extent() + kBefore);
    rows.first = memory.data() + kBefore;
    uint64_t bytes = 0;
    rows.forEach([&](std::byte* row) {
      for (uint64_t x = 0; x < rows.width; ++x) row[x] = std::byte{1}, ++bytes;
    });
    REQUIRE(bytes == rows.bytes());
    REQUIRE(memory[kBefore + rows.extent() - 1] == std::byte{1});
    for (int look = 0; look < 300; ++look) {
      const uint64_t at = random() % memory.size(), count = 1 + random() % (memory.size() - at);
      bool in = false;
      for (uint64_t i = at; i < at + count; ++i) in = in || memory[i] == std::byte{1};
      between = between || (!in && at >= kBefore && at + count <= kBefore + rows.extent());
      CAPTURE(rows.width, rows.pitch, rows.height, rows.layer, rows.depth, at, count);
      REQUIRE(rows.touch(reinterpret_cast<uint64_t>(memory.data()) + at, count) == in);
    }
  }
  REQUIRE(between);
}
