// The kernels that pack pages, run by the PTX interpreter: what packs comes back bit for bit, what
// does not says so, and nothing is touched outside of the buffers.
#include <cmath>
#include <cstring>
#include <random>

#include "pager/kernels/pack.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/kernel_runner.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::kernels;
using namespace olpager::kernels::test;

namespace {

constexpr size_t kNumbers = kHashPageBytes / 2;

uint16_t brain(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

std::vector<Vector> pagesOf(size_t pages) {
  return std::vector<Vector>(pages * kHashPageBytes / sizeof(Vector));
}

}  // namespace

TEST_CASE("pack kernel: what packs comes back as it was, what does not is told",
          "[page_pass_kernel]") {
  auto random = seededRandom("pack kernel");
  constexpr size_t kPages = 6;
  std::vector<Vector> pages = pagesOf(kPages);
  auto* const numbers = reinterpret_cast<uint16_t*>(pages.data());
  std::normal_distribution<float> normal(0, 0.02F);
  for (size_t i = 0; i < kNumbers; ++i) {
    numbers[i] = brain(normal(random));                           // weights
    numbers[kNumbers + i] = 0;                                    // never written
    numbers[2 * kNumbers + i] = static_cast<uint16_t>(random());  // anything
    numbers[3 * kNumbers + i] = brain(std::ldexp(
        1.5F, -static_cast<int>(i % 15)));  // exactly as many exponents as there are codes
    numbers[4 * kNumbers + i] = brain(1);   // see below
    numbers[5 * kNumbers + i] = brain(1);
  }
  // As many exceptions as there is room for, then one more: few enough that which exponents are
  // frequent is no matter of luck.
  for (size_t code = 0; code < 15; ++code)
    for (size_t i = 0; i < kNumbers / 16; ++i)
      numbers[4 * kNumbers + 16 * i + code] = numbers[5 * kNumbers + 16 * i + code] =
          brain(std::ldexp(1.0F, static_cast<int>(code)));
  for (size_t i = 0; i < kMostExceptions + 1; ++i) {
    if (i < kMostExceptions) numbers[4 * kNumbers + 16 * i * 13 % kNumbers] = 0x7f80;  // infinity
    numbers[5 * kNumbers + 16 * i * 13 % kNumbers] = 0xffc1;  // a NaN with its payload
  }
  std::vector<Vector> packed(kPages * kPackedPageBytes / sizeof(Vector), Vector{{0, 0}});
  std::vector<Vector> back = pagesOf(kPages);
  {
    Buffers device;
    const PackParameters parameters{device.add(pages, false), device.add(packed, true)};
    launch(packPtx(), kPackKernel, parameters, {kPages, 1, 1}, kPackThreads, device);
  }
  const auto stateOf = [&](size_t page) {
    PackedHeader header;
    std::memcpy(&header,
                reinterpret_cast<const std::byte*>(packed.data()) + page * kPackedPageBytes,
                sizeof header);
    return header.state;
  };
  const Packed expected[] = {Packed::kDone, Packed::kDone, Packed::kNever,
                             Packed::kDone, Packed::kDone, Packed::kNever};
  for (size_t page = 0; page < kPages; ++page) {
    INFO("page " << page);
    CHECK(stateOf(page) == expected[page]);
  }
  {
    Buffers device;
    const PackParameters parameters{device.add(back, true), device.add(packed, false)};
    launch(packPtx(), kUnpackKernel, parameters, {kUnpackParts, kPages, 1}, kUnpackThreads, device);
  }
  for (size_t page = 0; page < kPages; ++page) {
    if (expected[page] != Packed::kDone) continue;
    INFO("page " << page);
    CHECK(std::memcmp(back.data() + page * kHashPageBytes / sizeof(Vector),
                      numbers + page * kNumbers, kHashPageBytes) == 0);
  }
}
