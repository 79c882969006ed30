// Arithmetic on the halves and bytes of a word, against the same one part at a time.
#include <functional>

#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"
#include "tests/unit/ptx/random.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

constexpr int kCount = 1000;
using U32 = std::uint32_t;
using Part = std::function<int(int, int)>;

int part(U32 word, unsigned parts, unsigned i, bool sign) {
  const unsigned bits = 32 / parts;
  const U32 value = word >> (i * bits) << (32 - bits);
  return sign ? static_cast<int>(value) >> (32 - bits) : static_cast<int>(value >> (32 - bits));
}

enum class Whole { kParts, kSum };

/// f of each part; kSum: plus `more`.
U32 each(unsigned parts, bool sign_x, bool sign_y, U32 x, U32 y, const Part& f,
         Whole whole = Whole::kParts, U32 more = 0) {
  const unsigned bits = 32 / parts;
  U32 out = more;
  for (unsigned i = 0; i < parts; ++i) {
    const auto value = static_cast<U32>(f(part(x, parts, i, sign_x), part(y, parts, i, sign_y)));
    out += whole == Whole::kSum ? value : (value & ((1U << bits) - 1)) << (i * bits);
  }
  return out;
}

int clampTo(unsigned parts, bool sign, int value) {
  const int bits = static_cast<int>(32 / parts);
  return sign ? std::clamp(value, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
              : std::clamp(value, 0, (1 << bits) - 1);
}
int absolute(int a, int b) { return a < b ? b - a : a - b; }
int rounded(int a, int b) { return a + b >= 0 ? (a + b + 1) >> 1 : (a + b) >> 1; }

/// In the order of the kernel's: of halves, of bytes.
std::vector<U32> expectedSimd(U32 x, U32 y) {
  std::vector<U32> out;
  const auto both = [&](bool sign, const Part& f, Whole whole = Whole::kParts) {
    for (const unsigned parts : {2U, 4U}) out.push_back(each(parts, sign, sign, x, y, f, whole));
  };
  const auto clamped = [&](bool sign, const Part& f) {
    for (const unsigned parts : {2U, 4U})
      out.push_back(each(parts, sign, sign, x, y,
                         [&](int a, int b) { return clampTo(parts, sign, f(a, b)); }));
  };
  const auto sum = [](int a, int b) { return a + b; };
  const auto difference = [](int a, int b) { return a - b; };
  const auto least = [](int a, int b) { return std::min(a, b); };
  const auto most = [](int a, int b) { return std::max(a, b); };
  both(true, [](int a, int) { return a < 0 ? -a : a; });
  clamped(true, [](int a, int) { return a < 0 ? -a : a; });
  both(true, [](int a, int) { return -a; });
  clamped(true, [](int a, int) { return -a; });
  both(false, sum);
  clamped(true, sum);
  clamped(false, sum);
  both(false, difference);
  clamped(true, difference);
  clamped(false, difference);
  both(true, rounded);
  both(false, rounded);
  both(false, [](int a, int b) { return (a + b) >> 1; });
  both(true, absolute);
  both(false, absolute);
  both(true, most);
  both(false, most);
  both(true, least);
  both(false, least);
  both(true, absolute, Whole::kSum);
  both(false, absolute, Whole::kSum);
  for (const int yes : {-1, 1}) {
    both(false, [&](int a, int b) { return a == b ? yes : 0; });
    both(false, [&](int a, int b) { return a != b ? yes : 0; });
    for (const bool sign : {true, false})
      both(sign, [&](int a, int b) { return a >= b ? yes : 0; });
    for (const bool sign : {true, false}) both(sign, [&](int a, int b) { return a > b ? yes : 0; });
    for (const bool sign : {true, false})
      both(sign, [&](int a, int b) { return a <= b ? yes : 0; });
    for (const bool sign : {true, false}) both(sign, [&](int a, int b) { return a < b ? yes : 0; });
  }
  return out;
}

std::vector<U32> expectedThree(U32 x, U32 y, U32 z) {
  const auto s = [](U32 v) { return static_cast<int>(v); };
  const auto halves = [](bool sign, U32 p, U32 q, const Part& f) {
    return each(2, sign, sign, p, q, f);
  };
  const auto least = [](int a, int b) { return std::min(a, b); };
  const auto most = [](int a, int b) { return std::max(a, b); };
  const auto relu = [](U32 v) {
    return each(2, true, true, v, 0, [](int a, int b) { return std::max(a, b); });
  };
  const U32 sums = each(2, false, false, x, y, [](int a, int b) { return a + b; });
  const U32 more = halves(true, x, y, most);
  U32 which = 0;
  for (unsigned i = 0; i < 2; ++i)
    which |= static_cast<U32>(part(x, 2, i, true) >= part(y, 2, i, true)) << i;
  return {static_cast<U32>(std::max(s(x + y), s(z))),
          std::min(x + y, z),
          static_cast<U32>(std::max({s(x + y), s(z), 0})),
          halves(true, sums, z, most),
          halves(false, sums, z, least),
          relu(halves(true, sums, z, least)),
          static_cast<U32>(std::max({s(x), s(y), s(z)})),
          halves(false, halves(false, x, y, least), z, least),
          relu(halves(true, more, z, most)),
          relu(halves(true, x, y, least)),
          more,
          which};
}

std::vector<U32> expectedVideos(U32 x, U32 y) {
  std::vector<U32> out;
  const Part kinds[] = {[](int a, int b) { return a + b; },
                        [](int a, int b) { return a - b; },
                        rounded,
                        absolute,
                        [](int a, int b) { return std::min(a, b); },
                        [](int a, int b) { return std::max(a, b); }};
  for (const Part& f : kinds) {
    const auto clamped = [&](unsigned parts, bool sign) {
      return [&f, parts, sign](int a, int b) { return clampTo(parts, sign, f(a, b)); };
    };
    out.push_back(each(2, false, false, x, y, f));
    out.push_back(each(2, true, true, x, y, clamped(2, true)));
    out.push_back(each(2, true, false, x, y, f, Whole::kSum, 7));
    out.push_back(each(4, false, false, x, y, f));
    out.push_back(each(4, true, true, x, y, f));
    out.push_back(each(4, true, true, x, y, clamped(4, false)));
    out.push_back(each(4, false, true, x, y, clamped(4, true)));
    out.push_back(each(4, false, false, x, y, f, Whole::kSum, 7));
  }
  out.push_back(each(2, true, false, x, y, [](int a, int b) { return a < b ? 1 : 0; }));
  out.push_back(each(4, false, false, x, y, [](int a, int b) { return a >= b ? 1 : 0; }));
  out.push_back(each(
      4, true, true, x, y, [](int a, int b) { return a != b ? 1 : 0; }, Whole::kSum, 7));
  return out;
}

/// Words of which some parts are at the edges, and some are those of others.
std::vector<U32> words(std::mt19937_64& random) {
  const U32 bytes[] = {0, 1, 0x7F, 0x80, 0xFF, 0x81};
  std::vector<U32> out(kCount);
  for (U32& word : out) {
    for (unsigned i = 0; i < 32; i += 8)
      word |= (random() % 2 == 0 ? bytes[random() % 6] : static_cast<U32>(random() & 0xFF)) << i;
  }
  return out;
}

template <typename Expected, typename... Words>
void check(Device& device, const char* kernel, std::size_t results, Expected expected,
           const Words&... words) {
  const auto out = device.memory.allocate(kCount * results * 4);
  const LaunchResult result =
      device.launch(kernel, Dim3{8}, Dim3{128}, device.upload(words)..., out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const U32* const r = device.memory.host<U32>(out);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::vector<U32> e = expected(words[i]...);
    REQUIRE(e.size() == results);
    for (std::size_t k = 0; k < results; ++k) {
      INFO(kernel << " operation " << k << " of lane " << i << std::hex << " got "
                  << r[i * results + k] << " expected " << e[k]);
      REQUIRE(r[i * results + k] == e[k]);
    }
  }
}

}  // namespace

TEST_CASE("ptx: halves and bytes of a word", "[ptx]") {
  Device device = Device::fromFile(GENERATE("simd", "simd_debug", "simd_sm90"));
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<U32> a = words(random), b = words(random), c = words(random);
  check(device, "simd", 82, expectedSimd, a, b);
  check(device, "three", 12, expectedThree, a, b, c);
  check(device, "videos", 51, expectedVideos, a, b);
}
