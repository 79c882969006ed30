#include "tests/catch.h"
#include "tests/unit/ptx/harness.h"

using namespace olpager::simgpu::ptx;
using namespace olpager::simgpu::ptx::test;

namespace {

void mustSucceed(const LaunchResult& result) {
  INFO(result.message);
  REQUIRE(result.ok());
}

const char* anyFile() { return GENERATE("newer_sm90", "newer_sm100", "newer_sm90_debug"); }

}  // namespace

TEST_CASE("ptx: clusters", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const auto out = device.memory.allocate(8 * 64 * 4);
  REQUIRE(device.module->kernel("clusters")->info().reqnctapercluster[0] == 2);
  device.config.cluster = Dim3{2, 1, 1};
  mustSucceed(device.launch("clusters", Dim3{8}, Dim3{64}, out));
  for (int b = 0; b < 8; ++b) {
    for (int t = 0; t < 64; ++t)
      REQUIRE(device.memory.host<int>(out)[b * 64 + t] == ((b ^ 1) + 1) * 10 + t * 1000);
  }
  CHECK(device.launch("clusters", Dim3{7}, Dim3{64}, out).status == LaunchStatus::kInvalidConfig);
}

TEST_CASE("ptx: warp reductions and election", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> values(64);
  std::vector<unsigned> maxima(64);
  for (int i = 0; i < 64; ++i) {
    values[static_cast<std::size_t>(i)] = i * i - 500;
    maxima[static_cast<std::size_t>(i)] = static_cast<unsigned>(i * 37 % 64);
  }
  const auto v = device.upload(values);
  const auto m = device.upload(maxima);
  const auto e = device.memory.allocate(64 * 4);
  mustSucceed(device.launch("warp_reduce", Dim3{1}, Dim3{64}, v, m, e));
  for (int i = 0; i < 64; ++i) {
    int sum = 0;
    unsigned max = 0;
    for (int k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) {
      sum += values[static_cast<std::size_t>(k)];
      max = std::max(max, maxima[static_cast<std::size_t>(k)]);
    }
    REQUIRE(device.memory.host<int>(v)[i] == sum);
    REQUIRE(device.memory.host<unsigned>(m)[i] == max);
    REQUIRE(device.memory.host<unsigned>(e)[i] / 32 == static_cast<unsigned>(i / 32));
  }
}

TEST_CASE("ptx: asynchronous copies, vector atomics, shared barriers, 128-bit compare-and-swap",
          "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> in(256);
  for (int i = 0; i < 256; ++i) in[static_cast<std::size_t>(i)] = i;
  const auto out = device.memory.allocate(1024);
  device.config.dynamic_shared_bytes = 1024;
  mustSucceed(device.launch("async_copy", Dim3{1}, Dim3{64}, device.upload(in), out));
  for (int i = 0; i < 64; ++i) REQUIRE(device.memory.host<int>(out)[i * 4 + 1] == (63 - i) * 4 + 1);
  device.config.dynamic_shared_bytes = 0;

  const auto sums = device.upload(std::vector<float>(4));
  const auto maxima = device.upload(std::vector<float>{3, 1, 2, 9, 4, 5, 0, 0});
  mustSucceed(device.launch("vector_atomics", Dim3{3}, Dim3{32}, sums, maxima, 8));
  for (int i = 0; i < 4; ++i)
    CHECK(device.memory.host<float>(sums)[i] == 96.0F * static_cast<float>(i + 1));
  CHECK(device.memory.host<float>(maxima)[3] == 9.0F);

  const auto boxes = device.upload(std::vector<int>(128));
  mustSucceed(device.launch("shared_barrier", Dim3{1}, Dim3{128}, boxes));
  for (int i = 0; i < 128; ++i) REQUIRE(device.memory.host<int>(boxes)[i] == (i + 1) % 128 * 6);

  const auto pair = device.upload(std::vector<std::int64_t>{5, 5});
  const auto counter = device.upload(std::vector<int>{0});
  mustSucceed(device.launch("wide_cas", Dim3{8}, Dim3{64}, pair, counter));
  CHECK(device.memory.host<std::int64_t>(pair)[0] == 517);
  CHECK(device.memory.host<std::int64_t>(pair)[1] == -507);
  CHECK(device.memory.host<int>(counter)[0] == 512);
}

TEST_CASE("ptx: copies that a barrier in shared memory is told of", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr int kRounds = 5;
  std::vector<int> data(kRounds * 256);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i * 7919 % 100003);
  const auto in = device.upload(data);
  const auto value = [&](int i) { return data[static_cast<std::size_t>(i)]; };

  constexpr int kWords = 253;  // the last copy is not of 16 bytes
  const auto copies = device.memory.allocate(9 * 256 * 4);
  mustSucceed(device.launch("barrier_copies", Dim3{1}, Dim3{256}, in, copies, kWords));
  const int* r = device.memory.host<int>(copies);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 256; ++i) {
      if (i < kWords) REQUIRE(r[round * 3 * 256 + i] == value(round * 256 + kWords - 1 - i));
      REQUIRE(r[(round * 3 + 1) * 256 + i] == value(round * 256 + 255 - i));
      REQUIRE(r[(round * 3 + 2) * 256 + i] == value(round * 256 + 255 - i));
    }
  }

  const auto staged = device.memory.allocate((kRounds + 1) * 256 * 4);
  mustSucceed(device.launch("pipelines", Dim3{1}, Dim3{256}, in, staged, kRounds));
  r = device.memory.host<int>(staged);
  for (int i = 0; i < kRounds * 256; ++i) REQUIRE(r[i] == value(i / 256 * 256 + 255 - i % 256));
  for (int i = 0; i < 256; ++i) REQUIRE(r[kRounds * 256 + i] == value((i + 7) % 256));

  const auto bulk = device.memory.allocate(128 * 4);
  const auto phases = device.memory.allocate(4 * 4);
  mustSucceed(device.launch("bulk_copies", Dim3{1}, Dim3{64}, in, bulk, phases));
  r = device.memory.host<int>(bulk);
  for (int i = 0; i < 64; ++i) {
    REQUIRE(r[i] == value(63 - i));
    REQUIRE(r[64 + i] == value(i) + 1);
  }
  CHECK(device.download<int>(phases, 4) == std::vector<int>{3, 0, 1, 0});
  CHECK(device.launch("bulk_copies", Dim3{1}, Dim3{64}, in + 4, bulk, phases).status ==
        LaunchStatus::kMisaligned);
  CHECK(device.launch("bulk_copies", Dim3{1}, Dim3{64}, in + data.size() * 4 - 64, bulk, phases)
            .status == LaunchStatus::kIllegalAddress);
}

TEST_CASE("ptx: matrix products of doubles", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<double> a(32), b(32), c(64);
  for (std::size_t i = 0; i < 32; ++i) {
    a[i] = static_cast<double>(i * 7 % 13) - 6;
    b[i] = static_cast<double>(i * 5 % 11) / 8;
  }
  for (std::size_t i = 0; i < 64; ++i) c[i] = static_cast<double>(i) / 4;
  const auto d = device.memory.allocate(64 * 8);
  mustSucceed(device.launch("mma_doubles", Dim3{1}, Dim3{32}, device.upload(a), device.upload(b),
                            device.upload(c), d));
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      double sum = c[row * 8 + column];
      for (std::size_t k = 0; k < 4; ++k) sum += a[row * 4 + k] * b[k * 8 + column];
      REQUIRE(device.memory.host<double>(d)[row * 8 + column] == sum);
    }
  }
}
