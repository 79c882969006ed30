// Packs and unpacks pages; pack.h says how. Each thread takes 8 numbers (16 bytes) at a time: a
// word of 4-bit codes, and a double word of bytes.
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned short u16;

namespace {

constexpr u32 kPageBytes = 2u << 20;
constexpr u32 kVectors = kPageBytes / 16;
constexpr u32 kHeadBytes = 16384;
constexpr u32 kPackedPageBytes = kHeadBytes + kPageBytes / 4 * 3;
constexpr u32 kCodesAt = kHeadBytes, kBytesAt = kHeadBytes + kPageBytes / 4;
constexpr u32 kPackThreads = 1024, kUnpackThreads = 256, kUnpackParts = 32;
constexpr u32 kEscape = 15;
constexpr u32 kDone = 1, kNever = 2;  // Packed

struct Header {  // PackedHeader
  u32 state;
  u32 exceptions;
  u8 exponents[16];
};
constexpr u32 kMostExceptions = (kHeadBytes - sizeof(Header)) / sizeof(u32);

// One in so many numbers tells which exponents are frequent.
constexpr u32 kSample = 16;
// For a sample: more exceptions than this, and the page has more than there is room for.
constexpr u32 kMostInSample = kMostExceptions / kSample * 2;

__device__ __forceinline__ u32 exponentOf(u32 number) { return number >> 7 & 0xff; }
__device__ __forceinline__ u32 restOf(u32 number) { return (number >> 8 & 0x80) | (number & 0x7f); }
__device__ __forceinline__ u32 numberOf(u32 rest, u32 exponent) {
  return (rest & 0x80) << 8 | exponent << 7 | (rest & 0x7f);
}
__device__ __forceinline__ u32 half(const uint4& vector, u32 i) {
  const u32 word = i < 2 ? vector.x : i < 4 ? vector.y : i < 6 ? vector.z : vector.w;
  return i % 2 == 0 ? word & 0xffff : word >> 16;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kPackThreads)
    olpager_pack(const u8* pages, u8* packed) {
  const uint4* const page =
      reinterpret_cast<const uint4*>(pages + static_cast<u64>(blockIdx.x) * kPageBytes);
  u8* const out = packed + static_cast<u64>(blockIdx.x) * kPackedPageBytes;
  Header* const header = reinterpret_cast<Header*>(out);
  const u32 thread = threadIdx.x;

  __shared__ u32 seen[256];
  __shared__ u8 code_of[256];
  __shared__ u8 exponents[16];
  __shared__ u32 rare, exceptions;
  if (thread < 256) seen[thread] = 0, code_of[thread] = kEscape;
  if (thread < 16) exponents[thread] = 0;
  if (thread == 0) rare = exceptions = 0;
  __syncthreads();
  // A run of numbers from each of many places of the page.
  for (u32 i = thread; i < kVectors / kSample; i += kPackThreads) {
    const uint4 vector = page[i / 32 * 32 * kSample + i % 32];
#pragma unroll
    for (u32 n = 0; n < 8; ++n) atomicAdd(&seen[exponentOf(half(vector, n))], 1u);
  }
  __syncthreads();
  if (thread < 256) {
    const u32 mine = seen[thread];
    u32 rank = 0;
    for (u32 other = 0; other < 256; ++other)
      rank += seen[other] > mine || (seen[other] == mine && other < thread);
    if (rank < kEscape && mine != 0) {
      code_of[thread] = static_cast<u8>(rank);
      exponents[rank] = static_cast<u8>(thread);
    } else {
      atomicAdd(&rare, mine);
    }
  }
  __syncthreads();
  if (rare > kMostInSample) {
    if (thread == 0) header->state = kNever;
    return;
  }

  u32* const list = reinterpret_cast<u32*>(header + 1);
  u32* const codes = reinterpret_cast<u32*>(out + kCodesAt);
  uint2* const rests = reinterpret_cast<uint2*>(out + kBytesAt);
  for (u32 i = thread; i < kVectors; i += kPackThreads) {
    const uint4 vector = page[i];
    u32 code = 0, low = 0, high = 0;
#pragma unroll
    for (u32 n = 0; n < 8; ++n) {
      const u32 number = half(vector, n);
      const u32 its = code_of[exponentOf(number)];
      if (its == kEscape) {
        const u32 at = atomicAdd(&exceptions, 1u);
        if (at < kMostExceptions) list[at] = (i * 8 + n) << 8 | exponentOf(number);
      }
      code |= its << 4 * n;
      (n < 4 ? low : high) |= restOf(number) << 8 * (n % 4);
    }
    codes[i] = code;
    rests[i] = make_uint2(low, high);
  }
  __syncthreads();
  if (thread < 16) header->exponents[thread] = exponents[thread];
  if (thread == 0) {
    header->exceptions = exceptions;
    header->state = exceptions <= kMostExceptions ? kDone : kNever;
  }
}

extern "C" __global__ void __launch_bounds__(kUnpackThreads)
    olpager_unpack(u8* pages, const u8* packed) {
  u8* const page = pages + static_cast<u64>(blockIdx.y) * kPageBytes;
  const u8* const in = packed + static_cast<u64>(blockIdx.y) * kPackedPageBytes;
  const Header* const header = reinterpret_cast<const Header*>(in);
  constexpr u32 kPart = kVectors / kUnpackParts;
  const u32 first = blockIdx.x * kPart;

  __shared__ u32 exponents[16];
  if (threadIdx.x < 16) exponents[threadIdx.x] = header->exponents[threadIdx.x];
  __syncthreads();
  const u32* const codes = reinterpret_cast<const u32*>(in + kCodesAt);
  const uint2* const rests = reinterpret_cast<const uint2*>(in + kBytesAt);
#pragma unroll 4
  for (u32 i = first + threadIdx.x; i < first + kPart; i += kUnpackThreads) {
    const u32 code = codes[i];
    const uint2 rest = rests[i];
    u32 words[4];
#pragma unroll
    for (u32 w = 0; w < 4; ++w) {
      const u32 two = (w < 2 ? rest.x : rest.y) >> 16 * (w % 2);
      const u32 low = numberOf(two & 0xff, exponents[code >> 8 * w & 15]);
      const u32 high = numberOf(two >> 8 & 0xff, exponents[code >> (8 * w + 4) & 15]);
      words[w] = low | high << 16;
    }
    reinterpret_cast<uint4*>(page)[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __syncthreads();  // an exception is written after what it corrects
  const u32* const list = reinterpret_cast<const u32*>(header + 1);
  const u32 exceptions =
      header->exceptions < kMostExceptions ? header->exceptions : kMostExceptions;
  for (u32 e = threadIdx.x; e < exceptions; e += kUnpackThreads) {
    const u32 place = list[e] >> 8;
    if (place - first * 8 >= kPart * 8) continue;
    reinterpret_cast<u16*>(page)[place] =
        static_cast<u16>(numberOf(in[kBytesAt + place], list[e] & 0xff));
  }
}
