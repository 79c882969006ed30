// The pager's decisions without a driver: the next step for a launch that waits, which of a round's
// allocations stay, and by which address the lower tier knows an extent.
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "pager/programs/mappings.h"
#include "pager/residency/planner.h"
#include "pager/residency/wants.h"
#include "pager/space/address_book.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::pager;

namespace {

constexpr uint64_t kBase = 0x2a5d'0000'0000;

// An extent of a page in a region of its own.
struct One {
  One() {
    region.base = extent.address = kBase;
    region.pages = 1;
    extent.region = &region;
  }
  WantStep step(ExtentState state, bool in_pass = false) {
    extent.state = state;
    return stepFor(want, extent, times, in_pass);
  }
  // On its way out of VRAM, or (false) out of its place in host memory.
  void leaves(bool vram) { extent.vram = vram ? &chunk : nullptr; }

  Region region;
  Extent extent;
  VramChunk chunk;
  Want want;
  WantTimes times{.now_ns = 1'000'000'000'000};
};

}  // namespace

TEST_CASE("a move brings a want nearer to its end, and to undo it does not", "[decisions]") {
  One one;
  const auto left = [&](ExtentState state) { return stepsLeft(one.step(state), state); };
  CHECK(left(ExtentState::kVram) == 0);
  CHECK(left(ExtentState::kInPlace) == 0);
  CHECK(left(ExtentState::kFetching) < left(ExtentState::kParked));
  CHECK(left(ExtentState::kParked) < left(ExtentState::kWriting));
  CHECK(left(ExtentState::kReceiving) < left(ExtentState::kRemote));
  one.want.fetch = true;  // to VRAM, from its place in host memory
  one.leaves(false);
  CHECK(left(ExtentState::kRetiring) < left(ExtentState::kInPlace));
  CHECK(left(ExtentState::kParked) < left(ExtentState::kRetiring));
}

TEST_CASE("what an older launch reaches stays in place for it", "[decisions]") {
  One one;
  Want older, younger;
  older.regions.push_back(&one.region);
  younger.regions.push_back(&one.region);
  Wants wants;
  wants.add(&older);
  wants.add(&younger);
  CHECK(!wants.isForOlder(0, one.extent));
  CHECK(wants.isForOlder(1, one.extent));
  older.regions.clear();
  CHECK(!wants.isForOlder(1, one.extent));
}

TEST_CASE("a launch that waits gets what is nowhere mapped to VRAM, or in place when it is time",
          "[decisions]") {
  One one;
  one.want.since_ns = one.times.now_ns;
  CHECK(one.step(ExtentState::kVram) == WantStep::kReady);
  CHECK(one.step(ExtentState::kInPlace) == WantStep::kReady);
  CHECK(one.step(ExtentState::kFreeing) == WantStep::kReady);
  CHECK(one.step(ExtentState::kFetching) == WantStep::kWait);
  CHECK(one.step(ExtentState::kSending) == WantStep::kHurry);
  CHECK(one.step(ExtentState::kRemote) == WantStep::kReceive);
  CHECK(one.step(ExtentState::kLost) == WantStep::kLost);
  CHECK(one.step(ExtentState::kParked) == WantStep::kBring);
  one.want.in_place = true;
  CHECK(one.step(ExtentState::kParked) == WantStep::kMapInPlace);
  CHECK(one.step(ExtentState::kEmpty) == WantStep::kMapInPlace);
  one.want.in_place = false;
  one.extent.in_host = true;  // of an arena: used less than what is in VRAM
  CHECK(one.step(ExtentState::kParked) == WantStep::kMapInPlace);
  one.want.in_vram = true;  // who uses the address does not come by again
  CHECK(one.step(ExtentState::kParked) == WantStep::kBring);
  CHECK(one.step(ExtentState::kInPlace) == WantStep::kLeavePlace);
}

TEST_CASE("a victim comes back for a launch at once, unless its VRAM is owed to others",
          "[decisions]") {
  One one;
  one.want.since_ns = one.times.now_ns;
  one.leaves(true);
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kTakeBack);
  one.times.vram_owed = true;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kWait);
  one.want.since_ns = one.times.now_ns - kPatienceNs;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kTakeBack);
  one.times.owed_patience_ns = 4 * kPatienceNs;  // the last time was in vain
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kWait);
  one.region.swapping = true;
  one.want.since_ns = 0;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kWait);
}

TEST_CASE("a launch waits for what leaves its place in host memory while there is room for it",
          "[decisions]") {
  One one;
  one.want.since_ns = one.times.now_ns;
  one.leaves(false);
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kTakeBack);  // no room
  one.times.vram_available = one.extent.bytes();
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kWait);
  one.times.promoted_from_ns = one.times.now_ns + 1;  // waiting was in vain of late
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kTakeBack);
  one.times.promoted_from_ns = 0;
  one.want.since_ns = one.times.now_ns - kPatienceNs;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kTakeBackLate);
  CHECK(one.step(ExtentState::kRetiring, true) == WantStep::kWait);  // a matter of the GPU alone
  one.want.fetch = true;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kLinger);
  one.want.in_vram = true;
  CHECK(one.step(ExtentState::kRetiring) == WantStep::kWait);
}

TEST_CASE("of a round so much stays as there is room for, evenly spread", "[decisions]") {
  std::mt19937_64 random = seededRandom("planner");
  for (int tries = 0; tries < 200; ++tries) {
    std::vector<std::unique_ptr<Region>> regions(20 + random() % 200);
    std::vector<UnitRef> round;
    uint64_t total = 0, largest = 0, at = kBase;
    for (auto& region : regions) {
      region = std::make_unique<Region>();
      region->base = at;
      region->pages = 1 + random() % 16;
      at += (region->pages + 1) * kPageBytes;
      total += region->pages;
      largest = std::max(largest, region->pages);
      round.push_back({region.get(), nullptr});
    }
    std::shuffle(round.begin(), round.end(), random);
    const uint64_t room = random() % (total + 1);
    Planner planner;
    const auto kept = planner.plan(round, total, room);
    REQUIRE(kept);
    uint64_t stays = 0, before = 0;
    for (const auto& region : regions) {  // in the order of their addresses
      REQUIRE(region->placement != Placement::kUnplanned);
      before += region->pages;
      if (region->placement == Placement::kKeep) stays += region->pages;
      // Each part's share is as large as that of the whole.
      CHECK(stays * total <= before * room + total * largest);
      CHECK(before * room <= stays * total + total * largest);
    }
    CHECK(*kept == stays);
    CHECK(planner.known());
    CHECK_FALSE(planner.plan(round, total, room));  // nothing has changed
  }
}

TEST_CASE("a handle's extents keep the address by which the lower tier knows them", "[decisions]") {
  ProgramMappings programs;
  VmmHandle& first = programs.make(4 * kPageBytes);
  VmmHandle& second = programs.make(2 * kPageBytes);
  CHECK(first.home >= kFirstHome);
  CHECK(second.home >= first.home + first.bytes);
  Region reservation;
  reservation.kind = RegionKind::kReservation;
  reservation.base = kBase;
  reservation.pages = 64;
  Extent extent;
  extent.address = second.home + kPageBytes;  // at rest
  CHECK(programs.tierAddress(extent) == extent.address);
  CHECK(programs.addressOf(extent.address) == 0);
  // Mapped, taken out, mapped elsewhere.
  for (const uint64_t base : {kBase + 8 * kPageBytes, kBase + 32 * kPageBytes}) {
    programs.mappings[base] = {&second, &reservation, {}, false};
    second.primary = base;
    extent.region = &reservation;
    extent.address = base + kPageBytes;
    CHECK(programs.tierAddress(extent) == second.home + kPageBytes);
    CHECK(programs.addressOf(second.home + kPageBytes) == extent.address);
    CHECK(programs.addressOf(first.home) == 0);
    programs.mappings.erase(base);
    second.primary = 0;
  }
  const uint64_t home = second.home;
  programs.erase(second);
  CHECK(programs.addressOf(home) == 0);
  CHECK(programs.make(kPageBytes).home != home);
}
