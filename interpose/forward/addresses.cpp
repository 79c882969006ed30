#include "interpose/forward/addresses.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/held_signals.h"
#include "forwarding/wire/wire.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kStep = 4;          // parameters and packed structures
constexpr uint64_t kBlockBytes = 256;  // looked at at once
constexpr uint64_t kWord = sizeof(uint64_t);

// An address in the window is told by its upper half: a word that begins in a block has that half
// in the block or in the 4 bytes behind it.
constexpr unsigned kShift = std::countr_zero(kWindowBytes) - 32;
constexpr uint32_t kUpper = static_cast<uint32_t>(kWindow >> 32) >> kShift;
static_assert(std::has_single_bit(kWindowBytes) && kWindow % kWindowBytes == 0 &&
              kWindowBytes >= 1ull << 32);

// The first of `blocks` blocks from `at` on in which an address may begin; `blocks`: in none.
using Skip = uint64_t (*)(const std::byte* at, uint64_t blocks);

uint64_t skipPlain(const std::byte* at, uint64_t blocks) {
  for (uint64_t block = 0; block < blocks; ++block) {
    uint32_t halves[kBlockBytes / sizeof(uint32_t)];
    std::memcpy(halves, at + block * kBlockBytes + kStep, sizeof halves);
    uint32_t found = 0;
    for (const uint32_t half : halves) found |= static_cast<uint32_t>((half >> kShift) == kUpper);
    if (found != 0) return block;
  }
  return blocks;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t skipAvx2(const std::byte* at, uint64_t blocks) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(kUpper));
  for (uint64_t block = 0; block < blocks; ++block) {
    const auto* const from = reinterpret_cast<const __m256i*>(at + block * kBlockBytes + kStep);
    __m256i found = _mm256_setzero_si256();
    for (int i = 0; i < static_cast<int>(kBlockBytes / sizeof *from); ++i) {
      const __m256i halves = _mm256_srli_epi32(_mm256_loadu_si256(from + i), kShift);
      found = _mm256_or_si256(found, _mm256_cmpeq_epi32(halves, upper));
    }
    if (_mm256_testz_si256(found, found) == 0) return block;
  }
  return blocks;
}
#endif

Skip fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return skipAvx2;
#endif
  return skipPlain;
}

bool look(const std::byte* bytes, uint64_t count, const std::function<bool(uint64_t)>& each) {
  static const Skip skip = fastest();
  bool any = false;
  const auto lookAt = [&](uint64_t from, uint64_t end) {
    for (uint64_t at = from; at < end && at + kWord <= count; at += kStep) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, sizeof word);
      if (word - kWindow < kWindowBytes && each(word)) any = true;
    }
  };
  // Blocks with the 4 bytes behind them.
  const uint64_t blocks = count < kStep ? 0 : (count - kStep) / kBlockBytes;
  for (uint64_t block = 0; block < blocks; ++block) {
    block += skip(bytes + block * kBlockBytes, blocks - block);
    if (block < blocks) lookAt(block * kBlockBytes, (block + 1) * kBlockBytes);
  }
  lookAt(blocks * kBlockBytes, count);
  return any;
}

}  // namespace

bool eachAddress(const void* memory, uint64_t count, const std::function<bool(uint64_t)>& each) {
  constexpr uint64_t kLarge = 32ull << 20;  // worth the threads
  constexpr uint64_t kMostThreads = 4;
  const auto* const bytes = static_cast<const std::byte*>(memory);
  if (count < kLarge) return look(bytes, count, each);
  // Not for each launch: to ask for it is to read a file.
  const uint64_t parts =
      std::clamp<uint64_t>(std::thread::hardware_concurrency() / 4, 1, kMostThreads);
  const uint64_t part = count / parts / kBlockBytes * kBlockBytes;
  std::atomic<bool> any{false};
  // A word that begins in a part belongs to it.
  const auto run = [&](uint64_t index) {
    const uint64_t begin = index * part;
    const uint64_t end = index + 1 == parts ? count : begin + part + kWord - kStep;
    if (look(bytes + begin, end - begin, each)) any.store(true);
  };
  std::vector<std::thread> others;
  uint64_t started = 1;
  try {
    others.reserve(parts);
    for (; started < parts; ++started)
      others.push_back(base::ownThread([&run, started] { run(started); }));
  } catch (const std::exception&) {  // no thread to be had: this one does the rest
  }
  run(0);
  for (uint64_t rest = started; rest < parts; ++rest) run(rest);
  for (auto& other : others) other.join();
  return any;
}

}  // namespace olpager::forward
