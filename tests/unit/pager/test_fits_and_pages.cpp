// Memory that fits, memory that does not, and launches that are larger than VRAM.
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
  for (const uint64_t bytes :
       std::vector<uint64_t>{4 * kMiB + 1, 1ull << 40, UINT64_MAX, UINT64_MAX - a + 1, UINT64_MAX - a + 2}) {
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
