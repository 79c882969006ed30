// The page hash and the scan in C++; that the kernel gives the same is tested where kernels run.
#include <algorithm>
#include <chrono>
#include <set>
#include <unordered_set>

#include "pager/kernels/hash_and_scan.h"
#include "pager/kernels/hash_constants.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::kernels;

namespace {

__extension__ using uint128 = unsigned __int128;

constexpr size_t kWords = kHashPageBytes / 8;
using Page = std::vector<uint64_t>;

Page randomPage(std::mt19937_64& random) {
  Page page(kWords);
  std::generate(page.begin(), page.end(), random);
  return page;
}

// The multiplier of each word, worked out from the definition and not by the code under test.
std::vector<uint128> multipliers() {
  const uint64_t lane_keys[8][2] = {OLPAGER_LANE_KEYS};
  std::vector<uint128> keys(kWords);
  for (uint64_t thread = 0; thread < 256; ++thread) {
    uint64_t key = OLPAGER_KEY_SEED + thread;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
    key = (key ^ (key >> 31)) | 1;
    for (size_t round = 0; round < 128; ++round) {
      for (size_t lane = 0; lane < 8; ++lane) {
        const size_t vector = (round * 4 + lane / 2) * 256 + thread;
        keys[vector * 2 + lane % 2] =
            key * (static_cast<uint128>(lane_keys[lane][1]) << 64 | lane_keys[lane][0]);
      }
      key *= OLPAGER_KEY_STEP;
    }
  }
  return keys;
}

}  // namespace

TEST_CASE("page hash: the multipliers are odd and differ mod 2^65", "[page_pass]") {
  // Odd: a change of one word changes the hash. Different mod 2^65: so does a swap of two unequal
  // words, as their difference has at most 63 factors of two.
  const std::vector<uint128> keys = multipliers();
  std::vector<std::pair<uint64_t, uint64_t>> low;
  for (const uint128 key : keys) {
    REQUIRE(static_cast<uint64_t>(key) % 2 == 1);
    low.emplace_back(static_cast<uint64_t>(key), static_cast<uint64_t>(key >> 64) & 1);
  }
  std::sort(low.begin(), low.end());
  CHECK(std::adjacent_find(low.begin(), low.end()) == low.end());
}

TEST_CASE("page hash: equals its definition", "[page_pass]") {
  auto random = seededRandom("page hash");
  const std::vector<uint128> keys = multipliers();
  for (unsigned i = 0; i < 3; ++i) {
    const Page page = randomPage(random);
    uint128 sum = static_cast<uint128>(OLPAGER_HASH_HIGH) << 64 | OLPAGER_HASH_LOW;
    for (size_t word = 0; word < kWords; ++word) sum += page[word] * keys[word];
    const PageHash hash = hashPage(page.data());
    CHECK(hash.low == static_cast<uint64_t>(sum));
    CHECK(hash.high == static_cast<uint64_t>(sum >> 64));
  }
  // Kept constant over releases: a hash may be taken on one node and checked on another.
  CHECK(hashPage(Page(kWords).data()) == PageHash{OLPAGER_HASH_LOW, OLPAGER_HASH_HIGH});
}

TEST_CASE("page hash: flips, swaps and shifts are seen", "[page_pass]") {
  auto random = seededRandom("page hash changes");
  for (Page page : {randomPage(random), Page(kWords, 0), Page(kWords, 0x3c003c003c003c00)}) {
    std::set<std::pair<uint64_t, uint64_t>> seen;
    const PageHash original = hashPage(page.data());
    seen.insert({original.low, original.high});
    size_t made = 1;
    const auto changed = [&] {
      const PageHash hash = hashPage(page.data());
      seen.insert({hash.low, hash.high});
      ++made;
    };
    for (unsigned i = 0; i < 100; ++i) {
      const size_t word = random() % kWords;
      const uint64_t bit = 1ull << random() % 64;
      page[word] ^= bit;
      changed();
      page[word] ^= bit;
    }
    for (unsigned i = 0; i < 50; ++i) {
      const size_t a = random() % kWords;
      const size_t b = i % 2 == 0 ? random() % kWords : a ^ (1ull << random() % 18);
      if (page[a] == page[b]) {
        page[b] ^= i + 1;
        changed();
      }
      std::swap(page[a], page[b]);
      changed();
    }
    if (page[0] != page[1]) {
      for (const size_t shift : {1, 2, 8, 512, 1024, 4096}) {
        std::rotate(page.begin(), page.begin() + static_cast<ptrdiff_t>(shift), page.end());
        changed();
      }
    }
    CHECK(seen.size() == made);
  }
}

TEST_CASE("page hash: natural small differences do not collide", "[page_pass]") {
  // Ramps, steps and mirrored pairs: what weak keys let through.
  Page page(kWords, 0);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  size_t made = 0;
  const auto add = [&] {
    const PageHash hash = hashPage(page.data());
    seen.insert({hash.low, hash.high});
    ++made;
  };
  add();
  for (const size_t stride : {1, 2, 16, 512, 2048, 65536}) {
    for (const size_t start : {0, 1, 7, 4096}) {
      page.assign(kWords, 0);
      page[start] = 1;  // a second difference of zero
      page[start + stride] = static_cast<uint64_t>(-2);
      page[start + 2 * stride] = 1;
      add();
      page[start + stride] = static_cast<uint64_t>(-1);
      page[start + 2 * stride] = 0;
      add();
    }
  }
  for (unsigned value = 1; value < 40; ++value) {
    page.assign(kWords, value);
    add();
    page.assign(kWords, static_cast<uint64_t>(value) << 56);
    add();
  }
  CHECK(seen.size() == made);
}

TEST_CASE("scan: finds the words in the range, no others", "[page_pass]") {
  auto random = seededRandom("scan");
  constexpr uint64_t kBase = 0x2bad'4a00'0000;
  constexpr uint64_t kSize = 16ull << 40;
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1000}, kWords}) {
    std::vector<uint64_t> words(count + 1);
    std::vector<uint64_t> expected;
    for (size_t i = 0; i < count; ++i) {
      switch (random() % 40) {
        case 0:
          words[i] = kBase;
          break;
        case 1:
          words[i] = kBase - 1;
          break;
        case 2:
          words[i] = kBase + kSize;
          break;
        case 3:
          words[i] = kBase + kSize - 1;
          break;
        case 4:
          words[i] = kBase + random() % kSize;
          break;
        case 5:
          words[i] = (kBase + random() % kSize) | 1ull << 63;
          break;
        default:
          words[i] = random() % 2 == 0 ? 0 : random();
      }
      if (words[i] - kBase < kSize) expected.push_back(words[i]);
    }
    words[count] = kBase;  // behind the end
    std::vector<uint64_t> found;
    scanWords(words.data(), count * 8 + 7, kBase, kSize,
              [&](uint64_t word) { found.push_back(word); });
    CHECK(found == expected);
  }
  const uint64_t word = kBase;
  scanWords(&word, 8, kBase, 0, [](uint64_t) { FAIL("an empty range holds nothing"); });
}

TEST_CASE("page pass: rates of the CPU's side", "[page_pass]") {
  auto random = seededRandom("rates");
  const Page page = randomPage(random);
  const auto rate = [&](auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < 50; ++i) work();
    return 50.0 * kHashPageBytes /
           std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
               .count();
  };
  uint64_t sum = 0;
  const double hash_rate = rate([&] { sum += hashPage(page.data()).low; });
  const double scan_rate =
      rate([&] { scanWords(page.data(), kHashPageBytes, 1, 1, [&](uint64_t) { ++sum; }); });
  std::cout << "hash " << hash_rate << " GB/s, scan " << scan_rate << " GB/s (" << (sum & 1)
            << ")\n";
}

TEST_CASE("page pass: the PTX text names its kernels and no newer PTX than it needs",
          "[page_pass]") {
  const std::string text = pagePassPtx();
  CHECK(text.find(".version 6.4\n") != std::string::npos);
  CHECK(text.find(".target sm_75\n") != std::string::npos);
  CHECK(text.find(std::string(".entry ") + kPagePassKernel + "(") != std::string::npos);
  CHECK(text.find(std::string(".entry ") + kScanKernel + "(") != std::string::npos);
  CHECK(text.find('/') == std::string::npos);  // no comments, no folders of the build
}
