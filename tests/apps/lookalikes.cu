// Parameters and data that look like addresses and are none, pointers to one past the end, reverse
// iterators, pointers at odd offsets in by-value structs.
#include "common.h"

struct Shape {
  int m, n;
};

struct Packed {
  uint32_t head;
  uint32_t low, high;  // a pointer in two words, at an offset of 4
};

__global__ void countShapes(Shape a, Shape b, uint64_t whole, uint32_t* out) {
  atomicAdd(out, uint32_t(a.m) ^ uint32_t(a.n) ^ uint32_t(b.m) ^ uint32_t(b.n) ^ uint32_t(whole));
}

/// Walks back from the end.
__global__ void reverseSum(const uint32_t* end, uint32_t count, unsigned long long* out) {
  unsigned long long sum = 0;
  const uint32_t* it = end;
  for (uint32_t i = 0; i < count; ++i) sum += *--it;
  *out = sum;
}

__global__ void throughPacked(Packed packed, uint32_t value) {
  uint32_t* p = reinterpret_cast<uint32_t*>(uint64_t(packed.low) | uint64_t(packed.high) << 32);
  p[threadIdx.x] = value + threadIdx.x;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t n = options.bytes / 2 / kPiece > 4 ? options.bytes / 2 / kPiece : 4;
  std::vector<uint32_t*> buffers(n);
  for (size_t b = 0; b < n; ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    apps::fill(buffers[b], kPiece, seed + uint32_t(b));
  }
  apps::Pressure pressure(options.bytes / 2);
  uint32_t* out;
  unsigned long long* sum;
  RUNTIME_OK(cudaMalloc(&out, 4));
  RUNTIME_OK(cudaMalloc(&sum, 8));
  RUNTIME_OK(cudaMemset(out, 0, 4));
  uint32_t* gone;
  RUNTIME_OK(cudaMalloc(&gone, kPiece));
  RUNTIME_OK(cudaFree(gone));
  // Integers that read as addresses: of live memory, of freed memory, of nothing.
  apps::Random random(options.seed);
  uint32_t expected = 0;
  for (int i = 0; i < 64; ++i) {
    const uint64_t targets[] = {uint64_t(buffers[random.below(n)]) + random.below(2 * kPiece),
                                uint64_t(gone), random.next() >> 17,
                                uint64_t(out) + (uint64_t{1} << 40)};
    const uint64_t a = targets[random.below(4)], b = targets[random.below(4)];
    const Shape first{int(uint32_t(a)), int(a >> 32)}, second{int(uint32_t(b)), int(b >> 32)};
    countShapes<<<1, 1>>>(first, second, targets[random.below(4)] & ~uint64_t{0xffffffff}, out);
    RUNTIME_OK(cudaGetLastError());
    expected += uint32_t(a) ^ uint32_t(a >> 32) ^ uint32_t(b) ^ uint32_t(b >> 32);
  }
  uint32_t got = 0;
  RUNTIME_OK(cudaMemcpy(&got, out, 4, cudaMemcpyDeviceToHost));
  CHECK(got == expected, "counted %#x, expected %#x", got, expected);
  // Data full of such words: what is in memory is not harmed by being read as pointers.
  std::vector<uint64_t> words(kPiece / 8);
  for (uint64_t& w : words) w = uint64_t(buffers[random.below(n)]) + random.below(4 * kPiece);
  RUNTIME_OK(cudaMemcpy(buffers[0], words.data(), kPiece, cudaMemcpyHostToDevice));
  pressure.apply();
  std::vector<uint64_t> back(kPiece / 8);
  RUNTIME_OK(cudaMemcpy(back.data(), buffers[0], kPiece, cudaMemcpyDeviceToHost));
  CHECK(back == words, "words that look like addresses changed");
  apps::fill(buffers[0], kPiece, seed);
  // One past the end names the buffer before it.
  constexpr uint32_t kCount = 20000;
  for (size_t b = 0; b < n; ++b) {
    pressure.apply();
    reverseSum<<<1, 1>>>(buffers[b] + kPiece / 4, kCount, sum);
    unsigned long long value = 0, reference = 0;
    RUNTIME_OK(cudaMemcpy(&value, sum, 8, cudaMemcpyDeviceToHost));
    for (uint32_t i = kPiece / 4 - kCount; i < kPiece / 4; ++i)
      reference += uint32_t(apps::word(i / 4, seed + uint32_t(b)) + i % 4);
    CHECK(value == reference, "buffer %zu backwards from its end: %llu, expected %llu", b, value,
          reference);
    if (b >= 3) break;
  }
  // A pointer at an offset of four bytes.
  for (size_t b = 0; b < n; ++b) {
    const uint64_t address = uint64_t(buffers[b] + 4096);
    throughPacked<<<1, 32>>>(Packed{1, uint32_t(address), uint32_t(address >> 32)},
                             seed + uint32_t(b));
  }
  RUNTIME_OK(cudaGetLastError());
  for (size_t b = 0; b < n; ++b) {
    uint32_t part[32];
    RUNTIME_OK(cudaMemcpy(part, buffers[b] + 4096, sizeof part, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 32; ++i)
      CHECK(part[i] == seed + uint32_t(b) + i, "buffer %zu by a packed pointer: %#x", b, part[i]);
  }
  pressure.check();
  return apps::ok("lookalikes with %zu buffers", n);
}
