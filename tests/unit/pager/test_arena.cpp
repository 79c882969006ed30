// Arenas: one allocation with many tensors in it, several times as large as VRAM, under reach =
// traced and learned.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
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
  return {valueOf(rig.figures().bytes_in), valueOf(rig.figures().bytes_out),
          valueOf(rig.figures().launches_in_place), valueOf(rig.figures().launches)};
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
  constexpr uint64_t kRounds = 5;
  Traffic traffic;
  for (int tries = 0; tries < 4;
       ++tries) {  // on a busy machine a wait may last longer than a launch's patience
    const Traffic before = trafficOf(rig);
    for (uint64_t i = 0; i < kRounds; ++i) round(false);
    traffic = trafficOf(rig) - before;
    if (traffic.in_place * 20 <= traffic.launches) break;
  }
  INFO("in " << traffic.in / kMiB / kRounds << " MiB a round, out " << traffic.out / kMiB / kRounds
             << ", in place " << traffic.in_place << " of " << traffic.launches);
  // If nothing runs until somebody waits for it, memory in place does not get quiet in time.
  const char* mode = std::getenv("OL_SIM_MODE");
  if (!kInstrumented && (mode == nullptr || std::string(mode) != "lazy")) {
    CHECK(traffic.in_place * 20 <= traffic.launches);
    CHECK(traffic.in <= kRounds * (kTensors * kTensor - 2 * kMiB));
  }
  CHECK(traffic.out * 20 <= traffic.in);  // only read: what leaves is dropped
  for (uint64_t t = 0; t < kTensors; ++t)
    CHECK(rig.holds(arena + t * kTensor, kTensor, t * 100, added));
  rig.free(arena);
}

namespace {

// Threads that use tensors of arenas of their own and of a common one, free theirs with work in
// flight, and check what they hold. "" or what was wrong.
std::string liveInArenas(Rig& rig, CUdeviceptr common, uint64_t seed, uint64_t common_tensor) {
  rig.enterThread();
  std::mt19937_64 random(seed);
  const StreamKey stream{rig.context(), CU_STREAM_PER_THREAD, 1000 + seed};
  const CUfunction fill = rig.kernel("fill"), add = rig.kernel("addTo"),
                   copy = rig.kernel("copyTo");
  const CUdeviceptr mine_there = common + common_tensor * kTensor;
  uint64_t there = 0;
  constexpr uint64_t kOwn = 5;
  for (int life = 0; life < 3; ++life) {
    CUdeviceptr own = 0;
    if (rig.tryAllocate(kOwn * kTensor, &own) != CUDA_SUCCESS) return "allocation";
    std::vector<uint64_t> added(kOwn, 0);
    const auto run = [&](CUfunction function, CUdeviceptr at, uint64_t value) {
      return rig.tryLaunch(stream, function, at, kWords, kStep, value) == CUDA_SUCCESS;
    };
    for (uint64_t t = 0; t < kOwn; ++t)
      if (!run(fill, own + t * kTensor, seed * 10 + t)) return "fill";
    for (int i = 0; i < 12; ++i) {
      const uint64_t t = random() % 3 == 0 ? random() % kOwn : static_cast<uint64_t>(i) % kOwn;
      if (!run(add, own + t * kTensor, i + 1)) return "add";
      added[t] += static_cast<uint64_t>(i) + 1;
      if (i % 4 != 0) continue;
      if (!run(add, mine_there, 1)) return "add to the common arena";
      ++there;
    }
    const uint64_t t = random() % kOwn;
    std::vector<uint64_t> words(kTensor / 8);
    {
      Access access(rig.pool(), stream);
      access.addRange(own + t * kTensor, kTensor, Mode::kRead);
      if (access.acquire() != CUDA_SUCCESS) return "copy";
      access.submitted(driver().api.cuMemcpyDtoHAsync_v2(words.data(), own + t * kTensor, kTensor,
                                                         stream.stream));
    }
    if (driver().api.cuStreamSynchronize(stream.stream) != CUDA_SUCCESS) return "synchronise";
    for (uint64_t i = 0; i < kWords; ++i)
      if (words[i * kStep] != mix(seed * 10 + t + i) + added[t]) return "contents";
    // Freed with a kernel that reads it in flight.
    if (rig.tryLaunch(stream, copy, own, own + kTensor, kWords, kStep) != CUDA_SUCCESS)
      return "copy kernel";
    if (rig.pool().free(own) != CUDA_SUCCESS) return "free";
  }
  return there == 9 ? "" : "count";
}

}  // namespace

TEST_CASE("threads in arenas that are freed with work in flight", "[pager][arena][threads][numa]") {
  const Reach reach = GENERATE(Reach::kTraced, Reach::kLearned);
  const uint64_t seed = seedOr(21);
  Rig rig({.vram = 12 * kMiB, .reach = reach, .seconds = 300});
  const CUdeviceptr common = rig.allocate(8 * kTensor);
  for (uint64_t t = 0; t < 8; ++t) rig.fill(common + t * kTensor, kTensor, t);
  std::vector<std::string> wrong(4);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] { wrong[i] = liveInArenas(rig, common, seed * 4 + i, i * 2); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what == "");
  rig.synchronize();
  for (uint64_t t = 0; t < 8; ++t)
    CHECK(rig.holds(common + t * kTensor, kTensor, t, t % 2 == 0 ? 9 : 0));
}

TEST_CASE("traced: the tensors that are used most come to VRAM and stay there",
          "[pager][arena][numa]") {
  Rig rig({.vram = 12 * kMiB});
  const CUdeviceptr arena = rig.allocate(kTensors * kTensor);
  for (uint64_t t = 0; t < kTensors; ++t) rig.fill(arena + t * kTensor, kTensor, t);
  rig.synchronize();
  // The first ones have the VRAM. The last four are used at each step, the others now and then.
  uint64_t steps = 0;
  const auto use = [&](uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; ++i, ++steps) {
      for (uint64_t t = kTensors - 4; t < kTensors; ++t)
        rig.launch(CU_STREAM_LEGACY, "addTo", arena + t * kTensor, kWords, kStep, uint64_t{1});
      if (steps % 8 == 0)
        for (uint64_t t = 0; t < kTensors - 4; ++t)
          rig.launch(CU_STREAM_LEGACY, "addTo", arena + t * kTensor, kWords, kStep, uint64_t{1});
      rig.synchronize();
    }
  };
  const char* mode = std::getenv("OL_SIM_MODE");
  const bool waits_for_nobody = mode == nullptr || std::string(mode) != "lazy";
  const Traffic before = trafficOf(rig);
  for (int i = 0; i < 40 && (trafficOf(rig) - before).in < 4 * kTensor; ++i) use(16);
  if (waits_for_nobody) CHECK((trafficOf(rig) - before).in >= 4 * kTensor);
  use(16);
  const Traffic settled = trafficOf(rig);
  use(64);
  CHECK((trafficOf(rig) - settled).in <= kTensor);  // no parts go back and forth
  for (uint64_t t = 0; t < kTensors; ++t)
    CHECK(rig.holds(arena + t * kTensor, kTensor, t, t + 4 >= kTensors ? steps : (steps + 7) / 8));
}

TEST_CASE("traced: a kernel that goes beyond the tensor that it names is right",
          "[pager][arena][numa]") {
  Rig rig({.vram = 12 * kMiB});
  const CUdeviceptr arena = rig.allocate(kTensors * kTensor);
  const CUdeviceptr sums = rig.allocate(4096);
  for (int pass = 0; pass < 3; ++pass)  // the tensors are known, and some are hotter than others
    for (uint64_t t = 0; t < kTensors; ++t)
      for (uint64_t i = 0; i < (t < 3 ? 5u : 1u); ++i) rig.fill(arena + t * kTensor, kTensor, t);
  for (uint64_t t = 0; t + 2 < kTensors; ++t) {
    // Named: t. Used: t to t + 2.
    rig.launch(CU_STREAM_LEGACY, "addTo", arena + t * kTensor, 3 * kWords, kStep, uint64_t{1});
    rig.launch(CU_STREAM_LEGACY, "sumTwo", sums, arena + t * kTensor, arena + t * kTensor,
               3 * kWords, kStep);
  }
  rig.synchronize();
  for (uint64_t t = 0; t < kTensors; ++t)
    CHECK(rig.holds(arena + t * kTensor, kTensor, t, std::min<uint64_t>({t + 1, 3, kTensors - t})));
}

TEST_CASE("learned: pointers in other memory to tensors of an arena are followed",
          "[pager][arena][numa]") {
  Rig rig({.vram = 12 * kMiB, .reach = Reach::kLearned});
  const CUdeviceptr arena = rig.allocate(kTensors * kTensor);
  const CUdeviceptr table = rig.allocate(4096), out = rig.allocate(4096);
  for (uint64_t t = 0; t < kTensors; ++t) rig.put(arena + t * kTensor, 70 + t);
  const auto use = [&](uint64_t t) {
    rig.launch(CU_STREAM_LEGACY, "addTo", arena + t * kTensor + 8, uint64_t{1}, kStep, uint64_t{1});
  };
  for (int pass = 0; pass < 3; ++pass)
    for (uint64_t t = 0; t < kTensors; ++t) use(t);
  for (const uint64_t first : {0, 7, 12}) {
    // Each pointer comes from a launch that names its tensor: one that is computed from another's
    // is beyond what is known.
    for (uint64_t i = 0; i < 4; ++i)
      rig.launch(CU_STREAM_LEGACY, "setEntry", table, i, arena + (first + i) * kTensor);
    rig.launch(CU_STREAM_LEGACY, "gatherLate", out, table, uint64_t{4}, uint64_t{3000});
    for (uint64_t t = 0; t < kTensors; ++t)
      use(t);  // the tensors are swapped while it runs, but for those that it reads
    rig.launch(CU_STREAM_LEGACY, "gather", out + 64, table, uint64_t{4});
    rig.synchronize();
    for (uint64_t i = 0; i < 4; ++i) CHECK(rig.get(out + i * 8) == 70 + first + i);
    for (uint64_t i = 0; i < 4; ++i) CHECK(rig.get(out + 64 + i * 8) == 70 + first + i);
  }
}

TEST_CASE("traced: what parts of an arena point to is known when they change place",
          "[pager][arena][numa]") {
  Rig rig({.vram = 12 * kMiB});
  const CUdeviceptr arena = rig.allocate(kTensors * kTensor);
  for (uint64_t t = 0; t < kTensors; ++t) rig.fill(arena + t * kTensor, kTensor, t);
  const CUdeviceptr targets = rig.allocate(2 * kMiB), out = rig.allocate(4096);
  for (uint64_t i = 0; i < 4; ++i) rig.put(targets + i * 4096, 90 + i);
  // A kernel writes pointers into the first tensor, which then leaves VRAM for others that are used
  // more.
  rig.launch(CU_STREAM_LEGACY, "buildTable", arena, targets, uint64_t{4}, uint64_t{4096});
  for (int i = 0; i < 60; ++i) {
    for (uint64_t t = kTensors - 4; t < kTensors; ++t)
      rig.launch(CU_STREAM_LEGACY, "addTo", arena + t * kTensor, kWords, kStep, uint64_t{1});
    rig.synchronize();
  }
  rig.press();  // the targets leave VRAM
  rig.launch(CU_STREAM_LEGACY, "gather", out, arena, uint64_t{4});
  rig.synchronize();
  for (uint64_t i = 0; i < 4; ++i) CHECK(rig.get(out + i * 8) == 90 + i);
}

namespace {

// Captures stderr while it lives.
class CapturedErrors {
 public:
  CapturedErrors() : kept_(dup(2)) {
    const int file = mkstemp(path_);
    dup2(file, 2);
    close(file);
  }
  ~CapturedErrors() {
    dup2(kept_, 2);
    close(kept_);
    unlink(path_);
  }
  std::string text() const {
    std::ifstream in(path_);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  char path_[32] = "/tmp/ol_test_errors_XXXXXX";
  int kept_;
};

}  // namespace

// A kernel breaks the context before the end of its launch was marked, and nothing can be marked
// any more. A launch that needs other memory's place in VRAM does not wait for that end.
TEST_CASE("a context that is lost with a launch unmarked keeps nobody waiting",
          "[.lost][unmarked]") {
  static std::atomic<bool> lost{false};
  Rig rig({.vram = 8 * kMiB, .seconds = 40, .alter = [](DriverApi& api) {
             api.cuEventRecord = [](CUevent event, CUstream stream) {
               return lost ? CUDA_ERROR_ILLEGAL_ADDRESS : driver().api.cuEventRecord(event, stream);
             };
           }});
  std::vector<CUdeviceptr> buffers;
  for (uint64_t i = 0; i < 4; ++i) buffers.push_back(rig.allocate(4 * kMiB));
  for (const CUdeviceptr buffer : buffers) rig.fill(buffer, 4 * kMiB, 1);
  rig.synchronize();
  const CUfunction add = rig.kernel("addTo");
  lost = true;
  CapturedErrors errors;
  for (int round = 0; round < 2; ++round)
    for (const CUdeviceptr buffer : buffers)
      static_cast<void>(
          rig.tryLaunch(rig.key(CU_STREAM_LEGACY), add, buffer, uint64_t{1}, kStep, uint64_t{1}));
  CHECK(errors.text().find("the context is lost (CUDA error 700)") != std::string::npos);
}

// If host memory can't be mapped in place, parked extents are not mapped: the miss is certain. A
// process of its own: its device is lost.
TEST_CASE("learned: a context that is lost to a miss is reported as that", "[.lost]") {
  Rig rig({.vram = 12 * kMiB, .reach = Reach::kLearned});
  constexpr uint64_t kFew = 5;
  const CUdeviceptr arena = rig.allocate(kFew * kTensor);
  rig.press();  // nothing is learned while everything is in VRAM
  for (int pass = 0; pass < 4; ++pass)
    for (uint64_t t = 0; t < kFew; ++t) rig.fill(arena + t * kTensor, kTensor, t);
  rig.press();
  CapturedErrors errors;
  const CUfunction add = rig.kernel("addTo");
  CUdeviceptr at = arena;
  uint64_t count = kFew * kWords, step = kStep, value = 1;
  {
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    access.setFunction(add);
    access.setName("addTo");
    for (const uint64_t* word :
         {static_cast<uint64_t*>(static_cast<void*>(&at)), &count, &step, &value})
      access.addParameter(word, sizeof(*word));
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    void* parameters[] = {&at, &count, &step, &value};
    access.submitted(driver().api.cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY,
                                                 parameters, nullptr));
  }
  CHECK(driver().api.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  // The pager notices when it next moves something.
  std::string text;
  for (int i = 0; i < 200 && text.find("OL_REACH=traced or") == std::string::npos; ++i) {
    static_cast<void>(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), add,
                                    arena + kTensor * (static_cast<uint64_t>(i) % kFew),
                                    uint64_t{1}, kStep, uint64_t{1}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    text = errors.text();
  }
  INFO(text);
  CHECK(text.find("the context is lost (CUDA error 700)") != std::string::npos);
  CHECK(text.find("Launched of late: addTo") != std::string::npos);
}
