// The engine's calls for an extent that comes to VRAM and one that leaves, and for host memory, as
// counts: a regression shows whatever the machine is.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

enum Call : unsigned { kCreate, kRelease, kMap, kSetAccess, kUnmap, kLaunch, kCalls };
std::array<std::atomic<uint64_t>, kCalls> calls;

/// Puts a function that counts in place of the table's.
template <Call call, auto member>
void count(DriverApi& api) {
  static auto original = api.*member;
  original = api.*member;
  api.*member = [](auto... arguments) {
    calls[call].fetch_add(1, std::memory_order_relaxed);
    return original(arguments...);
  };
}

void countCalls(DriverApi& api) {
  count<kCreate, &DriverApi::cuMemCreate>(api);
  count<kRelease, &DriverApi::cuMemRelease>(api);
  count<kMap, &DriverApi::cuMemMap>(api);
  count<kSetAccess, &DriverApi::cuMemSetAccess>(api);
  count<kUnmap, &DriverApi::cuMemUnmap>(api);
  count<kLaunch, &DriverApi::cuLaunchKernel>(api);
}

/// Host memory is made one chunk at a time, at a quarter of a GB a second: so many nanoseconds for
/// each byte.
std::atomic<uint64_t> host_pace{4};
void makeHostSlowly(DriverApi& api) {
  static auto original = api.cuMemCreate;
  original = api.cuMemCreate;
  api.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
    if (properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      static std::mutex driver_lock;
      const std::lock_guard lock(driver_lock);
      std::this_thread::sleep_for(std::chrono::nanoseconds(host_pace.load() * bytes));
    }
    return original(handle, bytes, properties, flags);
  };
}

/// The calls for each extent that came to VRAM in some rounds.
struct Cost {
  uint64_t extents = 0;
  std::array<double, kCalls> each{};
};

/// Until the engine has nothing more to do: what comes next has come ahead.
void settle(Rig& rig) {
  constexpr int kQuiet = 5;
  const auto moves = [&] {
    return valueOf(rig.figures().prefetches_issued) + valueOf(rig.figures().evictions_clean) +
           valueOf(rig.figures().evictions_written);
  };
  uint64_t before = moves();
  for (int quiet = 0; quiet < kQuiet; ++quiet) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (const uint64_t now = moves(); now != before) {
      before = now;
      quiet = -1;
    }
  }
}

/// A round names each of the regions in the same order. Some rounds teach it, the rest is counted.
Cost costOf(Rig& rig, const std::vector<std::pair<CUdeviceptr, uint64_t>>& regions) {
  constexpr int kTaught = 3, kCounted = 2;
  const CUstream stream = rig.makeStream();
  const auto round = [&] {
    for (const auto& [address, bytes] : regions) {
      rig.fill(address, bytes, address, stream);
      mustSucceed(driver().api.cuStreamSynchronize(stream), "cuStreamSynchronize");
      settle(rig);
    }
  };
  for (int i = 0; i < kTaught; ++i) round();
  const auto came = [&] {
    return valueOf(rig.figures().demand_faults) + valueOf(rig.figures().prefetches_issued);
  };
  const uint64_t before = came();
  std::array<uint64_t, kCalls> calls_before{};
  for (unsigned i = 0; i < kCalls; ++i) calls_before[i] = calls[i].load();
  for (int i = 0; i < kCounted; ++i) round();
  Cost cost;
  cost.extents = came() - before;
  for (unsigned i = 0; i < kCalls; ++i)
    cost.each[i] = static_cast<double>(calls[i].load() - calls_before[i]) /
                   static_cast<double>(std::max<uint64_t>(cost.extents, 1));
  std::printf(
      "%llu extents; for each: create %.2f, release %.2f, map %.2f, set access %.2f, unmap %.2f, "
      "launch %.2f\n",
      static_cast<unsigned long long>(cost.extents), cost.each[kCreate], cost.each[kRelease],
      cost.each[kMap], cost.each[kSetAccess], cost.each[kUnmap], cost.each[kLaunch]);
  return cost;
}

}  // namespace

TEST_CASE("an extent that comes and one that leaves cost few calls of the driver",
          "[pager][cost][slow]") {
  // However slow the simulated GPU is, launches wait for VRAM, and for chunks of their size.
  Rig rig({.vram = 768 * kMiB,
           .host = 2048 * kMiB,
           .packing = {.on = false},
           .waits = {.in_place_ns = 60'000'000'000, .chunk_ns = 10'000'000'000},
           .seconds = 240,
           .alter = countCalls});
  // As the weights of a model's layers: of two sizes, in extents of 4 and 2 MiB, and 8 and 2 MiB.
  std::vector<std::pair<CUdeviceptr, uint64_t>> regions;
  for (int layer = 0; layer < 40; ++layer)
    for (const uint64_t mib : {6, 6, 6, 10})
      regions.emplace_back(rig.allocate(mib * kMiB), mib * kMiB);
  const Cost cost = costOf(rig, regions);
  REQUIRE(cost.extents > 50);
  // A chunk of VRAM that is free serves the next extent of its size: none goes back to the driver,
  // with its own mapping. When any free ones went back for one it was 0.99 an extent.
  CHECK(cost.each[kRelease] < 0.6);
  CHECK(cost.each[kUnmap] < 1.7);
  CHECK(cost.each[kMap] < 1.7);
  CHECK(cost.each[kSetAccess] < 1.7);
  // A pass looks at several victims.
  CHECK(cost.each[kLaunch] < 0.7);
}

TEST_CASE("waits for host memory that is made slowly are counted", "[pager][host chunks][numa]") {
  const uint64_t waited_ns = valueOf(counters().host_wait_ns);
  // On a busy machine who fills memory is slow as well, and need not wait for it.
  for (uint64_t pace = 4; pace <= 256 && valueOf(counters().host_wait_ns) == waited_ns; pace *= 4) {
    host_pace = pace;
    Rig rig({.vram = 32 * kMiB, .host = 512 * kMiB, .alter = makeHostSlowly});
    std::vector<CUdeviceptr> buffers(8);
    for (CUdeviceptr& buffer : buffers) buffer = rig.allocate(32 * kMiB);
    for (const CUdeviceptr buffer : buffers) rig.fill(buffer, 32 * kMiB, buffer);
    for (const CUdeviceptr buffer : buffers) CHECK(rig.holds(buffer, 32 * kMiB, buffer));
    CHECK(valueOf(counters().host_used_bytes) >= 224 * kMiB);
    CHECK(valueOf(counters().host_used_bytes) <= 512 * kMiB);
  }
  host_pace = 4;
  CHECK(valueOf(counters().host_wait_ns) > waited_ns);
}

TEST_CASE("what fits makes no host memory", "[pager][host chunks]") {
  Rig rig({.vram = 64 * kMiB, .host = 512 * kMiB, .alter = makeHostSlowly});
  const CUdeviceptr buffer = rig.allocate(40 * kMiB);
  for (int round = 0; round < 20; ++round) {
    rig.fill(buffer, 40 * kMiB, buffer);
    rig.synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(valueOf(counters().host_used_bytes) == 0);
}
