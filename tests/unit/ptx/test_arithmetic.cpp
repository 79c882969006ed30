#include <cfenv>
#include <cmath>

#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"
#include "tests/unit/ptx/random.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

__extension__ typedef unsigned __int128 U128;
__extension__ typedef __int128 S128;

constexpr int kCount = 1000;
const Dim3 kGrid{8};
const Dim3 kBlock{128};

template <typename T>
void checkIntegers(Device& device, const char* kernel) {
  const std::uint64_t seed = freshSeed();
  INFO(kernel << " seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomIntegers<T>(random, kCount);
  const auto b = randomIntegers<T>(random, kCount);
  const auto out = device.memory.allocate(kCount * 12 * sizeof(T));
  const LaunchResult result =
      device.launch(kernel, kGrid, kBlock, device.upload(a), device.upload(b), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const T* const r = device.memory.host<T>(out);
  using W = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  for (int i = 0; i < kCount; ++i) {
    const T x = a[static_cast<std::size_t>(i)];
    const T y = b[static_cast<std::size_t>(i)];
    const auto wx = static_cast<W>(x);
    const auto wy = static_cast<W>(y);
    const bool overflow = std::is_signed_v<T> && sizeof(T) >= 4 &&
                          x == std::numeric_limits<T>::min() && y == static_cast<T>(-1);
    const unsigned shift = static_cast<unsigned>(y & static_cast<T>(sizeof(T) * 8 - 1));
    const T expected[12] = {static_cast<T>(wx + wy),
                            static_cast<T>(wx - wy),
                            static_cast<T>(wx * wy),
                            y == 0     ? T{0}
                            : overflow ? x
                                       : static_cast<T>(x / y),
                            y == 0 || overflow ? T{0} : static_cast<T>(x % y),
                            static_cast<T>(x & y),
                            static_cast<T>(x | y),
                            static_cast<T>(x ^ y),
                            static_cast<T>(~x),
                            x < y ? x : y,
                            static_cast<T>(wx << shift),
                            static_cast<T>(x >> shift)};
    for (int k = 0; k < 12; ++k) {
      INFO("operation " << k << " x " << +x << " y " << +y);
      REQUIRE(+r[i * 12 + k] == +expected[k]);
    }
  }
}

template <typename F>
void checkFloats(Device& device, const char* kernel) {
  const std::uint64_t seed = freshSeed();
  INFO(kernel << " seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomFloats<F>(random, kCount);
  const auto b = randomFloats<F>(random, kCount);
  const auto c = randomFloats<F>(random, kCount);
  const auto out = device.memory.allocate(kCount * 10 * sizeof(F));
  const LaunchResult result = device.launch(kernel, kGrid, kBlock, device.upload(a),
                                            device.upload(b), device.upload(c), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const F* const r = device.memory.host<F>(out);
  // A NaN, signalling or not, loses against a number; -0 is less than +0.
  const auto minimum = [](F p, F q) {
    if (p != p || q != q) return p != p ? q : p;
    if (p == q) return std::signbit(p) ? p : q;
    return std::fmin(p, q);
  };
  const auto maximum = [](F p, F q) {
    if (p != p || q != q) return p != p ? q : p;
    if (p == q) return std::signbit(p) ? q : p;
    return std::fmax(p, q);
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const F x = a[i];
    const F y = b[i];
    const F z = c[i];
    const F expected[10] = {x + y,
                            x - y,
                            x * y,
                            x / y,
                            std::fma(x, y, z),
                            std::sqrt(std::fabs(x)),
                            minimum(x, y),
                            maximum(x, z),
                            -x,
                            static_cast<F>((x < y) + 2 * (x == y) + 4 * (x > y) + 8 * (x != y) +
                                           16 * (x <= y) + 32 * (x >= y))};
    for (std::size_t k = 0; k < 10; ++k) {
      INFO("operation " << k << " x " << x << " y " << y << " z " << z << " got " << r[i * 10 + k]
                        << " expected " << expected[k]);
      REQUIRE(same(r[i * 10 + k], expected[k]));
    }
  }
}

// Each word by itself in twice its width, and what goes over into the next.
template <typename T>
void checkCarries(Device& device, const char* kernel) {
  const std::uint64_t seed = freshSeed();
  INFO(kernel << " seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomIntegers<T>(random, kCount);
  const auto b = randomIntegers<T>(random, kCount);
  const auto out = device.memory.allocate(kCount * 11 * sizeof(T));
  const LaunchResult result =
      device.launch(kernel, kGrid, kBlock, device.upload(a), device.upload(b), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const T* const r = device.memory.host<T>(out);
  constexpr unsigned kBits = 8 * sizeof(T);
  for (std::size_t i = 0; i < kCount; ++i) {
    const U128 x = a[i], y = a[kCount - 1 - i], z = b[i], w = b[kCount - 1 - i];
    const U128 low = x + z, high = y + w + (low >> kBits);
    const U128 less = x - z, rest = y - w - (less >> kBits & 1);
    const U128 product = static_cast<T>(x * z) + y,
               over = (x * z >> kBits) + w + (product >> kBits);
    const T expected[11] = {
        static_cast<T>(low), static_cast<T>(high), static_cast<T>(high >> kBits),
        static_cast<T>(less), static_cast<T>(rest), static_cast<T>(-(rest >> kBits & 1)),
        static_cast<T>(product), static_cast<T>(over), static_cast<T>(over >> kBits),
        // The carry after a difference is that of a + ~b + 1, and a difference
        // takes it so.
        static_cast<T>((rest >> kBits & 1) ^ 1), static_cast<T>((low >> kBits) - 1)};
    for (std::size_t k = 0; k < 11; ++k) {
      INFO("word " << k << " of lane " << i);
      REQUIRE(r[i * 11 + k] == expected[k]);
    }
  }
}

/// Integers of 128 bits: some of any length, some at the edges.
std::vector<U128> randomWide(std::mt19937_64& random) {
  const U128 one = 1;
  const U128 special[] = {0,
                          1,
                          ~U128{0},
                          one << 127,
                          ~(one << 127),
                          one << 64,
                          (one << 64) - 1,
                          (one << 32) - 1,
                          one << 63,
                          one << 96};
  std::vector<U128> values(kCount);
  for (U128& value : values) {
    value = (U128{random()} << 64 | random()) >> random() % 128;
    if (random() % 4 == 0) value = special[random() % 10] + random() % 3 - 1;
    if (random() % 4 == 0) value = -value;
  }
  return values;
}

template <typename T>
void checkWide(Device& device, const char* kernel) {
  const std::uint64_t seed = freshSeed();
  INFO(kernel << " seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<U128> a = randomWide(random);
  std::vector<U128> b = randomWide(random);
  for (std::size_t i = 0; i < kCount; i += 50) b[i] = a[i];
  const auto out = device.memory.allocate(kCount * 10 * sizeof(T));
  const LaunchResult result =
      device.launch(kernel, kGrid, kBlock, device.upload(a), device.upload(b), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const U128* const r = device.memory.host<U128>(out);
  for (std::size_t i = 0; i < kCount; ++i) {
    const U128 wx = a[i], wy = b[i];
    const auto x = static_cast<T>(wx), y = static_cast<T>(wy);
    const bool overflow = std::is_same_v<T, S128> && wx == U128{1} << 127 && wy == ~U128{0};
    const unsigned count = static_cast<unsigned>(wy) & 127;
    const U128 expected[10] = {wx + wy,
                               wx - wy,
                               wx * wy,
                               wy == 0    ? 0
                               : overflow ? wx
                                          : static_cast<U128>(x / y),
                               wy == 0 || overflow ? 0 : static_cast<U128>(x % y),
                               wx << count,
                               static_cast<U128>(x >> count),
                               x < y    ? U128{1}
                               : x == y ? U128{2}
                                        : U128{3},
                               -wx,
                               (wx & wy) + (wx | ~wy) * (wx ^ wy)};
    for (std::size_t k = 0; k < 10; ++k) {
      INFO("operation " << k << " of lane " << i << std::hex << " x "
                        << static_cast<std::uint64_t>(wx >> 64) << ' '
                        << static_cast<std::uint64_t>(wx) << " y "
                        << static_cast<std::uint64_t>(wy >> 64) << ' '
                        << static_cast<std::uint64_t>(wy));
      REQUIRE((r[i * 10 + k] == expected[k]));
    }
  }
}

}  // namespace

TEST_CASE("ptx: integers of 128 bits", "[ptx]") {
  const char* const file = GENERATE("arithmetic", "arithmetic_debug", "arithmetic_sm90");
  Device device = Device::fromFile(file);
  checkWide<U128>(device, "int_u128");
  checkWide<S128>(device, "int_s128");
}

TEST_CASE("ptx: integer arithmetic of every width", "[ptx]") {
  const char* const file = GENERATE("arithmetic", "arithmetic_debug");
  Device device = Device::fromFile(file);
  checkIntegers<std::int8_t>(device, "int_s8");
  checkIntegers<std::uint8_t>(device, "int_u8");
  checkIntegers<std::int16_t>(device, "int_s16");
  checkIntegers<std::uint16_t>(device, "int_u16");
  checkIntegers<std::int32_t>(device, "int_s32");
  checkIntegers<std::uint32_t>(device, "int_u32");
  checkIntegers<std::int64_t>(device, "int_s64");
  checkIntegers<std::uint64_t>(device, "int_u64");
}

TEST_CASE("ptx: bit operations", "[ptx]") {
  Device device = Device::fromFile("arithmetic");
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomIntegers<std::uint32_t>(random, kCount);
  const auto b = randomIntegers<std::uint32_t>(random, kCount);
  const auto out = device.memory.allocate(kCount * 24 * 4);
  const LaunchResult result =
      device.launch("bits", kGrid, kBlock, device.upload(a), device.upload(b), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto* const r = device.memory.host<std::uint32_t>(out);
  const auto reverse = [](std::uint64_t v, int n) {
    std::uint64_t x = 0;
    for (int i = 0; i < n; ++i) x |= (v >> i & 1) << (n - 1 - i);
    return x;
  };
  const auto sign24 = [](std::uint32_t v) { return static_cast<std::int32_t>(v << 8) >> 8; };
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint32_t x = a[i];
    const std::uint32_t y = b[i];
    const auto sx = static_cast<std::int32_t>(x);
    const auto sy = static_cast<std::int32_t>(y);
    const std::uint64_t wide = std::uint64_t{x} << 32 | y;
    std::uint32_t expected[24] = {};
    expected[0] = static_cast<std::uint32_t>(std::popcount(x));
    expected[1] = static_cast<std::uint32_t>(std::countl_zero(x));
    expected[2] = static_cast<std::uint32_t>(reverse(x, 32));
    expected[3] = x == 0 ? 0 : static_cast<std::uint32_t>(std::countr_zero(x)) + 1;
    expected[4] = static_cast<std::uint32_t>(std::popcount(wide));
    expected[5] = static_cast<std::uint32_t>(std::countl_zero(wide));
    expected[6] = static_cast<std::uint32_t>(reverse(wide, 64) >> 32);
    expected[7] = (x & 0xFF) | (y & 0xFF) << 8 | (x >> 8 & 0xFF) << 16 | (y >> 8 & 0xFF) << 24;
    const std::uint64_t both = std::uint64_t{y} << 32 | x;
    expected[8] = static_cast<std::uint32_t>(both << (y & 31) >> 32);
    expected[9] = static_cast<std::uint32_t>(both >> std::min(y & 63, 32U));
    expected[10] = static_cast<std::uint32_t>(std::uint64_t{x} * y >> 32);
    expected[11] = static_cast<std::uint32_t>((std::int64_t{sx} * sy) >> 32);
    expected[12] = 7 + (x > y ? x - y : y - x);
    expected[13] = 7 + (sx > sy ? x - y : y - x);
    expected[14] = (x & 0xFFFFFF) * (y & 0xFFFFFF);
    expected[15] = static_cast<std::uint32_t>(sign24(x)) * static_cast<std::uint32_t>(sign24(y));
    expected[16] = expected[17] = 5;
    for (int k = 0; k < 32; k += 8) {
      expected[16] += static_cast<std::uint32_t>(static_cast<std::int8_t>(x >> k) *
                                                 static_cast<std::int8_t>(y >> k));
      expected[17] += (x >> k & 0xFF) * (y >> k & 0xFF);
    }
    expected[18] = static_cast<std::uint32_t>(static_cast<U128>(wide) * ~wide >> 64);
    expected[19] = static_cast<std::uint32_t>(
        9 + static_cast<std::int16_t>(x) * static_cast<std::int8_t>(y) +
        static_cast<std::int16_t>(x >> 16) * static_cast<std::int8_t>(y >> 8));
    const std::uint32_t pos = y & 31;
    const std::uint32_t len = y >> 5 & 31;
    const std::uint32_t field = (1U << len) - 1;
    expected[20] = (x >> pos) & field;
    // The signed field: bits behind the register's end repeat its sign.
    const auto sign_extended = static_cast<std::uint64_t>(static_cast<std::int64_t>(sx));
    expected[21] =
        len == 0 ? 0
                 : static_cast<std::uint32_t>(
                       static_cast<std::int64_t>(sign_extended >> pos << (64 - len)) >> (64 - len));
    expected[22] = (0xA5A5A5A5U & ~0U);
    expected[22] = (0xA5A5A5A5U & ~(field << pos)) | ((x & field) << pos);
    expected[23] = x ^ y ^ 0x12345678U;
    for (std::size_t k = 0; k < 24; ++k) {
      INFO("operation " << k << " x " << x << " y " << y);
      REQUIRE(r[i * 24 + k] == expected[k]);
    }
  }
}

TEST_CASE("ptx: carries go from word to word", "[ptx]") {
  const char* const file = GENERATE("arithmetic", "arithmetic_debug");
  Device device = Device::fromFile(file);
  checkCarries<std::uint32_t>(device, "carries_u32");
  checkCarries<std::uint64_t>(device, "carries_u64");
}

TEST_CASE("ptx: integer corner cases", "[ptx]") {
  Device device = Device::fromFile("arithmetic");
  constexpr int kMin = std::numeric_limits<int>::min();
  constexpr int kMax = std::numeric_limits<int>::max();
  const std::vector<int> a{5, -5, kMin, kMax, 1, -1, 0, kMin};
  const std::vector<int> b{0, 0, -1, 1, 32, 33, 64, kMin};
  const auto out = device.memory.allocate(8 * 12 * 4);
  const LaunchResult result =
      device.launch("corners", Dim3{1}, Dim3{32}, device.upload(a), device.upload(b), out, 8);
  INFO(result.message);
  REQUIRE(result.ok());
  const int* const r = device.memory.host<int>(out);
  const auto at = [&](int i, int k) { return r[i * 12 + k]; };
  CHECK(at(0, 0) == -1);  // division by zero: all ones
  CHECK(at(0, 1) == 5);
  CHECK(at(1, 2) == -1);
  CHECK(at(2, 0) == kMin);  // INT_MIN / -1
  CHECK(at(2, 1) == 0);
  CHECK(at(2, 8) == kMin);
  CHECK(at(2, 9) == kMin);
  CHECK(at(3, 6) == kMax);  // saturation
  CHECK(at(2, 6) == kMin);
  CHECK(at(7, 6) == kMin);
  CHECK(at(4, 3) == 0);  // shifts of the width and more
  CHECK(at(4, 4) == 0);
  CHECK(at(5, 4) == 0);
  CHECK(at(5, 5) == -1);
  CHECK(at(4, 5) == 0);
  CHECK(at(2, 10) == 1);  // carry out
  CHECK(at(4, 10) == 0);
  CHECK(at(7, 10) == 1);
  CHECK(at(5, 11) == -1);
  CHECK(at(4, 11) == 0);
  CHECK(at(3, 11) == 30);
  CHECK(at(2, 11) == 30);
}

TEST_CASE("ptx: floating-point arithmetic", "[ptx]") {
  const char* const file = GENERATE("arithmetic", "arithmetic_debug");
  Device device = Device::fromFile(file);
  checkFloats<float>(device, "float_f32");
  checkFloats<double>(device, "float_f64");
}

TEST_CASE("ptx: rounding modes, saturation, flush to zero", "[ptx]") {
  Device device = Device::fromFile("arithmetic");
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomFloats<float>(random, kCount);
  const auto b = randomFloats<float>(random, kCount);
  const auto out = device.memory.allocate(kCount * 12 * 4);
  const LaunchResult result =
      device.launch("rounding", kGrid, kBlock, device.upload(a), device.upload(b), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const float* const r = device.memory.host<float>(out);
  const auto with = [](int mode, auto f) {
    std::fesetround(mode);
    const volatile float value = f();
    std::fesetround(FE_TONEAREST);
    return static_cast<float>(value);
  };
  const auto flush = [](float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const volatile float x = a[i];
    const volatile float y = b[i];
    const float expected[12] = {
        with(FE_TOWARDZERO, [&] { return x + y; }),
        with(FE_UPWARD, [&] { return x + y; }),
        with(FE_DOWNWARD, [&] { return x + y; }),
        with(FE_TOWARDZERO, [&] { return x * y; }),
        with(FE_UPWARD, [&] { return x * y; }),
        with(FE_DOWNWARD, [&] { return x / y; }),
        with(FE_TOWARDZERO, [&] { return std::fma(x, y, 1.5F); }),
        with(FE_UPWARD, [&] { return std::sqrt(std::fabs(x)); }),
        x > 0 ? (x < 1 ? x : 1.0F) : 0.0F,
        with(FE_TOWARDZERO, [&] { return 1.0F / x; }),
        flush(flush(x) + flush(y)),
        flush(flush(x) * flush(y)),
    };
    for (std::size_t k = 0; k < 12; ++k) {
      INFO("operation " << k << " x " << x << " y " << y << " got " << r[i * 12 + k] << " expected "
                        << expected[k]);
      REQUIRE(same(r[i * 12 + k], expected[k]));
    }
  }
}

TEST_CASE("ptx: mathematical functions", "[ptx]") {
  Device device = Device::fromFile("arithmetic");
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomFloats<float>(random, kCount, false);
  const auto out = device.memory.allocate(kCount * 12 * 4);
  LaunchResult result = device.launch("math", kGrid, kBlock, device.upload(a), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const float* const r = device.memory.host<float>(out);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = a[i];
    const double expected[12] = {std::sin(x),
                                 std::cos(x),
                                 std::exp(x),
                                 std::log(std::fabs(x) + 0.5),
                                 std::pow(std::fabs(x), 1.7),
                                 std::tanh(x),
                                 std::sin(x),
                                 std::exp(x),
                                 1 / std::sqrt(std::fabs(x) + 0.1),
                                 std::cbrt(x),
                                 std::erf(x),
                                 std::atan2(x, 2.0)};
    for (std::size_t k = 0; k < 12; ++k) {
      INFO("function " << k << " x " << x);
      REQUIRE(std::fabs(r[i * 12 + k] - expected[k]) <=
              2e-6 * std::max(1.0, std::fabs(expected[k])));
    }
  }
  std::vector<double> d(a.begin(), a.end());
  const auto out64 = device.memory.allocate(kCount * 6 * 8);
  result = device.launch("math64", kGrid, kBlock, device.upload(d), out64, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const double* const r64 = device.memory.host<double>(out64);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = d[i];
    const double expected[6] = {std::sin(x),
                                std::exp(x),
                                std::log(std::fabs(x) + 0.5),
                                std::pow(std::fabs(x), 1.7),
                                std::tgamma(std::fabs(x) + 1),
                                std::nearbyint(x * 10)};
    for (std::size_t k = 0; k < 6; ++k) {
      INFO("function " << k << " x " << x);
      REQUIRE(std::fabs(r64[i * 6 + k] - expected[k]) <=
              1e-13 * std::max(1.0, std::fabs(expected[k])));
    }
  }
}
