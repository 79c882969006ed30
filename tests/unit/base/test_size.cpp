#include "base/size.h"
#include "tests/catch.h"

using namespace olpager::base;

TEST_CASE("sizes parse as people write them", "[base][size]") {
  const auto [text, bytes] = GENERATE(table<const char*, uint64_t>({
      {"0", 0},
      {"513", 513},
      {"8GiB", 8ull << 30},
      {"64MiB", 64ull << 20},
      {"16 TiB", 16ull << 40},
      {" 2 mib ", 2ull << 20},
      {"4k", 4096},
      {"4KB", 4096},
      {"1.5GiB", 3ull << 29},
      {"0x200000", 2ull << 20},
      {"18446744073709551615", UINT64_MAX},
  }));
  const auto parsed = parseSize(text);
  REQUIRE(parsed.ok());
  CHECK(parsed.value() == bytes);
}

TEST_CASE("what is no size is refused with what was given", "[base][size]") {
  const auto* text =
      GENERATE("", " ", "GiB", "8GiBs", "8 X", "-1", "1e9", "0x", "0xfg", "1.2.3", "50%",
               "20000000000TiB", "99999999999999999999", "8GiB8", "nan", "inf");
  const auto parsed = parseSize(text);
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().message.find(std::string("'") + text + "'") != std::string::npos);
}

TEST_CASE("budgets are sizes or percentages", "[base][size]") {
  CHECK(parseBudget("50%").value().percent == 50);
  CHECK(parseBudget("12.5 %").value().percent == 12.5);
  CHECK(parseBudget("8GiB").value().bytes == 8ull << 30);
  for (const char* text : {"0", "0%", "101%", "%", "-5%", "half"})
    CHECK_FALSE(parseBudget(text).ok());
}

TEST_CASE("sizes print short, or so that they read back", "[base][size]") {
  CHECK(formatSize(0) == "0B");
  CHECK(formatSize(1023) == "1023B");
  CHECK(formatSize(8ull << 30) == "8GiB");
  CHECK(formatSize((3ull << 29) + 1) == "1.5GiB");
  CHECK(formatSize((1ull << 30) - 1) == "1GiB");
  CHECK(formatSize(UINT64_MAX) == "16EiB");
  for (uint64_t bytes : {0ull, 1ull, 1536ull << 10, 8ull << 30, 16ull << 40, 123456789ull}) {
    CHECK(parseSize(exactSize(bytes)).value() == bytes);
  }
  CHECK(exactBudget(parseBudget("50%").value()) == "50%");
  CHECK(exactBudget(Budget{}).empty());
}
