// Addresses: page map, runs of pages against a model, slabs of small requests, extents.
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "pager/space/space.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::space;

namespace {

constexpr uint64_t kBase = 0x2bad'4a00'0000;

std::unique_ptr<PageMap> makeMap(uint64_t pages) {
  auto map = PageMap::create(kBase, pages * kPageBytes);
  REQUIRE(map.ok());
  return std::move(map.value());
}

}  // namespace

TEST_CASE("page map: 16 TiB cost nothing until used", "[space]") {
  auto map = makeMap((16ull << 40) / kPageBytes);
  CHECK(map->lookup(kBase) == 0);
  CHECK(map->lookup(kBase + map->size() - 1) == 0);
  map->assign(kBase + 5 * kPageBytes, 3, 77);
  CHECK(map->lookup(kBase + 5 * kPageBytes - 1) == 0);
  CHECK(map->lookup(kBase + 5 * kPageBytes) == 77);
  CHECK(map->lookup(kBase + 8 * kPageBytes - 1) == 77);
  CHECK(map->lookup(kBase + 8 * kPageBytes) == 0);
  CHECK(map->contains(kBase));
  CHECK_FALSE(map->contains(kBase - 1));
  CHECK_FALSE(map->contains(kBase + map->size()));
}

TEST_CASE("page map: impossible ranges are refused with a line", "[space]") {
  for (const auto& [base, size] : {std::pair{kBase + 1, kPageBytes},
                                   {kBase, kPageBytes + 1},
                                   {kBase, uint64_t{0}},
                                   {kBase, uint64_t{128} << 40},
                                   {~uint64_t{0} - 4 * kPageBytes + 1, 8 * kPageBytes}}) {
    const auto map = PageMap::create(base, size);
    REQUIRE_FALSE(map.ok());
    CHECK(map.error().message.find("address range") == 0);
  }
}

TEST_CASE("page map: what was written before assign is seen by who sees the region", "[space]") {
  auto map = makeMap(64);
  std::vector<uint64_t> records(100001);
  std::thread reader([&] {
    RegionIndex seen = 0;
    while (seen != 100000) {
      seen = map->lookup(kBase + 7);
      if (seen != 0 && records[seen] != seen) std::abort();
    }
  });
  for (RegionIndex region = 1; region <= 100000; ++region) {
    records[region] = region;
    map->assign(kBase, 1, region);
  }
  reader.join();
}

TEST_CASE("address runs: guard, publishing, release", "[space]") {
  auto map = makeMap(64);
  RegionAddresses addresses(*map);
  const auto first = addresses.allocate(3);
  const auto second = addresses.allocate(1);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(*first == kBase);
  CHECK(*second == kBase + 4 * kPageBytes);
  CHECK(map->lookup(*first) == 0);
  addresses.publish(*first, 11);
  addresses.publish(*second, 12);
  CHECK(map->lookup(*first + 3 * kPageBytes) == 11);  // end pointer
  CHECK(map->lookup(*second) == 12);
  CHECK(addresses.runPages(*first) == 3);
  CHECK(addresses.runPages(*first + kPageBytes) == 0);
  CHECK(addresses.usedPages() == 6);
  CHECK(addresses.highWaterPages() == 6);
  addresses.withdraw(*first);
  CHECK(map->lookup(*first) == 0);
  CHECK(addresses.allocate(3) == kBase + 6 * kPageBytes);  // still taken
  CHECK(addresses.release(*first));
  CHECK_FALSE(addresses.release(*first));
  CHECK_FALSE(addresses.release(*second + 1));
  CHECK(addresses.allocate(2) == first);
}

TEST_CASE("address runs: hints, alignment, nonsense", "[space]") {
  auto map = makeMap(256);
  RegionAddresses addresses(*map);
  CHECK(addresses.allocate(4, kPageBytes, kBase + 100 * kPageBytes) == kBase + 100 * kPageBytes);
  CHECK(addresses.allocate(4, kPageBytes, kBase + 102 * kPageBytes) == kBase);  // taken: elsewhere
  CHECK(addresses.allocate(1, kPageBytes, kBase + 99 * kPageBytes) !=
        kBase + 99 * kPageBytes);  // its guard is taken
  CHECK(addresses.allocate(1, kPageBytes, kBase + 98 * kPageBytes) == kBase + 98 * kPageBytes);
  CHECK(addresses.allocate(1, kPageBytes, 12345).has_value());
  for (const uint64_t alignment : {uint64_t{512}, kPageBytes, 4 * kPageBytes, 64 * kPageBytes}) {
    const auto run = addresses.allocate(2, alignment);
    REQUIRE(run);
    CHECK(*run % std::max(alignment, kPageBytes) == 0);
  }
  CHECK_FALSE(addresses.allocate(0));
  CHECK_FALSE(addresses.allocate(256));
  CHECK_FALSE(addresses.allocate(UINT64_MAX));
  CHECK_FALSE(addresses.allocate(1, 3 * kPageBytes));
  CHECK_FALSE(addresses.allocate(1, uint64_t{1} << 63));
}

TEST_CASE("address runs: exhaustion, recovery, coalescing", "[space]") {
  auto map = makeMap(1024);
  RegionAddresses addresses(*map);
  std::vector<uint64_t> runs;
  while (const auto run = addresses.allocate(1)) runs.push_back(*run);
  CHECK(runs.size() == 512);
  CHECK(addresses.usedPages() == 1024);
  for (size_t i = 0; i < runs.size(); i += 2) CHECK(addresses.release(runs[i]));
  CHECK_FALSE(addresses.allocate(2));
  CHECK(addresses.allocate(1));
  for (size_t i = 1; i < runs.size(); i += 2) CHECK(addresses.release(runs[i]));
  CHECK(addresses.release(runs[0]));
  CHECK(addresses.runs() == 0);
  CHECK(addresses.allocate(1023) == kBase);
}

TEST_CASE("address runs against a model", "[space]") {
  auto random = seededRandom("address runs");
  constexpr uint64_t kPages = 4096;
  auto map = makeMap(kPages);
  RegionAddresses addresses(*map);
  std::vector<RegionIndex> owner(kPages, 0);
  std::map<uint64_t, std::pair<uint64_t, RegionIndex>> live;  // first page -> pages, region
  RegionIndex next_region = 0;
  for (unsigned step = 0; step < 30000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const uint64_t pages = 1 + (random() % 8 == 0 ? random() % 200 : random() % 12);
      const uint64_t alignment_pages = uint64_t{1} << (random() % 6);
      const uint64_t hint = random() % 4 == 0 ? kBase + random() % kPages * kPageBytes : 0;
      const auto run = addresses.allocate(pages, alignment_pages * kPageBytes, hint);
      bool fits = false;
      for (uint64_t first = 0; first + pages + 1 <= kPages && !fits && !run; ++first) {
        if ((kBase / kPageBytes + first) % alignment_pages != 0) continue;
        fits = std::all_of(owner.begin() + first, owner.begin() + first + pages + 1,
                           [](RegionIndex r) { return r == 0; });
      }
      REQUIRE_FALSE((!run && fits));
      if (!run) continue;
      REQUIRE(*run % (alignment_pages * kPageBytes) == 0);
      const uint64_t first = (*run - kBase) / kPageBytes;
      REQUIRE(first + pages + 1 <= kPages);
      addresses.publish(*run, ++next_region);
      for (uint64_t page = first; page <= first + pages; ++page) {
        REQUIRE(owner[page] == 0);
        owner[page] = next_region;
      }
      live[first] = {pages, next_region};
    } else {
      auto victim = live.lower_bound(random() % kPages);
      if (victim == live.end()) victim = live.begin();
      REQUIRE(addresses.release(kBase + victim->first * kPageBytes));
      std::fill_n(owner.begin() + victim->first, victim->second.first + 1, 0);
      live.erase(victim);
    }
    const uint64_t page = random() % kPages;
    REQUIRE(map->lookup(kBase + page * kPageBytes + random() % kPageBytes) == owner[page]);
    REQUIRE(addresses.runs() == live.size());
  }
  for (const auto& [first, run] : live) REQUIRE(addresses.release(kBase + first * kPageBytes));
  CHECK(addresses.usedPages() == 0);
  CHECK(addresses.allocate(kPages - 1) == kBase);
}

TEST_CASE("address runs: 100 000 allocations are quick, a lookup quicker", "[space]") {
  auto random = seededRandom("many runs");
  auto map = makeMap((16ull << 40) / kPageBytes);
  RegionAddresses addresses(*map);
  std::vector<uint64_t> runs;
  const auto start = std::chrono::steady_clock::now();
  for (RegionIndex i = 1; i <= 100000; ++i) {
    const auto run = addresses.allocate(1 + random() % 20);
    REQUIRE(run);
    addresses.publish(*run, i);
    runs.push_back(*run);
    if (i % 3 == 0) {
      std::swap(runs[random() % runs.size()], runs.back());
      REQUIRE(addresses.release(runs.back()));
      runs.pop_back();
    }
  }
  const auto made = std::chrono::steady_clock::now();
  uint64_t sum = 0;
  uint64_t at = 0;
  for (unsigned i = 0; i < 1000000; ++i) sum += map->lookup(runs[(at += 7919) % runs.size()]);
  const auto looked = std::chrono::steady_clock::now();
  CHECK(sum != 0);
  using ms = std::chrono::duration<double, std::milli>;
  std::cout << "100 000 allocations, 33 333 frees: " << ms(made - start).count()
            << " ms; lookup: " << ms(looked - made).count() << " ns\n";
  CHECK(made - start < std::chrono::seconds(5));  // a quadratic allocator takes minutes
}

TEST_CASE("extents: every page is in one extent, and the tail descends", "[space]") {
  static_assert(extentCount(1) == 1 && extentCount(2) == 1 && extentCount(3) == 2);
  static_assert(extentCount(8) == 2 &&
                extentOfPage(8, 7) == Extent{1, 4, 4});  // 16 MiB: 8 MiB extents
  static_assert(extentCount(9) == 2 && extentOfPage(9, 7) == Extent{0, 0, 8});
  static_assert(extentOfPage(31, 30) == Extent{4, 30, 1} &&
                extentOfPage(31, 16) == Extent{1, 16, 8});
  static_assert(extentAt(1000, 61) == Extent{61, 976, 16} &&
                extentAt(1000, 62) == Extent{62, 992, 8});
  for (const uint32_t largest : {0u, 1u, 4u, 16u}) {
    for (uint64_t pages = 1; pages <= 200; ++pages) {
      const uint32_t most = largest == 0 ? largestExtentPages(pages) : largest;
      uint64_t page = 0;
      uint32_t index = 0;
      uint32_t last = most;
      splitIntoExtents(pages, most, [&](const Extent& extent) {
        REQUIRE(extent.index == index++);
        REQUIRE(extent.first_page == page);
        REQUIRE(std::has_single_bit(extent.pages));
        REQUIRE(extent.pages <= last);
        REQUIRE(extent == extentAt(pages, extent.index, most));
        last = extent.pages;
        for (uint32_t i = 0; i < extent.pages; ++i, ++page)
          REQUIRE(extentOfPage(pages, page, most) == extent);
      });
      REQUIRE(page == pages);
      REQUIRE(index == extentCount(pages, most));
    }
  }
}

namespace {

struct SlabFixture {
  std::unique_ptr<PageMap> map = makeMap(1 << 16);
  RegionAddresses addresses{*map};
  uint64_t limit = UINT64_MAX;
  uint64_t live = 0;
  SlabAllocator::Empty empty = SlabAllocator::Empty::kDrop;
  SlabAllocator slabs{{.make = [this](uint64_t at) -> std::optional<uint64_t> {
                         if (live == limit) return std::nullopt;
                         if (at != 0 && !addresses.allocateAt(at, 1)) return std::nullopt;
                         ++live;
                         return at != 0 ? at : addresses.allocate(1);
                       },
                       .drop =
                           [this](uint64_t address) {
                             --live;
                             REQUIRE(addresses.release(address));
                           }},
                      empty};
};

}  // namespace

TEST_CASE("slabs: slot sizes waste at most a quarter", "[space]") {
  for (uint64_t bytes = 1; bytes < kPageBytes; bytes += bytes < 5000 ? 1 : 97) {
    const uint64_t slot = SlabAllocator::slotBytes(bytes);
    REQUIRE(slot >= bytes);
    REQUIRE(slot % 512 == 0);
    if (bytes <= 2048) {
      REQUIRE(slot - bytes < 512);
    } else if (bytes > SlabAllocator::kLargestShared) {
      REQUIRE(slot == kPageBytes);
    } else if (bytes <= kPageBytes / 3 / 512 * 512 || bytes > (768u << 10)) {
      REQUIRE((slot - bytes) * 4 <= slot);
    } else {
      REQUIRE(kPageBytes / slot ==
              kPageBytes / ((bytes + 511) / 512 * 512));  // as many in a slab as could be
    }
  }
}

TEST_CASE("slabs: addresses name their slot, ends included", "[space]") {
  SlabFixture fixture;
  SlabAllocator& slabs = fixture.slabs;
  const uint64_t a = slabs.allocate(700).value();
  const uint64_t b = slabs.allocate(1000).value();
  const uint64_t big = slabs.allocate((1u << 20) + 1).value();
  CHECK(b == a + 1024);
  CHECK(slabs.find(a)->requested == 700);
  CHECK(slabs.find(a + 1023)->address == a);
  CHECK(slabs.find(b)->address == b);
  CHECK(slabs.find(big + kPageBytes)->address == big);  // guard page
  CHECK_FALSE(slabs.find(b + 1024));                    // a free slot
  CHECK_FALSE(slabs.find(a + (64u << 20)));
  CHECK(slabs.ownsSlab(a));
  CHECK_FALSE(slabs.release(a + 1));
  CHECK(slabs.release(a));
  CHECK_FALSE(slabs.release(a));
  CHECK(slabs.slabs() == 2);
  CHECK(slabs.release(b));
  CHECK(slabs.slabs() == 1);
  CHECK(fixture.live == 1);
  CHECK_FALSE(slabs.allocate(0));
  CHECK_FALSE(slabs.allocate(kPageBytes));
  slabs.forgetAll();
  CHECK(slabs.slabs() == 0);
  CHECK(fixture.live == 1);
}

TEST_CASE("parts of a range give out their own addresses alone", "[space]") {
  auto map = makeMap(100);
  const uint64_t middle = kBase + 40 * kPageBytes;
  RegionAddresses low(*map, kBase, 40 * kPageBytes), high(*map, middle, 60 * kPageBytes);
  CHECK(low.highWaterPages() == 0);
  CHECK(high.highWaterPages() == 0);
  CHECK(low.contains(middle - 1));
  CHECK_FALSE(low.contains(middle));
  CHECK(high.contains(middle));
  CHECK(low.allocate(3) == kBase);
  CHECK(high.allocate(3) == middle);
  CHECK(low.highWaterPages() == 4);
  CHECK(high.highWaterPages() == 44);
  CHECK(high.allocate(2, kPageBytes, kBase + 20 * kPageBytes) ==
        middle + 4 * kPageBytes);  // a hint elsewhere
  CHECK_FALSE(low.allocate(36));
  CHECK(low.allocate(35) == kBase + 4 * kPageBytes);
  CHECK_FALSE(low.release(middle));
  high.publish(middle, 9);
  CHECK(map->lookup(middle + 3 * kPageBytes) == 9);
  CHECK(high.release(middle));
  CHECK(map->lookup(middle) == 0);
}

TEST_CASE("runs at given addresses: only where all of it is free", "[space]") {
  auto map = makeMap(32);
  RegionAddresses addresses(*map);
  const auto page = [](uint64_t number) { return kBase + number * kPageBytes; };
  CHECK(addresses.allocateAt(page(4), 2));
  CHECK_FALSE(addresses.allocateAt(page(4), 2));
  CHECK_FALSE(addresses.allocateAt(page(6), 1));  // the guard
  CHECK_FALSE(addresses.allocateAt(page(2), 2));  // its guard would be page 4
  CHECK(addresses.allocateAt(page(2), 1));
  CHECK(addresses.allocateAt(page(7), 1));
  CHECK_FALSE(addresses.allocateAt(page(9) + 512, 1));
  CHECK_FALSE(addresses.allocateAt(page(9), 0));
  CHECK_FALSE(addresses.allocateAt(page(31), 1));  // no room for the guard
  CHECK_FALSE(addresses.allocateAt(page(32), 1));
  CHECK_FALSE(addresses.allocateAt(kBase - kPageBytes, 1));
  CHECK_FALSE(addresses.allocateAt(page(9), UINT64_MAX / 2));
  CHECK(addresses.release(page(4)));
  CHECK(addresses.allocateAt(page(4), 1));
  CHECK(addresses.usedPages() == 6);
}

TEST_CASE("who chooses addresses by the same rules finds them free", "[space]") {
  auto random = seededRandom("chosen addresses");
  // The chooser may keep addresses that the other has back.
  SlabFixture chooser{.empty =
                          GENERATE(SlabAllocator::Empty::kDrop, SlabAllocator::Empty::kKeepOne)},
      follower;
  std::map<uint64_t, uint64_t> live;
  for (int turn = 0; turn < 30'000; ++turn) {
    if (live.empty() || random() % 5 < 3) {
      const uint64_t bytes = random() % 4 == 0
                                 ? kPageBytes + random() % (16 * kPageBytes)
                                 : 1 + random() % (random() % 3 == 0 ? kPageBytes - 1 : 9000);
      const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
      const auto address =
          bytes >= kPageBytes ? chooser.addresses.allocate(pages) : chooser.slabs.allocate(bytes);
      if (!address) continue;  // the range is full
      REQUIRE((bytes >= kPageBytes ? follower.addresses.allocateAt(*address, pages)
                                   : follower.slabs.allocateAt(*address, bytes)));
      REQUIRE_FALSE((bytes >= kPageBytes ? follower.addresses.allocateAt(*address, pages)
                                         : follower.slabs.allocateAt(*address, bytes)));
      live[*address] = bytes;
      continue;
    }
    auto one = live.lower_bound(kBase + random() % (1ull << 37));
    if (one == live.end()) one = live.begin();
    for (SlabFixture* side : {&chooser, &follower})
      REQUIRE((one->second >= kPageBytes ? side->addresses.release(one->first)
                                         : side->slabs.release(one->first)));
    live.erase(one);
  }
  CHECK(chooser.slabs.slabs() - chooser.slabs.emptySlabs() == follower.slabs.slabs());
  chooser.slabs.dropKept();
  CHECK(chooser.addresses.usedPages() == follower.addresses.usedPages());
  CHECK(chooser.slabs.usedSlots() == follower.slabs.usedSlots());
  CHECK(chooser.live == follower.live);
  // An address that is no slot, or one of another class, or used otherwise.
  for (const auto& [address, bytes] : live) {
    if (bytes >= kPageBytes) {
      CHECK_FALSE(follower.slabs.allocateAt(address, 100));
      continue;
    }
    CHECK_FALSE(follower.slabs.allocateAt(address + 1, bytes));
    CHECK_FALSE(follower.slabs.allocateAt(address / kPageBytes * kPageBytes, kPageBytes - 1));
    CHECK_FALSE(follower.addresses.allocateAt(address / kPageBytes * kPageBytes, 1));
  }
}

TEST_CASE("slabs: no room for one more, then room again", "[space]") {
  SlabFixture fixture;
  fixture.limit = 2;
  std::vector<uint64_t> slots;
  while (const auto slot = fixture.slabs.allocate(100000)) slots.push_back(*slot);
  CHECK(slots.size() == 2 * (kPageBytes / SlabAllocator::slotBytes(100000)));
  CHECK_FALSE(fixture.slabs.allocate(512));
  for (const uint64_t slot : slots) CHECK(fixture.slabs.release(slot));
  CHECK(fixture.live == 0);
  CHECK(fixture.slabs.allocate(512));
}

TEST_CASE("slabs: one of each class that is kept empty", "[space]") {
  SlabFixture fixture{.empty = SlabAllocator::Empty::kKeepOne};
  SlabAllocator& slabs = fixture.slabs;
  const uint64_t first = slabs.allocate(4096).value(), other = slabs.allocate(100000).value();
  const uint64_t runs = fixture.addresses.runs();
  for (int turn = 0; turn < 3; ++turn) {
    REQUIRE(slabs.release(first));
    REQUIRE(slabs.release(other));
    CHECK(slabs.emptySlabs() == 2);
    CHECK_FALSE(slabs.find(first));
    CHECK_FALSE(slabs.release(first));
    CHECK(fixture.addresses.runs() == runs);  // nothing is made or dropped
    REQUIRE(slabs.allocate(4096) == first);
    REQUIRE(slabs.allocate(100000) == other);
    CHECK(slabs.emptySlabs() == 0);
  }
  // A second one goes.
  std::vector<uint64_t> slots = {first};
  while (slabs.slabs() < 4) slots.push_back(slabs.allocate(4096).value());
  for (const uint64_t slot : slots) REQUIRE(slabs.release(slot));
  CHECK(slabs.slabs() == 2);
  CHECK(slabs.emptySlabs() == 1);
  slabs.dropKept();
  CHECK(slabs.slabs() == 1);
  CHECK(slabs.emptySlabs() == 0);
  CHECK(fixture.live == 1);
  REQUIRE(slabs.release(other));
  slabs.forgetAll();
  CHECK(slabs.emptySlabs() == 0);
}

TEST_CASE("slabs against a model", "[space]") {
  auto random = seededRandom("slabs");
  SlabFixture fixture{.empty =
                          GENERATE(SlabAllocator::Empty::kDrop, SlabAllocator::Empty::kKeepOne)};
  SlabAllocator& slabs = fixture.slabs;
  std::map<uint64_t, uint64_t> live;  // address -> requested
  for (unsigned step = 0; step < 60000; ++step) {
    const bool grow = step / 5000 % 2 == 0;
    if (random() % 8 < (grow ? 5u : 3u) || live.empty()) {
      const uint64_t bytes = 1 + random() % (uint64_t{1} << (4 + random() % 17));
      const uint64_t address = slabs.allocate(bytes).value();
      REQUIRE(address % 512 == 0);
      const auto [at, fresh] = live.emplace(address, bytes);
      REQUIRE(fresh);
      if (at != live.begin()) REQUIRE(std::prev(at)->first + std::prev(at)->second <= address);
      if (std::next(at) != live.end()) REQUIRE(address + bytes <= std::next(at)->first);
    } else {
      const uint64_t bytes = fixture.addresses.highWaterPages() * kPageBytes;
      REQUIRE(bytes != 0);
      auto victim = live.lower_bound(kBase + random() % bytes);
      if (victim == live.end()) victim = live.begin();
      REQUIRE(slabs.release(victim->first));
      live.erase(victim);
    }
    if (live.empty()) continue;
    const uint64_t high = fixture.addresses.highWaterPages() * kPageBytes;
    REQUIRE(high != 0);
    auto some = live.lower_bound(kBase + random() % high);
    if (some == live.end()) some = live.begin();
    const auto slot = slabs.find(some->first + random() % some->second);
    REQUIRE(slot);
    REQUIRE(slot->address == some->first);
    REQUIRE(slot->requested == some->second);
    REQUIRE(slabs.usedSlots() == live.size());
    REQUIRE(slabs.slabs() == fixture.live);
  }
  std::map<uint64_t, uint64_t> visited;
  for (uint64_t page = 0; page < fixture.addresses.highWaterPages(); ++page) {
    slabs.forEachSlot(kBase + page * kPageBytes, [&](const SlabAllocator::Slot& slot) {
      visited[slot.address] = slot.requested;
      REQUIRE(slot.slab == kBase + page * kPageBytes);
    });
  }
  CHECK(visited == live);
  for (const auto& [address, bytes] : live) REQUIRE(slabs.release(address));
  slabs.dropKept();
  CHECK(fixture.live == 0);
}
