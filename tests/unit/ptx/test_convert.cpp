#include <cfenv>
#include <cmath>

#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"
#include "tests/unit/ptx/random.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

constexpr int kCount = 2000;
const Dim3 kGrid{16};
const Dim3 kBlock{128};

double halfValue(std::uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int fraction = h & 1023;
  double value = exponent == 31  ? (fraction != 0 ? std::nan("") : HUGE_VAL)
                 : exponent == 0 ? std::ldexp(fraction, -24)
                                 : std::ldexp(1024 + fraction, exponent - 25);
  return (h & 0x8000) != 0 ? -value : value;
}
double bfloatValue(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

/// The nearest representable value by search over all of them: slow and obviously right. mode 0
/// nearest-even, 1 toward zero, 2 up, 3 down.
std::uint16_t nearest(double x, int mode, double (*value)(std::uint16_t), std::uint16_t infinity) {
  if (x != x) return 0x7FFF;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double m = std::fabs(x);
  std::uint16_t low = 0;  // the largest not above m
  std::uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value(middle) <= m ? low : high) = middle;
  }
  if (m == HUGE_VAL) return sign | infinity;
  const double a = value(low);
  if (a == m) return sign | low;
  // Beyond the largest number the next one would be this, were it not infinity.
  const double b = high == infinity ? 2 * value(static_cast<std::uint16_t>(infinity - 1)) -
                                          value(static_cast<std::uint16_t>(infinity - 2))
                                    : value(high);
  bool up = false;
  if (mode == 0) up = m - a > b - m || (m - a == b - m && (low & 1) != 0);
  if (mode == 2) up = sign == 0;
  if (mode == 3) up = sign != 0;
  return sign | (up ? high : low);
}

template <typename T>
T clampTo(double x) {
  if (x != x) return sizeof(T) == 8 ? static_cast<T>(std::uint64_t{1} << 63) : T{0};
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}

}  // namespace

TEST_CASE("ptx: float to integer saturates", "[ptx]") {
  Device device = Device::fromFile("convert");
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomFloats<float>(random, kCount);
  const auto out = device.memory.allocate(kCount * 80);
  const LaunchResult result =
      device.launch("from_float", kGrid, kBlock, device.upload(a), out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto* const r = device.memory.host<std::int64_t>(out);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = a[i];
    const std::int64_t expected[10] = {
        clampTo<std::int32_t>(std::trunc(x)),
        clampTo<std::uint32_t>(std::trunc(x)),
        clampTo<std::int64_t>(std::trunc(x)),
        static_cast<std::int64_t>(clampTo<std::uint64_t>(std::trunc(x))),
        clampTo<std::int16_t>(std::nearbyint(x)),
        clampTo<std::uint8_t>(std::nearbyint(x)),
        clampTo<std::int64_t>(std::nearbyint(x)),
        clampTo<std::int64_t>(std::floor(x)),
        clampTo<std::int64_t>(std::ceil(x)),
        clampTo<std::int64_t>(std::trunc(x))};
    for (std::size_t k = 0; k < 10; ++k) {
      INFO("conversion " << k << " of " << x);
      REQUIRE(r[i * 10 + k] == expected[k]);
    }
  }
}

TEST_CASE("ptx: integer conversions", "[ptx]") {
  Device device = Device::fromFile("convert");
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto a = randomIntegers<std::int64_t>(random, kCount);
  const auto out = device.memory.allocate(kCount * 64);
  const auto in = device.upload(a);
  LaunchResult result = device.launch("between_integers", kGrid, kBlock, in, out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto* const r = device.memory.host<std::int64_t>(out);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::int64_t x = a[i];
    const std::int64_t expected[8] = {static_cast<std::int8_t>(x),
                                      static_cast<std::uint8_t>(x),
                                      static_cast<std::int16_t>(x),
                                      static_cast<std::uint16_t>(x),
                                      static_cast<std::int32_t>(x),
                                      static_cast<std::uint32_t>(x),
                                      std::clamp<std::int64_t>(x, INT32_MIN, INT32_MAX),
                                      std::clamp<std::int64_t>(x, 0, 255)};
    for (std::size_t k = 0; k < 8; ++k) {
      INFO("conversion " << k << " of " << x);
      REQUIRE(r[i * 8 + k] == expected[k]);
    }
  }
  const auto f = device.memory.allocate(kCount * 16);
  const auto d = device.memory.allocate(kCount * 16);
  result = device.launch("to_float", kGrid, kBlock, in, f, d, kCount);
  REQUIRE(result.ok());
  const float* const rf = device.memory.host<float>(f);
  const double* const rd = device.memory.host<double>(d);
  for (std::size_t i = 0; i < kCount; ++i) {
    const volatile std::int64_t x = a[i];
    INFO("integer " << x);
    REQUIRE(rf[i * 4] == static_cast<float>(x));
    REQUIRE(rf[i * 4 + 1] == static_cast<float>(static_cast<std::uint64_t>(x)));
    REQUIRE(rd[i * 2] == static_cast<double>(x));
    REQUIRE(rd[i * 2 + 1] == static_cast<double>(static_cast<std::uint64_t>(x)));
    std::fesetround(FE_TOWARDZERO);
    const volatile float toward_zero = static_cast<float>(x);
    std::fesetround(FE_TONEAREST);
    const volatile double near = static_cast<double>(x);
    std::fesetround(FE_UPWARD);
    const volatile float up = static_cast<float>(near);
    std::fesetround(FE_TONEAREST);
    REQUIRE(rf[i * 4 + 2] == toward_zero);
    REQUIRE(rf[i * 4 + 3] == up);
  }
}

TEST_CASE("ptx: 16-bit floating-point formats", "[ptx]") {
  const char* const file = GENERATE("convert", "convert_sm90");
  INFO(file);
  Device device = Device::fromFile(file);
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);

  const auto f = device.memory.allocate(65536 * 4);
  const auto b = device.memory.allocate(65536 * 4);
  LaunchResult result = device.launch("half_to_float", Dim3{256}, Dim3{256}, f, b);
  INFO(result.message);
  REQUIRE(result.ok());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    INFO("pattern " << i);
    REQUIRE(
        same<double>(device.memory.host<float>(f)[i], halfValue(static_cast<std::uint16_t>(i))));
    REQUIRE(
        same<double>(device.memory.host<float>(b)[i], bfloatValue(static_cast<std::uint16_t>(i))));
  }

  auto a = randomFloats<float>(random, kCount);
  for (std::size_t i = 0; i < kCount / 2;
       ++i) {  // many in and around the range of f16, many exactly between two
    const auto h = static_cast<std::uint16_t>(random() % 0x7C00);
    a[i] = static_cast<float>(
        (halfValue(h) + halfValue(static_cast<std::uint16_t>(h + (random() % 2)))) / 2);
    if (a[i] == HUGE_VALF) a[i] = 65520.0F;
    if (random() % 2 != 0) a[i] = -a[i];
  }
  const auto h16 = device.memory.allocate(kCount * 8);
  const auto b16 = device.memory.allocate(kCount * 2);
  result = device.launch("float_to_half", kGrid, kBlock, device.upload(a), h16, b16, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  for (std::size_t i = 0; i < kCount; ++i) {
    INFO("float " << a[i]);
    for (int mode = 0; mode < 4; ++mode) {
      INFO("mode " << mode);
      REQUIRE((device.memory.host<std::uint16_t>(h16)[i * 4 + static_cast<std::size_t>(mode)] ==
               nearest(a[i], mode, halfValue, 0x7C00)));
    }
    REQUIRE((device.memory.host<std::uint16_t>(b16)[i] == nearest(a[i], 0, bfloatValue, 0x7F80)));
  }

  std::vector<std::uint16_t> x(kCount);
  std::vector<std::uint16_t> y(kCount);
  std::vector<std::uint16_t> z(kCount);
  for (auto* v : {&x, &y, &z}) {
    for (auto& h : *v) h = static_cast<std::uint16_t>(random());
  }
  const auto out = device.memory.allocate(kCount * 16);
  const auto dx = device.upload(x);
  const auto dy = device.upload(y);
  const auto dz = device.upload(z);
  result = device.launch("half_arithmetic", kGrid, kBlock, dx, dy, dz, out, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  const auto same16 = [&](std::uint16_t got, double exact, const char* what) {
    INFO(what << " got " << halfValue(got) << " for " << exact);
    if (exact != exact)
      REQUIRE(halfValue(got) != halfValue(got));
    else
      REQUIRE(got == nearest(exact, 0, halfValue, 0x7C00));
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const double p = halfValue(x[i]);
    const double q = halfValue(y[i]);
    const double s = halfValue(z[i]);
    const auto* const r = device.memory.host<std::uint16_t>(out) + i * 8;
    INFO("operands " << p << " " << q << " " << s);
    same16(r[0], p + q, "add");
    same16(r[1], p - q, "sub");
    same16(r[2], p * q, "mul");
    const long double exact =
        static_cast<long double>(p) * q + s;  // 64 bits hold it but for the rarest operands
    same16(r[3], static_cast<double>(exact), "fma");
    REQUIRE(r[4] == (x[i] ^ 0x8000));
    REQUIRE(r[5] == (x[i] & 0x7FFF));
    const double sum = p + q;
    same16(r[6], sum > 0 ? std::min(sum, 1.0) : 0.0, "add_sat");
    same16(r[7], (p < q) + 2 * (p == q) + 4 * !(p < q), "compare");
  }
  const auto out2 = device.memory.allocate(kCount * 4);
  result = device.launch("half2_arithmetic", kGrid, kBlock, dx, dy, out2, kCount / 2);
  INFO(result.message);
  REQUIRE(result.ok());
  for (std::size_t i = 0; i < kCount; ++i) {
    const double p = halfValue(x[i]);
    const double q = halfValue(y[i]);
    const auto* const r = device.memory.host<std::uint16_t>(out2) + (i / 2) * 4 + i % 2;
    INFO("operands " << p << " " << q);
    same16(r[0], static_cast<double>(static_cast<long double>(p) * q + p), "fma2");
    same16(r[2], p + q, "add2");
  }
  const auto out3 = device.memory.allocate(kCount * 6);
  result = device.launch("bf16_arithmetic", kGrid, kBlock, dx, dy, out3, kCount);
  INFO(result.message);
  REQUIRE(result.ok());
  for (std::size_t i = 0; i < kCount; ++i) {
    const double p = bfloatValue(x[i]);
    const double q = bfloatValue(y[i]);
    const auto* const r = device.memory.host<std::uint16_t>(out3) + i * 3;
    const auto check = [&](std::uint16_t got, double exact, const char* what) {
      INFO(what << " of " << p << " and " << q << " got " << bfloatValue(got));
      if (exact != exact)
        REQUIRE(bfloatValue(got) != bfloatValue(got));
      else
        REQUIRE(got == nearest(exact, 0, bfloatValue, 0x7F80));
    };
    // A product or sum is rounded to f32 first where the target has no instruction of its own; that
    // may show.
    if (std::string(file) == "convert_sm90") {
      check(r[0], p + q, "add");
      check(r[1], p * q, "mul");
    }
  }
}
