// Kernels of ptx_bench.
#include <cstdint>

extern "C" __global__ void alu_loop(uint32_t* out, uint32_t n) {
  uint32_t a = threadIdx.x + blockIdx.x * blockDim.x;
  uint32_t b = a * 2654435761u + 1;
  uint32_t c = b ^ 0x9E3779B9u;
#pragma unroll 4
  for (uint32_t i = 0; i < n; ++i) {
    a = a * b + c;
    b ^= a >> 7;
    c += (b << 3) | (a & 255u);
    a = a > c ? a - c : a + c;
  }
  out[threadIdx.x + blockIdx.x * blockDim.x] = a ^ b ^ c;
}

extern "C" __global__ void float_loop(float* out, uint32_t n) {
  float a = threadIdx.x * 0.001f;
  float b = 1.0f;
#pragma unroll 4
  for (uint32_t i = 0; i < n; ++i) {
    a = a * 0.999f + b;
    b = b * a - 0.25f;
    b = fminf(b, 4.0f) * 0.5f;
  }
  out[threadIdx.x + blockIdx.x * blockDim.x] = a + b;
}

extern "C" __global__ void copy(const uint4* in, uint4* out, uint64_t n) {
  for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
       i += (uint64_t)gridDim.x * blockDim.x)
    out[i] = in[i];
}

extern "C" __global__ void reduce(const float* in, float* out, uint32_t n) {
  __shared__ float sums[256];
  float sum = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (uint32_t s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) sums[threadIdx.x] += sums[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

// One block for each 2 MiB page: position-dependent, 128-bit products.
extern "C" __global__ void page_hash(const ulonglong2* pages, uint64_t* out) {
  __shared__ uint64_t part[256];
  const ulonglong2* page = pages + (uint64_t)blockIdx.x * 131072;
  uint64_t h = 0x9E3779B97F4A7C15ull * (threadIdx.x + 1);
  for (uint32_t i = threadIdx.x; i < 131072; i += blockDim.x) {
    ulonglong2 v = page[i];
    uint64_t a = v.x ^ h ^ i;
    uint64_t b = v.y ^ 0xC2B2AE3D27D4EB4Full;
    h = (a * b) ^ __umul64hi(a, b);
  }
  part[threadIdx.x] = h;
  __syncthreads();
  for (uint32_t s = 128; s > 0; s >>= 1) {
    if (threadIdx.x < s) part[threadIdx.x] = part[threadIdx.x] * 31 + part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
