// Pages that go between VRAM and memservers with no host memory between, over a tier that maps what
// the simulated GPU gives for dma-bufs (OL_SIM_DMA_BUF; else these tests ask nothing).
#include <algorithm>
#include <atomic>
#include <thread>

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

struct Direct {
  explicit Direct(uint64_t host = 32 * kMiB)
      : tier([] {
          auto made = std::make_shared<FakeRemote>(512 * kMiB, seedOr(31));
          made->direct = true;
          return made;
        }()),
        // What waits for VRAM waits for as long as it takes.
        rig({.vram = 16 * kMiB,
             .host = host,
             .waits = {.chunk_ns = 1'000'000'000},
             .remote = tier,
             .require_direct = true}) {
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
  bool allRight() {
    bool right = true;
    for (unsigned i = 0; i < kCount; ++i) right &= rig.holds(pieces[i], kPiece, 100 + i, added);
    return right;
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
  std::atomic<bool> stop{false};
  std::thread turns([&] {
    while (!stop) {
      direct.tier->no_room = !direct.tier->no_room;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  direct.change(2);
  stop = true;
  turns.join();
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

TEST_CASE("what a card can't know any more goes by host RAM", "[pager][direct]") {
  if (!hasDmaBufs()) return;
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
