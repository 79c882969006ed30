// Pointers that lie in memory: what a launch reaches besides what it names. Long: one file for a
// subject, whose cases share their set-up.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "pager/pool_state.h"
#include "pager/reach/edges.h"
#include "pager/reach/ranges.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kTargets = 3;

/// Targets with one known word each.
std::vector<CUdeviceptr> makeTargets(Rig& rig) {
  std::vector<CUdeviceptr> targets;
  for (uint64_t i = 0; i < kTargets; ++i) {
    targets.push_back(rig.allocate(2 * kMiB));
    rig.put(targets[i] + 64, 1000 + i);
  }
  return targets;
}

void checkGathered(Rig& rig, CUdeviceptr out) {
  for (uint64_t i = 0; i < kTargets; ++i) CHECK(rig.get(out + i * 8) == 1000 + i);
}

}  // namespace

TEST_CASE("a table of pointers that a kernel built is followed when its targets were evicted",
          "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kTargets; ++i)
      rig.launch(CU_STREAM_LEGACY, "setEntry", table, i, targets[i] + 64);
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
    rig.synchronize();
    checkGathered(rig, out);
    rig.press();
  }
}

TEST_CASE("more tables than a pass has bitmaps for are told apart", "[pager][pointers][slow]") {
  constexpr uint64_t kTables = 80;  // Engine::kOwnBitmaps is 64
  // Room for tables and targets, so that no pass looks at a part of them alone.
  Rig rig({.vram = (2 * kTables + 8) * 2 * kMiB, .host = 768 * kMiB});
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  std::vector<CUdeviceptr> tables, targets;
  for (uint64_t t = 0; t < kTables; ++t) {
    tables.push_back(rig.allocate(2 * kMiB));
    targets.push_back(rig.allocate(2 * kMiB));
    rig.put(targets.back() + 64, 1000 + t);
  }
  for (int round = 0; round < 2; ++round) {
    // Each names another target than in the round before. No pass is between: all of them are dirty
    // at once.
    for (uint64_t t = 0; t < kTables; ++t)
      rig.launch(CU_STREAM_LEGACY, "setEntry", tables[t], uint64_t{0},
                 targets[(t + static_cast<uint64_t>(round) * 7) % kTables] + 64);
    rig.synchronize();
    rig.press();
    for (uint64_t t = 0; t < kTables; t += 9) {
      rig.launch(CU_STREAM_LEGACY, "gather", out, tables[t], uint64_t{1});
      rig.synchronize();
      CHECK(rig.get(out) == 1000 + (t + static_cast<uint64_t>(round) * 7) % kTables);
    }
  }
}

TEST_CASE("pointers computed from the base of an arena are followed", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB),
                    arena = rig.allocate(4 * kMiB);
  for (uint64_t i = 0; i < kTargets; ++i) rig.put(arena + i * kMiB, 1000 + i);
  rig.launch(CU_STREAM_LEGACY, "buildTable", table, arena, kTargets, kMiB);
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
  rig.synchronize();
  checkGathered(rig, out);
}

TEST_CASE("a launch in flight follows pointers that no scan has seen yet", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUstream stream = rig.makeStream();
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();  // paging has begun: launches no longer count as reaching everything
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < kTargets; ++i)
      rig.launch(stream, "setEntry", table, i, targets[i] + 64);
    REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    rig.launch(stream, "gatherLate", out, table, kTargets, uint64_t{400000});
    rig.press();  // its targets are the least recently used
    REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    checkGathered(rig, out);
  }
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("pointers that the host writes while their targets are parked", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  std::vector<uint64_t> words;
  for (const CUdeviceptr target : targets) words.push_back(target + 64);
  SECTION("a small stable source") {
    const CUdeviceptr table = rig.allocate(2 * kMiB);
    rig.press();
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table, words.data(), words.size() * 8, true) ==
            CUDA_SUCCESS);
    rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
  }
  SECTION("a source that is read later") {
    const CUdeviceptr table = rig.allocate(2 * kMiB);
    void* pinned = nullptr;
    REQUIRE(driver().api.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    std::copy(words.begin(), words.end(), static_cast<uint64_t*>(pinned));
    rig.press();
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table, pinned, words.size() * 8, false) == CUDA_SUCCESS);
    rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
    rig.synchronize();
    REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
  }
  SECTION("copied on to another table, twice") {
    const CUdeviceptr first = rig.allocate(2 * kMiB), second = rig.allocate(2 * kMiB),
                      table = rig.allocate(2 * kMiB);
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, first, words.data(), words.size() * 8, false) ==
            CUDA_SUCCESS);
    REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, second, first, words.size() * 8) == CUDA_SUCCESS);
    rig.press();
    REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, table, second, words.size() * 8) == CUDA_SUCCESS);
    rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
  }
  rig.synchronize();
  checkGathered(rig, out);
}

TEST_CASE("plain data from the host is not looked at by passes", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  std::vector<CUdeviceptr> pieces;
  for (int i = 0; i < 24; ++i) pieces.push_back(rig.allocate(2 * kMiB));
  for (const CUdeviceptr piece : pieces) rig.put(piece, 5);  // paging has begun
  for (const CUdeviceptr piece : pieces)
    rig.put(piece, 6);  // all were scanned since they were made
  const auto evicted = [&] {
    return valueOf(rig.figures().evictions_clean) + valueOf(rig.figures().evictions_written);
  };
  const uint64_t scanned = valueOf(rig.figures().scans), before = evicted();
  // On a busy machine all of a round may be used in place.
  for (int round = 0; round < 3 || (evicted() == before && round < 100); ++round)
    for (const CUdeviceptr piece : pieces) rig.put(piece, 7);
  const uint64_t evictions = evicted() - before;
  CHECK(evictions > 0);
  // The victims themselves, some of them taken back; of the others, of which there are seven for
  // each, nothing.
  CHECK(valueOf(rig.figures().scans) - scanned < 2 * evictions);
  for (const CUdeviceptr piece : pieces) CHECK(rig.get(piece) == 7);
}

TEST_CASE("a copy of a region that nobody has looked at yet carries its pointers on",
          "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr out = rig.allocate(2 * kMiB), table = rig.allocate(2 * kMiB);
  const CUdeviceptr source = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();
  for (uint64_t i = 0; i < kTargets; ++i)
    rig.launch(CU_STREAM_LEGACY, "setEntry", source, i, targets[i] + 64);
  REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, table, source, kTargets * 8) == CUDA_SUCCESS);
  rig.synchronize();
  for (uint64_t i = 0; i < kTargets; ++i)
    rig.put(source + i * 8, 0);  // what was there is in the copy alone
  rig.press();
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
  rig.synchronize();
  checkGathered(rig, out);
}

TEST_CASE("a copy with several sources takes the pointers of all", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr out = rig.allocate(2 * kMiB), a = rig.allocate(2 * kMiB),
                    b = rig.allocate(2 * kMiB);
  const CUdeviceptr table = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.put(a, targets[0] + 64);
  rig.put(b, targets[1] + 64);
  const uint64_t third = targets[2] + 64;
  rig.press();
  {
    // As a batched copy: two device sources and a host source in one operation.
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    access.addRange(a, 8, Mode::kRead);
    access.addRange(table, 24, Mode::kWrite);
    access.addRange(b, 8, Mode::kRead);
    access.addHostSource(&third, 8, true);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyDtoDAsync_v2(table, a, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyDtoDAsync_v2(table + 8, b, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(table + 16, &third, 8, CU_STREAM_LEGACY) ==
            CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
    REQUIRE(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);
  }
  rig.launch(CU_STREAM_LEGACY, "gather", out, table, kTargets);
  rig.synchronize();
  checkGathered(rig, out);
}

TEST_CASE("chains of pointers are followed to their end", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  std::vector<CUdeviceptr> chain;
  for (int i = 0; i < 4; ++i) chain.push_back(rig.allocate(2 * kMiB));
  for (size_t i = 0; i + 1 < chain.size(); ++i) rig.put(chain[i], chain[i + 1]);
  rig.put(chain.back(), 40);
  for (int round = 0; round < 2; ++round) {
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "chase", chain.front(), uint64_t{3});
    rig.synchronize();
  }
  CHECK(rig.get(chain.back()) == 42);
}

TEST_CASE("pointers in a module's variables are followed", "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 99);
  for (int round = 0; round < 2; ++round) {
    rig.launch(CU_STREAM_LEGACY, "setGlobal", target + 64);
    rig.press();
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "readGlobal", out);
    rig.synchronize();
    CHECK(rig.get(out) == 99);
  }
  rig.pool().removeRoot(global);
}

TEST_CASE("what a copy puts into a module's variable is followed at once",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  CHECK(rig.pool().mayHoldRoot(global, 1));
  CHECK(rig.pool().mayHoldRoot(global - 4, 8));
  CHECK_FALSE(rig.pool().mayHoldRoot(global - 4, 4));
  CHECK_FALSE(rig.pool().mayHoldRoot(global + bytes, 8));
  const CUdeviceptr out = rig.allocate(2 * kMiB), table = rig.allocate(2 * kMiB),
                    written = rig.allocate(2 * kMiB);
  void* pinned = nullptr;
  REQUIRE(driver().api.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  CUdeviceptr foreign = 0;  // memory of the driver's own
  REQUIRE(driver().api.cuMemAlloc_v2(&foreign, 4096) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> targets;
  for (uint64_t i = 0; i < 5; ++i) {
    targets.push_back(rig.allocate(2 * kMiB));
    rig.put(targets.back() + 64, 1000 + i);
  }
  const CUdeviceptr names[5] = {targets[0] + 64, targets[1] + 64, targets[2] + 64, targets[3] + 64,
                                targets[4] + 64};
  rig.put(table, names[2]);
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, written, &names[3], 8, false) ==
          CUDA_SUCCESS);  // nobody looks at it
  REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(foreign, &names[4], 8, CU_STREAM_LEGACY) ==
          CUDA_SUCCESS);
  rig.press();
  for (uint64_t i = 0; i < 5; ++i) {
    INFO("copy " << i);
    switch (i) {
      case 0:  // from the program's memory, there until the call returns
        REQUIRE(rig.copyIn(CU_STREAM_LEGACY, global, &names[0], 8, true) == CUDA_SUCCESS);
        break;
      case 1:  // from memory that is read later
        std::memcpy(pinned, &names[1], 8);
        REQUIRE(rig.copyIn(CU_STREAM_LEGACY, global, pinned, 8, false) == CUDA_SUCCESS);
        break;
      case 2:
        REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, global, table, 8) == CUDA_SUCCESS);
        break;
      case 3:
        REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, global, written, 8) == CUDA_SUCCESS);
        break;
      default: {
        Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
        access.addRange(global, 8, Mode::kWrite);
        access.addHostSource(reinterpret_cast<const void*>(foreign), 8,
                             false);  // what lies outside of the pool
        REQUIRE(access.acquire() == CUDA_SUCCESS);
        REQUIRE(driver().api.cuMemcpyDtoDAsync_v2(global, foreign, 8, CU_STREAM_LEGACY) ==
                CUDA_SUCCESS);
        access.submitted(CUDA_SUCCESS);
      }
    }
    rig.launch(CU_STREAM_LEGACY, "readGlobal", out);
    rig.synchronize();
    CHECK(rig.get(out) == 1000 + i);
    rig.press();  // and it stays known when the target leaves again
    rig.launch(CU_STREAM_LEGACY, "readGlobal", out);
    rig.synchronize();
    CHECK(rig.get(out) == 1000 + i);
    rig.press();
  }
  rig.pool().removeRoot(global);
  REQUIRE(driver().api.cuMemFree_v2(foreign) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

namespace {

/// A stream of its own, of which everything waits from close() on until `open`.
struct Gate {
  explicit Gate(Rig& owner) : rig(owner), stream(owner.makeStream()) {}
  ~Gate() {
    open = true;
    driver().api.cuStreamSynchronize(stream);
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
  void close() { holdUntil(open, stream); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Rig& rig;
  CUstream stream;
  std::atomic<bool> open{false};
};

/// Longer than an engine needs for a pass that may begin.
constexpr auto kTimeOfAPass = std::chrono::milliseconds(150);

}  // namespace

// The eviction was under way before the copy: it did not wait for the copy's submission.
TEST_CASE("a pass that begins while a copy into a variable is being submitted has not seen it",
          "[pager][pointers][roots][numa]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 99);
  void* pinned = nullptr;
  REQUIRE(driver().api.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  const uint64_t word = target + 64;
  std::memcpy(pinned, &word, 8);
  rig.press();
  const CUstream copies = rig.makeStream(), more = rig.makeStream();
  // On a busy machine what makes way for it may take longer than a launch waits: it is used in
  // place. The next one finds the room.
  constexpr uint64_t kLarge = 12 * kMiB;
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  CUdeviceptr large = 0;
  for (;;) {
    large = rig.allocate(kLarge);
    rig.fill(large, kLarge, 1);
    rig.synchronize();
    if (rig.pool().residency(large).vram == kLarge || std::chrono::steady_clock::now() > late)
      break;
    rig.free(large);
  }
  {
    // The memory that fills VRAM is used by a launch that does not end: another one, which needs
    // room, waits in vain for victims there.
    Gate gate(rig);
    gate.close();
    rig.fill(large, kLarge, 1, gate.stream);
    REQUIRE(rig.pool().residency(large).vram == kLarge);
    rig.launch(copies, "setEntry", out, uint64_t{8},
               uint64_t{0});  // what this stream had to do is over
    REQUIRE(driver().api.cuStreamSynchronize(copies) == CUDA_SUCCESS);
    rig.fill(rig.allocate(8 * kMiB), 8 * kMiB, 2,
             more);  // in place in the end; the victims still leave
    REQUIRE(driver().api.cuStreamSynchronize(more) == CUDA_SUCCESS);
    std::this_thread::sleep_for(kTimeOfAPass);
    Access access(rig.pool(), rig.key(copies));
    access.addRange(global, 8, Mode::kWrite);
    access.addHostSource(pinned, 8, false);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    const uint64_t before = rig.figures().scans.load();
    gate.open = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (rig.figures().scans.load() == before && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    if (!kInstrumented)
      CHECK(rig.figures().scans.load() > before);  // there it may have come before the copy
    std::this_thread::sleep_for(kTimeOfAPass);     // it ends
    REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(global, pinned, 8, copies) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
  }
  rig.launch(copies, "readGlobal", out);
  REQUIRE(driver().api.cuStreamSynchronize(copies) == CUDA_SUCCESS);
  CHECK(rig.get(out) == 99);
  for (const CUstream stream : {copies, more}) {
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
  rig.pool().removeRoot(global);
  REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("a scan that begins while a second copy into memory is being submitted has not seen it",
          "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB),
                    other_out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  void* pinned = nullptr;
  REQUIRE(driver().api.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  const uint64_t words[] = {targets[0] + 64, targets[1] + 64};
  std::memcpy(pinned, words, sizeof(words));
  const char* const source = static_cast<const char*>(pinned);
  rig.press();
  const CUstream copies = rig.makeStream(), more = rig.makeStream();
  // Memory used first is there: nobody evicts, and so scans, anything meanwhile.
  for (const CUdeviceptr used : {table, out, other_out, targets[0]})
    rig.launch(copies, "setEntry", used, uint64_t{0}, uint64_t{0});
  REQUIRE(driver().api.cuStreamSynchronize(copies) == CUDA_SUCCESS);
  {
    Gate gate(rig);
    gate.close();
    REQUIRE(rig.copyIn(gate.stream, table, source, 8, false) == CUDA_SUCCESS);
    // Waits for a scan of the table, which waits for the copy.
    std::thread reads([&] {
      rig.enterThread();
      rig.launch(more, "readThrough", other_out, table);
    });
    std::this_thread::sleep_for(kTimeOfAPass);
    Access access(rig.pool(), rig.key(copies));
    access.addRange(table, 8, Mode::kWrite);
    access.addHostSource(source + 8, 8, false);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    gate.open = true;
    std::this_thread::sleep_for(kTimeOfAPass);
    REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(table, source + 8, 8, copies) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
    reads.join();
  }
  REQUIRE(driver().api.cuStreamSynchronize(more) == CUDA_SUCCESS);
  rig.launch(copies, "readThrough", out, table);
  REQUIRE(driver().api.cuStreamSynchronize(copies) == CUDA_SUCCESS);
  CHECK(rig.get(out) == 1001);
  const uint64_t other = rig.get(other_out);  // before the second copy or after
  CHECK((other == 1000 || other == 1001));
  for (const CUstream stream : {copies, more}) {
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
  REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

namespace {

/// Passes whose ends the pager does not hear of while `held`: what begins meanwhile runs beside
/// them.
struct HeldPasses {
  std::mutex mutex;
  std::vector<CUstream> streams;  // the pager's own, in the order in which it makes them
  std::set<CUevent> ends;
  bool held = false;
};
HeldPasses g_passes;

CUresult noteStream(CUstream* out, unsigned flags, int priority) {
  const CUresult result = driver().api.cuStreamCreateWithPriority(out, flags, priority);
  const std::lock_guard lock(g_passes.mutex);
  if (result == CUDA_SUCCESS) g_passes.streams.push_back(*out);
  return result;
}

CUresult noteRecord(CUevent event, CUstream stream) {
  const std::lock_guard lock(g_passes.mutex);
  constexpr size_t kOfPasses = 2;
  const auto& streams = g_passes.streams;
  if (g_passes.held && streams.size() > kOfPasses && stream == streams[kOfPasses])
    g_passes.ends.insert(event);
  return driver().api.cuEventRecord(event, stream);
}

CUresult queryOrHold(CUevent event) {
  {
    const std::lock_guard lock(g_passes.mutex);
    if (g_passes.held && g_passes.ends.contains(event)) return CUDA_ERROR_NOT_READY;
  }
  return driver().api.cuEventQuery(event);
}

std::atomic<int> g_chunks{0};  // that the pager has got from the driver and not given back

CUresult noteCreated(CUmemGenericAllocationHandle* out, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  const CUresult result = driver().api.cuMemCreate(out, bytes, properties, flags);
  if (result == CUDA_SUCCESS) ++g_chunks;
  return result;
}

CUresult noteReleased(CUmemGenericAllocationHandle handle) {
  --g_chunks;
  return driver().api.cuMemRelease(handle);
}

void holdPassesAtWill(DriverApi& api) {
  g_chunks = 0;
  api.cuMemCreate = noteCreated;
  api.cuMemRelease = noteReleased;
  g_passes.streams.clear();
  g_passes.ends.clear();
  g_passes.held = false;
  api.cuStreamCreateWithPriority = noteStream;
  api.cuEventRecord = noteRecord;
  api.cuEventQuery = queryOrHold;
}

void holdPasses(bool held) {
  const std::lock_guard lock(g_passes.mutex);
  g_passes.held = held;
}

/// True once so many have begun since they are held.
bool passesCome(size_t wanted) {
  for (unsigned look = 0; look < 3000; ++look) {
    {
      const std::lock_guard lock(g_passes.mutex);
      if (g_passes.ends.size() >= wanted) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("what one pass finds is spared by the one that runs beside it",
          "[pager][pointers][numa]") {
  Rig rig({.vram = 16 * kMiB, .alter = holdPassesAtWill});
  const CUdeviceptr before = rig.allocate(8 * kMiB), oldest = rig.allocate(2 * kMiB),
                    table = rig.allocate(2 * kMiB);
  const CUdeviceptr target = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB),
                    busy = rig.allocate(8 * kMiB);
  // The second is more than the first one's victims leave.
  const CUdeviceptr wanted[] = {rig.allocate(2 * kMiB), rig.allocate(4 * kMiB)};
  rig.put(target + 64, 99);
  // In VRAM in the end, from the oldest on: oldest, target, table, out, busy.
  for (const CUdeviceptr address : {before, oldest, target, table, out, busy}) {
    rig.fill(address + kMiB, kMiB, address);
    rig.synchronize();
  }
  if (valueOf(rig.figures().in_place_bytes) != 0) {  // as on a simulated GPU under a sanitizer
    WARN("evictions are so slow here that some of it is used in place: no pass would have victims");
    return;
  }
  const CUstream others[] = {rig.makeStream(), rig.makeStream()};
  std::vector<std::thread> presses;
  {
    Gate gate(rig);
    rig.launch(gate.stream, "setEntry", table, uint64_t{0}, target + 64);  // no pass has seen it
    rig.free(before);  // a free shows that what was launched is over: the target can go
    gate.close();
    rig.fill(busy, 8 * kMiB, 1, gate.stream);
    rig.launch(gate.stream, "readThrough", out, table);
    holdPasses(true);
    for (uint64_t i = 0; i < 2; ++i) {
      presses.emplace_back([&rig, &others, &wanted, i] {
        rig.enterThread();
        rig.fill(wanted[i], (i + 1) * 2 * kMiB, 2, others[i]);
      });
      CHECK(passesCome(i + 1));
    }
    holdPasses(false);
    std::this_thread::sleep_for(kTimeOfAPass);
  }
  for (std::thread& press : presses) press.join();
  rig.synchronize();
  CHECK(rig.get(out) == 99);
  for (const CUstream each : others) {
    rig.pool().streamDestroyed(rig.key(each));
    driver().api.cuStreamDestroy_v2(each);
  }
}

TEST_CASE("a context that goes while a pass runs gives all its memory back",
          "[pager][memory][numa]") {
  Rig rig({.vram = 16 * kMiB, .alter = holdPassesAtWill});
  rig.fill(rig.allocate(16 * kMiB), 16 * kMiB, 1);
  rig.synchronize();
  const CUdeviceptr wanted = rig.allocate(2 * kMiB);
  holdPasses(true);
  std::thread press([&] {
    rig.enterThread();
    rig.launch(CU_STREAM_LEGACY, "setEntry", wanted, uint64_t{0},
               uint64_t{0});  // in place in the end
  });
  CHECK(passesCome(1));
  press.join();
  rig.synchronize();
  CHECK(g_chunks > 0);
  rig.end();
  CHECK(g_chunks == 0);
}

TEST_CASE("a pointer that a copy brings is found where it comes to lie", "[pager][pointers]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();
  // The pointer is aligned at its place in the table, and nowhere else.
  alignas(8) char bytes[64] = {};
  for (uint64_t before = 1; before < 8; ++before) {
    const uint64_t word = targets[before % kTargets] + 64;
    std::memcpy(bytes + 3 + before, &word, 8);
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table + 64 * before - before, bytes + 3, before + 8,
                       true) == CUDA_SUCCESS);
    REQUIRE(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);
    rig.launch(CU_STREAM_LEGACY, "readThrough", out, table + 64 * before);
    rig.synchronize();
    CHECK(rig.get(out) == 1000 + before % kTargets);
    rig.press();
  }
}

TEST_CASE("a variable that is made known late is scanned before a kernel follows it",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 99);
  rig.press();
  const uint64_t word = target + 64;
  REQUIRE(driver().api.cuMemcpyHtoDAsync_v2(global, &word, 8, CU_STREAM_LEGACY) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  rig.launch(CU_STREAM_LEGACY, "readGlobal", out);
  rig.synchronize();
  CHECK(rig.get(out) == 99);
}

TEST_CASE("a kernel that names nothing keeps what a variable leads it to",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  const CUstream stream = rig.makeStream();
  const CUdeviceptr target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 5);
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, global, std::vector<uint64_t>{target + 64}.data(), 8,
                     true) == CUDA_SUCCESS);
  rig.synchronize();
  // Everything is in VRAM when it begins, and it looks at the target late.
  rig.launch(stream, "addToGlobalLate", uint64_t{40000000});
  for (uint64_t i = 0; i < 16; ++i)
    rig.put(rig.allocate(2 * kMiB), i);  // copies bring nothing back
  REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(rig.get(target + 64) == 6);
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("large and many variables are looked at", "[pager][pointers][roots][long scan]") {
  Rig rig({.vram = 16 * kMiB, .seconds = 120});
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 77);
  CUdeviceptr global = 0, memory = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  // Memory of the kind that variables are: the driver's own.
  REQUIRE(driver().api.cuMemAlloc_v2(&memory, 20 * kMiB) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuMemsetD8Async(memory, 0, 20 * kMiB, CU_STREAM_LEGACY) == CUDA_SUCCESS);
  CUdeviceptr place = 0;
  SECTION("one of 20 MiB") {
    rig.pool().addRoot(rig.context(), memory, 20 * kMiB, RootKind::kVariable);
    place = memory + 18 * kMiB;
  }
  SECTION("five thousand") {
    for (uint64_t i = 0; i < 5000; ++i)
      rig.pool().addRoot(rig.context(), memory + i * 64, 16, RootKind::kVariable);
    place = memory + 4999 * 64 + 8;
  }
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, place, std::vector<uint64_t>{target + 64}.data(), 8, true) ==
          CUDA_SUCCESS);
  rig.synchronize();
  rig.press();
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "readThrough", out, place);
  rig.synchronize();
  CHECK(rig.get(out) == 77);
  rig.end();
}

TEST_CASE("pointers in pinned memory that a launch names are followed",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  void* pinned = nullptr;
  REQUIRE(driver().api.cuMemHostAlloc(
              &pinned, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  CUdeviceptr mapped = 0;
  REQUIRE(driver().cuMemHostGetDevicePointer_v2(&mapped, pinned, 0) == CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), mapped, 4096, RootKind::kHost);
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();
  for (uint64_t i = 0; i < kTargets; ++i) static_cast<uint64_t*>(pinned)[8 + i] = targets[i] + 64;
  rig.launch(CU_STREAM_LEGACY, "gather", out, mapped + 64, kTargets);
  rig.synchronize();
  checkGathered(rig, out);
  rig.pool().removeRoot(mapped);
  REQUIRE(driver().api.cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

namespace {

/// Pinned memory of the driver's.
struct Pinned {
  explicit Pinned(uint64_t size) : bytes(size) {
    REQUIRE(driver().api.cuMemHostAlloc(&memory, size, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    std::memset(memory, 0, size);
  }
  ~Pinned() { driver().api.cuMemFreeHost(memory); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  uint64_t* words() const { return static_cast<uint64_t*>(memory); }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(memory); }

  void* memory = nullptr;
  uint64_t bytes;
};

}  // namespace

TEST_CASE("pinned memory that only memory names is looked through", "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  const Pinned pinned(4096);
  rig.pool().addRoot(rig.context(), pinned.address(), pinned.bytes, RootKind::kHost);
  const CUdeviceptr first = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  const uint64_t word = pinned.address();
  SECTION("by a copy that the CPU sees") {
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, first, &word, 8, true) == CUDA_SUCCESS);
  }
  SECTION("by a copy that only the GPU sees") {
    const Pinned source(4096);
    source.words()[0] = word;
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, first, source.memory, 8, false) == CUDA_SUCCESS);
    rig.synchronize();
  }
  SECTION("by a kernel, which no pass has seen") {
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "setEntry", first, uint64_t{0}, word);
    rig.synchronize();
  }
  SECTION("by a kernel, before anything was paged") {
    rig.launch(CU_STREAM_LEGACY, "setEntry", first, uint64_t{0}, word);
    rig.synchronize();
  }
  rig.put(target, 40);
  rig.press();
  rig.press();
  pinned.words()[0] = target;
  rig.launch(CU_STREAM_LEGACY, "chase", first, uint64_t{2});
  rig.synchronize();
  rig.pool().removeRoot(pinned.address());
  CHECK(rig.get(target) == 41);
}

TEST_CASE("a launch in flight follows what it found in pinned memory", "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  const CUstream stream = rig.makeStream();
  const Pinned pinned(4096);
  rig.pool().addRoot(rig.context(), pinned.address(), pinned.bytes, RootKind::kHost);
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();
  for (int round = 0; round < 3; ++round) {
    // A kernel puts the pointers there, the next one follows them late.
    for (uint64_t i = 0; i < kTargets; ++i)
      rig.launch(stream, "setEntry", pinned.address(), i, targets[i] + 64);
    rig.launch(stream, "gatherLate", out, pinned.address(), kTargets, uint64_t{400000});
    rig.press();
    REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    checkGathered(rig, out);
  }
  rig.pool().removeRoot(pinned.address());
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

// The address of each may be stored in each.
TEST_CASE("a kernel that reaches thousands of pinned blocks costs as much as each of them",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  PoolState& state = olpager::pager::PoolInside::of(rig.pool());
  constexpr uint64_t kBlocks = 2000, kBlock = 4096;
  const Pinned all(kBlocks * kBlock);
  const auto block = [&](uint64_t i) { return all.address() + i * kBlock; };
  std::vector<uint64_t> words;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    rig.pool().addRoot(rig.context(), block(i), kBlock, RootKind::kHost);
    words.push_back(block(i));
  }
  const CUdeviceptr table = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table + 8, words.data(), kBlocks * 8, true) == CUDA_SUCCESS);
  rig.put(target, 40);
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, block(kBlocks - 1));
  rig.synchronize();
  {
    const std::lock_guard lock(state.mutex);
    uint64_t edges = 0;
    for (const auto& [address, root] : state.reach.roots) edges += root.region->edges.size();
    CHECK(edges >= kBlocks);
    CHECK(edges <= 2 * kBlocks);
  }
  rig.press();
  rig.press();
  all.words()[(kBlocks - 1) * kBlock / 8] = target;
  rig.launch(CU_STREAM_LEGACY, "chase", table, uint64_t{2});
  rig.synchronize();
  CHECK(rig.get(target) == 41);
  for (uint64_t i = 0; i < kBlocks; ++i) rig.pool().removeRoot(block(i));
}

TEST_CASE("a range is followed once for what was launched before", "[pager][pointers]") {
  FollowedRanges ranges;
  const Edge range{4096, 1 << 20, 0}, buffer{4096, 1 << 20, 7};
  CHECK(ranges.isNew(range, 5, 3));
  CHECK_FALSE(ranges.isNew(range, 5, 3));
  CHECK_FALSE(ranges.isNew(range, 4, 3));
  CHECK(ranges.isNew(range, 6, 3));
  CHECK(ranges.isNew(range, 5, 4));
  CHECK_FALSE(ranges.isNew(range, 6, 4));
  CHECK(ranges.isNew({4096, 2 << 20, 0}, 1, 1));
  CHECK(ranges.isNew(buffer));
  CHECK(ranges.isNew(buffer));
}

TEST_CASE("a copy still in the stream brings pointers to pinned memory",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  const CUstream stream = rig.makeStream();
  const Pinned pinned(4096), source(4096);
  rig.pool().addRoot(rig.context(), pinned.address(), pinned.bytes, RootKind::kHost);
  const CUdeviceptr out = rig.allocate(2 * kMiB), table = rig.allocate(2 * kMiB),
                    busy = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  for (uint64_t i = 0; i < kTargets; ++i) {
    rig.put(table + i * 8, targets[i] + 64);
    source.words()[i] = targets[i] + 64;
  }
  rig.press();
  rig.press();
  rig.launch(stream, "readLong", busy, busy + 64, uint64_t{20000});
  SECTION("from device memory") {
    REQUIRE(rig.copyWithin(stream, pinned.address(), table, kTargets * 8) == CUDA_SUCCESS);
  }
  SECTION("from memory that nobody has looked at") {
    REQUIRE(rig.copyIn(stream, pinned.address(), source.memory, kTargets * 8, false) ==
            CUDA_SUCCESS);
  }
  rig.launch(stream, "gather", out, pinned.address(), kTargets);
  REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
  checkGathered(rig, out);
  rig.pool().removeRoot(pinned.address());
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

TEST_CASE("what can't be looked through leads anywhere", "[numa][pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  const Pinned pinned(32 * kMiB);
  RootKind kind = RootKind::kHost;  // too large
  uint64_t bytes = pinned.bytes;
  SECTION("large") {}
  SECTION("unknown") {
    kind = RootKind::kUnknown;
    bytes = 4096;
  }
  rig.pool().addRoot(rig.context(), pinned.address(), bytes, kind);
  const CUdeviceptr out = rig.allocate(2 * kMiB), other = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  rig.press();
  rig.press();
  for (uint64_t i = 0; i < kTargets; ++i) pinned.words()[8 + i] = targets[i] + 64;
  const uint64_t before = valueOf(rig.figures().launches_reaching_all);
  rig.launch(CU_STREAM_LEGACY, "gather", out, pinned.address() + 64, kTargets);
  CHECK(valueOf(rig.figures().launches_reaching_all) == before + 1);
  rig.synchronize();
  checkGathered(rig, out);
  rig.put(other, 1);
  CHECK(valueOf(rig.figures().launches_reaching_all) == before + 1);
  rig.pool().removeRoot(pinned.address());
}

TEST_CASE("device memory of the driver's own is scanned as pages are", "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr foreign = 0;
  REQUIRE(driver().api.cuMemAlloc_v2(&foreign, 64 << 10) == CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), foreign, 64 << 10, RootKind::kDevice);
  const CUdeviceptr out = rig.allocate(2 * kMiB);
  const auto targets = makeTargets(rig);
  const uint64_t before = valueOf(rig.figures().launches_reaching_all);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kTargets; ++i)
      rig.launch(CU_STREAM_LEGACY, "setEntry", foreign, i, targets[i] + 64);
    rig.press();
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "gather", out, foreign, kTargets);
    rig.synchronize();
    checkGathered(rig, out);
  }
  CHECK(valueOf(rig.figures().launches_reaching_all) == before);
  rig.pool().removeRoot(foreign);
  REQUIRE(driver().api.cuMemFree_v2(foreign) == CUDA_SUCCESS);
}

TEST_CASE("a kernel of a context without an engine reaches all", "[numa][pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  CUcontext second = nullptr;
  REQUIRE(driver().cuCtxCreate_v4(&second, nullptr, 0, 0) == CUDA_SUCCESS);
  rig.pool().addRoot(second, 4096, 8, RootKind::kVariable);
  rig.enterThread();
  static_cast<void>(rig.allocate(2 * kMiB));
  rig.press();
  const uint64_t before = valueOf(rig.figures().launches_reaching_all);
  Access access(rig.pool(), {second, CU_STREAM_LEGACY, 0});
  access.setFunction(rig.kernel("readGlobal"));
  REQUIRE(access.acquire() == CUDA_SUCCESS);
  access.submitted(CUDA_SUCCESS);
  CHECK(valueOf(rig.figures().launches_reaching_all) == before + 1);
  rig.pool().contextGone(second);
  REQUIRE(driver().cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  rig.enterThread();
}

namespace {

/// Blocks of one size that are freed and allocated again, until the first has its address again.
void allocateAgain(Rig& rig, std::vector<CUdeviceptr> blocks, uint64_t bytes) {
  std::vector<CUdeviceptr> again;
  for (size_t i = 0; i < blocks.size(); ++i) again.push_back(rig.allocate(bytes));
  std::sort(again.begin(), again.end());
  std::sort(blocks.begin(), blocks.end());
  REQUIRE(again == blocks);
}

}  // namespace

TEST_CASE("a table that nobody writes leads to what gets its targets' addresses",
          "[pager][pointers][reused]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  const auto follow = [&](CUdeviceptr target) {
    rig.put(target, 1234);
    rig.press();  // the table was scanned before, and nobody has written it since
    rig.press();
    rig.launch(CU_STREAM_LEGACY, "gather", out, table, uint64_t{1});
    rig.synchronize();
    CHECK(rig.get(out) == 1234);
  };
  SECTION("in another order, so that ids are exchanged") {
    const bool target_first = GENERATE(false, true);
    const CUdeviceptr target = rig.allocate(2 * kMiB), between = rig.allocate(2 * kMiB);
    const CUdeviceptr other = rig.allocate(2 * kMiB);
    rig.put(between, 1);
    rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, target + 64);
    rig.press();
    rig.press();
    rig.free(target_first ? target : other);
    rig.free(target_first ? other : target);
    allocateAgain(rig, {target, other}, 2 * kMiB);
    follow(target + 64);
  }
  SECTION("by blocks of another size") {
    const CUdeviceptr target = rig.allocate(8 * kMiB), behind = rig.allocate(2 * kMiB);
    rig.put(behind, 1);
    rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, target + 4 * kMiB + 64);
    rig.press();
    rig.press();
    rig.free(target);
    REQUIRE(rig.allocate(2 * kMiB) == target);
    REQUIRE(rig.allocate(2 * kMiB) == target + 4 * kMiB);
    follow(target + 4 * kMiB + 64);
  }
  SECTION("after a scan that found nothing there") {
    const CUdeviceptr target = rig.allocate(2 * kMiB), behind = rig.allocate(2 * kMiB);
    rig.put(behind, 1);
    rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, target + 64);
    rig.press();
    rig.free(target);
    rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{1}, CUdeviceptr{0});
    rig.press();
    rig.press();
    REQUIRE(rig.allocate(2 * kMiB) == target);
    follow(target + 64);
  }
  SECTION("after a copy of the table, and a scan by the CPU, while nothing was there") {
    const CUdeviceptr target = rig.allocate(2 * kMiB), behind = rig.allocate(2 * kMiB);
    const CUdeviceptr first = rig.allocate(2 * kMiB);
    const uint64_t word = target + 64;
    rig.put(behind, 1);
    rig.press();
    rig.free(target);
    REQUIRE(rig.copyIn(CU_STREAM_LEGACY, first, &word, 8, true) == CUDA_SUCCESS);
    REQUIRE(rig.copyWithin(CU_STREAM_LEGACY, table, first, 8) == CUDA_SUCCESS);
    rig.press();
    REQUIRE(rig.allocate(2 * kMiB) == target);
    follow(target + 64);
  }
}

TEST_CASE("a variable that nobody writes leads to what gets its target's address",
          "[pager][pointers][roots][reused]") {
  Rig rig({.vram = 16 * kMiB});
  CUdeviceptr global = 0;
  size_t bytes = 0;
  REQUIRE(driver().cuModuleGetGlobal_v2(&global, &bytes, rig.module(), "g_pointer") ==
          CUDA_SUCCESS);
  rig.pool().addRoot(rig.context(), global, bytes, RootKind::kVariable);
  const CUdeviceptr out = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB),
                    between = rig.allocate(2 * kMiB);
  const CUdeviceptr other = rig.allocate(2 * kMiB);
  rig.put(between, 1);
  rig.launch(CU_STREAM_LEGACY, "setGlobal", target + 64);
  rig.press();
  rig.press();
  rig.free(other);
  rig.free(target);
  const bool scanned = GENERATE(false, true);
  if (scanned) rig.press();
  allocateAgain(rig, {target, other}, 2 * kMiB);
  rig.put(target + 64, 99);
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "readGlobal", out);
  rig.synchronize();
  CHECK(rig.get(out) == 99);
  rig.pool().removeRoot(global);
}

TEST_CASE("a table leads to pinned memory that gets the address of freed one",
          "[pager][pointers][roots][reused]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr table = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  rig.put(target + 64, 99);
  const Pinned pinned(4096);
  const CUdeviceptr place = pinned.address();
  rig.pool().addRoot(rig.context(), place, 4096, RootKind::kHost);
  rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{0}, place);
  rig.press();
  rig.press();
  // Freed, and again there for another allocation; a region takes its id meanwhile.
  rig.pool().removeRoot(place);
  const bool scanned = GENERATE(false, true);
  if (scanned) {
    rig.launch(CU_STREAM_LEGACY, "setEntry", table, uint64_t{1}, CUdeviceptr{0});
    rig.press();
    rig.press();
  }
  rig.put(rig.allocate(2 * kMiB), 1);
  pinned.words()[0] = target + 64;
  rig.pool().addRoot(rig.context(), place, 4096, RootKind::kHost);
  rig.press();
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "chase", table, uint64_t{2});
  rig.synchronize();
  CHECK(rig.get(target + 64) == 100);
  rig.pool().removeRoot(place);
}

TEST_CASE("ranges that a region leads to are joined where they overlap or touch",
          "[pager][pointers]") {
  const uint64_t seed = GENERATE(1, 2, 3);
  CAPTURE(seed);
  std::mt19937_64 random(seedOr(seed));
  constexpr uint64_t kPlaces = 400;
  std::vector<bool> covered(kPlaces);
  std::set<Edge> buffers;
  Region region;
  FollowedRanges followed;
  for (int i = 0; i < 300; ++i) {
    const uint64_t begin = random() % (kPlaces - 20), bytes = 1 + random() % 20;
    if (random() % 4 == 0) {
      const Edge buffer{begin, bytes, 1 + random() % 50};
      CHECK(addEdge(region, buffer) == buffers.insert(buffer).second);
      continue;
    }
    const bool whole = std::all_of(covered.begin() + static_cast<ptrdiff_t>(begin),
                                   covered.begin() + static_cast<ptrdiff_t>(begin + bytes),
                                   [](bool one) { return one; });
    CHECK((addEdge(region, {begin, bytes, 0}) || whole));
    for (uint64_t at = begin; at < begin + bytes; ++at) covered[at] = true;
  }
  CHECK(std::is_sorted(region.edges.begin(), region.edges.end()));
  std::vector<bool> led(kPlaces);
  size_t found = 0;
  for (const Edge& edge : region.edges) {
    CHECK(followed.isNew(edge));
    if (edge.buffer_id != 0) {
      found += buffers.count(edge);
      continue;
    }
    for (uint64_t at = edge.begin; at < edge.begin + edge.bytes; ++at) {
      CHECK_FALSE(led[at]);
      led[at] = true;
    }
    if (edge.bytes > 1) CHECK_FALSE(followed.isNew({edge.begin + 1, edge.bytes - 1, 0}));
  }
  CHECK(found == buffers.size());
  CHECK(led == covered);
}

TEST_CASE("a range of roots that grows downwards is one edge", "[pager][pointers]") {
  Region region;
  for (uint64_t begin = 1000; begin != 0; --begin) CHECK(addEdge(region, {begin, 1001 - begin, 0}));
  CHECK(region.edges.size() == 1);
  CHECK_FALSE(addEdge(region, {5, 10, 0}));
}

// Two small integers, as a kernel sees them: a word that is an address between a program's
// variables and its pinned memory.
TEST_CASE("integers in pinned memory that look like addresses cost as much as few edges",
          "[pager][pointers][roots]") {
  Rig rig({.vram = 16 * kMiB});
  PoolState& state = olpager::pager::PoolInside::of(rig.pool());
  constexpr uint64_t kWords = 20000;
  const Pinned pinned(kWords * 8), other(4096);
  static uint64_t low[512];
  for (uint64_t i = 0; i < kWords; ++i) pinned.words()[i] = (i + 1) << 32 | i;
  const CUdeviceptr table = rig.allocate(2 * kMiB), target = rig.allocate(2 * kMiB);
  pinned.words()[kWords / 2] = other.address();
  other.words()[0] = target + 64;
  rig.put(target + 64, 7);
  rig.pool().addRoot(rig.context(), pinned.address(), pinned.bytes, RootKind::kHost);
  rig.pool().addRoot(rig.context(), reinterpret_cast<uint64_t>(low), sizeof low, RootKind::kHost);
  rig.pool().addRoot(rig.context(), other.address(), other.bytes, RootKind::kHost);
  rig.put(table, pinned.address() + kWords / 2 * 8);
  rig.press();
  rig.press();
  // From the table by the pinned memory, and by the memory that this names, to the target.
  rig.launch(CU_STREAM_LEGACY, "chase", table, uint64_t{3});
  rig.synchronize();
  CHECK(rig.get(target + 64) == 8);
  {
    const std::lock_guard lock(state.mutex);
    size_t most = 0;
    for (const auto& [address, root] : state.reach.roots)
      most = std::max(most, root.region->edges.size());
    CHECK(most >= 1);
    CHECK(most < 600);
  }
  rig.pool().removeRoot(pinned.address());
  rig.pool().removeRoot(reinterpret_cast<uint64_t>(low));
  rig.pool().removeRoot(other.address());
}
