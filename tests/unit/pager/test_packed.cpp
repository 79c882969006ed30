// Streamed pages cross the bus packed: the bytes are the program's all the same, also where an
// image is spoilt, outdated, or its unpacking held up.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "pager/kernels/pack.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

namespace kernels = olpager::kernels;

constexpr uint64_t kPage = 2 * kMiB;
constexpr uint64_t kVram = 48 * kMiB;
// With so little VRAM this share gives slots to single pages, and half of it none.
constexpr Packing kPacking{.slots_share = 8, .late_pause_ns = 300'000'000};
// On a busy machine a launch that waits uses no memory in place here: nothing would stream.
constexpr Waits kWaits{.in_place_ns = 2'000'000'000};
constexpr uint64_t kBuffers = kVram / kPage + 6;

/// How many images are spoilt from now on before they are copied, and whether packing and unpacking
/// wait.
std::atomic<int> g_spoils{0};
std::atomic<bool> g_held{false};
std::atomic<int> g_unpacked{0}, g_packed{0};
/// Kernels that the simulated GPU had not done when the engine gave them up, though nothing held
/// them: a machine with other work.
std::atomic<int> g_late{0};

CUresult copyOrSpoil(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  if (bytes == kernels::kPackedPageBytes && g_spoils.load() > 0 && g_spoils.fetch_sub(1) > 0)
    std::memset(static_cast<char*>(const_cast<void*>(from)) + kernels::kPackedHeadBytes + kPage / 4,
                0x55, 4096);
  return driver().api.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}

using Clock = std::chrono::steady_clock;

void noteDone(void* launched) {
  const std::unique_ptr<Clock::time_point> since(static_cast<Clock::time_point*>(launched));
  if (Clock::now() - *since > std::chrono::milliseconds(900)) ++g_late;
}

void hold(void* /*unused*/) {
  while (g_held.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

CUresult launchOrHold(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                      unsigned by, unsigned bz, unsigned shared, CUstream stream, void** parameters,
                      void** extra) {
  if (x == kernels::kUnpackParts && bx == kernels::kUnpackThreads) {
    ++g_unpacked;
  } else if (bx == kernels::kPackThreads) {
    ++g_packed;
  } else {
    return driver().api.cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters,
                                       extra);
  }
  const bool held = g_held.load();
  if (held) mustSucceed(driver().cuLaunchHostFunc(stream, hold, nullptr), "cuLaunchHostFunc");
  auto since = std::make_unique<Clock::time_point>(Clock::now());
  const CUresult result =
      driver().api.cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters, extra);
  if (!held && result == CUDA_SUCCESS)
    mustSucceed(driver().cuLaunchHostFunc(stream, noteDone, since.release()), "cuLaunchHostFunc");
  return result;
}

void watch(DriverApi& api) {
  g_spoils = 0;
  g_held = false;
  g_unpacked = g_packed = g_late = 0;
  api.cuMemcpyHtoDAsync_v2 = copyOrSpoil;
  api.cuLaunchKernel = launchOrHold;
}

// A program that reads somewhat more than VRAM holds, in the same order again and again.
struct Walk {
  explicit Walk(Rig& given) : rig(given), out(rig.allocate(kPage)) {
    for (uint64_t i = 0; i < kBuffers; ++i) {
      buffers.push_back(rig.allocate(kPage));
      rig.fill(buffers[i], kPage, i * 1000);
    }
  }
  void round() {
    for (const CUdeviceptr buffer : buffers)
      rig.launch(CU_STREAM_LEGACY, "copyTo", out, buffer, kPage / 8 / kStep, kStep);
    mustSucceed(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize");
  }
  /// Rounds until `done`. On a busy machine the simulated GPU is late, and for a while after that
  /// nothing is packed or unpacked; or what does not fit has come to be used in place, and
  /// nothing streams: then there is nothing to see.
  template <typename Done>
  bool until(Done done) {
    const auto began = Clock::now();
    const int late = g_late;
    const auto waited = [&] { return Clock::now() - began; };
    const auto streams = [&] {
      return valueOf(rig.figures().in_place_bytes) == 0 && g_late == late;
    };
    while (!done() && waited() < std::chrono::seconds(streams() ? 60 : 20)) round();
    if (done()) return true;
    if (streams()) return false;
    WARN("what does not fit is used in place here, or the simulated GPU is late: nothing is seen");
    return true;
  }
  /// Rounds until one has unpacked something.
  bool unpacks() {
    return until([before = g_unpacked.load()] { return g_unpacked.load() != before; });
  }
  void check(uint64_t added) {
    for (uint64_t i = 0; i < kBuffers; ++i) CHECK(rig.holds(buffers[i], kPage, i * 1000, added));
  }
  Rig& rig;
  CUdeviceptr out;
  std::vector<CUdeviceptr> buffers;
};

}  // namespace

TEST_CASE("what streams crosses the bus packed, and is what it was", "[pager][packed][numa]") {
  Rig rig({.vram = kVram, .packing = kPacking, .waits = kWaits, .seconds = 400, .alter = watch});
  Walk walk(rig);
  REQUIRE(walk.unpacks());
  const auto fetches = [&] {
    return valueOf(rig.figures().prefetches_issued) + valueOf(rig.figures().demand_faults);
  };
  CHECK(walk.until([&] {
    const uint64_t bytes = valueOf(rig.figures().bytes_in),
                   pages = valueOf(rig.figures().fetched_bytes);
    for (int i = 0; i < 3; ++i) walk.round();
    const uint64_t fetched = valueOf(rig.figures().fetched_bytes) - pages;
    return fetched > 0 && valueOf(rig.figures().bytes_in) - bytes < fetched * 9 / 10;
  }));
  CHECK(valueOf(rig.figures().fetched_bytes) >= fetches() * kPage);
  walk.check(0);
  // Written, an image is out of date; what is read after that is what was written.
  for (uint64_t round = 1; round <= 2; ++round) {
    for (const CUdeviceptr buffer : walk.buffers)
      rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kPage / 8 / kStep, kStep, uint64_t{1});
    walk.round();
    walk.check(round);
    CHECK(walk.unpacks());
  }
  walk.check(2);
  // A small budget has no slots; with a larger one there are again.
  rig.pool().setVramBudget(0, kVram / 2);
  for (int i = 0; i < 3; ++i) walk.round();
  walk.check(2);
  rig.pool().setVramBudget(0, kVram);
  CHECK(walk.unpacks());
  walk.check(2);
  for (const CUdeviceptr buffer : walk.buffers) rig.free(buffer);
}

TEST_CASE("an image that is spoilt is found out before anybody uses it",
          "[pager][packed][numa][slow]") {
  Rig rig({.vram = kVram, .packing = kPacking, .waits = kWaits, .seconds = 400, .alter = watch});
  Walk walk(rig);
  g_spoils = 3;
  REQUIRE(walk.until([] { return g_spoils.load() == 0; }));
  for (int i = 0; i < 3; ++i) walk.round();
  walk.check(0);
}

TEST_CASE("unpacking that the GPU does not come to holds nobody up for long",
          "[pager][packed][numa]") {
  Rig rig({.vram = kVram, .packing = kPacking, .seconds = 400, .alter = watch});
  Walk walk(rig);
  REQUIRE(walk.unpacks());
  g_held = true;
  CHECK(walk.unpacks());
  for (int i = 0; i < 4; ++i) walk.round();
  walk.check(0);
  g_held = false;
  for (int i = 0; i < 2; ++i) walk.round();
  walk.check(0);
}

TEST_CASE("packing that the GPU does not come to holds nobody up for long",
          "[pager][packed][numa]") {
  Rig rig({.vram = kVram, .packing = kPacking, .seconds = 400, .alter = watch});
  Walk walk(rig);
  g_held = true;
  REQUIRE(walk.until([] { return g_packed.load() != 0; }));
  for (int i = 0; i < 3; ++i) walk.round();
  CHECK(g_packed.load() < 20);  // no more than were on their way
  CHECK(g_unpacked.load() == 0);
  // Written meanwhile, and the late ones come after that.
  for (const CUdeviceptr buffer : walk.buffers)
    rig.launch(CU_STREAM_LEGACY, "addTo", buffer, kPage / 8 / kStep, kStep, uint64_t{1});
  walk.round();
  g_held = false;
  for (int i = 0; i < 2; ++i) walk.round();
  walk.check(1);
}

TEST_CASE("images take no host memory that others need", "[pager][packed][numa][slow]") {
  // Room for everything once, and for few images.
  constexpr uint64_t kHost = (kBuffers + 1) * kPage + 4 * kPage;
  Rig rig({.vram = kVram, .host = kHost, .packing = kPacking, .seconds = 400, .alter = watch});
  Walk walk(rig);
  for (int i = 0; i < 6; ++i) walk.round();
  // The whole budget can be allocated, images or not.
  std::vector<CUdeviceptr> more;
  CUdeviceptr address = 0;
  while (more.size() < (kVram + kHost) / kPage &&
         rig.tryAllocate(kPage, &address) == CUDA_SUCCESS) {
    rig.fill(address, kPage, more.size() * 77);
    more.push_back(address);
  }
  CHECK((kBuffers + 1 + more.size()) * kPage >= kVram + kHost - 4 * kPage);
  for (uint64_t i = 0; i < more.size(); ++i) CHECK(rig.holds(more[i], kPage, i * 77));
  walk.check(0);
}
