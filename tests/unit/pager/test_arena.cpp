// Arenas: one allocation with many tensors in it, several times as large as VRAM, under reach = traced and learned.
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kTensor = 2 * kMiB;
constexpr uint64_t kTensors = 18;
constexpr uint64_t kWords = kTensor / 8 / kStep;

struct Traffic {
  uint64_t in, out, in_place, launches;
};

Traffic trafficOf(Rig& rig) {
  return {valueOf(rig.figures().bytes_in), valueOf(rig.figures().bytes_out), valueOf(rig.figures().launches_in_place),
          valueOf(rig.figures().launches)};
}
Traffic operator-(const Traffic& a, const Traffic& b) {
  return {a.in - b.in, a.out - b.out, a.in_place - b.in_place, a.launches - b.launches};
}

}  // namespace

TEST_CASE("learned: an arena of three times the VRAM streams through it", "[pager][arena][numa]") {
  Rig rig({.vram = 12 * kMiB, .reach = Reach::kLearned});
  const CUdeviceptr arena = rig.allocate(kTensors * kTensor);
  const CUdeviceptr sums = rig.allocate(4096);
  for (uint64_t t = 0; t < kTensors; ++t) rig.fill(arena + t * kTensor, kTensor, t * 100);
  const auto round = [&](bool write) {
    for (uint64_t t = 0; t < kTensors; ++t) {
      const CUdeviceptr tensor = arena + t * kTensor;
      if (write)
        rig.launch(CU_STREAM_LEGACY, "addTo", tensor, kWords, kStep, uint64_t{1});
      else
        rig.launch(CU_STREAM_LEGACY, "sumTwo", sums + t * 8, tensor, tensor, kWords, kStep);
    }
    rig.synchronize();
  };
  uint64_t added = 0;
  for (int i = 0; i < 4; ++i, ++added) round(true);
  for (int i = 0; i < 4; ++i) round(false);
  const Traffic before = trafficOf(rig);
  constexpr uint64_t kRounds = 5;
  for (uint64_t i = 0; i < kRounds; ++i) round(false);
  const Traffic traffic = trafficOf(rig) - before;
  INFO("in " << traffic.in / kMiB / kRounds << " MiB a round, out " << traffic.out / kMiB / kRounds << ", in place "
             << traffic.in_place << " of " << traffic.launches);
  // Where nothing runs until somebody waits for it, what is in place does not get quiet in time.
  const char* mode = std::getenv("OL_SIM_MODE");
  if (mode == nullptr || std::string(mode) != "lazy") {
    CHECK(traffic.in_place * 20 <= traffic.launches);
    CHECK(traffic.in <= kRounds * (kTensors * kTensor - 2 * kMiB));
  }
  CHECK(traffic.out * 20 <= traffic.in);  // only read: what leaves is dropped
  for (uint64_t t = 0; t < kTensors; ++t) CHECK(rig.holds(arena + t * kTensor, kTensor, t * 100, added));
  rig.free(arena);
}
