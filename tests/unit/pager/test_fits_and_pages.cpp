// Memory that fits, memory that does not, and launches that are larger than VRAM.
#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "pager/kernels/hash_and_scan.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

TEST_CASE("what fits takes no slow path", "[pager]") {
  Rig rig({.vram = 32 * kMiB});
  const uint64_t faults = valueOf(rig.figures().demand_faults);
  const uint64_t launches = valueOf(rig.figures().launches);
  const uint64_t resident = valueOf(rig.figures().launches_resident);
  const CUdeviceptr a = rig.allocate(8 * kMiB), b = rig.allocate(8 * kMiB);
  for (int i = 0; i < 20; ++i) {
    rig.fill(a, 8 * kMiB, static_cast<uint64_t>(i));
    rig.launch(CU_STREAM_LEGACY, "copyTo", b, a, 8 * kMiB / 8 / kStep, kStep);
  }
  CHECK(rig.holds(b, 8 * kMiB, 19));
  CHECK(valueOf(rig.figures().demand_faults) == faults);
  CHECK(valueOf(rig.figures().launches) - launches == 40);
  CHECK(valueOf(rig.figures().launches_resident) - resident == 40);
  rig.free(a);
  rig.free(b);
}

TEST_CASE("four times the VRAM is written and read in turn", "[pager]") {
  Rig rig;
  constexpr uint64_t kBytes = 4 * kMiB;
  std::vector<CUdeviceptr> buffers;
  for (int i = 0; i < 8; ++i) buffers.push_back(rig.allocate(kBytes));
  for (size_t i = 0; i < buffers.size(); ++i) rig.fill(buffers[i], kBytes, i * 1000);
  for (uint64_t round = 1; round <= 3; ++round)
    for (const CUdeviceptr buffer : buffers)
      rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kBytes / 8 / kStep, kStep, uint64_t{1});
  for (size_t i = 0; i < buffers.size(); ++i) CHECK(rig.holds(buffers[i], kBytes, i * 1000, 3));
  for (const CUdeviceptr buffer : buffers) rig.free(buffer);
  CHECK(valueOf(rig.figures().evictions_written) > 0);
}

TEST_CASE("a host tier whose limit shrinks and grows while the program runs",
          "[pager][budget][numa]") {
  Rig rig({.vram = 8 * kMiB, .host = 128 * kMiB});
  constexpr uint64_t kBytes = 8 * kMiB;
  const auto within = [&](uint64_t limit) {
    for (int i = 0; i < 3000 * kPatience; ++i) {
      if (valueOf(counters().host_used_bytes) <= limit) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  };
  CHECK(rig.pool().setHostLimit(1024 * kMiB) == 128 * kMiB);  // never more than the options give
  std::vector<CUdeviceptr> buffers;
  for (uint64_t i = 0; i < 10; ++i) {
    buffers.push_back(rig.allocate(kBytes));
    rig.fill(buffers[i], kBytes, i * 1000);
  }
  // 80 MiB are allocated, 8 of them fit VRAM, and pages have to change place.
  CHECK(rig.pool().setHostLimit(16 * kMiB) == 104 * kMiB);
  CHECK(within(104 * kMiB));
  for (uint64_t i = 0; i < 10; ++i) CHECK(rig.holds(buffers[i], kBytes, i * 1000));
  CUdeviceptr none = 0;
  CHECK(rig.tryAllocate(64 * kMiB, &none) == CUDA_ERROR_OUT_OF_MEMORY);
  for (uint64_t i = 5; i < 10; ++i) rig.free(buffers[i]);
  CHECK(rig.pool().setHostLimit(64 * kMiB) == 64 * kMiB);
  CHECK(within(64 * kMiB));
  for (uint64_t i = 0; i < 5; ++i) CHECK(rig.holds(buffers[i], kBytes, i * 1000));
  CHECK(rig.pool().setHostLimit(128 * kMiB) == 128 * kMiB);
  const CUdeviceptr large = rig.allocate(64 * kMiB);
  rig.fill(large, 64 * kMiB, 7);
  for (uint64_t i = 0; i < 5; ++i) CHECK(rig.holds(buffers[i], kBytes, i * 1000));
  CHECK(rig.holds(large, 64 * kMiB, 7));
  for (uint64_t i = 0; i < 5; ++i) rig.free(buffers[i]);
  rig.free(large);
}

TEST_CASE("a budget that shrinks and grows while the program runs", "[pager][budget]") {
  Rig rig({.vram = 64 * kMiB});
  constexpr uint64_t kBytes = 8 * kMiB;
  const auto within = [&](uint64_t budget) {
    for (int i = 0; i < 3000 * kPatience; ++i) {
      if (valueOf(rig.figures().vram_budget_bytes) == budget &&
          valueOf(rig.figures().resident_bytes) <= budget)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  };
  std::vector<CUdeviceptr> buffers;
  for (uint64_t i = 0; i < 6; ++i) {
    buffers.push_back(rig.allocate(kBytes));
    rig.fill(buffers[i], kBytes, i * 1000);
  }
  rig.synchronize();
  REQUIRE(valueOf(rig.figures().resident_bytes) == 6 * kBytes);
  uint64_t added = 0;
  for (const uint64_t budget : {16 * kMiB, 40 * kMiB, 8 * kMiB, 64 * kMiB}) {
    CHECK(rig.pool().setVramBudget(0, budget) == budget);
    CHECK(within(budget));  // without any launch
    for (int round = 0; round < 3; ++round, ++added)
      for (const CUdeviceptr buffer : buffers)
        rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kBytes / 8 / kStep, kStep, uint64_t{1});
    for (uint64_t i = 0; i < buffers.size(); ++i)
      CHECK(rig.holds(buffers[i], kBytes, i * 1000, added));
    CHECK(within(budget));
  }
  // All come back, what a launch could not wait for and used in place as well: ahead of a later
  // use, where uses leave the time.
  for (int i = 0; i < 300 && valueOf(rig.figures().resident_bytes) != 6 * kBytes; ++i, ++added) {
    for (const CUdeviceptr buffer : buffers)
      rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kBytes / 8 / kStep, kStep, uint64_t{1});
    rig.synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds((10 + i / 5) * kPatience));
  }
  CHECK(valueOf(rig.figures().resident_bytes) == 6 * kBytes);
  // Launches meanwhile, and budgets that change before the last is reached. If memory in place is
  // refused, a launch has to fit.
  const char* const numa = std::getenv("OL_SIM_HOST_NUMA");
  const uint64_t least = numa != nullptr && *numa == '0' ? kBytes : kBytes / 2;
  for (uint64_t i = 0; i < 40; ++i, ++added) {
    rig.pool().setVramBudget(0, i * 7 % 13 * 4 * kMiB + least);
    for (const CUdeviceptr buffer : buffers)
      rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kBytes / 8 / kStep, kStep, uint64_t{1});
  }
  for (uint64_t i = 0; i < buffers.size(); ++i)
    CHECK(rig.holds(buffers[i], kBytes, i * 1000, added));
  CHECK(rig.pool().setVramBudget(0, 24 * kMiB) == 24 * kMiB);
  CHECK(within(24 * kMiB));
  for (const CUdeviceptr buffer : buffers) rig.free(buffer);
}

namespace {

// Lowers the budget of a program that launches all the time: one stream's kernels are always on
// their way when those of the other are over, and reach all there is, each a half of every buffer.
void lowerBudgetsUnderLaunches(Rig& rig) {
  constexpr uint64_t kBytes = 8 * kMiB;
  std::vector<CUdeviceptr> buffers;
  for (uint64_t i = 0; i < 6; ++i) {
    buffers.push_back(rig.allocate(kBytes));
    rig.fill(buffers[i], kBytes, i * 1000);
  }
  rig.synchronize();
  REQUIRE(valueOf(rig.figures().resident_bytes) == 6 * kBytes);
  const std::array<CUstream, 2> streams = {rig.makeStream(), rig.makeStream()};
  constexpr uint64_t kSmallStep = 32;  // they last
  static_assert(kStep % kSmallStep == 0);
  uint64_t added = 0;
  const auto launchAll = [&] {
    for (size_t s = 0; s < streams.size(); ++s) {
      mustSucceed(driver().api.cuStreamSynchronize(streams[s]), "cuStreamSynchronize");
      for (const CUdeviceptr buffer : buffers)
        rig.launch(streams[s], "addTo", buffer + s * kBytes / 2, kBytes / 16 / kSmallStep,
                   kSmallStep, uint64_t{1});
    }
    ++added;
  };
  const auto reached = [&](uint64_t budget) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20 * kPatience);
    while (std::chrono::steady_clock::now() < until) {
      launchAll();
      if (valueOf(rig.figures().vram_budget_bytes) == budget &&
          valueOf(rig.figures().resident_bytes) <= budget)
        return true;
    }
    return false;
  };
  for (const uint64_t budget : {32 * kMiB, 16 * kMiB}) {
    for (int round = 0; round < 20; ++round) launchAll();
    CHECK(rig.pool().setVramBudget(0, budget) == budget);
    CHECK(reached(budget));
  }
  rig.synchronize();
  for (uint64_t i = 0; i < buffers.size(); ++i)
    CHECK(rig.holds(buffers[i], kBytes, i * 1000, added));
  for (const CUdeviceptr buffer : buffers) rig.free(buffer);
}

}  // namespace

TEST_CASE("a budget is reached whatever is launched meanwhile", "[pager][budget]") {
  Rig rig({.vram = 64 * kMiB});
  lowerBudgetsUnderLaunches(rig);
}

TEST_CASE("a budget is reached however long it takes to tell what may leave", "[pager][budget]") {
  Rig rig({.vram = 64 * kMiB, .alter = [](DriverApi& api) {
             api.cuLaunchKernel = [](CUfunction function, unsigned x, unsigned y, unsigned z,
                                     unsigned a, unsigned b, unsigned c, unsigned shared,
                                     CUstream stream, void** parameters, void** extra) {
               if (a == olpager::kernels::kPagePassThreads)  // longer than a launch waits at first
                 (void)driver().cuLaunchHostFunc(
                     stream,
                     [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); },
                     nullptr);
               return driver().api.cuLaunchKernel(function, x, y, z, a, b, c, shared, stream,
                                                  parameters, extra);
             };
           }});
  lowerBudgetsUnderLaunches(rig);
}

TEST_CASE("a budget below what fits nowhere else is not taken", "[pager][budget]") {
  Rig rig({.vram = 64 * kMiB, .host = 32 * kMiB});
  CHECK(rig.pool().setVramBudget(0, 48 * kMiB) == 48 * kMiB);  // before the first allocation
  std::vector<CUdeviceptr> buffers;
  for (uint64_t i = 0; i < 4; ++i) {
    buffers.push_back(rig.allocate(8 * kMiB));
    rig.fill(buffers[i], 8 * kMiB, i);
  }
  CHECK(valueOf(rig.figures().vram_budget_bytes) == 48 * kMiB);
  CHECK(rig.pool().setVramBudget(0, 2 * kMiB) == 32 * kMiB);
  for (uint64_t i = 0; i < buffers.size(); ++i) CHECK(rig.holds(buffers[i], 8 * kMiB, i));
  for (const CUdeviceptr buffer : buffers) rig.free(buffer);
}

namespace {

// Fetches of neighbours that come all at once: none is seen to end before the last has ended.
constexpr int kNeighbours = 2;
struct Neighbours {
  std::atomic<int> awaited{0};        // fetches that have not begun yet
  std::atomic<CUstream> in{nullptr};  // the stream of fetches
  std::atomic<CUevent> ends[kNeighbours]{};
  std::atomic<uint64_t> widest{0};   // bytes, of a change of access in the range
  std::atomic<int> changes{0};       // of access there
  std::atomic<bool> refuses{false};  // changes of access for more than one extent
};
Neighbours g_neighbours;

void watchNeighbours(DriverApi& api) {
  api.cuMemcpyHtoDAsync_v2 = [](CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    g_neighbours.in = stream;
    return driver().api.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
  };
  api.cuEventRecord = [](CUevent event, CUstream stream) {
    if (g_neighbours.awaited > 0 && stream == g_neighbours.in)
      g_neighbours.ends[--g_neighbours.awaited] = event;
    return driver().api.cuEventRecord(event, stream);
  };
  api.cuEventQuery = [](CUevent event) {
    if (g_neighbours.awaited > 0)
      for (const auto& end : g_neighbours.ends)
        if (end == event) return CUDA_ERROR_NOT_READY;
    const CUevent last = g_neighbours.ends[0];
    if (last != nullptr && driver().api.cuEventQuery(last) != CUDA_SUCCESS)
      return CUDA_ERROR_NOT_READY;
    return driver().api.cuEventQuery(event);
  };
  api.cuMemSetAccess = [](CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access, size_t n) {
    if (inTestRange(at)) {
      ++g_neighbours.changes;
      if (bytes > g_neighbours.widest) g_neighbours.widest = bytes;
      if (bytes > 8 * kMiB && g_neighbours.refuses) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return driver().api.cuMemSetAccess(at, bytes, access, n);
  };
}

}  // namespace

TEST_CASE("neighbours that come at once are mapped by one change of access", "[pager][numa]") {
  for (const bool refuses : {false, true}) {
    for (auto& end : g_neighbours.ends) end = nullptr;
    Rig rig({.vram = 64 * kMiB, .seconds = 20, .alter = watchNeighbours});
    constexpr uint64_t kBytes = 12 * kMiB;  // extents of 8 and 4 MiB
    const CUdeviceptr buffer = rig.allocate(kBytes);
    rig.fill(buffer, kBytes, 3);
    rig.synchronize();
    CHECK(rig.pool().setVramBudget(0, 2 * kMiB) == 2 * kMiB);
    while (valueOf(rig.figures().parked_bytes) != kBytes)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    g_neighbours.refuses = refuses;
    g_neighbours.awaited = kNeighbours;
    g_neighbours.widest = g_neighbours.changes = 0;
    CHECK(rig.pool().setVramBudget(0, 64 * kMiB) == 64 * kMiB);
    rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kBytes / 8 / kStep, kStep, uint64_t{5});
    CHECK(rig.holds(buffer, kBytes, 3, 5));
    CHECK(g_neighbours.awaited == 0);
    CHECK(g_neighbours.widest == kBytes);
    CHECK(g_neighbours.changes == (refuses ? 1 + kNeighbours : 1));
    rig.free(buffer);
  }
}

TEST_CASE("a launch larger than VRAM goes in place", "[pager][numa]") {
  Rig rig;
  constexpr uint64_t kBytes = 24 * kMiB;
  const uint64_t in_place = valueOf(rig.figures().launches_in_place);
  const CUdeviceptr big = rig.allocate(kBytes);
  rig.fill(big, kBytes, 7);
  rig.launch(CU_STREAM_LEGACY, "addTo", big, kBytes / 8 / kStep, kStep, uint64_t{5});
  CHECK(rig.holds(big, kBytes, 7, 5));
  CHECK(valueOf(rig.figures().launches_in_place) > in_place);
}

TEST_CASE("a range beyond its allocation is refused, whatever its size", "[pager]") {
  Rig rig;
  const CUdeviceptr a = rig.allocate(4 * kMiB);
  for (const uint64_t bytes : std::vector<uint64_t>{4 * kMiB + 1, 1ull << 40, UINT64_MAX,
                                                    UINT64_MAX - a + 1, UINT64_MAX - a + 2}) {
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    access.addRange(a, bytes, Mode::kRead);
    CHECK(access.acquire() == CUDA_ERROR_INVALID_VALUE);
  }
  {
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    access.addRange(a + 4 * kMiB, 16, Mode::kRead);  // its guard
    CHECK(access.acquire() == CUDA_ERROR_INVALID_VALUE);
  }
  Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
  access.addRange(a, 4 * kMiB, Mode::kRead);
  CHECK(access.acquire() == CUDA_SUCCESS);
}
