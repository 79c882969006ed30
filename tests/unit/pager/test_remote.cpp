// The tier below host RAM, as the engine uses it; of memservers themselves tests/unit/remote. Long,
// as its neighbours: one file for a subject, whose cases share their set-up.
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

struct Remote {
  explicit Remote(uint64_t capacity = 512 * kMiB)
      : tier(std::make_shared<FakeRemote>(capacity, seedOr(21))) {}
  std::shared_ptr<FakeRemote> tier;
};

std::vector<CUdeviceptr> fillMany(Rig& rig, unsigned count, uint64_t seed) {
  std::vector<CUdeviceptr> pieces;
  for (unsigned i = 0; i < count; ++i) {
    pieces.push_back(rig.allocate(kPiece));
    rig.fill(pieces.back(), kPiece, seed + i);
  }
  rig.synchronize();
  return pieces;
}

}  // namespace

TEST_CASE("what neither VRAM nor host RAM holds goes to memservers and comes back",
          "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  std::mt19937_64 random(seedOr(22));
  constexpr unsigned kCount = 48;
  const auto pieces = fillMany(rig, kCount, 100);
  CHECK(remote.tier->held() > 0);
  std::vector<uint64_t> added(kCount, 0);
  for (int round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < kCount; ++i) {
      const unsigned which = round == 2 ? static_cast<unsigned>(random() % kCount) : i;
      if (random() % 2 == 0) {
        rig.launch(CU_STREAM_LEGACY, "addTo", pieces[which], kPiece / 8 / kStep, kStep,
                   uint64_t{3});
        added[which] += 3;
      }
      CHECK(rig.holds(pieces[which], kPiece, 100 + which, added[which]));
    }
  }
  CHECK(valueOf(rig.figures().remote_in) > 0);
  CHECK(valueOf(rig.figures().remote_out) > 0);
  for (const CUdeviceptr piece : pieces) rig.free(piece);
  CHECK(remote.tier->held() == 0);
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("what was not changed is sent once", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 40;
  const auto pieces = fillMany(rig, kCount, 7);
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 7 + i));
  const uint64_t sent = valueOf(rig.figures().remote_out),
                 received = valueOf(rig.figures().remote_in);
  for (int round = 0; round < 3; ++round)
    for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 7 + i));
  const uint64_t again = valueOf(rig.figures().remote_out) - sent;
  const uint64_t came = valueOf(rig.figures().remote_in) - received;
  INFO(again / kMiB << " MiB sent again, " << came / kMiB << " MiB came");
  CHECK(came > 0);
  CHECK(again <= came / 4 + kCount * kPiece / 2);  // some had never been there
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("allocations may exceed VRAM and host RAM by what memservers have, which counters say",
          "[pager][remote]") {
  const Remote remote(64 * kMiB);
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  std::vector<CUdeviceptr> pieces;
  CUdeviceptr address = 0;
  CUresult result = CUDA_SUCCESS;
  while ((result = rig.tryAllocate(kPiece, &address)) == CUDA_SUCCESS) pieces.push_back(address);
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(pieces.size() == 112 / 2);
  for (const CUdeviceptr piece : pieces) rig.free(piece);
  CHECK(valueOf(counters().pool_bytes) == 112 * kMiB);
  CHECK(valueOf(counters().memserver_bytes) == 64 * kMiB);
  // Also after a recall, when memservers have more again, and with another budget.
  const auto says = [](uint64_t pool, uint64_t memservers) {
    for (int i = 0; i < 1000; ++i) {
      if (valueOf(counters().pool_bytes) == pool &&
          valueOf(counters().memserver_bytes) == memservers)
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  remote.tier->setCapacity(24 * kMiB);
  CHECK(says(72 * kMiB, 24 * kMiB));
  remote.tier->setCapacity(40 * kMiB);
  CHECK(says(88 * kMiB, 40 * kMiB));
  CHECK(rig.pool().setVramBudget(0, 8 * kMiB) == 8 * kMiB);
  CHECK(says(80 * kMiB, 40 * kMiB));
}

// Network cards may know a chunk that was moved once: its memory is unmapped behind letGo() alone.
TEST_CASE("host chunks that are released are let go of", "[pager][remote]") {
  const Remote remote(128 * kMiB);
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 40;
  const auto pieces = fillMany(rig, kCount, 50);
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 50 + i, 0));
  CHECK(remote.tier->known() > 4);
  CHECK(rig.pool().setHostLimit(8 * kMiB) == 8 * kMiB);
  const auto fewer = [&] {
    for (int i = 0; i < 1000; ++i) {
      if (remote.tier->known() <= 4 && valueOf(counters().host_used_bytes) <= 8 * kMiB) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  CHECK(fewer());
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 50 + i, 0));
  CHECK(remote.tier->known() <= 4);
}

TEST_CASE("copies at memservers of what is here give way to what is not", "[pager][remote]") {
  // All tiers together have room for 44 pieces, and memservers for 20, of which 12 at least are
  // nowhere else.
  const Remote remote(40 * kMiB);
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 36;
  const auto pieces = fillMany(rig, kCount, 30);
  const auto began = std::chrono::steady_clock::now();
  constexpr uint64_t kRounds = 3;
  for (uint64_t round = 0; round < kRounds; ++round)
    for (unsigned i = 0; i < kCount; ++i)  // it changes: what memservers have of it is outdated
      REQUIRE(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i * 5 % kCount],
                            kPiece / 8 / kStep, kStep, uint64_t{3}) == CUDA_SUCCESS);
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 30 + i, 3 * kRounds));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(30));
  CHECK(remote.tier->held() <= 40 * kMiB);
  CHECK(remote.tier->broken() == nullptr);
}

namespace {
// True if memservers were asked for something that had not left VRAM yet, which depends on where
// the engine had put things.
bool losesWhatLeaves() {
  const Remote remote;
  std::atomic<bool> forgets{false};
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  // Forgets what is asked for as it is about to leave VRAM. The asker has the pool's mutex.
  remote.tier->forgets = [&](uint64_t address) {
    if (!forgets) return false;
    const Extent* const extent = PoolInside::of(rig.pool()).book.extentAt(address);
    return extent != nullptr && extent->state == ExtentState::kRetiring;
  };
  constexpr unsigned kCount = 48, kKept = 6;
  const auto pieces = fillMany(rig, kCount, 60);
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 60 + i));
  // The first ones are in VRAM, and below that at memservers alone: host RAM was short. From now on
  // it is not.
  for (unsigned i = 0; i < kKept; ++i) CHECK(rig.holds(pieces[i], kPiece, 60 + i));
  for (unsigned i = kKept; i < kCount; ++i) rig.free(pieces[i]);
  forgets = true;
  const auto others = fillMany(rig, 8, 200);
  for (unsigned i = 0; i < others.size(); ++i) CHECK(rig.holds(others[i], kPiece, 200 + i));
  forgets = false;
  for (unsigned i = 0; i < kKept; ++i) CHECK(rig.holds(pieces[i], kPiece, 60 + i));
  CHECK(remote.tier->broken() == nullptr);
  return remote.tier->forgotten() > 0;
}
}  // namespace

TEST_CASE("what memservers lose while it leaves VRAM is kept here", "[pager][remote]") {
  constexpr int kTries = 5;
  bool lost = false;
  for (int i = 0; i < kTries && !lost; ++i) lost = losesWhatLeaves();
  CHECK(lost);
}

TEST_CASE("a launch that can never fit is refused at once, however much memservers have",
          "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 16 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 24;
  const auto pieces = fillMany(rig, kCount, 60);
  const CUdeviceptr table = rig.allocate(kPiece), out = rig.allocate(kPiece);
  // By a copy: a kernel that is given the table reaches all that it names.
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table, pieces.data(), kCount * sizeof(CUdeviceptr), true) ==
          CUDA_SUCCESS);
  const auto began = std::chrono::steady_clock::now();
  for (unsigned round = 0; round < 3; ++round) {
    CHECK(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("gather"), out, table, uint64_t{1}) ==
          CUDA_ERROR_OUT_OF_MEMORY);
    rig.launch(CU_STREAM_LEGACY, "addTo", pieces[round], kPiece / 8 / kStep, kStep, uint64_t{3});
    CHECK(rig.holds(pieces[round], kPiece, 60 + round, 3));
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20) * kPatience);
  // A table of fewer fits.
  std::vector<CUdeviceptr> few(kCount, 0);
  few[0] = pieces[9];
  REQUIRE(rig.copyIn(CU_STREAM_LEGACY, table, few.data(), kCount * sizeof(CUdeviceptr), true) ==
          CUDA_SUCCESS);
  rig.press();
  rig.launch(CU_STREAM_LEGACY, "gather", out, table, uint64_t{1});
  rig.synchronize();
  CHECK(rig.get(out) == rig.get(pieces[9]));
}

TEST_CASE("a launch that finds all tiers full is refused soon", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 16 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 24;
  const auto pieces = fillMany(rig, kCount, 40);
  std::vector<uint64_t> added(kCount, 0);
  remote.tier->no_room = true;
  const auto began = std::chrono::steady_clock::now();
  CUresult result = CUDA_SUCCESS;
  const auto busy = [] {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  std::chrono::nanoseconds before{};
  for (unsigned i = 0; i < kCount && result == CUDA_SUCCESS; ++i) {
    before = busy();
    result = rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i],
                           kPiece / 8 / kStep, kStep, uint64_t{3});
    if (result == CUDA_SUCCESS) added[i] = 3;
  }
  const auto worked = busy() - before;
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(20));
  // Waiting is no work: the engine and the launch do not wake each other without end. The launch
  // waits for five seconds.
  CAPTURE(std::chrono::duration_cast<std::chrono::milliseconds>(worked).count());
  CHECK(worked < std::chrono::milliseconds(150) * kPatience);
  remote.tier->no_room = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // it is asked again after a second
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 40 + i, added[i]));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("a launch that waits for room is not refused while pages leave one by one",
          "[pager][remote][slow]") {
  const Remote remote;
  // A second passes between two pages: memservers without room are not asked sooner.
  Rig rig({.vram = 16 * kMiB,
           .host = 16 * kMiB,
           .waits = {.all_full_ns = 2'500'000'000},
           .remote = remote.tier});
  constexpr uint64_t kLarge = 4 * kPiece;
  const CUdeviceptr large = rig.allocate(kLarge);
  rig.fill(large, kLarge, 7);
  rig.synchronize();
  const auto pieces = fillMany(rig, 24, 40);  // which sends the large one away
  remote.tier->no_room = true;
  std::atomic<bool> over = false;
  std::thread admits([&] {
    while (!over) {
      if (remote.tier->refused.exchange(0) != 0) remote.tier->admitted = 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const CUresult result = rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), large,
                                        kLarge / 8 / kStep, kStep, uint64_t{3});
  over = true;
  admits.join();
  CHECK(result == CUDA_SUCCESS);
  remote.tier->no_room = false;
  CHECK(rig.holds(large, kLarge, 7, 3));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("memservers without room: host RAM is all there is, for a while", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  remote.tier->no_room = true;
  auto pieces = fillMany(rig, 20, 50);
  CHECK(remote.tier->held() == 0);
  remote.tier->no_room = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // it is asked again after a second
  for (unsigned i = 0; i < 20; ++i) {
    pieces.push_back(rig.allocate(kPiece));
    rig.fill(pieces.back(), kPiece, 70 + i);
  }
  for (unsigned i = 0; i < 40; ++i) CHECK(rig.holds(pieces[i], kPiece, 50 + i));
  CHECK(remote.tier->held() > 0);
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("lost memory is refused, never replaced", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 40;
  const auto pieces = fillMany(rig, kCount, 9);
  remote.tier->lost = true;
  unsigned refused = 0, right = 0;
  for (unsigned i = 0; i < kCount; ++i) {
    CUresult result = rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i],
                                    uint64_t{1}, kStep, uint64_t{0});
    // Memory that a launch used may have left VRAM again before the copy, and be lost by then.
    bool holds = false;
    if (result == CUDA_SUCCESS) result = rig.tryHolds(pieces[i], kPiece, 9 + i, 0, &holds);
    if (result == CUDA_SUCCESS) {
      CHECK(holds);
      ++right;
    } else {
      CHECK(result == CUDA_ERROR_ECC_UNCORRECTABLE);
      ++refused;
    }
  }
  INFO(refused << " of " << kCount << " lost");
  CHECK(refused > 0);
  // A pin, which needs an address that stays, does not wait for lost memory either.
  unsigned unpinnable = 0;
  for (const CUdeviceptr piece : pieces) {
    const CUresult result = rig.pool().pin(piece);
    if (result == CUDA_SUCCESS) {
      REQUIRE(rig.pool().unpin(piece) == CUDA_SUCCESS);
    } else {
      CHECK(result == CUDA_ERROR_ECC_UNCORRECTABLE);
      ++unpinnable;
    }
  }
  CHECK(unpinnable >= refused);
  CHECK(right > 0);
  remote.tier->lost = false;
  for (const CUdeviceptr piece : pieces) rig.free(piece);  // also what is lost
  const auto fresh = fillMany(rig, 30, 60);
  for (unsigned i = 0; i < 30; ++i) CHECK(rig.holds(fresh[i], kPiece, 60 + i));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("what is on its way from a memserver that is silent can be freed", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  constexpr unsigned kCount = 48;
  const auto pieces = fillMany(rig, kCount, 11);
  const auto touch = [&](unsigned i) {
    return rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i], uint64_t{1},
                         kStep, uint64_t{0});
  };
  for (unsigned i = 0; i < 3 * kCount; ++i)
    REQUIRE(touch(i % kCount) == CUDA_SUCCESS);  // the order is learned
  remote.tier->frozen = true;
  std::atomic<unsigned> at{0};
  std::atomic<bool> last{false}, ended{false};
  std::atomic<CUresult> result{CUDA_SUCCESS};
  std::thread launches([&] {
    rig.enterThread();
    while (result == CUDA_SUCCESS && !last && at < kCount) {
      result = touch(at);
      if (!last) ++at;
    }
    ended = true;
  });
  // One launch waits, and what comes after it is asked for ahead.
  for (int i = 0; i < 1000 && remote.tier->receiving() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(remote.tier->receiving() >= 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  last = true;
  const unsigned waits = at;
  const auto began = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < kCount; ++i)
    if (i != waits) rig.free(pieces[i]);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  CHECK(!ended);
  remote.tier->frozen = false;
  launches.join();
  CHECK(result == CUDA_SUCCESS);
  CHECK(rig.holds(pieces[waits], kPiece, 11 + waits));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("an engine moves to another context while a memserver is silent",
          "[pager][remote][numa]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  static_cast<void>(rig.allocate(kPiece));  // the engine lives in the rig's context
  CUcontext second = nullptr;
  REQUIRE(driver().cuCtxCreate_v4(&second, nullptr, 0, 0) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> kept(6);
  for (size_t i = 0; i < kept.size(); ++i) {
    REQUIRE(rig.pool().allocate(second, 0, kPiece, AllocationKind::kDevice, &kept[i]) ==
            CUDA_SUCCESS);
    Access access(rig.pool(), {second, CU_STREAM_LEGACY, 0});
    access.addRange(kept[i], kPiece, Mode::kWrite);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemsetD8Async(kept[i], static_cast<unsigned char>(i + 1), kPiece,
                                         CU_STREAM_LEGACY) == CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
  }
  rig.synchronize();
  REQUIRE(driver().cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
  remote.tier->frozen = true;
  std::vector<CUdeviceptr> pieces;
  for (unsigned i = 0; i < 17; ++i) {  // they push the others out, to the memservers at last
    pieces.push_back(rig.allocate(kPiece));
    rig.fill(pieces.back(), kPiece, i);
  }
  rig.synchronize();
  for (int i = 0; i < 1000 && remote.tier->underWay() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(remote.tier->underWay() > 0);
  std::atomic<bool> moved{false};
  std::thread thaws([&] {
    for (int i = 0; i < 2000 && !moved; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    remote.tier->frozen = false;
  });
  const auto began = std::chrono::steady_clock::now();
  rig.end();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  CHECK(remote.tier->underWay() > 0);  // of the second's
  moved = true;
  thaws.join();
  REQUIRE(driver().cuCtxSetCurrent(second) == CUDA_SUCCESS);
  std::vector<unsigned char> bytes(kPiece);
  for (size_t i = 0; i < kept.size(); ++i) {
    Access access(rig.pool(), {second, CU_STREAM_LEGACY, 0});
    access.addRange(kept[i], kPiece, Mode::kRead);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    REQUIRE(driver().api.cuMemcpyDtoHAsync_v2(bytes.data(), kept[i], kPiece, CU_STREAM_LEGACY) ==
            CUDA_SUCCESS);
    access.submitted(CUDA_SUCCESS);
    rig.synchronize();
    CHECK(
        std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) { return byte == i + 1; }));
  }
  CHECK(remote.tier->broken() == nullptr);
  rig.pool().contextGone(second);
  driver().cuCtxDestroy_v2(second);
}

TEST_CASE("what is known to be lost is refused at once, and nobody tries to receive it",
          "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  const auto pieces = fillMany(rig, 40, 15);
  for (int i = 0; i < 1000 && remote.tier->underWay() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  remote.tier->lost = true;
  remote.tier->forget();
  remote.tier->frozen = true;  // what would be tried would last
  std::atomic<bool> ended{false};
  std::thread thaws([&] {
    for (int i = 0; i < 1000 && !ended; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    remote.tier->frozen = false;
  });
  const auto began = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < 8; ++i) {  // the first to go
    CHECK(rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i], uint64_t{1},
                        kStep, uint64_t{0}) == CUDA_ERROR_ECC_UNCORRECTABLE);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(8));
  ended = true;
  thaws.join();
  for (const CUdeviceptr piece : pieces) rig.free(piece);
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("receives that get no memory are refused for a while, and nothing is lost",
          "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB,
           .host = 32 * kMiB,
           .waits = {.all_full_ns = 500'000'000},
           .remote = remote.tier});
  constexpr unsigned kCount = 40;
  const auto pieces = fillMany(rig, kCount, 13);
  remote.tier->no_memory = true;
  unsigned refused = 0;
  for (unsigned i = 0; i < kCount; ++i) {
    const CUresult result = rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), pieces[i],
                                          uint64_t{1}, kStep, uint64_t{0});
    if (result == CUDA_SUCCESS) continue;
    CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
    ++refused;
    break;
  }
  CHECK(refused > 0);
  remote.tier->no_memory = false;
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 13 + i));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("threads that use, free and allocate while memory goes and comes", "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 48 * kMiB, .remote = remote.tier});
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      rig.enterThread();
      const CUstream stream = rig.makeStream();
      std::mt19937_64 random(seedOr(30) + t);
      std::vector<std::pair<CUdeviceptr, uint64_t>> own;
      for (int step = 0; step < 120; ++step) {
        if (own.size() < 12 || random() % 8 == 0) {
          const uint64_t seed = random();
          CUdeviceptr address = 0;
          if (rig.tryAllocate(kPiece, &address) != CUDA_SUCCESS) continue;
          rig.fill(address, kPiece, seed, stream);
          own.emplace_back(address, seed);
        }
        const size_t which = random() % own.size();
        if (driver().api.cuStreamSynchronize(stream) != CUDA_SUCCESS) ++wrong;
        if (!rig.holds(own[which].first, kPiece, own[which].second)) ++wrong;
        if (random() % 10 == 0) {
          if (rig.pool().free(own[which].first) != CUDA_SUCCESS) ++wrong;
          own.erase(own.begin() + static_cast<ptrdiff_t>(which));
        }
      }
      rig.pool().streamDestroyed(rig.key(stream));
      driver().api.cuStreamDestroy_v2(stream);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(remote.tier->broken() == nullptr);
}

namespace {
std::atomic<unsigned> host_chunks_made{0};

void countHostChunks(DriverApi& api) {
  api.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t size,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) ++host_chunks_made;
    return driver().api.cuMemCreate(handle, size, properties, flags);
  };
  api.cuMemHostAlloc = [](void** memory, size_t size, unsigned flags) {
    ++host_chunks_made;
    return driver().api.cuMemHostAlloc(memory, size, flags);
  };
}
}  // namespace

TEST_CASE("host chunks of two sizes that are both short are not made of each other in turns",
          "[pager][remote]") {
  const Remote remote;
  Rig rig({.vram = 32 * kMiB, .host = 64 * kMiB, .remote = remote.tier, .alter = countHostChunks});
  constexpr uint64_t kSizes[] = {2 * kMiB, 4 * kMiB, 14 * kMiB};
  std::vector<std::pair<CUdeviceptr, uint64_t>> pieces;
  for (uint64_t i = 0; i < 30; ++i) {
    pieces.emplace_back(rig.allocate(kSizes[i % 3]), kSizes[i % 3]);
    rig.fill(pieces.back().first, pieces.back().second, 300 + i);
  }
  rig.synchronize();
  CHECK(remote.tier->held() > 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // what was on its way has arrived
  const unsigned before = host_chunks_made;
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(host_chunks_made - before <= 4);
  for (uint64_t i = 0; i < pieces.size(); ++i)
    CHECK(rig.holds(pieces[i].first, pieces[i].second, 300 + i));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE(
    "host RAM holds what VRAM does not: no more than the rest comes over the network each round",
    "[pager][remote]") {
  const Remote remote;
  constexpr uint64_t kVram = 32 * kMiB, kHost = 64 * kMiB, kReserve = kHost / 8;
  Rig rig({.vram = kVram, .host = kHost, .remote = remote.tier});
  constexpr unsigned kCount = 80;
  const auto pieces = fillMany(rig, kCount, 900);
  const auto round = [&] {
    for (const CUdeviceptr piece : pieces) {
      rig.launch(CU_STREAM_LEGACY, "addTo", piece, kPiece / 8 / kStep, kStep, uint64_t{0});
      rig.synchronize();
    }
  };
  for (int i = 0; i < 4; ++i) round();
  const uint64_t before = valueOf(rig.figures().remote_in);
  constexpr int kRounds = 4;
  for (int i = 0; i < kRounds; ++i) round();
  const uint64_t came = (valueOf(rig.figures().remote_in) - before) / kRounds;
  const uint64_t least = kCount * kPiece - kVram - (kHost - kReserve);
  INFO(came / kMiB << " MiB a round came, " << least / kMiB << " have to");
  CHECK(came <= least + least / 3);
  for (unsigned i = 0; i < kCount; ++i) CHECK(rig.holds(pieces[i], kPiece, 900 + i));
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE(
    "while memservers take nothing the GPU does not look for victims in vain, and what went in "
    "place leaves it again",
    "[pager][remote][numa]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 16 * kMiB, .remote = remote.tier});
  remote.tier->frozen = true;
  // As many as VRAM and host RAM hold; then each is used: what is parked finds no way up and is
  // used in place.
  constexpr unsigned kCount = 16;
  auto pieces = fillMany(rig, kCount, 80);
  const uint64_t hashed = valueOf(rig.figures().hashed_bytes);
  const auto began = std::chrono::steady_clock::now();
  uint64_t uses = 0;
  for (int round = 0; round < 2; ++round) {
    for (const CUdeviceptr piece : pieces) {
      if (rig.pool().residency(piece).vram != 0) continue;
      rig.launch(CU_STREAM_LEGACY, "addTo", piece, kPiece / 8 / kStep, kStep, uint64_t{0});
      ++uses;
    }
  }
  const auto waited = std::chrono::steady_clock::now() - began;
  const auto tenths =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(waited).count()) /
      100;
  const uint64_t in_vain = valueOf(rig.figures().hashed_bytes) - hashed;
  INFO(in_vain / kMiB << " MiB hashed for " << uses << " launches in " << tenths
                      << " tenths of a second, " << valueOf(rig.figures().in_place_bytes) / kMiB
                      << " MiB in place");
  CHECK(valueOf(rig.figures().in_place_bytes) > 0);
  CHECK(in_vain <= (tenths + 2 * uses) * 4 *
                       kPiece);  // a pass each tenth of a second, not one after the other
  remote.tier->frozen = false;
  for (unsigned i = 0; i < 24; ++i) {
    pieces.push_back(rig.allocate(kPiece));
    rig.fill(pieces.back(), kPiece, 80 + pieces.size() - 1);
  }
  for (unsigned i = 0; i < pieces.size(); ++i) CHECK(rig.holds(pieces[i], kPiece, 80 + i));
  CHECK(remote.tier->held() > 0);
  CHECK(remote.tier->broken() == nullptr);
}

namespace {

constexpr CUmemAccessDesc kAccess{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

CUmemGenericAllocationHandle handleOf(Rig& rig, uint64_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(rig.pool().createHandle(rig.context(), 0, bytes, properties, &handle) == CUDA_SUCCESS);
  return handle;
}

void mapHandle(Rig& rig, CUdeviceptr at, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  REQUIRE(rig.pool().map(at, bytes, 0, handle) == CUDA_SUCCESS);
  REQUIRE(rig.pool().setAccess(at, bytes, &kAccess, 1) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("the program's own mappings go to memservers, are unmapped there and mapped elsewhere",
          "[pager][remote][vmm]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .remote = remote.tier});
  Pool& pool = rig.pool();
  std::mt19937_64 random(seedOr(23));
  constexpr unsigned
      kRanges = 8,
      kEach = 3;  // 8 reservations of three mappings and room for a fourth: 96 MiB in use
  constexpr uint64_t kBytes = 4 * kMiB;
  struct Mapped {
    CUmemGenericAllocationHandle handle = 0;
    uint64_t seed = 0;
    CUdeviceptr at = 0;  // 0: rests
  };
  std::vector<CUdeviceptr> ranges(kRanges);
  std::vector<std::vector<Mapped>> all(kRanges);
  uint64_t seed = 400;
  for (unsigned r = 0; r < kRanges; ++r) {
    REQUIRE(pool.reserveAddress((kEach + 1) * kBytes, 0, 0, &ranges[r]) == CUDA_SUCCESS);
    for (unsigned m = 0; m < kEach; ++m) {
      all[r].push_back({handleOf(rig, kBytes), ++seed, ranges[r] + m * kBytes});
      mapHandle(rig, all[r][m].at, kBytes, all[r][m].handle);
      rig.fill(all[r][m].at, kBytes, seed);
    }
  }
  rig.synchronize();
  CHECK(remote.tier->held() > 0);
  const auto settled = [&](unsigned r) {
    for (const Mapped& mapped : all[r])
      if (mapped.at != 0) CHECK(rig.holds(mapped.at, kBytes, mapped.seed));
  };
  unsigned unmapped_remote = 0;
  for (int step = 0; step < 60; ++step) {
    const auto r = static_cast<unsigned>(random() % kRanges);
    Mapped& one = all[r][random() % kEach];
    switch (random() % 4) {
      case 0:  // away, and to the other end of its range or back
        if (one.at != 0) {
          unmapped_remote += pool.residency(one.at).vram == 0 ? 1 : 0;
          REQUIRE(pool.unmap(one.at, kBytes) == CUDA_SUCCESS);
          one.at = 0;
          break;
        }
        for (unsigned place = 0; place <= kEach && one.at == 0; ++place) {
          const CUdeviceptr at = ranges[r] + place * kBytes;
          if (std::none_of(all[r].begin(), all[r].end(),
                           [at](const Mapped& other) { return other.at == at; }))
            one.at = at;
        }
        mapHandle(rig, one.at, kBytes, one.handle);
        CHECK(rig.holds(one.at, kBytes, one.seed));
        break;
      case 1:  // gone for good, and a new one
        if (one.at == 0) break;
        REQUIRE(pool.unmap(one.at, kBytes) == CUDA_SUCCESS);
        REQUIRE(pool.releaseHandle(one.handle) == CUDA_SUCCESS);
        one.handle = handleOf(rig, kBytes);
        one.seed = ++seed;
        mapHandle(rig, one.at, kBytes, one.handle);
        rig.fill(one.at, kBytes, one.seed);
        break;
      default:
        settled(r);
    }
  }
  CHECK(unmapped_remote > 0);
  for (unsigned r = 0; r < kRanges; ++r) settled(r);
  CHECK(valueOf(rig.figures().remote_in) > 0);
  rig.synchronize();
  for (unsigned r = 0; r < kRanges; ++r) {
    for (const Mapped& mapped : all[r]) {
      if (mapped.at != 0) REQUIRE(pool.unmap(mapped.at, kBytes) == CUDA_SUCCESS);
      REQUIRE(pool.releaseHandle(mapped.handle) == CUDA_SUCCESS);
    }
    REQUIRE(pool.releaseAddress(ranges[r], (kEach + 1) * kBytes) == CUDA_SUCCESS);
  }
  CHECK(remote.tier->held() == 0);
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("a mapping whose bytes are lost stays lost when it is mapped anew",
          "[pager][remote][vmm]") {
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = 16 * kMiB, .remote = remote.tier});
  Pool& pool = rig.pool();
  constexpr uint64_t kBytes = 2 * kMiB;
  constexpr unsigned kCount = 24;
  std::vector<CUdeviceptr> ranges(kCount);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (unsigned i = 0; i < kCount; ++i) {
    REQUIRE(pool.reserveAddress(2 * kBytes, 0, 0, &ranges[i]) == CUDA_SUCCESS);
    handles.push_back(handleOf(rig, kBytes));
    mapHandle(rig, ranges[i], kBytes, handles[i]);
    rig.fill(ranges[i], kBytes, 500 + i);
  }
  rig.synchronize();
  remote.tier->lost = true;
  unsigned lost = 0;
  for (unsigned i = 0; i < kCount; ++i) {
    const bool before = i % 2 == 0;  // it is found out before, or after
    const auto use = [&](CUdeviceptr at) {
      return rig.tryLaunch(rig.key(CU_STREAM_LEGACY), rig.kernel("addTo"), at, uint64_t{1}, kStep,
                           uint64_t{0});
    };
    const CUresult first = before ? use(ranges[i]) : CUDA_SUCCESS;
    rig.synchronize();
    REQUIRE(pool.unmap(ranges[i], kBytes) == CUDA_SUCCESS);
    mapHandle(rig, ranges[i] + kBytes, kBytes, handles[i]);
    const CUresult again = use(ranges[i] + kBytes);
    if (again == CUDA_SUCCESS) {
      CHECK(first == CUDA_SUCCESS);
      CHECK(rig.holds(ranges[i] + kBytes, kBytes, 500 + i));
    } else {
      CHECK(again == CUDA_ERROR_ECC_UNCORRECTABLE);
      ++lost;
    }
  }
  CHECK(lost > 0);
  CHECK(remote.tier->broken() == nullptr);
}

TEST_CASE("what programs are told of memory", "[pager][remote]") {
  const Remote remote(64 * kMiB);
  for (const Report report : {Report::kNode, Report::kPool}) {
    Rig rig({.vram = 16 * kMiB, .host = 32 * kMiB, .report = report, .remote = remote.tier});
    const uint64_t all = report == Report::kNode ? 48 * kMiB : 112 * kMiB;
    std::vector<CUdeviceptr> pieces;
    for (unsigned i = 0; i < 40; ++i) {
      const MemoryInfo told = rig.pool().memoryInfo(rig.context(), 0);
      const uint64_t used = i * kPiece;
      CHECK(told.total_bytes == all);
      CHECK(told.free_bytes == all - std::min(all, used));
      pieces.push_back(rig.allocate(kPiece));
    }
    for (const CUdeviceptr piece : pieces) rig.free(piece);
  }
}

TEST_CASE("a scan that is late is waited for where launches can't reach all of memory",
          "[pager][remote][pointers][numa]") {
  const bool fits = GENERATE(true, false);
  const Remote remote;
  Rig rig({.vram = 16 * kMiB, .host = (fits ? 256 : 32) * kMiB, .remote = remote.tier});
  const CUdeviceptr table = rig.allocate(kPiece), out = rig.allocate(kPiece);
  const auto pieces = fillMany(rig, 40, 50);
  rig.fill(out, kPiece, 3);
  const std::vector<uint64_t> words(pieces.begin(), pieces.begin() + 2);
  mustSucceed(rig.copyIn(CU_STREAM_LEGACY, table, words.data(), words.size() * 8, true), "copy");
  rig.synchronize();
  // The copy that the scan waits for ends after the launch has lost patience with it.
  const CUstream copies = rig.makeStream(), launches = rig.makeStream();
  std::atomic<bool> open{false};
  holdUntil(open, copies);
  mustSucceed(rig.copyIn(copies, table, words.data(), words.size() * 8, false), "copy");
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    open = true;
  });
  const uint64_t before = valueOf(rig.figures().launches_reaching_all);
  const CUresult result =
      rig.tryLaunch(rig.key(launches), rig.kernel("gather"), out, table, uint64_t{2});
  opener.join();
  REQUIRE(result == CUDA_SUCCESS);
  rig.synchronize();
  CHECK(valueOf(rig.figures().launches_reaching_all) == before + (fits ? 1 : 0));
  CHECK(rig.get(out) == mix(50));
  for (const CUstream stream : {copies, launches}) {
    rig.pool().streamDestroyed(rig.key(stream));
    driver().api.cuStreamDestroy_v2(stream);
  }
}
