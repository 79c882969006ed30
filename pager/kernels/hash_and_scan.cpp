// The page hash and the scan in C++: for memory that the CPU reads, and the reference for the
// kernel.
#include "pager/kernels/hash_and_scan.h"

#include <cstddef>
#include <vector>

#include "pager/kernels/hash_constants.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace olpager::kernels {

namespace {

__extension__ using uint128 = unsigned __int128;

constexpr size_t kLanes = 8;
constexpr size_t kVectorsPerRound = kLanes / 2;
constexpr size_t kRounds = kHashPageBytes / (kPagePassThreads * kLanes * 8);
constexpr uint64_t kLaneKeys[kLanes][2] = {OLPAGER_LANE_KEYS};

constexpr uint64_t firstKey(uint32_t thread) {
  uint64_t key = OLPAGER_KEY_SEED + thread;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return (key ^ (key >> 31)) | 1;
}

// Memory is looked through while others may write it, as the header says: no business of
// ThreadSanitizer's, which would think about each word.
#define OL_UNSEEN __attribute__((no_sanitize("thread")))

OL_UNSEEN size_t findPlain(const uint64_t* words, size_t count, uint64_t base, uint64_t size) {
  for (size_t i = 0; i < count; ++i) {
    if (words[i] - base < size) return i;
  }
  return count;
}

#if defined(__x86_64__)
// 16 words a round. AVX2 compares signed: both sides are moved by 2^63.
OL_UNSEEN __attribute__((target("avx2"))) size_t findAvx2(const uint64_t* words, size_t count,
                                                          uint64_t base, uint64_t size) {
  const __m256i start = _mm256_set1_epi64x(static_cast<int64_t>(base + (1ull << 63)));
  const __m256i limit = _mm256_set1_epi64x(static_cast<int64_t>(size ^ (1ull << 63)));
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m256i hit = _mm256_setzero_si256();
    for (size_t j = 0; j < 16; j += 4) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i + j));
      hit = _mm256_or_si256(hit, _mm256_cmpgt_epi64(limit, _mm256_sub_epi64(word, start)));
    }
    if (_mm256_testz_si256(hit, hit) == 0) {
      const size_t at = findPlain(words + i, 16, base, size);
      if (at < 16) return i + at;
    }
  }
  return i + findPlain(words + i, count - i, base, size);
}
#endif

}  // namespace

PageHash hashPage(const void* page) {
  // Rounds outside and threads inside: memory is read in order. Sums over threads commute.
  uint128 sums[kLanes] = {};
  uint64_t keys[kPagePassThreads];
  for (uint32_t thread = 0; thread < kPagePassThreads; ++thread) keys[thread] = firstKey(thread);
  const auto* at = static_cast<const unsigned char*>(page);
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t vector = 0; vector < kVectorsPerRound; ++vector) {
      uint128 even = 0;
      uint128 odd = 0;
      for (uint64_t key : keys) {
        uint64_t words[2];
        std::memcpy(words, at, sizeof(words));
        at += sizeof(words);
        even += static_cast<uint128>(words[0]) * key;
        odd += static_cast<uint128>(words[1]) * key;
      }
      sums[2 * vector] += even;
      sums[2 * vector + 1] += odd;
    }
    for (uint64_t& key : keys) key *= OLPAGER_KEY_STEP;
  }
  uint128 hash = static_cast<uint128>(OLPAGER_HASH_HIGH) << 64 | OLPAGER_HASH_LOW;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    hash += sums[lane] * (static_cast<uint128>(kLaneKeys[lane][1]) << 64 | kLaneKeys[lane][0]);
  }
  return {static_cast<uint64_t>(hash), static_cast<uint64_t>(hash >> 64)};
}

PageHash combineHashes(const PageHash* pages, size_t count) {
  PageHash hash;
  for (size_t page = 0; page < count; ++page) {
    hash.low = hash.low * 0x9E3779B97F4A7C15ull + pages[page].low;
    hash.high = hash.high * 0xD1342543DE82EF95ull + pages[page].high;
  }
  return hash;
}

size_t findWordInRange(const uint64_t* words, size_t count, uint64_t base, uint64_t size) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return findAvx2(words, count, base, size);
#endif
  return findPlain(words, count, base, size);
}

PageHash hashMemory(const void* memory, uint64_t bytes) {
  std::vector<PageHash> pages(bytes / kHashPageBytes);
  for (size_t page = 0; page < pages.size(); ++page)
    pages[page] = hashPage(static_cast<const std::byte*>(memory) + page * kHashPageBytes);
  return combineHashes(pages.data(), pages.size());
}

}  // namespace olpager::kernels
