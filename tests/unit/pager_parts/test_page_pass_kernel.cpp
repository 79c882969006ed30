// The kernels of the page pass, run by the PTX interpreter: the same hashes as the C++ reference,
// the same pages found, nothing touched outside the buffers.
#include <algorithm>
#include <cstring>

#include "pager/kernels/hash_and_scan.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/kernel_runner.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::kernels;
using namespace olpager::kernels::test;

namespace {

constexpr uint64_t kBase = 0x2bad'4a00'0000;
constexpr uint64_t kPageWords = kHashPageBytes / 8;

}  // namespace

TEST_CASE("page pass kernel: hashes and pages found equal the reference", "[page_pass_kernel]") {
  auto random = seededRandom("page pass kernel");
  constexpr uint64_t kRangePages = 100000;
  std::vector<Vector> memory(4 * kPageWords / 2);
  auto* words = reinterpret_cast<uint64_t*>(memory.data());
  // Page 0: random, with addresses of the range and just outside it. Page 1: nothing but addresses.
  // Page 2: zeros. Page 3: random words, hashed only.
  for (size_t i = 0; i < kPageWords; ++i) {
    const uint64_t address = kBase + random() % (kRangePages * kHashPageBytes);
    words[i] = random() % 1000 == 0 ? address : random();
    words[kPageWords + i] = address;
    words[3 * kPageWords + i] = random() % 10 == 0 ? address : random();
  }
  words[5] = kBase - 1;
  words[6] = kBase + kRangePages * kHashPageBytes;
  words[kPageWords - 1] = kBase + kRangePages * kHashPageBytes - 1;

  std::vector<uint32_t> found_first((kRangePages + 31) / 32);
  std::vector<uint32_t> found_second(found_first.size());
  std::vector<Vector> hashes(6, Vector{{7, 7}});
  Buffers device;
  const uint64_t address = device.add(memory, false);
  std::vector<PagePassJob> jobs = {
      {address, device.add(found_first, true), 1, 0},
      {address + kHashPageBytes, device.add(found_second, true), 2, 3},
      {address + 3 * kHashPageBytes, 0, 1, 1},
  };
  PagePassParameters parameters;
  parameters.jobs = device.add(jobs, false);
  parameters.scope.range_base = kBase;
  parameters.scope.range_pages = kRangePages;
  parameters.hashes = device.add(hashes, true);
  launch(pagePassPtx(), kPagePassKernel, parameters, {2, 3, 1}, kPagePassThreads, device);

  const size_t slots[] = {0, 3, 4, 1};
  for (size_t page = 0; page < 4; ++page) {
    const PageHash expected = hashPage(words + page * kPageWords);
    CHECK(hashes[slots[page]].words[0] == expected.low);
    CHECK(hashes[slots[page]].words[1] == expected.high);
  }
  for (const size_t untouched : {2, 5}) CHECK(hashes[untouched].words[0] == 7);

  const auto expectedFound = [&](size_t page, size_t pages) {
    std::vector<uint32_t> bits(found_first.size());
    scanWords(words + page * kPageWords, pages * kHashPageBytes, kBase,
              kRangePages * kHashPageBytes, [&](uint64_t word) {
                bits[(word - kBase) / kHashPageBytes / 32] |=
                    1u << (word - kBase) / kHashPageBytes % 32;
              });
    return bits;
  };
  CHECK(found_first == expectedFound(0, 1));
  CHECK(found_second == expectedFound(1, 2));
}

TEST_CASE("scan kernel: finds what the reference finds", "[page_pass_kernel]") {
  auto random = seededRandom("scan kernel");
  std::vector<uint64_t> words(1001);
  for (uint64_t& word : words)
    word = random() % 4 == 0 ? kBase + random() % (64 * kHashPageBytes) : random();
  words[1000] = kBase + 63 * kHashPageBytes;  // behind the end
  std::replace_if(
      words.begin(), words.end() - 1,
      [](uint64_t word) { return (word - kBase) / kHashPageBytes == 63; }, 0);
  std::vector<uint32_t> found(2);
  std::vector<uint32_t> expected(2);
  scanWords(words.data(), 8000, kBase, 64 * kHashPageBytes, [&](uint64_t word) {
    const uint64_t page = (word - kBase) / kHashPageBytes;
    expected[page / 32] |= 1u << page % 32;
  });
  Buffers device;
  ScanParameters parameters;
  parameters.address = device.add(words, false);
  parameters.words = 1000;
  parameters.scope.range_base = kBase;
  parameters.scope.range_pages = 64;
  parameters.found = device.add(found, true);
  launch(pagePassPtx(), kScanKernel, parameters, {3, 1, 1}, 64, device);
  CHECK(found == expected);
}
