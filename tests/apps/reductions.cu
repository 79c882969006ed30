// Sums, minima, maxima and a histogram: warp shuffles, shared memory, votes and atomics of several
// widths.
#include <algorithm>

#include "common.h"

struct Totals {
  unsigned long long sum;
  unsigned minimum;
  unsigned maximum;
  unsigned odd;
  float histogram[16];
};

__global__ void reduce(const uint4* in, uint32_t count, Totals* totals) {
  __shared__ unsigned long long sums[32];
  __shared__ float bins[16];
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  unsigned long long sum = 0;
  unsigned low = ~0u, high = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint4 v = in[i];
    sum += uint64_t(v.x) + v.y + v.z + v.w;
    low = min(low, min(min(v.x, v.y), min(v.z, v.w)));
    high = max(high, max(max(v.x, v.y), max(v.z, v.w)));
    atomicAdd(&bins[v.x & 15], 1.0f);
    const unsigned votes = __ballot_sync(__activemask(), v.x & 1);
    const unsigned lane = threadIdx.x & 31;
    if (lane == __ffs(__activemask()) - 1) atomicAdd(&totals->odd, __popc(votes));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(~0u, sum, offset);
    low = min(low, __shfl_xor_sync(~0u, low, offset));
    high = max(high, __shfl_xor_sync(~0u, high, offset));
  }
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    sums[warp] = sum;
    atomicMin(&totals->minimum, low);
    atomicMax(&totals->maximum, high);
  }
  __syncthreads();
  if (warp == 0) {
    sum = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
    if (threadIdx.x == 0) atomicAdd(&totals->sum, sum);
  }
  if (threadIdx.x < 16) atomicAdd(&totals->histogram[threadIdx.x], bins[threadIdx.x]);
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t pieces = options.bytes / kPiece;
  std::vector<uint4*> in(pieces);
  std::vector<Totals*> out(pieces);
  for (size_t p = 0; p < pieces; ++p) {
    RUNTIME_OK(cudaMalloc(&in[p], kPiece));
    RUNTIME_OK(cudaMalloc(&out[p], sizeof(Totals)));
    Totals start{};
    start.minimum = ~0u;
    RUNTIME_OK(cudaMemcpy(out[p], &start, sizeof start, cudaMemcpyHostToDevice));
    apps::fill(in[p], kPiece, uint32_t(options.seed + p));
  }
  for (size_t p = 0; p < pieces; ++p) reduce<<<8, 256>>>(in[p], uint32_t(kPiece / 16), out[p]);
  RUNTIME_OK(cudaGetLastError());
  for (size_t p = 0; p < pieces; ++p) {
    Totals expected{}, got;
    expected.minimum = ~0u;
    for (uint32_t i = 0; i < kPiece / 16; ++i) {
      const uint32_t v = apps::word(i, uint32_t(options.seed + p));
      for (uint32_t k = 0; k < 4; ++k) {
        expected.sum += uint32_t(v + k);
        expected.minimum = std::min(expected.minimum, v + k);
        expected.maximum = std::max(expected.maximum, v + k);
      }
      expected.odd += v & 1;
      expected.histogram[v & 15] += 1;
    }
    RUNTIME_OK(cudaMemcpy(&got, out[p], sizeof got, cudaMemcpyDeviceToHost));
    CHECK(got.sum == expected.sum, "piece %zu: sum %llu, expected %llu", p, got.sum, expected.sum);
    CHECK(got.minimum == expected.minimum && got.maximum == expected.maximum,
          "piece %zu: minimum %u, maximum %u", p, got.minimum, got.maximum);
    CHECK(got.odd == expected.odd, "piece %zu: %u odd words, expected %u", p, got.odd,
          expected.odd);
    for (int b = 0; b < 16; ++b) {
      CHECK(got.histogram[b] == expected.histogram[b], "piece %zu: bin %d is %g, expected %g", p, b,
            double(got.histogram[b]), double(expected.histogram[b]));
    }
  }
  return apps::ok("reductions of %zu pieces", pieces);
}
