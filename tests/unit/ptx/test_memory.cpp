#include <cmath>
#include <thread>

#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"
#include "tests/unit/ptx/random.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

void mustSucceed(const LaunchResult& result) {
  INFO(result.message);
  REQUIRE(result.ok());
}

const char* anyFile() { return GENERATE("memory", "memory_debug", "memory_sm100"); }

}  // namespace

TEST_CASE("ptx: vector add with a ragged end", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr int kCount = 100'003;
  std::vector<float> a(kCount);
  std::vector<float> b(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i) * 0.5F;
    b[i] = 1000.0F - static_cast<float>(i);
  }
  const auto c = device.memory.allocate(kCount * 4);
  mustSucceed(device.launch("vector_add", Dim3{(kCount + 255) / 256}, Dim3{256}, device.upload(a),
                            device.upload(b), c, kCount));
  for (std::size_t i = 0; i < kCount; ++i) REQUIRE(device.memory.host<float>(c)[i] == a[i] + b[i]);
}

TEST_CASE("ptx: vector and strided accesses", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr std::uint32_t kCount = 256;
  std::vector<std::uint32_t> words(kCount * 8);
  for (std::uint32_t i = 0; i < words.size(); ++i)
    words[i] = i * 2654435761U & 0x7F7FFFFFU;  // no NaN among them
  const auto in = device.upload(words);
  const auto oa = device.memory.allocate(kCount * 16);
  const auto ob = device.memory.allocate(kCount * 8);
  const auto oc = device.memory.allocate(kCount * 4);
  const auto od = device.memory.allocate(kCount * 16);
  mustSucceed(device.launch("vectors", Dim3{4}, Dim3{64}, in, in, in, in, oa, ob, oc, od));
  for (std::uint32_t i = 0; i < kCount; ++i) {
    for (std::uint32_t k = 0; k < 4; ++k) {
      REQUIRE(device.memory.host<std::uint32_t>(oa)[i * 4 + k] == words[i * 4 + 3 - k]);
      REQUIRE(device.memory.host<std::uint32_t>(od)[i * 4 + k] == words[i * 4 + (k + 2) % 4]);
    }
    for (std::uint32_t k = 0; k < 2; ++k)
      REQUIRE(device.memory.host<std::uint32_t>(ob)[i * 2 + k] == words[i * 2 + 1 - k]);
    REQUIRE(device.memory.host<std::uint32_t>(oc)[i] == __builtin_bswap32(words[i]));
  }
  std::vector<std::int16_t> shorts(1000);
  for (std::size_t i = 0; i < shorts.size(); ++i)
    shorts[i] = static_cast<std::int16_t>(i * 77 - 30000);
  const auto out = device.memory.allocate(1000);
  mustSucceed(device.launch("strided", Dim3{8}, Dim3{128}, device.upload(shorts), out, 7, 1000));
  for (std::size_t i = 0; i < 1000; ++i) {
    REQUIRE(device.memory.host<std::int8_t>(out)[i] ==
            static_cast<std::int8_t>(shorts[i * 7 % 1000]));
  }
  std::vector<int> ints(32);
  for (int i = 0; i < 32; ++i) ints[static_cast<std::size_t>(i)] = i * 3;
  mustSucceed(device.launch("cached", Dim3{1}, Dim3{32}, device.upload(ints), oa));
  for (int i = 0; i < 32; ++i) CHECK(device.memory.host<int>(oa)[i] == i * 12 + 1);
}

TEST_CASE("ptx: illegal and misaligned addresses stop the launch", "[ptx]") {
  Device device = Device::fromFile("memory");
  const auto good = device.memory.allocate(4096);
  const auto read_only = device.memory.allocate(4096, false);
  mustSucceed(device.launch("read_at", Dim3{1}, Dim3{32}, read_only, good));

  LaunchResult r = device.launch("read_at", Dim3{1}, Dim3{32}, good + 4096 - 40, good);
  CHECK(r.status == LaunchStatus::kIllegalAddress);
  CHECK(r.address == good + 4096);
  CHECK_FALSE(r.write);
  CHECK(r.thread.x == 10);
  CHECK(r.kernel == "read_at");
  CHECK(r.line > 0);
  CHECK(r.message.find("read_at") != std::string::npos);

  r = device.launch("write_at", Dim3{1}, Dim3{32}, std::uint64_t{0});
  CHECK(r.status == LaunchStatus::kIllegalAddress);
  CHECK(r.address == 0);
  CHECK(r.write);
  r = device.launch("write_at", Dim3{1}, Dim3{32}, read_only);
  CHECK(r.status == LaunchStatus::kIllegalAddress);
  CHECK(r.write);
  r = device.launch("read_at", Dim3{1}, Dim3{32}, good + 2, good);
  CHECK(r.status == LaunchStatus::kMisaligned);
  CHECK(r.address == good + 2);
  r = device.launch("read_at", Dim3{1}, Dim3{32}, ~std::uint64_t{0} - 3, good);
  CHECK(r.status == LaunchStatus::kIllegalAddress);
  // The cached translation of a run dies with its mapping.
  mustSucceed(device.launch("write_at", Dim3{1}, Dim3{32}, good));
  device.memory.unmap(good);
  CHECK(device.launch("write_at", Dim3{1}, Dim3{32}, good).status == LaunchStatus::kIllegalAddress);
  CHECK(device.launch("write_at", Dim3{1}, Dim3{2048}, good).status ==
        LaunchStatus::kInvalidConfig);
}

TEST_CASE("ptx: atomics of every type", "[ptx]") {
  const std::string file = anyFile();
  INFO(file);
  Device device = Device::fromFile(file);
  constexpr std::uint32_t kThreads = 16 * 64;
  const auto i32 = device.upload(std::vector<int>{0, 1000, -5, 0});
  const auto u32 = device.upload(std::vector<std::uint32_t>{~0U, 0, 0, 0, 0, 1});
  const auto u64 = device.upload(std::vector<std::uint64_t>{0, 0, 0});
  const auto f32 = device.upload(std::vector<float>{0});
  const auto f64 = device.upload(std::vector<double>{0});
  const auto h2 = device.upload(std::vector<std::uint16_t>{0, 0});
  const auto b2 = device.upload(std::vector<std::uint16_t>{0, 0});
  const auto u16 = device.upload(std::vector<std::uint16_t>{0, 0x5555});
  mustSucceed(device.launch("atomics", Dim3{16}, Dim3{64}, i32, u32, u64, f32, f64, h2, b2, u16));
  const int* const i = device.memory.host<int>(i32);
  int sum = 0;
  std::uint32_t bits = 0;
  std::uint32_t inc = 0;
  std::uint32_t dec = 0;
  int max = -5;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    sum += static_cast<int>(t) - 100;
    bits ^= t;
    inc = inc >= 1000 ? 0 : inc + 1;
    dec = dec == 0 || dec > 50 ? 50 : dec - 1;
    max = std::max(max, static_cast<int>(t * 7 % 1001));
  }
  CHECK(i[0] == sum);
  CHECK(i[1] == -500);
  CHECK(i[2] == max);
  CHECK(i[3] == -2 * static_cast<int>(kThreads));
  const auto* const u = device.memory.host<std::uint32_t>(u32);
  CHECK(u[0] == 0);
  CHECK(u[1] == ~0U);
  CHECK(u[2] == bits);
  CHECK(u[3] == inc);
  CHECK(u[4] == dec);
  CHECK(u[5] == 7);
  const auto* const l = device.memory.host<std::uint64_t>(u64);
  CHECK(l[0] == (std::uint64_t{kThreads} * (kThreads - 1) / 2) << 20);
  CHECK(l[1] == std::uint64_t{kThreads - 1} << 33);
  CHECK(l[2] == 3 * kThreads);
  CHECK(*device.memory.host<float>(f32) == kThreads);
  CHECK(*device.memory.host<double>(f64) == kThreads * 0.5);
  CHECK(device.memory.host<std::uint16_t>(h2)[0] == 0x5C00);  // 256
  CHECK(device.memory.host<std::uint16_t>(h2)[1] == 0x6400);  // 1024
  CHECK(device.memory.host<std::uint16_t>(b2)[0] ==
        0x4380);  // 256: above it, 1 is half of the last place, and a tie goes to even
  CHECK(device.memory.host<std::uint16_t>(b2)[1] == 0x4300);  // 128
  CHECK(device.memory.host<std::uint16_t>(u16)[0] == kThreads);
  CHECK(device.memory.host<std::uint16_t>(u16)[1] == 0x5555);
}

TEST_CASE("ptx: shared-memory histogram and shuffle reduction", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const std::uint64_t seed = freshSeed();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  constexpr int kCount = 50'000;
  std::vector<std::uint8_t> bytes(kCount);
  std::vector<float> numbers(kCount);
  std::vector<std::uint32_t> expected(256);
  double sum = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    bytes[i] = static_cast<std::uint8_t>(random() % 200);
    ++expected[bytes[i]];
    numbers[i] = static_cast<float>(random() % 1000) * 0.25F;
    sum += numbers[i];
  }
  const auto out = device.upload(std::vector<std::uint32_t>(256));
  mustSucceed(device.launch("histogram", Dim3{7}, Dim3{192}, device.upload(bytes), out, kCount));
  CHECK(device.download<std::uint32_t>(out, 256) == expected);
  const auto total = device.upload(std::vector<double>{0});
  mustSucceed(device.launch("reduce", Dim3{9}, Dim3{256}, device.upload(numbers), total, kCount));
  CHECK(*device.memory.host<double>(total) == sum);
}

TEST_CASE("ptx: tiled matrix product", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr int kN = 64;
  std::vector<float> a(kN * kN);
  std::vector<float> b(kN * kN);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 7) - 3;
    b[i] = static_cast<float>(i % 5) * 0.5F;
  }
  const auto c = device.memory.allocate(kN * kN * 4);
  mustSucceed(
      device.launch("matmul", Dim3{4, 4}, Dim3{16, 16}, device.upload(a), device.upload(b), c, kN));
  for (int y = 0; y < kN; ++y) {
    for (int x = 0; x < kN; ++x) {
      float sum = 0;
      for (int k = 0; k < kN; ++k)
        sum += a[static_cast<std::size_t>(y * kN + k)] * b[static_cast<std::size_t>(k * kN + x)];
      REQUIRE(device.memory.host<float>(c)[y * kN + x] == sum);
    }
  }
}

TEST_CASE("ptx: local memory and generic pointers", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> in(64);
  for (int i = 0; i < 64; ++i) in[static_cast<std::size_t>(i)] = (i * 29) % 64;
  const auto out = device.memory.allocate(64 * 4);
  mustSucceed(device.launch("local_memory", Dim3{1}, Dim3{64}, device.upload(in), out));
  for (int t = 0; t < 64; ++t) {
    const auto mine = [&](int i) { return in[static_cast<std::size_t>((t + i) % 64)] * i; };
    const int k = in[static_cast<std::size_t>(t)] & 15;
    REQUIRE(device.memory.host<int>(out)[t] == (t % 2 != 0 ? mine(k) : k * 11) + mine(t & 15));
  }
}

TEST_CASE("ptx: mappings change while kernels run", "[ptx]") {
  Device device = Device::fromFile("memory");
  constexpr int kCount = 20'000;
  const auto a = device.upload(std::vector<float>(kCount, 1.0F));
  const auto b = device.upload(std::vector<float>(kCount, 2.0F));
  std::atomic<bool> stop{false};
  std::thread mapper([&] {
    while (!stop.load()) {
      const auto va = device.memory.allocate(4096);
      device.memory.unmap(va);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto c = device.memory.allocate(kCount * 4);
    const LaunchResult r =
        device.launch("vector_add", Dim3{(kCount + 127) / 128}, Dim3{128}, a, b, c, kCount);
    CHECK(r.ok());
    CHECK(device.memory.host<float>(c)[kCount - 1] == 3.0F);
  }
  stop.store(true);
  mapper.join();
}
