#include <chrono>
#include <set>
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

const char* anyFile() { return GENERATE("control", "control_debug", "control_sm90"); }

}  // namespace

TEST_CASE("ptx: divergent loops reconverge", "[ptx]") {
  const std::string file = anyFile();
  INFO(file);
  Device device = Device::fromFile(file);
  constexpr int kCount = 1000;
  std::vector<unsigned> in(kCount);
  for (int i = 0; i < kCount; ++i)
    in[static_cast<std::size_t>(i)] = static_cast<unsigned>(i) * 7 + 1;
  const auto out = device.memory.allocate(kCount * 4);
  const auto active = device.memory.allocate(kCount * 4);
  mustSucceed(device.launch("collatz", Dim3{8}, Dim3{128}, device.upload(in), out, active, kCount));
  for (int i = 0; i < kCount; ++i) {
    unsigned x = in[static_cast<std::size_t>(i)];
    unsigned steps = 0;
    while (x != 1 && steps <= 1000) {
      x = (x & 1) != 0 ? 3 * x + 1 : x >> 1;
      ++steps;
    }
    REQUIRE(device.memory.host<unsigned>(out)[i] == steps);
    // Without optimisation the mask is taken before the lanes that left by `break` have joined, in
    // either case.
    if (file != "control_debug")
      REQUIRE(device.memory.host<unsigned>(active)[i] == (i < 992 ? 0xFFFFFFFFU : 0xFFU));
  }
}

TEST_CASE("ptx: switch", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr int kCount = 512;
  std::mt19937 random(1);
  std::vector<int> in(kCount);
  for (int& x : in) x = static_cast<int>(random() % 9);
  const auto out = device.upload(std::vector<int>(kCount, -7));
  mustSucceed(device.launch("switches", Dim3{4}, Dim3{128}, device.upload(in), out, kCount));
  for (int i = 0; i < kCount; ++i) {
    int r = 0;
    switch (in[static_cast<std::size_t>(i)]) {
      case 0:
        r = i * 3;
        break;
      case 1:
        r = i ^ 0x55;
        break;
      case 2:
        r = i + 107;
        break;
      case 3:
        r = 7;
        break;
      case 4:
        for (int k = 0; k < i % 9; ++k) r += k * k;
        break;
      case 5:
        r = -i;
        break;
      case 6:
        r = -7;
        break;
      default:
        r = 42;
        break;
    }
    REQUIRE(device.memory.host<int>(out)[i] == r);
  }
}

TEST_CASE("ptx: recursion, function pointers, virtual functions", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const auto out = device.memory.allocate(256 * 4);
  mustSucceed(device.launch("recursion", Dim3{1}, Dim3{64}, out));
  const unsigned fibonacci[13] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144};
  const auto ackermann = [](unsigned m, unsigned n) {
    return m == 0 ? n + 1 : m == 1 ? n + 2 : 2 * n + 3;
  };
  for (unsigned i = 0; i < 64; ++i) {
    REQUIRE(device.memory.host<unsigned>(out)[i] ==
            fibonacci[i % 13] + 1000 * ackermann(i % 3, i % 4));
  }
  mustSucceed(device.launch("pointers", Dim3{1}, Dim3{96}, out));
  for (int i = 0; i < 96; ++i) {
    const int f = i % 3 == 0 ? 2 * i : i % 3 == 1 ? i * i : -i;
    REQUIRE(device.memory.host<int>(out)[i] == f * 1000 + (i % 2 != 0 ? i * i : i * 3));
  }
  const LaunchResult result = device.launch("overflow", Dim3{1}, Dim3{32}, out);
  REQUIRE(result.status == LaunchStatus::kStackOverflow);
}

TEST_CASE("ptx: block barriers", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> in(1024);
  for (int i = 0; i < 1024; ++i) in[static_cast<std::size_t>(i)] = i * 37 % 211 - 100;
  const auto a = device.upload(in);
  const auto out = device.memory.allocate(4096 * 4);
  const int* const r = device.memory.host<int>(out);
  device.config.dynamic_shared_bytes = 128;
  mustSucceed(device.launch("transpose_sum", Dim3{1}, Dim3{32, 32}, a, out));
  for (int y = 0; y < 32; ++y) {
    int sum = 0;
    for (int k = 0; k < 32; ++k) sum += in[static_cast<std::size_t>(k) * 32 + y];
    for (int x = 0; x < 32; ++x)
      REQUIRE(r[y * 32 + x] == in[static_cast<std::size_t>(x) * 32 + y] + sum);
  }
  device.config.dynamic_shared_bytes = 0;

  mustSucceed(device.launch("barrier_votes", Dim3{1}, Dim3{1000}, a, out));
  int count = 0;
  bool all = true;
  bool any = false;
  for (std::size_t i = 0; i < 1000; ++i) {
    count += in[i] > 0;
    all = all && in[i] > -100;
    any = any || in[i] == 77;
  }
  for (int i = 0; i < 1000; ++i) REQUIRE(r[i] == count * 4 + all * 2 + any);

  mustSucceed(device.launch("early_exit", Dim3{1}, Dim3{250}, out, 0));
  int sum = 0;
  for (int i = 0; i < 250; ++i) sum += i % 3 == 1 ? 0 : i;
  for (int i = 0; i < 250; ++i) {
    if (i % 3 != 1) REQUIRE(r[i] == sum);
  }

  mustSucceed(device.launch("named_barriers", Dim3{1}, Dim3{128}, out));
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 64; ++i) REQUIRE(r[round * 64 + i] == (63 - i) * round);
  }

  mustSucceed(device.launch("divergent_barrier", Dim3{1}, Dim3{64}, out));
  for (int i = 0; i < 64; ++i) REQUIRE(r[i] == 5);
}

TEST_CASE("ptx: operations between lanes", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> in(64);
  for (int i = 0; i < 64; ++i) in[static_cast<std::size_t>(i)] = (i * 13) % 29 - 9;
  const auto out = device.memory.allocate(64 * 64);
  mustSucceed(device.launch("warp_ops", Dim3{1}, Dim3{64}, device.upload(in), out));
  const int* const all = device.memory.host<int>(out);
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32;
    const int* const w = in.data() + (i - lane);
    const int x = w[lane];
    const int* const r = all + i * 16;
    INFO("thread " << i);
    CHECK(r[0] == w[lane * 7 % 32]);
    CHECK(r[1] == (lane >= 3 ? w[lane - 3] : x));
    CHECK(r[2] == (lane + 5 < 32 ? w[lane + 5] : x));
    CHECK(r[3] == w[lane ^ 9]);
    CHECK(r[4] == w[lane / 8 * 8 + (lane + 2) % 8]);
    CHECK(r[5] == (lane % 16 + 3 < 16 ? w[lane + 3] : x));
    unsigned ballot = 0;
    unsigned same_low = 0;
    bool has3 = false;
    bool all_above = true;
    for (int k = 0; k < 32; ++k) {
      ballot |= static_cast<unsigned>(w[k] > 0) << k;
      same_low |= static_cast<unsigned>((w[k] & 3) == (x & 3)) << k;
      has3 = has3 || w[k] == 3;
      all_above = all_above && w[k] > -1000;
    }
    CHECK(static_cast<unsigned>(r[6]) == ballot);
    CHECK(r[7] == has3 + 2 * all_above);
    CHECK(static_cast<unsigned>(r[8]) == same_low);
    CHECK(r[9] == 0);  // -1 and the predicate 1, or 0 and 0
    CHECK(r[10] == w[lane ^ 1] * 2);
    CHECK(r[11] == w[lane % 2 != 0 ? 5 : 6]);
    CHECK(r[12] == 32);
    CHECK(r[13] ==
          (x > 0 ? std::popcount(ballot) * 100 + std::popcount(ballot & ((1U << lane) - 1)) : -1));
    int sum = 0;
    for (int k = 0; k < 8; ++k) sum += w[lane / 8 * 8 + k];
    CHECK(r[14] == sum);
    CHECK(static_cast<unsigned>(r[15]) == 0xFFFFFFFFU);
  }
}

TEST_CASE("ptx: parts of a warp that operate each by themselves", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  std::vector<int> in(64);
  for (int i = 0; i < 64; ++i)
    in[static_cast<std::size_t>(i)] = i >= 52 ? 16 + i % 2 : (i * 13) % 29 - 9;
  const auto out = device.memory.allocate(64 * 6 * 4);
  for (const int apart : {0, 1}) {
    std::memset(device.memory.host<char>(out), 0xAA, 64 * 6 * 4);
    mustSucceed(device.launch("teams", Dim3{1}, Dim3{64}, device.upload(in), out, apart));
    for (int i = 0; i < 64; ++i) {
      const int lane = i % 32;
      const int* const w = in.data() + (i - lane);
      const int begin = lane < 8 ? 0 : lane < 20 ? 8 : 20, end = lane < 8 ? 8 : lane < 20 ? 20 : 32;
      unsigned positive = 0, low = 0, high = 0, all = 0;
      bool any3 = false, above = true;
      int sum = 0;
      for (int k = begin; k < end; ++k) {
        positive |= static_cast<unsigned>(w[k] > 0) << k;
        low |= static_cast<unsigned>((w[k] & 3) == (w[lane] & 3)) << k;
        high |= static_cast<unsigned>(w[k] >> 4 == w[lane] >> 4) << k;
        all |= 1U << k;
        any3 |= w[k] == 3;
        above &= w[k] > -9;
        sum += w[k];
      }
      const unsigned expected[6] = {positive,
                                    static_cast<unsigned>(any3) | static_cast<unsigned>(above) << 1,
                                    low,
                                    high == all ? all | 1U << 31 : 0,
                                    static_cast<unsigned>(w[begin]),
                                    static_cast<unsigned>(sum)};
      for (int k = 0; k < 6; ++k) {
        INFO("apart " << apart << " thread " << i << " operation " << k);
        CHECK(device.memory.host<unsigned>(out)[i * 6 + k] == expected[k]);
      }
    }
  }
}

TEST_CASE("ptx: lanes and blocks that wait for each other make progress", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const auto lock = device.upload(std::vector<int>{0, 0});
  mustSucceed(device.launch("spin_lock", Dim3{8}, Dim3{64}, lock, lock + 4));
  CHECK(device.memory.host<int>(lock)[1] == 512);
  const auto flag = device.upload(std::vector<int>{0});
  const auto out = device.upload(std::vector<int>{0});
  mustSucceed(device.launch("wait_for_other", Dim3{20}, Dim3{32}, flag, out));
  CHECK(device.memory.host<int>(out)[0] == 1);
}

TEST_CASE("ptx: cooperative grid synchronisation", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  constexpr std::uint32_t kBlocks = 100;
  constexpr std::uint32_t kThreads = kBlocks * 96;
  const auto data = device.memory.allocate(kThreads * 4);
  const auto out = device.memory.allocate(kThreads * 4);
  REQUIRE(device.module->kernel("grid_sync")->info().uses_grid_workspace);
  device.config.cooperative = true;
  device.config.grid_workspace = device.memory.allocate(kGridWorkspaceBytes);
  mustSucceed(device.launch("grid_sync", Dim3{kBlocks}, Dim3{96}, data, out));
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    REQUIRE(device.memory.host<std::uint32_t>(out)[i] == 3 * ((i + kThreads / 2) % kThreads) + 3);
  }
}

TEST_CASE("ptx: printf, assert, trap", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  mustSucceed(device.launch("prints", Dim3{1}, Dim3{32}, 2));
  CHECK(device.sink.messages() == 2);
  CHECK(device.sink.text() ==
        "thread 0 of 32:  0.00 text c 1234567890123 ff %\n"
        "thread 1 of 32:  0.50 text c 1234567890123 ff %\n");
  std::vector<int> in(64, 1);
  mustSucceed(device.launch("asserts", Dim3{1}, Dim3{64}, device.upload(in)));
  mustSucceed(device.launch("traps", Dim3{1}, Dim3{64}, device.upload(in)));
  in[40] = -1;
  LaunchResult result = device.launch("asserts", Dim3{1}, Dim3{64}, device.upload(in));
  CHECK(result.status == LaunchStatus::kAssert);
  CHECK(device.sink.text().find("thread: [40,0,0] Assertion `in[threadIdx.x] >= 0` failed.") !=
        std::string::npos);
  result = device.launch("traps", Dim3{1}, Dim3{64}, device.upload(in));
  CHECK(result.status == LaunchStatus::kTrap);
  CHECK(result.thread.x == 40);
  CHECK(result.kernel == "traps");
}

TEST_CASE("ptx: a deadlock is found, a launch can be cancelled", "[ptx]") {
  Device device = Device::fromFile("control");
  CHECK(device.launch("deadlock", Dim3{1}, Dim3{64}).status == LaunchStatus::kDeadlock);
  const auto flag = device.upload(std::vector<int>{0});
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    device.cancel.store(true);
  });
  CHECK(device.launch("endless_loop", Dim3{4}, Dim3{64}, flag).status == LaunchStatus::kCancelled);
  canceller.join();
}

TEST_CASE("ptx: module variables and their initialisers", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const auto out = device.memory.allocate(64 * 4);
  mustSucceed(device.launch("globals", Dim3{1}, Dim3{16}, out));
  const int constants[8] = {2, 3, 5, 7, 11, 13, 17, 19};
  for (int i = 0; i < 16; ++i) CHECK(device.memory.host<int>(out)[i] == constants[i % 8] + 3);
  CHECK(device.memory.host<int>(device.module->globalAddress("counters"))[1] == 100);
}

TEST_CASE("ptx: memory from the stack", "[ptx]") {
  Device device = Device::fromFile(anyFile());
  const auto out = device.memory.allocate(128 * 16);
  constexpr int kWords = 20;
  mustSucceed(device.launch("from_stack", Dim3{4}, Dim3{128}, out, kWords));
  for (int t = 0; t < 128; ++t) {
    const int count = t % 13 + kWords;
    const int all = count * (count - 1) / 2 * t;
    int sum = all;
    for (int k = 0; k < 50; ++k) sum += 2 * all + kWords + k % 4;
    for (int k = 1; k < 5; ++k) sum += k * (k - 1) / 2 * k;
    if (t % 3 == 0) {
      for (int depth = 5, n = t % 4 + 1; depth >= 0; --depth, ++n)
        sum += n * depth + n * (n - 1) / 2;
    }
    for (int block = 0; block < 4; ++block)
      REQUIRE(device.memory.host<int>(out)[block * 128 + t] == sum);
  }
  const LaunchResult result = device.launch("from_stack", Dim3{1}, Dim3{32}, out, 1 << 20);
  CHECK(result.status == LaunchStatus::kStackOverflow);
  CHECK(result.message.find("alloca of") != std::string::npos);

  mustSucceed(device.launch("saved_stack", Dim3{1}, Dim3{64}, out));
  for (int t = 0; t < 64; ++t) {
    CHECK(device.memory.host<std::uint64_t>(out)[t * 2] < 16);
    CHECK(device.memory.host<std::uint64_t>(out)[t * 2 + 1] == 0);
  }
}

TEST_CASE("ptx: structures by value", "[ptx]") {
  struct Big {
    int a[20];
    double d;
    char c;
  };
  Device device = Device::fromFile(anyFile());
  Big in{};
  for (int i = 0; i < 20; ++i) in.a[i] = i * i;
  in.d = 1.25;
  in.c = 'x';
  const auto out = device.memory.allocate(40 * sizeof(Big));
  mustSucceed(device.launch("by_value", Dim3{1}, Dim3{40}, in, out));
  const Big* const r = device.memory.host<Big>(out);
  for (int t = 0; t < 40; ++t) {
    for (int i = 0; i < 20; ++i) REQUIRE(r[t].a[i] == i * i + (t % 20 == i ? t : 0));
    REQUIRE(r[t].d == 2.5);
    REQUIRE(r[t].c == 'x');
  }
}
