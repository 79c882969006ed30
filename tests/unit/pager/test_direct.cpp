// Pages that go between VRAM and memservers with no host memory between, over a tier that maps what
// the simulated GPU gives for dma-bufs (OL_SIM_DMA_BUF; else these tests ask nothing).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "pager/kernels/hash_and_scan.h"
#include "pager/pool_state.h"
#include "tests/unit/pager/fake_remote.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kPiece = 2 * kMiB;
constexpr unsigned kCount = 40;

bool hasDmaBufs() {
  mustSucceed(driver().cuInit(0), "cuInit");
  return whyNoDmaBufs(driver().api, 0).empty();
}

/// Switches: the GPU comes to no hash of what came; the driver maps nothing, or has no context any
/// more.
std::atomic<bool> g_held{false}, g_maps_nothing{false}, g_no_context{false};
std::atomic<unsigned> g_refused{0};

void hold(void* /*unused*/) {
  while (g_held.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A pass of victims has a scope, a hash of what came has none.
CUresult launchOrHold(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, CUstream stream, void** parameters,
                      void** extra) {
  if (g_held.load() && bx == olpager::kernels::kPagePassThreads &&
      static_cast<const olpager::kernels::ScanScope*>(parameters[1])->range_pages == 0)
    mustSucceed(driver().cuLaunchHostFunc(stream, hold, nullptr), "cuLaunchHostFunc");
  return driver().api.cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters,
                                     extra);
}

CUresult mapOrRefuse(CUdeviceptr at, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (g_maps_nothing.load() && inTestRange(at)) {
    ++g_refused;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return driver().api.cuMemMap(at, bytes, offset, handle, flags);
}

CUresult pushUnlessGone(CUcontext context) {
  return g_no_context.load() ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                             : driver().api.cuCtxPushCurrent_v2(context);
}

void watch(DriverApi& api) {
  g_held = g_maps_nothing = g_no_context = false;
  g_refused = 0;
  api.cuLaunchKernel = launchOrHold;
  api.cuMemMap = mapOrRefuse;
  api.cuCtxPushCurrent_v2 = pushUnlessGone;
}

/// True as soon as `what` holds, false where it does not within a minute.
template <typename What>
bool comesTrue(What what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!what()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct Direct {
  explicit Direct(uint64_t host = 32 * kMiB,
                  // A wait for VRAM lasts as long as it takes.
                  Waits waits = {.chunk_ns = 1'000'000'000})
      : tier([] {
          auto made = std::make_shared<FakeRemote>(512 * kMiB, seedOr(31));
          made->direct = true;
          return made;
        }()),
        rig({.vram = 16 * kMiB,
             .host = host,
             .packing = {.late_pause_ns = 50'000'000},
             .waits = waits,
             .remote = tier,
             .require_direct = true,
             .alter = watch}) {
    for (unsigned i = 0; i < kCount; ++i) {
      pieces.push_back(rig.allocate(kPiece));
      rig.fill(pieces.back(), kPiece, 100 + i);
    }
    rig.synchronize();
  }
  /// Every piece changes in turn, `rounds` times.
  void change(unsigned rounds) {
    for (unsigned round = 0; round < rounds; ++round)
      for (unsigned i = 0; i < kCount; ++i)
        rig.launch(CU_STREAM_LEGACY, "addTo", pieces[i], kPiece / 8 / kStep, kStep, uint64_t{3});
    added += 3 * rounds;
    rig.synchronize();
  }
  /// That, while another thread takes `turn` every 20 ms.
  template <typename Turn>
  void changeMeanwhile(unsigned rounds, Turn turn) {
    std::atomic<bool> stop{false};
    std::thread turns([&] {
      while (!stop) {
        turn();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    change(rounds);
    stop = true;
    turns.join();
  }
  bool allRight() {
    bool right = true;
    for (unsigned i = 0; i < kCount; ++i) right &= rig.holds(pieces[i], kPiece, 100 + i, added);
    return right;
  }
  CUresult add(unsigned which, uint64_t value) {
    rig.enterThread();
    return rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[which],
                         kPiece / 8 / kStep, kStep, value);
  }
  /// Pieces that are there now.
  std::vector<unsigned> in(ExtentState state) {
    PoolState& pool = PoolInside::of(rig.pool());
    std::lock_guard lock(pool.mutex);
    std::vector<unsigned> found;
    for (unsigned i = 0; i < kCount; ++i)
      if (pool.book.extentAt(pieces[i])->state == state) found.push_back(i);
    return found;
  }
  /// Launches that wait for what memservers have, until some of it comes straight to VRAM. Extents
  /// ahead of launches do not.
  bool receives() {
    const unsigned before = tier->directly().right;
    return comesTrue([&] {
      if (const auto remote = in(ExtentState::kRemote); !remote.empty())
        CHECK(add(remote[remote.size() / 2], 0) == CUDA_SUCCESS);
      return tier->directly().right > before;
    });
  }
  /// One that has come straight to VRAM while the GPU does not come to hash it (g_held), with the
  /// launch that waits for it.
  struct Waiting {
    ~Waiting() {
      g_held = false;
      if (launch.joinable()) launch.join();
    }
    unsigned which = kCount;
    std::thread launch;
    std::atomic<CUresult> result{CUDA_ERROR_NOT_READY};
    bool isOver() const { return result != CUDA_ERROR_NOT_READY; }
  };
  void holdOne(Waiting& waiting) {
    change(2);
    g_held = true;
    for (const unsigned which : in(ExtentState::kRemote)) {
      waiting.result = CUDA_ERROR_NOT_READY;
      waiting.launch = std::thread([&, which] { waiting.result = add(which, 0); });
      if (comesTrue([&] { return waiting.isOver() || tier->unchecked() > 0; }) &&
          !waiting.isOver()) {
        waiting.which = which;
        return;
      }
      waiting.launch.join();  // it went by host memory
    }
    FAIL("none comes straight to VRAM");
  }
  std::shared_ptr<FakeRemote> tier;
  Rig rig;
  std::vector<CUdeviceptr> pieces;
  uint64_t added = 0;
};

}  // namespace

TEST_CASE("pages go straight between VRAM and memservers", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  direct.change(3);
  CHECK(direct.allRight());
  const auto told = direct.tier->directly();
  INFO(told.sent << " sent, " << told.right << " received");
  CHECK(told.sent > 0);
  CHECK(told.right > 0);
  CHECK(told.not_right == 0);
  CHECK(told.known >= 8);
  for (const CUdeviceptr piece : direct.pieces) direct.rig.free(piece);
  CHECK(direct.tier->held() == 0);
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("bytes that come straight to VRAM and are others are never used", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  direct.tier->corrupt = 5;
  direct.change(2);
  CHECK(direct.allRight());
  CHECK(direct.tier->directly().not_right > 0);
  CHECK(direct.tier->corrupt < 5);
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what memservers have no room for goes back to VRAM or to host RAM", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct(64 * kMiB);
  direct.change(1);
  direct.changeMeanwhile(2, [&] { direct.tier->no_room = !direct.tier->no_room; });
  direct.tier->no_room = false;
  CHECK(direct.allRight());
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("pages that are on their way straight to VRAM can be freed", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  direct.change(1);
  for (unsigned round = 0; round < 8; ++round) {
    for (unsigned i = 0; i < kCount; i += 4)
      direct.rig.launch(CU_STREAM_LEGACY, "addTo", direct.pieces[i], kPiece / 8 / kStep, kStep,
                        uint64_t{3});
    for (unsigned i = 0; i < kCount; i += 4) {
      direct.rig.free(direct.pieces[i]);
      direct.pieces[i] = direct.rig.allocate(kPiece);
      direct.rig.fill(direct.pieces[i], kPiece, 100 + i);
    }
  }
  for (unsigned i = 0; i < kCount; ++i)
    CHECK(direct.rig.holds(direct.pieces[i], kPiece, 100 + i, i % 4 == 0 ? 0 : direct.added));
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what is on its way to a silent memserver keeps no launch from VRAM", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  // Nothing is used in place meanwhile.
  Direct direct(32 * kMiB, {.in_place_ns = 300'000'000'000, .chunk_ns = 1'000'000'000});
  direct.change(2);
  direct.tier->frozen = true;
  std::atomic<unsigned> hung{0}, after{0};
  std::atomic<bool> over{false};
  std::thread launches([&] {
    for (unsigned i = 0; i < 12 && after < 3; ++i) {
      const std::vector<unsigned> parked = direct.in(ExtentState::kParked);
      if (parked.empty()) break;
      const bool hangs = direct.tier->sendingDirectly() > 0;
      if (direct.add(parked.front(), 0) != CUDA_SUCCESS) break;
      hangs ? ++after : ++hung;
    }
    over = true;
  });
  CHECK(comesTrue([&] { return over.load(); }));
  CHECK(direct.tier->sendingDirectly() > 0);
  direct.tier->frozen = false;
  launches.join();
  INFO(hung << " launches until VRAM was on its way, " << after << " after that");
  CHECK(after == 3);
  CHECK(direct.allRight());
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what is not sent and can't be mapped again is not lost", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct(64 * kMiB);
  direct.change(1);
  direct.changeMeanwhile(3, [&] {
    direct.tier->no_room = !direct.tier->no_room;
    g_maps_nothing = direct.tier->no_room.load();
  });
  direct.tier->no_room = g_maps_nothing = false;
  CHECK(g_refused > 0);
  CHECK(direct.allRight());
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what came to VRAM and the GPU does not come to check holds no launch up for long",
          "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  Direct::Waiting waiting;
  direct.holdOne(waiting);
  const unsigned given_up = direct.tier->directly().not_right;
  CHECK(comesTrue([&] { return waiting.isOver(); }));
  CHECK(waiting.result == CUDA_SUCCESS);
  CHECK(direct.tier->directly().not_right > given_up);
  g_held = false;
  waiting.launch.join();
  CHECK(direct.allRight());
  // The late transfer is over, and pages go straight again.
  CHECK(direct.receives());
  CHECK(direct.allRight());
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what came to VRAM before its memserver was lost is used", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  Direct::Waiting waiting;
  direct.holdOne(waiting);
  const unsigned given_up = direct.tier->directly().not_right;
  direct.tier->lost = true;
  direct.tier->forget();
  SECTION("where the GPU checks it") {
    g_held = false;
    waiting.launch.join();
    // A busy machine may be late with the check all the same.
    const bool late = direct.tier->directly().not_right > given_up;
    CHECK(waiting.result == (late ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS));
    if (!late)
      CHECK(direct.rig.holds(direct.pieces[waiting.which], kPiece, 100 + waiting.which,
                             direct.added));
  }
  SECTION("else it is lost") {
    waiting.launch.join();
    CHECK(waiting.result == CUDA_ERROR_ECC_UNCORRECTABLE);
    g_held = false;
  }
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what came to VRAM is not lost where it can't be mapped and its memserver is gone",
          "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  Direct::Waiting waiting;
  direct.holdOne(waiting);
  const auto before = direct.tier->directly();
  direct.tier->lost = true;
  direct.tier->forget();
  g_maps_nothing = true;
  g_held = false;
  const auto isIn = [&](ExtentState state) {
    return std::ranges::count(direct.in(state), waiting.which) > 0;
  };
  CHECK(comesTrue([&] { return !isIn(ExtentState::kReceiving) && !isIn(ExtentState::kFetching); }));
  g_maps_nothing = false;
  waiting.launch.join();
  // A busy machine may be late with the check: then it is lost.
  if (direct.tier->directly().not_right == before.not_right) {
    CHECK(g_refused > 0);
    CHECK(waiting.result == CUDA_SUCCESS);
    CHECK(
        direct.rig.holds(direct.pieces[waiting.which], kPiece, 100 + waiting.which, direct.added));
  }
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("a link that dies while pages go straight", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  direct.change(1);
  direct.changeMeanwhile(3, [&] { direct.tier->cut = !direct.tier->cut; });
  direct.tier->cut = false;
  CHECK(direct.allRight());
  // Made anew, pages go straight again.
  const unsigned sent = direct.tier->directly().sent;
  CHECK(comesTrue([&] {
    direct.change(1);
    return direct.tier->directly().sent > sent;
  }));
  CHECK(direct.receives());
  CHECK(direct.allRight());
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("cards let go of VRAM whose context is gone", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  Direct direct;
  direct.change(1);
  CHECK(direct.tier->directly().known > 0);
  for (const CUdeviceptr piece : direct.pieces) direct.rig.free(piece);
  g_no_context = true;
  direct.rig.end();
  g_no_context = false;
  CHECK(direct.tier->directly().known == 0);
  CHECK(direct.tier->known() == 0);
  CHECK(direct.tier->broken() == nullptr);
}

TEST_CASE("what a card can't know goes by host RAM", "[pager][direct]") {
  if (!hasDmaBufs()) return;
  const uint64_t refused = valueOf(counters().rdma.refused_bytes);
  auto tier = std::make_shared<FakeRemote>(512 * kMiB, seedOr(32));
  tier->direct = true;
  tier->most_known = 3;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = tier, .require_direct = true});
  std::vector<CUdeviceptr> pieces;
  for (unsigned i = 0; i < kCount; ++i) {
    pieces.push_back(rig.allocate(kPiece));
    rig.fill(pieces.back(), kPiece, i);
  }
  for (unsigned round = 0; round < 2; ++round)
    for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, i));
  CHECK(tier->directly().known <= 3);
  CHECK(valueOf(rig.figures().remote_in) > 0);
  CHECK(valueOf(counters().rdma.refused_bytes) - refused >= 5 * kPiece);
  // A card takes chunks that are made later again.
  tier->most_known = SIZE_MAX;
  rig.pool().setVramBudget(0, 24 * kMiB);
  CHECK(comesTrue([&] {
    for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, i));
    return tier->directly().known > 3;
  }));
  CHECK(tier->broken() == nullptr);
}

TEST_CASE("a device that is required to go straight to memservers and can't is refused",
          "[pager][direct]") {
  auto tier = std::make_shared<FakeRemote>(512 * kMiB, seedOr(33));
  tier->direct = hasDmaBufs();
  tier->most_known = 0;
  Rig rig({.remote = tier, .require_direct = true});
  CUdeviceptr address = 0;
  CHECK(rig.tryAllocate(kPiece, &address) == CUDA_ERROR_NOT_SUPPORTED);
  tier->most_known = SIZE_MAX;  // said once: it does not change
  CHECK(rig.tryAllocate(kPiece, &address) == CUDA_ERROR_NOT_SUPPORTED);
}
