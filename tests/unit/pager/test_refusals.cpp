// A driver that refuses calls of the pager's for a while: what can't be moved now stays usable, and
// the pager goes on when the driver does.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kPieces = 8;

/// How many calls are refused from now on; those of mappings only in the pools' ranges, not of the
/// chunks' own aliases.
std::atomic<int> g_maps{0}, g_copies{0}, g_creates{0};

bool take(std::atomic<int>& left) {
  int now = left.load();
  while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
  }
  return now > 0;
}

CUresult mapOrRefuse(CUdeviceptr at, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (inTestRange(at) && take(g_maps)) return CUDA_ERROR_OUT_OF_MEMORY;
  return driver().api.cuMemMap(at, bytes, offset, handle, flags);
}

CUresult copyOrRefuse(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (take(g_copies)) return CUDA_ERROR_OUT_OF_MEMORY;
  return driver().api.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}

CUresult createOrRefuse(CUmemGenericAllocationHandle* out, size_t bytes,
                        const CUmemAllocationProp* properties, unsigned long long flags) {
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && take(g_creates))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return driver().api.cuMemCreate(out, bytes, properties, flags);
}

void refuseAtWill(DriverApi& api) {
  g_maps = g_copies = g_creates = 0;
  api.cuMemMap = mapOrRefuse;
  api.cuMemcpyHtoDAsync_v2 = copyOrRefuse;
  api.cuMemCreate = createOrRefuse;
}

struct Pieces {
  explicit Pieces(Rig& rig) {
    for (uint64_t i = 0; i < kPieces; ++i) {
      at.push_back(rig.allocate(2 * kMiB));
      rig.fill(at.back(), 2 * kMiB, i);
    }
    rig.synchronize();
  }
  std::vector<CUdeviceptr> at;
};

}  // namespace

TEST_CASE("a mapping that the driver refuses a few times is made later or elsewhere",
          "[pager][refusals]") {
  for (int times = 1; times < 5; ++times) {
    Rig rig({.vram = 16 * kMiB, .alter = refuseAtWill});
    const Pieces pieces(rig);
    g_maps = times;
    rig.press();
    for (uint64_t i = 0; i < kPieces; ++i)
      rig.launch(CU_STREAM_LEGACY, "addTo", pieces.at[i], 2 * kMiB / 8 / kStep, kStep, uint64_t{1});
    rig.synchronize();
    CHECK(g_maps == 0);
    for (uint64_t i = 0; i < kPieces; ++i) CHECK(rig.holds(pieces.at[i], 2 * kMiB, i, 1));
  }
}

TEST_CASE("a copy that the driver refuses is tried again", "[pager][refusals]") {
  Rig rig({.vram = 16 * kMiB, .alter = refuseAtWill});
  const Pieces pieces(rig);
  g_copies = 3;
  rig.press();
  for (uint64_t i = 0; i < kPieces; ++i)
    rig.launch(CU_STREAM_LEGACY, "addTo", pieces.at[i], 2 * kMiB / 8 / kStep, kStep, uint64_t{1});
  rig.synchronize();
  for (uint64_t i = 0; i < kPieces; ++i) CHECK(rig.holds(pieces.at[i], 2 * kMiB, i, 1));
  CHECK(g_copies < 3);
}

TEST_CASE("a driver that maps nothing any more refuses launches, and nothing is lost",
          "[pager][refusals][slow]") {
  Rig rig({.vram = 16 * kMiB, .waits = {.all_full_ns = 500'000'000}, .alter = refuseAtWill});
  const Pieces pieces(rig);
  rig.press();
  g_maps = 1 << 30;
  const CUfunction add = rig.kernel("addTo");
  // Some of it may be in VRAM still.
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < kPieces && result == CUDA_SUCCESS; ++i)
    result = rig.tryLaunch(rig.key(CU_STREAM_LEGACY), add, pieces.at[i], 2 * kMiB / 8 / kStep,
                           kStep, uint64_t{0});
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  g_maps = 0;
  for (uint64_t i = 0; i < kPieces; ++i)
    rig.launch(CU_STREAM_LEGACY, "addTo", pieces.at[i], 2 * kMiB / 8 / kStep, kStep, uint64_t{2});
  rig.synchronize();
  for (uint64_t i = 0; i < kPieces; ++i) CHECK(rig.holds(pieces.at[i], 2 * kMiB, i, 2));
}

TEST_CASE("a budget that the driver could not meet is tried again later", "[pager][refusals]") {
  Rig rig({.vram = 16 * kMiB, .alter = refuseAtWill});
  const CUdeviceptr first = rig.allocate(4 * kMiB);
  rig.fill(first, 4 * kMiB, 1);
  rig.synchronize();
  const uint64_t budget = valueOf(rig.figures().vram_budget_bytes);
  REQUIRE(budget == 16 * kMiB);
  g_creates = 1;
  const CUdeviceptr second = rig.allocate(4 * kMiB);
  CHECK(valueOf(rig.figures().vram_budget_bytes) < budget);
  rig.fill(second, 4 * kMiB, 2);
  rig.synchronize();
  // Both are used until the budget is what it was.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30 * kPatience);
  while (valueOf(rig.figures().vram_budget_bytes) < budget &&
         std::chrono::steady_clock::now() < until) {
    rig.launch(CU_STREAM_LEGACY, "addTo", first, uint64_t{1}, kStep, uint64_t{0});
    rig.launch(CU_STREAM_LEGACY, "addTo", second, uint64_t{1}, kStep, uint64_t{0});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(valueOf(rig.figures().vram_budget_bytes) == budget);
  CHECK(rig.holds(first, 4 * kMiB, 1));
  CHECK(rig.holds(second, 4 * kMiB, 2));
}

TEST_CASE("the host tier's bytes are counted", "[pager][refusals]") {
  const uint64_t before = valueOf(counters().host_used_bytes);
  {
    Rig rig({.vram = 16 * kMiB});
    const Pieces pieces(rig);
    rig.press();
    CHECK(valueOf(counters().host_used_bytes) >= before + valueOf(rig.figures().parked_bytes));
    CHECK(valueOf(counters().host_used_bytes) > before);
  }
  CHECK(valueOf(counters().host_used_bytes) == before);
}

TEST_CASE("what an operation names twice has to fit VRAM once where nothing is used in place",
          "[pager][refused]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr large = rig.allocate(12 * kMiB);
  const CUdeviceptr small = rig.allocate(2 * kMiB);
  rig.fill(large, 12 * kMiB, 3);
  rig.fill(small, 2 * kMiB, 4);
  rig.press();
  // Within one allocation: its extents are needed for what is read and for what is written.
  const uint64_t half = 6 * kMiB;
  REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, large + half, large, half) == CUDA_SUCCESS);
  rig.synchronize();
  CHECK(rig.holds(large, half, 3));
  CHECK(rig.holds(large + half, half, 3));
  rig.press();
  // Many small copies of one extent that are made at once, as those of a batch are.
  constexpr uint64_t kCopies = 100;
  {
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    for (uint64_t i = 0; i < kCopies; ++i) {
      access.addRange(small + i * 64, 8, Mode::kRead);
      access.addRange(small + kMiB + i * 64, 8, Mode::kWrite);
    }
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
  }
  CHECK(rig.holds(small, 2 * kMiB, 4));
}

TEST_CASE("a launch that VRAM can never hold is refused at once where nothing is used in place",
          "[pager][refused]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr out = rig.allocate(2 * kMiB), table = rig.allocate(2 * kMiB);
  constexpr uint64_t kTargets = 12;
  std::vector<CUdeviceptr> targets;
  for (uint64_t i = 0; i < kTargets; ++i) {
    targets.push_back(rig.allocate(2 * kMiB));
    rig.put(targets[i], 70 + i);
  }
  for (uint64_t i = 0; i < kTargets; ++i) rig.put(table + i * 8, targets[i]);
  for (int again = 0; again < 3; ++again) {
    const auto begun = std::chrono::steady_clock::now();
    CHECK(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("gather"), out, table, kTargets) ==
          CUDA_ERROR_OUT_OF_MEMORY);
    if (!kInstrumented) CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(2));
  }
  for (uint64_t i = 0; i < kTargets; ++i) CHECK(rig.get(targets[i]) == 70 + i);
}
