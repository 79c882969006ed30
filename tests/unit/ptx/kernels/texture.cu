// Texture and surface functions of CUDA C++, each as a kernel: `at` holds a thread's coordinates, w
// the layer.
#include <cuda_runtime.h>

#define THREAD                                         \
  const int i = blockIdx.x * blockDim.x + threadIdx.x; \
  if (i >= n) return

extern "C" __global__ void fetch_1d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex1Dfetch<float4>(t, int(at[i].x));
}
extern "C" __global__ void fetch_1d_signed(cudaTextureObject_t t, const float4* at, int4* out,
                                           int n) {
  THREAD;
  out[i] = tex1Dfetch<int4>(t, int(at[i].x));
}
extern "C" __global__ void fetch_1d_unsigned(cudaTextureObject_t t, const float4* at, uint4* out,
                                             int n) {
  THREAD;
  out[i] = tex1Dfetch<uint4>(t, int(at[i].x));
}
extern "C" __global__ void sample_1d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex1D<float4>(t, at[i].x);
}
extern "C" __global__ void sample_2d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex2D<float4>(t, at[i].x, at[i].y);
}
extern "C" __global__ void sample_3d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex3D<float4>(t, at[i].x, at[i].y, at[i].z);
}
extern "C" __global__ void layered_1d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex1DLayered<float4>(t, at[i].x, int(at[i].w));
}
extern "C" __global__ void layered_2d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex2DLayered<float4>(t, at[i].x, at[i].y, int(at[i].w));
}
// Every form that says at which level of detail: without mipmaps all the same.
extern "C" __global__ void levels_2d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  const float2 d = make_float2(0.25f, 4.0f);
  float4 a = tex2DLod<float4>(t, at[i].x, at[i].y, 3.0f),
         b = tex2DGrad<float4>(t, at[i].x, at[i].y, d, d);
  bool resident = false;
  const float4 c = tex2D<float4>(t, at[i].x, at[i].y, &resident);
  a.x += b.x + c.x, a.y += b.y + c.y, a.z += b.z + c.z, a.w += b.w + c.w;
  out[i] = resident ? a : make_float4(-1, -1, -1, -1);
}
extern "C" __global__ void levels_3d(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  const float4 d = make_float4(1, 2, 3, 0);
  float4 a = tex3DLod<float4>(t, at[i].x, at[i].y, at[i].z, 1.0f);
  const float4 b = tex3DGrad<float4>(t, at[i].x, at[i].y, at[i].z, d, d);
  a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
  out[i] = a;
}
extern "C" __global__ void gather_red(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  out[i] = tex2Dgather<float4>(t, at[i].x, at[i].y, 0);
}
extern "C" __global__ void gather_alpha(cudaTextureObject_t t, const float4* at, float4* out,
                                        int n) {
  THREAD;
  out[i] = tex2Dgather<float4>(t, at[i].x, at[i].y, 3);
}
// Only some lanes read, and what they read decides what comes next.
extern "C" __global__ void diverged(cudaTextureObject_t t, const float4* at, float4* out, int n) {
  THREAD;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int k = 0; k < i % 5; ++k) {
    const float4 v = tex2D<float4>(t, at[i].x + k, at[i].y);
    sum.x += v.x;
    if (v.x < 0.5f) sum.y += tex2D<float4>(t, at[i].y, at[i].x).y;
  }
  out[i] = sum;
}

template <typename T>
__device__ void copyAll(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= width || y >= height) return;
  T value;
  surf2Dread(&value, from, x * int(sizeof(T)), y);
  surf2Dwrite(value, to, x * int(sizeof(T)), height - 1 - y);
}
#define COPY(name, T)                                                                          \
  extern "C" __global__ void name(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, \
                                  int height) {                                                \
    copyAll<T>(from, to, width, height);                                                       \
  }
COPY(flip_u8, unsigned char)
COPY(flip_u8x4, uchar4)
COPY(flip_s16x2, short2)
COPY(flip_f32, float)
COPY(flip_f32x4, float4)
COPY(flip_u64x2, ulonglong2)

extern "C" __global__ void bounds(cudaSurfaceObject_t s, const int4* at, float4* out, int n) {
  THREAD;
  float clamped = -1, zeroed = -1;
  surf2Dread(&clamped, s, at[i].x, at[i].y, cudaBoundaryModeClamp);
  surf2Dread(&zeroed, s, at[i].x, at[i].y, cudaBoundaryModeZero);
  surf2Dwrite(77.0f, s, at[i].x, at[i].y + 1000, cudaBoundaryModeZero);
  out[i] = make_float4(clamped, zeroed, 0, 0);
}
extern "C" __global__ void trap(cudaSurfaceObject_t s, int x, int y, float* out) {
  surf2Dread(out, s, x, y);
}
extern "C" __global__ void shapes(cudaSurfaceObject_t one, cudaSurfaceObject_t three,
                                  cudaSurfaceObject_t rows, cudaSurfaceObject_t layers, int* out) {
  const int i = threadIdx.x;
  int v;
  surf1Dread(&v, one, i * 4);
  surf3Dwrite(v + 1, three, (i & 1) * 4, i >> 1 & 1, i >> 2 & 1);
  surf1DLayeredwrite(v + 2, rows, (i & 3) * 4, i >> 2);
  surf2DLayeredwrite(v + 3, layers, (i & 1) * 4, i >> 1 & 1, i >> 2);
  int a, b, c;
  surf3Dread(&a, three, (i & 1) * 4, i >> 1 & 1, i >> 2 & 1);
  surf1DLayeredread(&b, rows, (i & 3) * 4, i >> 2);
  surf2DLayeredread(&c, layers, (i & 1) * 4, i >> 1 & 1, i >> 2);
  out[i] = a * 10000 + b * 100 + c;
}
