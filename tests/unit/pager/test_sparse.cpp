// Memory of which launches touch little: used in place instead of being fetched.
#include <atomic>
#include <chrono>

#include "pager/residency/sparse.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kTable = 40 * kMiB;
std::atomic<float> pretended_ms{0};

/// As the driver, but for the time.
CUresult pretendElapsed(float* milliseconds, CUevent start, CUevent end) {
  const CUresult result = driver().api.cuEventElapsedTime_v2(milliseconds, start, end);
  *milliseconds = pretended_ms.load();
  return result;
}

RigOptions options() {
  return {.vram = 64 * kMiB, .host = 512 * kMiB, .alter = [](DriverApi& api) {
            api.cuEventElapsedTime_v2 = pretendElapsed;
          }};
}

/// The steps of a model: a few rows of a large table, then all of several weights. Each word used
/// goes up by one.
void step(Rig& rig, CUdeviceptr table, const std::vector<CUdeviceptr>& weights) {
  rig.launch(CU_STREAM_LEGACY, "addTo", table, uint64_t{8}, kStep, uint64_t{1});
  for (const CUdeviceptr weight : weights)
    rig.launch(CU_STREAM_LEGACY, "addTo", weight, 8 * kMiB / 8 / kStep, kStep, uint64_t{1});
  rig.synchronize();
}

struct Model {
  CUdeviceptr table;
  std::vector<CUdeviceptr> weights;
  uint64_t steps = 0;
};

Model makeModel(Rig& rig) {
  Model model{rig.allocate(kTable), {}};
  rig.fill(model.table, kTable, 1);
  for (uint64_t i = 0; i < 8; ++i) {
    model.weights.push_back(rig.allocate(8 * kMiB));
    rig.fill(model.weights[i], 8 * kMiB, 2 + i);
  }
  return model;
}

/// Steps until the table is taken for sparse, or no longer (or all of it is in VRAM, where nothing
/// is wrong with that); false: not in time. Steps are no measure: those that have all they need in
/// place or in VRAM take less than 0.1 ms each and wait for nobody, and the engine, which looks at
/// what they took, may be busy for longer than a thousand of them.
bool stepUntil(Rig& rig, Model& model, bool sparse) {
  const auto end = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(30);
  for (; std::chrono::steady_clock::now() < end; ++model.steps) {
    const Residency now = rig.pool().residency(model.table);
    if (now.sparse == sparse || (!sparse && now.vram == kTable)) return true;
    step(rig, model.table, model.weights);
  }
  return false;
}

}  // namespace

TEST_CASE("a verdict takes several launches that agree", "[pager][sparse]") {
  constexpr uint64_t kBytes = 320 * kMiB, kBandwidth = 4'800'000'000'000, kFast = 10'000,
                     kSlow = 100'000;
  const auto after = [](std::initializer_list<uint64_t> times) {
    DensityRecord record;
    for (const uint64_t ns : times) judge(record, kBytes, ns, false, kBandwidth);
    return record;
  };
  CHECK(after({kFast, kFast, kFast}).verdict == Density::kUnknown);
  CHECK(after({kFast, kFast, kFast, kFast}).verdict == Density::kSparse);
  CHECK(after({kSlow, kSlow}).verdict == Density::kUnknown);
  CHECK(after({kSlow, kSlow, kSlow}).verdict == Density::kDense);
  CHECK(after({kFast, kFast, kSlow, kFast, kFast, kFast}).verdict == Density::kUnknown);
  DensityRecord both;  // used by turns, little and all of it: not for ever unknown
  for (int i = 0; i < 8; ++i) {
    judge(both, kBytes, kFast, false, kBandwidth);
    judge(both, kBytes, kSlow, false, kBandwidth);
  }
  CHECK(both.verdict == Density::kDense);
  // In place: against what a fetch takes.
  DensityRecord sparse = after({kFast, kFast, kFast, kFast});
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(judge(sparse, kBytes, kSlow, true, kBandwidth));
  bool changed = false;
  for (int i = 0; i < 8 && !changed; ++i)
    changed = judge(sparse, kBytes, 20'000'000, true, kBandwidth);
  CHECK(changed);
  CHECK(sparse.verdict == Density::kDense);
}

TEST_CASE("a table of which launches touch little stays in host memory", "[pager][sparse][numa]") {
  pretended_ms = 0.001F;
  Rig rig(options());
  Model model = makeModel(rig);
  REQUIRE(stepUntil(rig, model, true));
  // An extent that is to make room for one in place is not called back for as long as it is on its
  // way, again and again; and the table is not among those that come in. The state comes about: how
  // soon is a matter of what else the machine does.
  const auto settled = [&] {
    const uint64_t before = rig.figures().bytes_in.load(),
                   stayed = rig.figures().evictions_cancelled.load();
    for (int i = 0; i < 5; ++i, ++model.steps) step(rig, model.table, model.weights);
    return rig.figures().evictions_cancelled.load() - stayed < 100 &&
           rig.figures().bytes_in.load() - before <= 320 * kMiB;
  };
  const auto end = std::chrono::steady_clock::now() + kPatience * std::chrono::seconds(30);
  bool is = settled();
  while (!is && std::chrono::steady_clock::now() < end) is = settled();
  CHECK(is);
  for (uint64_t i = 0; i < 8; ++i)
    CHECK(rig.get(model.table + i * kStep * 8) == mix(1 + i) + model.steps);
  CHECK(rig.holds(model.weights[3], 8 * kMiB, 5, model.steps));
  // Launches that touch all of it come to be.
  pretended_ms = 1000;
  REQUIRE(stepUntil(rig, model, false));
  for (int i = 0; i < 5; ++i, ++model.steps) step(rig, model.table, model.weights);
  for (uint64_t i = 0; i < 8; ++i)
    CHECK(rig.get(model.table + i * kStep * 8) == mix(1 + i) + model.steps);
}

TEST_CASE("pointers that are put into a table in place are followed",
          "[pager][sparse][pointers][numa]") {
  pretended_ms = 0.001F;
  Rig rig(options());
  Model model = makeModel(rig);
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  std::vector<CUdeviceptr> targets;
  for (uint64_t i = 0; i < 3; ++i) targets.push_back(rig.allocate(2 * kMiB));
  REQUIRE(stepUntil(rig, model, true));
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < targets.size(); ++i) {
      rig.put(targets[i] + 64, 1000 * round + i);
      // Far into the table, where nothing else writes.
      rig.launch(CU_STREAM_LEGACY, "setEntry", model.table + 4096, i, targets[i] + 64);
    }
    for (int i = 0; i < 3; ++i, ++model.steps) step(rig, model.table, model.weights);
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "gather", out, model.table + 4096, uint64_t{3});
    rig.synchronize();
    for (uint64_t i = 0; i < targets.size(); ++i) CHECK(rig.get(out + i * 8) == 1000 * round + i);
  }
}
