// The page pass on the GPU: one block of 256 threads hashes one 2 MiB page and tests its words for
// addresses of the range. hash_and_scan.h says what and why; the C++ reference in hash_and_scan.cpp
// gives the same hashes.
//
// Each thread takes four 16-byte vectors a round, 128 rounds. Eight 128-bit sums (one for each word
// of a round) with one key for the round: two multiply-adds a word, no chain longer than one
// addition, so the loads of the next round overlap. Written for few instructions a byte rather than
// short PTX text: what is rare (a word that looks like an address) is out of the way.
#include "hash_constants.h"

typedef unsigned long long u64;
typedef unsigned int u32;

struct Scope {  // ScanScope
  u64 range_base;
  u64 range_pages;
  u64 outside_base;
  u32 outside_granules;
  u32 outside_shift;
};

struct Job {  // PagePassJob
  u64 address;
  u64 found;
  u32 pages;
  u32 first_hash;
};

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kLanes = 8;
constexpr u32 kRounds = (2u << 20) / (kThreads * kLanes * 8);
static_assert(kRounds % 2 == 0, "rounds are taken in pairs");
constexpr u32 kPageShift = 21;

struct Sum {
  u64 low, high;
};

// 16 bytes of global memory that will not be used again soon.
template <u32 kOffset>
__device__ __forceinline__ ulonglong2 loadOnce(u64 at) {
  ulonglong2 vector;
  asm volatile("ld.global.cs.v2.u64 {%0, %1}, [%2 + %3];"
               : "=l"(vector.x), "=l"(vector.y)
               : "l"(at), "n"(kOffset));
  return vector;
}

// sum += word * key
__device__ __forceinline__ void multiplyAdd(Sum& sum, u64 word, u64 key) {
  asm("mad.lo.cc.u64 %0, %2, %3, %0;\n\t"
      "madc.hi.u64 %1, %2, %3, %1;"
      : "+l"(sum.low), "+l"(sum.high)
      : "l"(word), "l"(key));
}

__device__ __forceinline__ void add(Sum& sum, const Sum& other) {
  sum.low += other.low;
  sum.high += other.high + (sum.low < other.low);
}

// sum += other * key, mod 2^128
__device__ __forceinline__ void multiplyAdd128(Sum& sum, const Sum& other, u64 key_low,
                                               u64 key_high) {
  multiplyAdd(sum, other.low, key_low);
  sum.high += other.low * key_high + other.high * key_low;
}

__device__ __forceinline__ u64 firstKey(u32 thread) {
  u64 key = OLPAGER_KEY_SEED + thread;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return (key ^ (key >> 31)) | 1;
}

// Bits that this block has marked already, by number modulo the size; 0: none. The bitmap may lie
// in host memory, where each access is a trip over the bus, and most words that are addresses name
// few pages.
constexpr u32 kSeen = 1024;

__device__ __forceinline__ void mark(u32 bit, u32* found) {
  atomicOr(found + (bit >> 5), 1u << (bit & 31));
}

// The words that are looked for, ready for comparison.
struct Range {
  u64 base, bytes;
  u64 outside_base, outside_bytes;
  u32 pages, outside_shift;
  u32* found;
  volatile u32* seen;
};

__device__ __forceinline__ Range rangeOf(const Scope& scope, u32* found, u32* seen) {
  if (found == nullptr) return {0, 0, 0, 0, 0, 0, found, seen};
  return {scope.range_base,
          scope.range_pages << kPageShift,
          scope.outside_base,
          static_cast<u64>(scope.outside_granules) << scope.outside_shift,
          static_cast<u32>(scope.range_pages),
          scope.outside_shift,
          found,
          seen};
}

// The bit of a word; false when it has none.
__device__ __forceinline__ bool bitOf(u64 word, const Range& range, u32* bit) {
  if (word - range.base < range.bytes) {
    *bit = static_cast<u32>((word - range.base) >> kPageShift);
    return true;
  }
  *bit = range.pages + static_cast<u32>((word - range.outside_base) >> range.outside_shift);
  return word - range.outside_base < range.outside_bytes;
}

__device__ __forceinline__ void markIfInRange(u64 word, const Range& range) {
  u32 bit;
  if (!bitOf(word, range, &bit)) return;
  volatile u32* const cell = range.seen + (bit + 1) % kSeen;
  if (*cell == bit + 1) return;
  mark(bit, range.found);
  *cell = bit + 1;  // another thread may write another bit's name at once: either is true
}

// One thread's part of a round.
struct Round {
  ulonglong2 a, b, c, d;
};
constexpr u32 kRoundBytes = kThreads * kLanes * 8;

template <u32 kOffset>
__device__ __forceinline__ Round loadRound(u64 at) {
  return {loadOnce<kOffset + 0 * kThreads * 16>(at), loadOnce<kOffset + 1 * kThreads * 16>(at),
          loadOnce<kOffset + 2 * kThreads * 16>(at), loadOnce<kOffset + 3 * kThreads * 16>(at)};
}

__device__ __forceinline__ u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

__device__ __forceinline__ u64 nearest(const u64 (&words)[kLanes], u64 base) {
  return smaller(
      smaller(smaller(words[0] - base, words[1] - base), smaller(words[2] - base, words[3] - base)),
      smaller(smaller(words[4] - base, words[5] - base),
              smaller(words[6] - base, words[7] - base)));
}

__device__ __forceinline__ void takeRound(const Round& round, Sum (&sums)[kLanes], u64& key,
                                          const Range& range) {
  const u64 words[kLanes] = {round.a.x, round.a.y, round.b.x, round.b.y,
                             round.c.x, round.c.y, round.d.x, round.d.y};
#pragma unroll
  for (u32 lane = 0; lane < kLanes; ++lane) multiplyAdd(sums[lane], words[lane], key);
  key *= OLPAGER_KEY_STEP;
  // One comparison for the eight words: is the smallest offset in the range?
  if (nearest(words, range.base) < range.bytes ||
      nearest(words, range.outside_base) < range.outside_bytes) {
#pragma unroll
    for (u32 lane = 0; lane < kLanes; ++lane) markIfInRange(words[lane], range);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    olpager_page_pass(const Job* jobs, Scope scope, ulonglong2* hashes) {
  const Job job = jobs[blockIdx.y];
  if (blockIdx.x >= job.pages) return;
  const u32 thread = threadIdx.x;
  u64 at = __cvta_generic_to_global(reinterpret_cast<const void*>(job.address)) +
           (static_cast<u64>(blockIdx.x) << kPageShift) + thread * 16;

  __shared__ u32 seen[kSeen];
  for (u32 i = thread; i < kSeen; i += kThreads) seen[i] = 0;
  __syncthreads();

  Sum sums[kLanes] = {};
  u64 key = firstKey(thread);
  const Range range = rangeOf(scope, reinterpret_cast<u32*>(job.found), seen);
  // Two rounds in turn, the next one's bytes on their way while one is worked on. The last load
  // repeats its round's.
  Round even = loadRound<0>(at);
  for (u32 left = kRounds / 2; left != 0; --left) {
    const Round odd = loadRound<kRoundBytes>(at);
    takeRound(even, sums, key, range);
    at += left == 1 ? 0 : 2 * kRoundBytes;
    even = loadRound<0>(at);
    takeRound(odd, sums, key, range);
  }

  const u64 lane_keys[kLanes][2] = {OLPAGER_LANE_KEYS};
  Sum hash = {0, 0};
#pragma unroll
  for (u32 lane = 0; lane < kLanes; ++lane) {
    multiplyAdd128(hash, sums[lane], lane_keys[lane][0], lane_keys[lane][1]);
  }

  // Sum over the block: within a warp by shuffles, then over the warps by the first thread.
  __shared__ Sum of_warp[kThreads / 32];
#pragma unroll
  for (u32 distance = 16; distance != 0; distance /= 2) {
    const Sum other = {__shfl_down_sync(~0u, hash.low, distance),
                       __shfl_down_sync(~0u, hash.high, distance)};
    add(hash, other);
  }
  if (thread % 32 == 0) of_warp[thread / 32] = hash;
  __syncthreads();
  if (thread == 0) {
    Sum total = {OLPAGER_HASH_LOW, OLPAGER_HASH_HIGH};
    for (u32 warp = 0; warp < kThreads / 32; ++warp) add(total, of_warp[warp]);
    hashes[job.first_hash + blockIdx.x] = make_ulonglong2(total.low, total.high);
  }
}

namespace {

__device__ __forceinline__ void scan(const u64* words, u64 count, const Range& range) {
  for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<u64>(gridDim.x) * blockDim.x) {
    u32 bit;
    if (bitOf(__ldcs(words + i), range, &bit)) mark(bit, range.found);
  }
}

}  // namespace

extern "C" __global__ void olpager_scan(const u64* words, u64 count, Scope scope, u32* found) {
  scan(words, count, rangeOf(scope, found, nullptr));
}

struct RangeJob {  // ScanJob
  u64 address;
  u64 found;
  u64 words;
};

extern "C" __global__ void olpager_scan_ranges(const RangeJob* jobs, Scope scope) {
  const RangeJob job = jobs[blockIdx.y];
  scan(reinterpret_cast<const u64*>(job.address), job.words,
       rangeOf(scope, reinterpret_cast<u32*>(job.found), nullptr));
}
