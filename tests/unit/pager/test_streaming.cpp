// Arenas that the program fills by copies, several times as large as VRAM, under reach = traced and
// arenas = streamed: tensors that launches name come to VRAM, the rest is used in place.
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kTensor = 2 * kMiB;
constexpr uint64_t kTensors = 14;
constexpr uint64_t kWords = kTensor / 8 / kStep;

/// However busy the machine is, launches wait for what they name.
constexpr Waits kPatient = {.in_place_ns = 60'000'000'000};

/// An arena, and what each word that kernels look at has to be.
class Filled {
 public:
  /// `sums`: bytes of the allocation in which kernels leave their sums.
  explicit Filled(Rig& rig, uint64_t sums = 4096)
      : rig_(rig), at_(rig.allocate(kTensors * kTensor)) {
    sums_ = rig.allocate(sums);
    values_.resize(kTensors * kWords);
    for (uint64_t t = 0; t < kTensors; ++t) upload(t, 100 * t);
  }

  CUdeviceptr tensor(uint64_t t) const { return at_ + t * kTensor; }

  void upload(uint64_t t, uint64_t seed) {
    std::vector<uint64_t> words(kTensor / 8);
    for (uint64_t i = 0; i < kWords; ++i)
      words[i * kStep] = values_[t * kWords + i] = mix(seed + i);
    mustSucceed(rig_.copyIn(CU_STREAM_LEGACY, tensor(t), words.data(), kTensor, true), "upload");
    rig_.synchronize();
  }
  void zero(uint64_t t) {
    for (uint64_t i = 0; i < kWords; ++i) values_[t * kWords + i] = 0;
    mustSucceed(rig_.zero(CU_STREAM_LEGACY, tensor(t), kTensor), "zero");
  }
  void copy(uint64_t to, uint64_t from) {
    for (uint64_t i = 0; i < kWords; ++i) values_[to * kWords + i] = values_[from * kWords + i];
    mustSucceed(rig_.copyWithin(CU_STREAM_LEGACY, tensor(to), tensor(from), kTensor), "copy");
  }
  void add(uint64_t t, uint64_t value) {
    for (uint64_t i = 0; i < kWords; ++i) values_[t * kWords + i] += value;
    rig_.launch(CU_STREAM_LEGACY, "addTo", tensor(t), kWords, kStep, value);
  }
  /// A kernel that names tensor t sums `tensors` of them, twice.
  void sum(uint64_t t, uint64_t tensors = 1) {
    uint64_t expected = 0;
    for (uint64_t i = 0; i < tensors * kWords; ++i) expected += 2 * values_[t * kWords + i];
    const uint64_t slot = expected_.size() % 512;
    if (slot == 0) check();
    expected_.push_back(expected);
    rig_.launch(CU_STREAM_LEGACY, "sumTwo", sums_ + slot * 8, tensor(t), tensor(t),
                tensors * kWords, kStep);
  }
  void check() {
    std::vector<uint64_t> sums(512);
    mustSucceed(rig_.copyOut(CU_STREAM_LEGACY, sums.data(), sums_, 4096), "sums");
    rig_.synchronize();
    for (uint64_t i = 0; i < expected_.size(); ++i)
      if (sums[i] != expected_[i])
        FAIL("sum " << i << " is " << sums[i] << ", not " << expected_[i]);
    expected_.clear();
  }
  /// Every word, as the host sees it.
  void checkAll() {
    check();
    std::vector<uint64_t> words(kTensors * kTensor / 8);
    mustSucceed(rig_.copyOut(CU_STREAM_LEGACY, words.data(), at_, kTensors * kTensor), "all");
    rig_.synchronize();
    for (uint64_t i = 0; i < values_.size(); ++i)
      if (words[i * kStep] != values_[i]) FAIL("word " << i << " of the arena");
  }
  void round() {
    for (uint64_t t = 0; t < kTensors; ++t) sum(t);
    check();
  }
  void free() { rig_.free(at_); }

 private:
  Rig& rig_;
  CUdeviceptr at_, sums_ = 0;
  std::vector<uint64_t> values_, expected_;
};

bool waitsForNobody() {
  const char* mode = std::getenv("OL_SIM_MODE");
  return mode == nullptr || std::string(mode) != "lazy";
}

}  // namespace

TEST_CASE("streamed: tensors that copies have filled come to VRAM in the order of their use",
          "[pager][arena][streamed][numa]") {
  Rig rig({.vram = 16 * kMiB, .stream_arenas = true, .waits = kPatient});
  Filled filled(rig);
  for (int i = 0; i < 6; ++i) filled.round();
  const uint64_t launches = valueOf(rig.figures().launches),
                 in_place = valueOf(rig.figures().launches_in_place),
                 in = valueOf(rig.figures().bytes_in), out = valueOf(rig.figures().bytes_out);
  constexpr uint64_t kRounds = 3;
  for (uint64_t i = 0; i < kRounds; ++i) filled.round();
  const uint64_t used_in_place = valueOf(rig.figures().launches_in_place) - in_place;
  const uint64_t came = valueOf(rig.figures().bytes_in) - in;
  INFO("in " << came / kMiB / kRounds << " MiB a round; in place " << used_in_place << " of "
             << valueOf(rig.figures().launches) - launches);
  if (!kInstrumented && waitsForNobody()) {
    CHECK(used_in_place * 20 <= valueOf(rig.figures().launches) - launches);
    CHECK(came > 0);
    // Some of the copies made ahead give way again, where VRAM has room for so little.
    CHECK(came * 4 <= 5 * kRounds * kTensors * kTensor);
  }
  CHECK(valueOf(rig.figures().bytes_out) == out);  // it is only read: what leaves is dropped
  filled.checkAll();
  filled.free();
}

TEST_CASE(
    "streamed: what launches use all the time comes to VRAM, though the arena filled it first",
    "[pager][arena][streamed][numa]") {
  Rig rig({.vram = 16 * kMiB, .stream_arenas = true, .waits = kPatient});
  Filled filled(rig, 4 * kMiB);
  const auto usedInPlace = [&] {
    const uint64_t before = valueOf(rig.figures().launches_in_place);
    filled.round();
    return valueOf(rig.figures().launches_in_place) - before;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  uint64_t rounds = 1;
  while (usedInPlace() > 0 && std::chrono::steady_clock::now() < end) ++rounds;
  INFO(rounds << " rounds");
  if (!kInstrumented && waitsForNobody()) CHECK(usedInPlace() * 7 <= kTensors);
  filled.checkAll();
  filled.free();
}

TEST_CASE("streamed: what is constant may be read unnamed, and written by name, by copies",
          "[pager][arena][streamed][numa]") {
  Rig rig({.vram = 16 * kMiB, .stream_arenas = true, .waits = kPatient});
  Filled filled(rig);
  for (uint64_t i = 0; i < 5; ++i) {
    filled.round();
    filled.sum(i, 8);  // names the first, and reads seven more
    filled.check();
  }
  for (uint64_t t = 0; t < kTensors; ++t) {
    switch (t % 4) {
      case 0:
        filled.upload(t, 7 * t);
        break;
      case 1:
        filled.zero(t);
        break;
      case 2:
        filled.copy(t, (t + 5) % kTensors);
        break;
      default:
        filled.add(t, 3);
    }
    filled.sum((t + 9) % kTensors);
  }
  filled.checkAll();
  for (int i = 0; i < 3; ++i) filled.round();
  filled.checkAll();
}

TEST_CASE("streamed: operations at random leave what they would leave natively",
          "[pager][arena][streamed][numa]") {
  const uint64_t seed = seedOr(5);
  Rig rig({.vram = 16 * kMiB, .stream_arenas = true, .waits = kPatient, .seconds = 300});
  std::mt19937_64 random(seed);
  for (int life = 0; life < 2; ++life) {
    Filled filled(rig);
    for (int phase = 0; phase < 3; ++phase) {
      for (int i = 0; i < (phase == 0 ? 4 : 1); ++i) filled.round();
      for (int i = 0; i < 12; ++i) {
        const uint64_t t = random() % kTensors, other = random() % kTensors;
        switch (random() % 8) {
          case 0:
            filled.upload(t, random());
            break;
          case 1:
            filled.zero(t);
            break;
          case 2:
            if (t != other) filled.copy(t, other);
            break;
          case 3:
            filled.add(t, random());
            break;
          case 4:
            filled.sum(t, 1 + random() % (kTensors - t));
            break;
          default:
            filled.sum(t);
        }
      }
      filled.check();
    }
    filled.checkAll();
    filled.sum(3);  // under way, or coming, while it is freed
    filled.free();
  }
}

TEST_CASE("streamed: a write to what is constant and unnamed ends the context",
          "[pager][stray write]") {
  Rig rig({.vram = 16 * kMiB, .stream_arenas = true, .waits = kPatient});
  Filled filled(rig);
  for (int i = 0; i < 6; ++i) filled.round();
  // The first tensor is named, and all are written, of which most are in place.
  rig.launch(CU_STREAM_LEGACY, "addTo", filled.tensor(0), kTensors * kWords, kStep, uint64_t{1});
  CHECK(driver().api.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}
