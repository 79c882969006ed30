// Allocations: exhaustion, frees, small ones, pins, the program's own mappings, contexts that go.
// Long: one file for a subject, whose cases share their set-up.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/sanitizer.h"
#include "pager/space/region.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr CUmemAccessDesc kReadWrite = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

CUmemGenericAllocationHandle makeHandle(Rig& rig, uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  REQUIRE(rig.pool().createHandle(rig.context(), 0, bytes, properties, &handle) == CUDA_SUCCESS);
  REQUIRE(rig.pool().ownsHandle(handle));
  return handle;
}

[[maybe_unused]] constexpr const char* kNotCounted =
    "malloc is the sanitizer's: nothing is counted";
/// Bytes that the process has from malloc.
[[maybe_unused]] size_t inUse() {
  const auto malloced = mallinfo2();
  return malloced.uordblks + malloced.hblkhd;
}

void mapAt(Rig& rig, CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  REQUIRE(rig.pool().map(address, bytes, 0, handle) == CUDA_SUCCESS);
  REQUIRE(rig.pool().setAccess(address, bytes, &kReadWrite, 1) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("a full pool refuses allocations and recovers after a free", "[pager][memory]") {
  Rig rig({.vram = 8 * kMiB, .host = 16 * kMiB});
  std::vector<CUdeviceptr> buffers;
  CUdeviceptr address = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = rig.tryAllocate(4 * kMiB, &address)) == CUDA_SUCCESS) buffers.push_back(address);
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(buffers.size() == 6);
  CHECK(rig.tryAllocate(64, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  rig.free(buffers.back());
  buffers.pop_back();
  CHECK(rig.tryAllocate(64, &address) == CUDA_SUCCESS);
  rig.free(address);
  for (size_t i = 0; i < buffers.size(); ++i) rig.fill(buffers[i], 4 * kMiB, i);
  for (size_t i = 0; i < buffers.size(); ++i) CHECK(rig.holds(buffers[i], 4 * kMiB, i));
}

TEST_CASE("a slab that is being taken away is waited for by who wants an address in it",
          "[pager][memory]") {
  // As on hardware, where it takes long.
  Rig rig({.vram = 16 * kMiB, .host = 16 * kMiB, .alter = [](DriverApi& api) {
             static const auto unmap = api.cuMemUnmap;
             api.cuMemUnmap = [](CUdeviceptr address, size_t bytes) {
               std::this_thread::sleep_for(std::chrono::milliseconds(1));
               return unmap(address, bytes);
             };
           }});
  Pool& pool = rig.pool();
  REQUIRE(pool.setPlaced(64 * kMiB) == CUDA_SUCCESS);
  // Each thread has a slot of its own in one slab, which comes and goes as they free and allocate.
  constexpr unsigned kThreads = 3, kTurns = 40;
  constexpr uint64_t kSlot = 512 << 10;
  std::atomic<unsigned> refused{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      rig.enterThread();
      const uint64_t address = pool.base() + t * kSlot;
      for (unsigned turn = 0; turn < kTurns; ++turn) {
        const bool had = pool.allocateAt(rig.context(), 0, address, kSlot) == CUDA_SUCCESS;
        if (!had || pool.free(address) != CUDA_SUCCESS) ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 0);
}

TEST_CASE("memory is at the addresses that the caller chooses, where they are free",
          "[pager][memory]") {
  Rig rig({.vram = 8 * kMiB, .host = 48 * kMiB});
  Pool& pool = rig.pool();
  constexpr uint64_t kPart = 64 * kMiB;
  const auto at = [&](uint64_t address, uint64_t bytes) {
    return pool.allocateAt(rig.context(), 0, address, bytes);
  };
  CHECK(at(pool.base(), 4096) == CUDA_ERROR_INVALID_VALUE);  // no such part yet
  CHECK(pool.setPlaced(0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(pool.setPlaced(kMiB) == CUDA_ERROR_INVALID_VALUE);
  CHECK(pool.setPlaced(pool.end() - pool.base()) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(pool.setPlaced(kPart) == CUDA_SUCCESS);
  CHECK(pool.setPlaced(kPart) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(pool.room(0).bytes == 0);  // nobody has asked for memory

  // Large and small ones, beside what the pager places by itself.
  const uint64_t base = pool.base(), small = base + 20 * kMiB;
  REQUIRE(at(base, 3 * kMiB) == CUDA_SUCCESS);
  REQUIRE(at(small + 4096, 4096) == CUDA_SUCCESS);
  REQUIRE(at(small, 4096) == CUDA_SUCCESS);
  const CUdeviceptr own = rig.allocate(3 * kMiB), own_small = rig.allocate(4096);
  CHECK(own >= base + kPart);
  CHECK(own_small >= base + kPart);
  for (const auto& [address, bytes] :
       {std::pair{base, uint64_t{4096}},
        {base + 2 * kMiB, 2 * kMiB},
        {base + 4 * kMiB, 2 * kMiB},  // the guard
        {small, uint64_t{4096}},
        {small + 512, uint64_t{4096}},
        {small + 8192, uint64_t{100}},  // a slab of another size
        {small, 4 * kMiB},
        {base + kPart - 2 * kMiB, 2 * kMiB},  // no room for the guard
        {base + kPart, uint64_t{4096}},
        {own, uint64_t{4096}}}) {
    CHECK(at(address, bytes) == CUDA_ERROR_INVALID_VALUE);
  }
  AllocationInfo info;
  REQUIRE(pool.describe(small + 4100, &info));
  CHECK(info.base == small + 4096);
  CHECK(info.bytes == 4096);
  rig.fill(base, 3 * kMiB, 1);
  rig.fill(own, 3 * kMiB, 2);
  rig.put(small + 4096, 77);
  rig.put(own_small, 78);

  // More than VRAM holds; then more than there is.
  std::vector<CUdeviceptr> more;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t next = base + 24 * kMiB; result == CUDA_SUCCESS; next += 8 * kMiB) {
    result = at(next, 6 * kMiB);
    if (result == CUDA_SUCCESS) more.push_back(next);
  }
  CHECK((result == CUDA_ERROR_OUT_OF_MEMORY || more.size() == 5));
  CHECK(more.size() >= 4);
  for (size_t i = 0; i < more.size(); ++i) rig.fill(more[i], 6 * kMiB, 10 + i);
  CHECK(rig.holds(base, 3 * kMiB, 1));
  CHECK(rig.holds(own, 3 * kMiB, 2));
  CHECK(rig.get(small + 4096) == 77);
  CHECK(rig.get(own_small) == 78);
  for (size_t i = 0; i < more.size(); ++i) CHECK(rig.holds(more[i], 6 * kMiB, 10 + i));
  const Pool::Room room = pool.room(0);
  CHECK(room.largest <= room.bytes);
  CHECK(room.bytes + (3 + 1 + 3 + 1 + 6 * more.size()) * kMiB <= 56 * kMiB);

  // Freed, an address is free for something else.
  for (const CUdeviceptr address : more) rig.free(address);
  rig.free(base);
  rig.free(small);
  CHECK(at(small, kMiB) == CUDA_ERROR_INVALID_VALUE);  // its slab has one more
  rig.free(small + 4096);
  CHECK(at(small, kMiB) == CUDA_SUCCESS);
  CHECK(at(base, 4096) == CUDA_SUCCESS);
  CHECK(pool.room(0).bytes > room.bytes);
  rig.free(own);
  rig.free(own_small);
}

TEST_CASE("without host memory in place a launch beyond VRAM is refused in time",
          "[pager][refused]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB});
  const CUdeviceptr one = rig.allocate(6 * kMiB), other = rig.allocate(6 * kMiB),
                    small = rig.allocate(2 * kMiB);
  CHECK(
      rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("sumTwo"), small, one, other, uint64_t{1},
                    kStep) ==
      CUDA_ERROR_OUT_OF_MEMORY);  // the three at once; the test's own watchdog says whether in time
  rig.fill(small, 2 * kMiB, 5);
  CHECK(rig.holds(small, 2 * kMiB, 5));
  rig.put(one, 17);
  CHECK(rig.get(one) == 17);
  rig.free(one);
  rig.press();
  CHECK(rig.holds(small, 2 * kMiB, 5));
}

TEST_CASE("without host memory in place an allocation beyond VRAM is refused", "[pager][refused]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB});
  CUdeviceptr address = 0;
  CHECK(rig.tryAllocate(16 * kMiB, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(rig.tryAllocate(16 * kMiB, &address, AllocationKind::kStreamOrdered) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  for (uint64_t i = 0; i < 6; ++i) {  // as much as the pool has, in pieces that a launch can reach
    const CUdeviceptr piece = rig.allocate(8 * kMiB);
    rig.fill(piece, 8 * kMiB, i);
    CHECK(rig.holds(piece, 8 * kMiB, i));
  }
  // A reservation is reached as a whole.
  Pool& pool = rig.pool();
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CHECK(pool.createHandle(rig.context(), 0, 10 * kMiB, properties, &handle) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  const auto first = makeHandle(rig, 6 * kMiB), second = makeHandle(rig, 4 * kMiB);
  REQUIRE(pool.reserveAddress(16 * kMiB, 0, 0, &address) == CUDA_SUCCESS);
  mapAt(rig, address, 6 * kMiB, first);
  REQUIRE(pool.map(address + 8 * kMiB, 4 * kMiB, 0, second) == CUDA_SUCCESS);
  CHECK(pool.setAccess(address + 8 * kMiB, 4 * kMiB, &kReadWrite, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  rig.fill(address, 6 * kMiB, 9);
  CHECK(rig.holds(address, 6 * kMiB, 9));
}

TEST_CASE("reach = all is refused without host memory in place", "[pager][refused]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB, .reach = Reach::kAll});
  CUdeviceptr address = 0;
  CHECK(rig.tryAllocate(4096, &address) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(rig.tryAllocate(2 * kMiB, &address) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("pinned memory is in VRAM and stays there", "[pager][memory]") {
  Rig rig;
  const CUdeviceptr pinned = rig.allocate(2 * kMiB);
  rig.fill(pinned, 2 * kMiB, 3);
  rig.press();
  rig.press();
  REQUIRE(rig.pool().pin(pinned) == CUDA_SUCCESS);
  REQUIRE(rig.pool().pin(pinned + 100) == CUDA_SUCCESS);
  CHECK(valueOf(rig.figures().pinned_extents) == 1);
  for (int i = 0; i < 3; ++i) rig.press();
  // Not through an Access: whoever pinned it goes by the address alone.
  uint64_t word = 0;
  REQUIRE(driver().api.cuMemcpyDtoHAsync_v2(&word, pinned, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
  rig.synchronize();
  CHECK(word == mix(3));
  REQUIRE(rig.pool().unpin(pinned) == CUDA_SUCCESS);
  REQUIRE(rig.pool().unpin(pinned) == CUDA_SUCCESS);
  CHECK(rig.pool().unpin(pinned) == CUDA_ERROR_INVALID_VALUE);
  CHECK(valueOf(rig.figures().pinned_extents) == 0);
  REQUIRE(rig.pool().pin(pinned) == CUDA_SUCCESS);
  rig.free(pinned);
  CHECK(valueOf(rig.figures().pinned_extents) == 0);
}

TEST_CASE("what was pinned is not taken for what lies at its address later", "[pager][memory]") {
  Rig rig;
  const CUdeviceptr before = rig.allocate(2 * kMiB);
  uint64_t first = 0, second = 0;
  REQUIRE(rig.pool().pin(before, &first) == CUDA_SUCCESS);
  rig.free(before);
  const CUdeviceptr after = rig.allocate(2 * kMiB);
  REQUIRE(after == before);
  REQUIRE(rig.pool().pin(after, &second) == CUDA_SUCCESS);
  CHECK(rig.pool().unpin(after, first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(valueOf(rig.figures().pinned_extents) == 1);
  CHECK(rig.pool().unpin(after, second) == CUDA_SUCCESS);
  CHECK(valueOf(rig.figures().pinned_extents) == 0);
}

TEST_CASE("memory in place is brought to VRAM when it is pinned", "[pager][memory][numa]") {
  Rig rig;
  const CUdeviceptr first = rig.allocate(2 * kMiB), big = rig.allocate(16 * kMiB);
  rig.put(first, 5);
  rig.fill(big, 16 * kMiB, 9);
  rig.synchronize();
  std::vector<CUdeviceptr> parts;
  rig.free(big);
  const CUdeviceptr other = rig.allocate(4 * kMiB), more = rig.allocate(6 * kMiB);
  // Together more than VRAM: some of it is used in place.
  rig.launch(CU_STREAM_LEGACY, "sumTwo", first + 8, other, more, 4 * kMiB / 8 / kStep, kStep);
  rig.fill(other, 4 * kMiB, 1);
  REQUIRE(rig.pool().pin(other) == CUDA_SUCCESS);
  CHECK(rig.holds(other, 4 * kMiB, 1));
  CHECK(rig.pool().pin(more) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(rig.pool().unpin(other) == CUDA_SUCCESS);
}

TEST_CASE(
    "memory in place comes to VRAM once there is room, though nobody can tell when it is used",
    "[pager][memory][numa]") {
  const bool grows = GENERATE(true, false);  // the budget does, or other memory goes
  // Memory kept free for what comes next, 4 MiB here, is no room.
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr first = rig.allocate(2 * kMiB), other = rig.allocate(12 * kMiB),
                    more = rig.allocate(6 * kMiB);
  for (const auto& [address, bytes, seed] :
       {std::tuple(first, 2 * kMiB, 5ull), std::tuple(other, 12 * kMiB, 6ull),
        std::tuple(more, 6 * kMiB, 7ull)})
    rig.fill(address, bytes, seed);
  rig.launch(CU_STREAM_LEGACY, "sumTwo", first + 8, other, more, 4 * kMiB / 8 / kStep, kStep);
  rig.synchronize();
  REQUIRE(valueOf(rig.figures().in_place_bytes) > 0);
  if (grows) {
    REQUIRE(rig.pool().setVramBudget(0, 32 * kMiB) == 32 * kMiB);
  } else {
    rig.free(other);
  }
  // All of it, and not only parked. How long it takes is bounded by the watchdog alone.
  const uint64_t all = (grows ? 20 : 8) * kMiB;
  while (valueOf(rig.figures().in_place_bytes) != 0 || valueOf(rig.figures().resident_bytes) != all)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(rig.holds(more, 6 * kMiB, 7));
}

// A pass of the pager's is slow where the GPU is: others keep the simulated one's processors.
TEST_CASE(
    "memory in place comes to VRAM beside launches that come all the time, also by a slow pass",
    "[pager][memory][numa]") {
  Rig rig;
  const CUdeviceptr first = rig.allocate(2 * kMiB), other = rig.allocate(4 * kMiB),
                    more = rig.allocate(6 * kMiB);
  for (const auto& [address, bytes] :
       {std::pair(first, 2 * kMiB), std::pair(other, 4 * kMiB), std::pair(more, 6 * kMiB)})
    rig.fill(address, bytes, 5);
  rig.launch(CU_STREAM_LEGACY, "sumTwo", first + 8, other, more, 4 * kMiB / 8 / kStep, kStep);
  rig.synchronize();
  REQUIRE(valueOf(rig.figures().in_place_bytes) > 0);
  // None begins before there is much to look at.
  std::atomic<bool> go{false}, over{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3 * std::thread::hardware_concurrency(); ++i)
    threads.emplace_back([&] {
      while (!over) {
      }
    });
  const CUstream held = rig.makeStream();
  holdUntil(go, held);
  for (const CUdeviceptr address : {first, other, more})
    rig.launch(held, "addTo", address, uint64_t{8}, kStep, uint64_t{0});
  REQUIRE(rig.pool().setVramBudget(0, 192 * kMiB) == 192 * kMiB);
  const CUdeviceptr written = rig.allocate(160 * kMiB);
  rig.launch(CU_STREAM_LEGACY, "addTo", written, uint64_t{8}, kStep, uint64_t{0});
  go = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (valueOf(rig.figures().in_place_bytes) > 0 && std::chrono::steady_clock::now() < end) {
    for (const CUdeviceptr address : {first, other, more, written})
      rig.launch(CU_STREAM_LEGACY, "addTo", address, uint64_t{8}, kStep, uint64_t{0});
    rig.synchronize();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  if (!kInstrumented) CHECK(valueOf(rig.figures().in_place_bytes) == 0);
  rig.pool().streamDestroyed(rig.key(held));
  driver().api.cuStreamDestroy_v2(held);
  CHECK(rig.holds(more, 6 * kMiB, 5));
}

TEST_CASE("memory freed in stream order is used again", "[pager][memory]") {
  Rig rig({.vram = 8 * kMiB, .host = 8 * kMiB});
  const CUstream stream = rig.makeStream();
  for (uint64_t i = 0; i < 12; ++i) {
    CUdeviceptr a = 0;
    REQUIRE(rig.tryAllocate(6 * kMiB, &a, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
    rig.fill(a, 6 * kMiB, i, stream);
    REQUIRE(rig.pool().freeAsync(a, rig.key(stream)) == CUDA_SUCCESS);
    if (i == 0) {
      const bool gone = rig.pool().freeAsync(a, rig.key(stream)) == CUDA_ERROR_INVALID_VALUE;
      CHECK(gone);
    }
  }
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("frees of a stream that is held up hold up no other stream's", "[pager][memory]") {
  Rig rig({.vram = 48 * kMiB, .host = 48 * kMiB});
  const CUstream held = rig.makeStream(), other = rig.makeStream();
  std::vector<CUdeviceptr> blocks(20);
  for (CUdeviceptr& block : blocks)
    REQUIRE(rig.tryAllocate(2 * kMiB, &block, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
  std::atomic<bool> go{false};
  holdUntil(go, held);
  for (const CUdeviceptr block : blocks)
    REQUIRE(rig.pool().freeAsync(block, rig.key(held)) == CUDA_SUCCESS);
  const uint64_t room = rig.pool().memoryInfo(rig.key(other).context, 0).free_bytes;
  for (int i = 0; i < 60; ++i) {
    CUdeviceptr block = 0;
    REQUIRE(rig.tryAllocate(4 * kMiB, &block, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
    REQUIRE(rig.pool().freeAsync(block, rig.key(other)) == CUDA_SUCCESS);
    CHECK_FALSE(rig.pool().isAllocated(block));
    REQUIRE(driver().api.cuStreamSynchronize(other) == CUDA_SUCCESS);
    // Memory that a stream has freed counts as free.
    CHECK(rig.pool().memoryInfo(rig.key(other).context, 0).free_bytes == room);
  }
  go = true;
  REQUIRE(driver().api.cuStreamSynchronize(held) == CUDA_SUCCESS);
  CHECK(rig.pool().memoryInfo(rig.key(other).context, 0).free_bytes ==
        room + blocks.size() * 2 * kMiB);
  for (const CUstream stream : {held, other}) {
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
}

TEST_CASE("an allocation behind a free that waits for its own thread is refused",
          "[pager][memory]") {
  Rig rig({.vram = 16 * kMiB, .host = 2 * kMiB});
  const auto kind = AllocationKind::kDevice;
  const CUstream stream = rig.makeStream();
  CUdeviceptr first = 0, second = 0;
  REQUIRE(rig.tryAllocate(12 * kMiB, &first, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
  std::atomic<bool> go{false};
  holdUntil(go, stream);
  REQUIRE(rig.pool().freeAsync(first, rig.key(stream)) == CUDA_SUCCESS);
  CHECK(rig.tryAllocate(12 * kMiB, &second, kind) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(rig.tryAllocate(2 * kMiB, &second, kind) == CUDA_SUCCESS);  // there is room for it
  go = true;
  CUdeviceptr third = 0;
  CHECK(rig.tryAllocate(12 * kMiB, &third, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
  rig.free(second);
  rig.free(third);
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("an allocation in stream order waits for a free as long as that takes",
          "[pager][memory]") {
  Rig rig({.vram = 16 * kMiB, .host = 2 * kMiB});
  const CUstream stream = rig.makeStream();
  CUdeviceptr first = 0, second = 0;
  REQUIRE(rig.tryAllocate(12 * kMiB, &first, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
  std::atomic<bool> go{false};
  holdUntil(go, stream);
  REQUIRE(rig.pool().freeAsync(first, rig.key(stream)) == CUDA_SUCCESS);
  std::thread releases([&] {
    // Longer than one that is not in stream order waits.
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    go = true;
  });
  CHECK(rig.tryAllocate(12 * kMiB, &second, AllocationKind::kStreamOrdered) == CUDA_SUCCESS);
  releases.join();
  rig.free(second);
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("a free waits for the kernels that use the memory", "[pager][memory]") {
  Rig rig;
  const CUstream stream = rig.makeStream();
  const CUdeviceptr a = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  rig.put(a, 3);
  rig.launch(stream, "readLong", out, a, uint64_t{300000});
  rig.free(a);
  CHECK(rig.get(out) == 900000);
  CHECK(rig.pool().free(a) == CUDA_ERROR_INVALID_VALUE);
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("ten thousand small allocations keep their contents", "[pager][memory]") {
  Rig rig({.vram = 8 * kMiB, .host = 256 * kMiB});
  std::vector<CUdeviceptr> small;
  small.reserve(10000);
  for (int i = 0; i < 10000; ++i)
    small.push_back(rig.allocate(512 + static_cast<uint64_t>(i) % 7 * 512));
  for (size_t i = 0; i < small.size(); i += 401) rig.put(small[i], i);
  rig.press();
  for (size_t i = 0; i < small.size(); i += 401) CHECK(rig.get(small[i]) == i);
  AllocationInfo info;
  REQUIRE(rig.pool().describe(small[5] + 10, &info));
  CHECK(info.base == small[5]);
  std::mt19937_64 random(seedOr(1));
  std::shuffle(small.begin(), small.end(), random);
  for (const CUdeviceptr address : small) rig.free(address);
}

TEST_CASE("allocations and frees do not look at all the others", "[pager][memory][slow]") {
  // The same with and without more than fits VRAM.
  const uint64_t vram = GENERATE(64 * kMiB, 4096 * kMiB);
  const auto steps = [vram](unsigned count) {
    Rig rig({.vram = vram, .host = 2048 * kMiB, .seconds = 300});
    std::vector<CUdeviceptr> made;
    for (unsigned i = 0; i < count; ++i)
      made.push_back(rig.allocate(i % 256 == 0 ? 2 * kMiB : 4096));
    for (const CUdeviceptr address : made) rig.free(address);
    return rig.pool().regionSteps();
  };
  const uint64_t few = steps(10000);
  const uint64_t many = steps(100000);
  INFO(few << " steps for 10000, " << many << " for 100000");
  CHECK(many <= 10 * few + 10000);
}

TEST_CASE("a launch does not look at the other allocations", "[pager][memory][slow]") {
  // All that there is fits VRAM, or what the launches use does.
  const uint64_t vram = GENERATE(64 * kMiB, 4096 * kMiB);
  constexpr uint64_t kLaunches = 1000;
  const auto steps = [vram](unsigned count) {
    Rig rig({.vram = vram, .host = 2048 * kMiB, .seconds = 300});
    for (unsigned i = 0; i < count; ++i) (void)rig.allocate(i % 128 == 0 ? 2 * kMiB : 4096);
    std::array<CUdeviceptr, 8> used{};
    for (CUdeviceptr& address : used) address = rig.allocate(2 * kMiB);
    uint64_t before = 0;
    for (uint64_t i = 0; i < 2 * kLaunches; ++i) {
      if (i % 100 == 0) rig.synchronize();
      if (i == kLaunches) before = rig.pool().regionSteps();
      rig.launch(CU_STREAM_LEGACY, "sumTwo", used[i % 8], used[(i + 1) % 8], used[(i + 3) % 8],
                 uint64_t{1}, kStep);
    }
    return rig.pool().regionSteps() - before;
  };
  constexpr unsigned kMany =
      olpager::base::kThreadSanitizer ? 20'000 : 100'000;  // whose memory is another one's as well
  const uint64_t few = steps(100), many = steps(kMany);
  INFO(few << " steps of " << kLaunches << " launches beside 100 allocations, " << many
           << " beside " << kMany);
  // The engine looks at all of them now and then, by itself.
  CHECK(many <= few + kLaunches / 10 * 1000);
}

TEST_CASE("an extent costs 128 bytes at most, all included", "[pager][memory]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN(kNotCounted);
#else
  struct Extents {
    Region region;
    explicit Extents(size_t count) {
      for (size_t i = 0; i < count; ++i) {
        auto extent = std::make_unique<Extent>();
        extent->vram = new VramChunk;
        extent->host = new HostChunk;
        region.extents.push_back(std::move(extent));
      }
      region.extents.shrink_to_fit();
    }
    ~Extents() {
      for (auto& extent : region.extents) {
        delete extent->vram;
        delete extent->host;
      }
    }
  };
  constexpr size_t kExtents = 20000;
  const Extents before(kExtents);  // takes what other tests left in the pool
  const size_t begin = inUse();
  const Extents counted(kExtents);
  const size_t used = inUse() - begin;
  INFO(used << " bytes for " << kExtents << " extents");
  CHECK(used >= kExtents * sizeof(Extent));  // it was counted
  CHECK(used <= kExtents * kExtentCost);
#endif
}

TEST_CASE("a launch leaves no metadata behind", "[pager][memory]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN(kNotCounted);
#else
  Rig rig({.vram = 64 * kMiB});
  std::vector<CUdeviceptr> buffers(16);
  for (CUdeviceptr& buffer : buffers) buffer = rig.allocate(2 * kMiB);
  const std::array<CUstream, 2> streams = {rig.makeStream(), rig.makeStream()};
  constexpr size_t kRounds = 200;
  const auto work = [&](size_t times) {
    for (size_t round = 0; round < times; ++round) {
      for (size_t i = 0; i < buffers.size(); ++i)
        rig.launch(streams[i % 2], "copyTo", buffers[i], buffers[(i + 1) % buffers.size()],
                   uint64_t{1}, kStep);
      rig.synchronize();
    }
  };
  work(kRounds);  // what is kept of streams, events, the order of use and for later need is there
                  // by now
  const size_t before = inUse();
  work(10 * kRounds);
  const size_t after = inUse();
  const size_t launches = 10 * kRounds * buffers.size();
  INFO(before << " bytes in use before, " << after << " after " << launches << " launches");
  CHECK(after < before + launches * 2);  // nothing that each of them has
  for (const CUstream stream : streams) {
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
#endif
}

TEST_CASE("pointers in memory that is mapped twice, or elsewhere than before, are followed",
          "[pager][vmm][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  Pool& pool = rig.pool();
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB),
                    table = rig.allocate(2 * kMiB);
  rig.put(target + 64, 1234);
  CUdeviceptr range = 0, again = 0;
  REQUIRE(pool.reserveAddress(4 * kMiB, 0, 0, &range) == CUDA_SUCCESS);
  REQUIRE(pool.reserveAddress(4 * kMiB, 0, 0, &again) == CUDA_SUCCESS);
  const auto handle = makeHandle(rig, 2 * kMiB);
  mapAt(rig, range, 2 * kMiB, handle);
  void* pinned = nullptr;
  REQUIRE(driver().api.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  *static_cast<uint64_t*>(pinned) = target + 64;
  const auto gather = [&](CUdeviceptr from) {
    rig.launch(CU_STREAM_LEGACY, "gather", out, from, uint64_t{1});
    rig.synchronize();
    CHECK(rig.get(out) == 1234);
  };
  SECTION("a copy to the second mapping, of what is read later") {
    mapAt(rig, again + 2 * kMiB, 2 * kMiB, handle);
    rig.press();
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, again + 2 * kMiB, pinned, 8, false) == CUDA_SUCCESS);
    const CUdeviceptr from = GENERATE(0, 1) == 0 ? again + 2 * kMiB : range;
    rig.press();  // passes look at it meanwhile
    gather(from);
  }
  SECTION("a copy to the second mapping, of what is read at once") {
    mapAt(rig, again + 2 * kMiB, 2 * kMiB, handle);
    rig.press();
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, again + 2 * kMiB, pinned, 8, true) == CUDA_SUCCESS);
    rig.press();
    gather(again + 2 * kMiB);
  }
  SECTION("a copy from the second mapping") {
    mapAt(rig, again, 2 * kMiB, handle);
    rig.launch(CU_STREAM_LEGACY, "setEntry", range, uint64_t{0}, target + 64);
    rig.synchronize();
    rig.press();
    rig.press();
    REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, table, again, 8) == CUDA_SUCCESS);
    gather(table);
  }
  SECTION("mapped elsewhere") {
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "setEntry", range, uint64_t{0}, target + 64);
    rig.synchronize();
    REQUIRE(pool.unmap(range, 2 * kMiB) == CUDA_SUCCESS);
    rig.press();
    mapAt(rig, again, 2 * kMiB, handle);
    gather(again);
  }
  SECTION("mapped elsewhere, from where it lay in host memory") {
    rig.launch(CU_STREAM_LEGACY, "setEntry", range, uint64_t{0}, target + 64);
    rig.press();
    rig.press();
    REQUIRE(pool.unmap(range, 2 * kMiB) == CUDA_SUCCESS);
    mapAt(rig, again, 2 * kMiB, handle);
    gather(again);
  }
  rig.synchronize();
  REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("the program's own mappings keep their contents", "[pager][vmm][numa]") {
  Rig rig;
  Pool& pool = rig.pool();
  CUdeviceptr range = 0;
  REQUIRE(pool.reserveAddress(32 * kMiB, 0, 0, &range) == CUDA_SUCCESS);
  const auto a = makeHandle(rig, 4 * kMiB), b = makeHandle(rig, 4 * kMiB),
             c = makeHandle(rig, 2 * kMiB);
  mapAt(rig, range, 4 * kMiB, a);
  mapAt(rig, range + 4 * kMiB, 4 * kMiB, b);
  mapAt(rig, range + 16 * kMiB, 2 * kMiB, c);
  rig.fill(range, 4 * kMiB, 1);
  rig.fill(range + 4 * kMiB, 4 * kMiB, 2);
  rig.fill(range + 16 * kMiB, 2 * kMiB, 3);
  rig.press();
  CHECK(rig.holds(range + 4 * kMiB, 4 * kMiB, 2));
  rig.synchronize();

  REQUIRE(pool.unmap(range, 4 * kMiB) == CUDA_SUCCESS);
  rig.press();
  mapAt(rig, range + 24 * kMiB, 4 * kMiB, a);  // elsewhere
  CHECK(rig.holds(range + 24 * kMiB, 4 * kMiB, 1));
  CHECK(rig.holds(range + 16 * kMiB, 2 * kMiB, 3));
  rig.synchronize();

  REQUIRE(pool.releaseHandle(b) == CUDA_SUCCESS);  // lives while it is mapped
  rig.press();
  CHECK(rig.holds(range + 4 * kMiB, 4 * kMiB, 2));
  REQUIRE(pool.unmap(range + 4 * kMiB, 4 * kMiB) == CUDA_SUCCESS);
  CHECK(pool.map(range, 4 * kMiB, 0, b) == CUDA_ERROR_INVALID_VALUE);
  CHECK(pool.releaseAddress(range, 32 * kMiB) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(pool.unmap(range + 16 * kMiB, 12 * kMiB) == CUDA_SUCCESS);
  REQUIRE(pool.releaseHandle(a) == CUDA_SUCCESS);
  REQUIRE(pool.releaseHandle(c) == CUDA_SUCCESS);
  CHECK(pool.releaseAddress(range, 32 * kMiB) == CUDA_SUCCESS);
}

TEST_CASE("memory mapped at two addresses is the same at both", "[pager][vmm]") {
  Rig rig;
  Pool& pool = rig.pool();
  CUdeviceptr range = 0;
  REQUIRE(pool.reserveAddress(16 * kMiB, 0, 0, &range) == CUDA_SUCCESS);
  const auto handle = makeHandle(rig, 2 * kMiB);
  mapAt(rig, range, 2 * kMiB, handle);
  rig.fill(range, 2 * kMiB, 4);
  rig.press();
  mapAt(rig, range + 8 * kMiB, 2 * kMiB, handle);
  REQUIRE(pool.setAccess(range + 8 * kMiB, 2 * kMiB, &kReadWrite, 1) == CUDA_SUCCESS);  // once more
  rig.launch(CU_STREAM_LEGACY, "addTo", range + 8 * kMiB, 2 * kMiB / 8 / kStep, kStep, uint64_t{1});
  rig.press();
  CHECK(rig.holds(range, 2 * kMiB, 4, 1));
  rig.synchronize();
  const bool second_first = GENERATE(false, true);
  REQUIRE(pool.unmap(range + (second_first ? 8 * kMiB : 0), 2 * kMiB) == CUDA_SUCCESS);
  REQUIRE(pool.unmap(range + (second_first ? 0 : 8 * kMiB), 2 * kMiB) == CUDA_SUCCESS);
  mapAt(rig, range + 8 * kMiB, 2 * kMiB, handle);
  rig.press();
  rig.press();
  CHECK(rig.holds(range + 8 * kMiB, 2 * kMiB, 4, 1));
  rig.synchronize();
  REQUIRE(pool.unmap(range + 8 * kMiB, 2 * kMiB) == CUDA_SUCCESS);
  REQUIRE(pool.releaseHandle(handle) == CUDA_SUCCESS);
  REQUIRE(pool.releaseAddress(range, 16 * kMiB) == CUDA_SUCCESS);
}

TEST_CASE("unmapping waits for a per-thread default stream", "[pager][vmm]") {
  Rig rig;
  CUdeviceptr range = 0;
  REQUIRE(rig.pool().reserveAddress(4 * kMiB, 0, 0, &range) == CUDA_SUCCESS);
  const auto handle = makeHandle(rig, 2 * kMiB);
  mapAt(rig, range, 2 * kMiB, handle);
  const StreamKey own{rig.context(), CU_STREAM_PER_THREAD, 77};
  REQUIRE(rig.tryLaunch(own, rig.kernel("fill"), range, 2 * kMiB / 8 / kStep, kStep, uint64_t{1}) ==
          CUDA_SUCCESS);
  REQUIRE(rig.pool().unmap(range, 2 * kMiB) == CUDA_SUCCESS);
  mapAt(rig, range, 2 * kMiB, handle);
  CHECK(rig.holds(range, 2 * kMiB, 1));
}

TEST_CASE("a context goes and another starts again", "[pager][context]") {
  Rig rig;
  const uint64_t allocated = valueOf(rig.figures().allocated_bytes);
  for (int round = 0; round < 2; ++round) {
    std::vector<CUdeviceptr> buffers;
    buffers.reserve(6);
    for (int i = 0; i < 6; ++i) buffers.push_back(rig.allocate(4 * kMiB));
    const CUdeviceptr small = rig.allocate(1000);
    for (const CUdeviceptr buffer : buffers) rig.fill(buffer, 4 * kMiB, buffer);
    rig.put(small, 1);
    rig.pool().contextGone(rig.context());
    CHECK(valueOf(rig.figures().allocated_bytes) == allocated);
    CHECK(rig.pool().free(buffers[0]) == CUDA_ERROR_INVALID_VALUE);
    CHECK(rig.pool().free(small) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("what another context allocated outlives the first", "[pager][context][numa]") {
  Rig rig;
  const CUdeviceptr first = rig.allocate(4 * kMiB);  // the engine starts here
  rig.fill(first, 4 * kMiB, 1);
  CUcontext second = nullptr;
  REQUIRE(driver().cuCtxCreate_v4(&second, nullptr, 0, 0) == CUDA_SUCCESS);
  CUdeviceptr kept = 0, range = 0;
  REQUIRE(rig.pool().allocate(second, 0, 4 * kMiB, AllocationKind::kDevice, &kept) == CUDA_SUCCESS);
  const auto write = [&](CUcontext context, uint64_t value) {
    Access access(rig.pool(), {context, CU_STREAM_LEGACY, 0});
    access.addRange(kept, 8, Mode::kWrite);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(kept, &value, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
    rig.synchronize();
  };
  write(second, 21);
  REQUIRE(rig.pool().reserveAddress(4 * kMiB, 0, 0, &range) == CUDA_SUCCESS);
  driver().cuCtxSetCurrent(rig.context());
  rig.end();
  REQUIRE(driver().cuCtxSetCurrent(second) == CUDA_SUCCESS);
  CUdeviceptr more[4] = {};
  for (CUdeviceptr& address : more) {
    REQUIRE(rig.pool().allocate(second, 0, 2 * kMiB, AllocationKind::kDevice, &address) ==
            CUDA_SUCCESS);
    Access access(rig.pool(), {second, CU_STREAM_LEGACY, 0});
    access.addRange(address, 2 * kMiB, Mode::kWrite);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemsetD8Async(address, 1, 2 * kMiB, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
  }
  rig.synchronize();
  uint64_t word = 0;
  {
    Access access(rig.pool(), {second, CU_STREAM_LEGACY, 0});
    access.addRange(kept, 8, Mode::kRead);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyDtoHAsync_v2(&word, kept, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
    rig.synchronize();
  }
  CHECK(word == 21);
  CHECK(rig.pool().free(kept) == CUDA_SUCCESS);
  rig.pool().contextGone(second);
  driver().cuCtxDestroy_v2(second);
}

TEST_CASE("exported memory lies in chunks of its own and stays in VRAM", "[pager][exports]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr large = rig.allocate(6 * kMiB), small = rig.allocate(3000),
                    other = rig.allocate(3000);
  rig.fill(large, 6 * kMiB, 1);
  rig.put(small, 11);
  rig.put(other, 12);
  rig.press();  // parked by now
  Pool::Exported exported;
  CHECK(rig.pool().makeExportable(large, &exported) == CUDA_ERROR_INVALID_VALUE);  // not pinned
  REQUIRE(rig.pool().pin(large) == CUDA_SUCCESS);
  REQUIRE(rig.pool().pin(small) == CUDA_SUCCESS);
  const uint64_t budget = valueOf(rig.figures().vram_budget_bytes);
  REQUIRE(rig.pool().makeExportable(large + 4096, &exported) == CUDA_SUCCESS);
  CHECK(exported.offset == 4096);
  uint64_t bytes = 0;
  for (const auto& piece : exported.pieces) bytes += piece.bytes;
  CHECK(bytes == 6 * kMiB);
  CHECK(valueOf(rig.figures().vram_budget_bytes) == budget - 6 * kMiB);
  Pool::Exported again;
  REQUIRE(rig.pool().makeExportable(large, &again) == CUDA_SUCCESS);
  REQUIRE(again.pieces.size() == exported.pieces.size());
  CHECK(again.pieces[0].handle == exported.pieces[0].handle);
  Pool::Exported slot;
  REQUIRE(rig.pool().makeExportable(small, &slot) == CUDA_SUCCESS);
  CHECK(slot.offset < 2 * kMiB);
  CHECK(slot.pieces.size() == 1);
  // The allocation is what it was, and goes on being used while all else comes and goes.
  for (int round = 0; round < 2; ++round) {
    rig.press();
    CHECK(rig.holds(large, 6 * kMiB, 1, static_cast<uint64_t>(round)));
    rig.launch(CU_STREAM_LEGACY, "addTo", large, 6 * kMiB / 8 / kStep, kStep, uint64_t{1});
  }
  CHECK(rig.get(small) == 11);
  CHECK(rig.get(other) == 12);
  REQUIRE(rig.pool().unpin(large) == CUDA_SUCCESS);
  REQUIRE(rig.pool().unpin(small) == CUDA_SUCCESS);
  rig.free(large);
  rig.free(small);
  rig.free(other);
  CHECK(valueOf(rig.figures().vram_budget_bytes) == budget);
  rig.press();
}

TEST_CASE("exporting waits for kernels that use the memory", "[pager][exports]") {
  Rig rig({.vram = 32 * kMiB});
  constexpr uint64_t kReads = 2000000 / kPatience;
  const CUstream stream = rig.makeStream();
  const CUdeviceptr x = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  rig.put(x, 7);
  REQUIRE(rig.pool().pin(x) == CUDA_SUCCESS);
  rig.launch(stream, "readLong", out, x, kReads);
  Pool::Exported exported;
  REQUIRE(rig.pool().makeExportable(x, &exported) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(rig.get(out) == 7 * kReads);
  REQUIRE(rig.pool().unpin(x) == CUDA_SUCCESS);
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

namespace {

/// A context on another device, and operations in it.
class OtherDevice {
 public:
  OtherDevice(Rig& rig, int ordinal) : rig_(rig) {
    REQUIRE(driver().cuDeviceGet(&device_, ordinal) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxCreate_v4(&context_, nullptr, 0, device_) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
  }
  ~OtherDevice() {
    driver().cuCtxSetCurrent(context_);
    rig_.pool().contextGone(context_);
    driver().cuCtxDestroy_v2(context_);
    driver().cuCtxSetCurrent(rig_.context());
  }
  OtherDevice(const OtherDevice&) = delete;
  OtherDevice& operator=(const OtherDevice&) = delete;

  CUresult tryAllocate(uint64_t bytes, CUdeviceptr* out) {
    return here([&] {
      return rig_.pool().allocate(context_, device_, bytes, AllocationKind::kDevice, out);
    });
  }
  void set(CUdeviceptr address, uint64_t bytes, unsigned char value) {
    REQUIRE(here([&] {
              Access access(rig_.pool(), {context_, CU_STREAM_LEGACY, 0});
              access.addRange(address, bytes, Mode::kWrite);
              if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
              const CUresult result =
                  driver().api.cuMemsetD8Async(address, value, bytes, CU_STREAM_LEGACY);
              access.submitted(result);
              return result;
            }) == CUDA_SUCCESS);
  }
  bool isSet(CUdeviceptr address, uint64_t bytes, unsigned char value) {
    std::vector<unsigned char> got(bytes);
    REQUIRE(here([&] {
              Access access(rig_.pool(), {context_, CU_STREAM_LEGACY, 0});
              access.addRange(address, bytes, Mode::kRead);
              if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
              CUresult result =
                  driver().api.cuMemcpyDtoHAsync_v2(got.data(), address, bytes, CU_STREAM_LEGACY);
              access.submitted(result);
              return result == CUDA_SUCCESS ? driver().api.cuStreamSynchronize(CU_STREAM_LEGACY)
                                            : result;
            }) == CUDA_SUCCESS);
    return std::all_of(got.begin(), got.end(),
                       [value](unsigned char byte) { return byte == value; });
  }
  CUdevice device() const { return device_; }

 private:
  template <typename Function>
  CUresult here(Function function) {
    REQUIRE(driver().cuCtxSetCurrent(context_) == CUDA_SUCCESS);
    const CUresult result = function();
    REQUIRE(driver().cuCtxSetCurrent(rig_.context()) == CUDA_SUCCESS);
    return result;
  }

  Rig& rig_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

}  // namespace

TEST_CASE("all devices share one host tier", "[pager][devices]") {
  Rig rig({.vram = 8 * kMiB, .host = 16 * kMiB});
  OtherDevice other(rig, 1);
  std::vector<CUdeviceptr> here, there;
  CUdeviceptr address = 0;
  const auto fillBoth = [&] {
    while (rig.tryAllocate(4 * kMiB, &address) == CUDA_SUCCESS) here.push_back(address);
    while (other.tryAllocate(4 * kMiB, &address) == CUDA_SUCCESS) there.push_back(address);
  };
  const auto useAll = [&] {
    for (size_t i = 0; i < here.size(); ++i) rig.fill(here[i], 4 * kMiB, i);
    for (size_t i = 0; i < there.size(); ++i)
      other.set(there[i], 4 * kMiB, static_cast<unsigned char>(i + 1));
    for (size_t i = 0; i < here.size(); ++i) CHECK(rig.holds(here[i], 4 * kMiB, i));
    for (size_t i = 0; i < there.size(); ++i)
      CHECK(other.isSet(there[i], 4 * kMiB, static_cast<unsigned char>(i + 1)));
    rig.synchronize();
    CHECK(valueOf(counters().device(0).parked_bytes) +
              valueOf(counters().device(0).in_place_bytes) +
              valueOf(counters().device(1).parked_bytes) +
              valueOf(counters().device(1).in_place_bytes) <=
          16 * kMiB);
  };
  fillBoth();
  CHECK(here.size() == 6);   // its VRAM and the host tier
  CHECK(there.size() == 2);  // its VRAM
  CHECK(rig.pool().memoryInfo(rig.context(), other.device()).free_bytes == 0);
  useAll();
  // Memory that one gives back the other can have.
  for (int i = 0; i < 4; ++i) {
    rig.free(here.back());
    here.pop_back();
  }
  CHECK(rig.pool().memoryInfo(rig.context(), other.device()).free_bytes == 16 * kMiB);
  while (other.tryAllocate(4 * kMiB, &address) == CUDA_SUCCESS) there.push_back(address);
  CHECK(there.size() == 6);
  CHECK(rig.tryAllocate(4 * kMiB, &address) == CUDA_ERROR_OUT_OF_MEMORY);
  useAll();
}

// A driver that holds a context's lock for long (module load drains the context first) holds up
// that context alone.
TEST_CASE("a call that waits for one context's lock does not hold up another device",
          "[pager][devices]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB});
  OtherDevice other(rig, 1);
  std::vector<CUdeviceptr> here, there;
  for (uint64_t i = 0; i < 6; ++i) {
    CUdeviceptr address = 0;
    here.push_back(rig.allocate(4 * kMiB));
    rig.fill(here.back(), 4 * kMiB, i);
    REQUIRE(other.tryAllocate(4 * kMiB, &address) == CUDA_SUCCESS);
    there.push_back(address);
    other.set(address, 4 * kMiB, static_cast<unsigned char>(i + 1));
  }
  rig.synchronize();
  // All that is in VRAM here is used by launches behind a host function that waits: eviction can't
  // go on.
  const CUstream stream = rig.makeStream();
  std::atomic<bool> go{false};
  holdUntil(go, stream);
  for (const CUdeviceptr address : here)
    rig.launch(stream, "addTo", address, 4 * kMiB / 8 / kStep, kStep, uint64_t{1});
  std::atomic<bool> loaded{false};
  std::thread loader([&] {
    rig.enterThread();
    CUmodule module = nullptr;
    if (driver().api.cuModuleLoadData(&module, rig.image().c_str()) == CUDA_SUCCESS) loaded = true;
  });
  std::this_thread::sleep_for(
      std::chrono::milliseconds(100));  // it waits for the stream, with the lock
  for (size_t i = 0; i < there.size(); ++i)
    CHECK(other.isSet(there[i], 4 * kMiB, static_cast<unsigned char>(i + 1)));
  CHECK_FALSE(loaded);
  go = true;
  loader.join();
  CHECK(loaded);
  for (size_t i = 0; i < here.size(); ++i) CHECK(rig.holds(here[i], 4 * kMiB, i, 1));
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}
