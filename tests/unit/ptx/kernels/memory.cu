// Loads, stores and atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void vectors(const int4* a, const float2* b, const uchar4* c,
                                   const double2* d, int4* oa, float2* ob, uchar4* oc,
                                   double2* od) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int4 x = a[i];
  x = make_int4(x.w, x.z, x.y, x.x);
  oa[i] = x;
  float2 y = b[i];
  ob[i] = make_float2(y.y, y.x);
  uchar4 z = c[i];
  oc[i] = make_uchar4(z.w, z.z, z.y, z.x);
  double2 w = d[i];
  od[i] = make_double2(w.y, w.x);
}

extern "C" __global__ void strided(const short* in, signed char* out, int stride, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (signed char)in[(i * stride) % n];
}

extern "C" __global__ void read_at(const int* p, int* out) { out[threadIdx.x] = p[threadIdx.x]; }
extern "C" __global__ void write_at(int* p) { p[threadIdx.x] = threadIdx.x; }

extern "C" __global__ void cached(const int* in, int* out) {
  const int i = threadIdx.x;
  out[i] = __ldg(in + i) + __ldcg(in + i) + __ldcs(in + i) + *(volatile const int*)(in + i);
  __stwt(out + i, out[i] + 1);
}

extern "C" __global__ void atomics(int* i32, unsigned* u32, unsigned long long* u64, float* f32,
                                   double* f64, __half2* h2, __nv_bfloat162* b2,
                                   unsigned short* u16) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(i32, (int)t - 100);
  atomicMin(i32 + 1, (int)t - 500);
  atomicMax(i32 + 2, (int)(t * 7 % 1001));
  atomicSub(i32 + 3, 2);
  atomicAnd(u32, ~(1u << t % 32));
  atomicOr(u32 + 1, 1u << t % 32);
  atomicXor(u32 + 2, t);
  atomicInc(u32 + 3, 1000);
  atomicDec(u32 + 4, 50);
  atomicExch(u32 + 5, 7u);
  atomicAdd(u64, (unsigned long long)t << 20);
  atomicMax(u64 + 1, (unsigned long long)t << 33);
  atomicAdd(f32, 1.0f);
  atomicAdd(f64, 0.5);
  atomicAdd(h2, __floats2half2_rn(0.25f, 1.0f));
  atomicAdd(b2, __floats2bfloat162_rn(1.0f, 0.5f));
  unsigned long long old = u64[2];
  unsigned long long seen;
  do {
    seen = old;
    old = atomicCAS(u64 + 2, seen, seen + 3);
  } while (old != seen);
  unsigned short h = u16[0];
  unsigned short s;
  do {
    s = h;
    h = atomicCAS(u16, s, (unsigned short)(s + 1));
  } while (h != s);
}

extern "C" __global__ void histogram(const unsigned char* in, unsigned* out, int n) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[in[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], local[i]);
}

// Block reduction by shuffles, one atomic for each block.
extern "C" __global__ void reduce(const float* in, double* out, int n) {
  __shared__ double part[32];
  double sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0;
    for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float ta[16][16];
  __shared__ float tb[16][16];
  const int row = blockIdx.y * 16 + threadIdx.y;
  const int col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < n; t += 16) {
    ta[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
    tb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}

// Local memory with computed indices, through generic pointers.
__device__ __noinline__ int pick(const int* p, int i) { return p[i]; }
extern "C" __global__ void local_memory(const int* in, int* out) {
  int mine[16];
  __shared__ int ours[64];
  const int t = threadIdx.x;
  for (int i = 0; i < 16; ++i) mine[i] = in[(t + i) % 64] * i;
  ours[t] = t * 11;
  __syncthreads();
  const int* p = t % 2 ? mine : ours;
  out[t] = pick(p, in[t] & 15) + mine[t & 15];
}
