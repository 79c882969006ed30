// Conversions between types, and the 16-bit floating-point ones.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

extern "C" __global__ void from_float(const float* a, int64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  int64_t* const r = out + i * 10;
  asm("{.reg .s32 t; cvt.rzi.s32.f32 t, %1; cvt.s64.s32 %0, t;}" : "=l"(r[0]) : "f"(x));
  asm("{.reg .u32 t; cvt.rzi.u32.f32 t, %1; cvt.u64.u32 %0, t;}" : "=l"(r[1]) : "f"(x));
  asm("cvt.rzi.s64.f32 %0, %1;" : "=l"(r[2]) : "f"(x));
  asm("cvt.rzi.u64.f32 %0, %1;" : "=l"(r[3]) : "f"(x));
  asm("{.reg .s16 t; cvt.rni.s16.f32 t, %1; cvt.s64.s16 %0, t;}" : "=l"(r[4]) : "f"(x));
  asm("{.reg .u16 t; cvt.rni.u8.f32 t, %1; cvt.u64.u16 %0, t;}" : "=l"(r[5]) : "f"(x));
  asm("cvt.rni.s64.f32 %0, %1;" : "=l"(r[6]) : "f"(x));
  asm("cvt.rmi.s64.f32 %0, %1;" : "=l"(r[7]) : "f"(x));
  asm("cvt.rpi.s64.f32 %0, %1;" : "=l"(r[8]) : "f"(x));
  r[9] = (int64_t)(double)x;
}

extern "C" __global__ void between_integers(const int64_t* a, int64_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int64_t x = a[i];
  int64_t* const r = out + i * 8;
  r[0] = (int8_t)x;
  r[1] = (uint8_t)x;
  r[2] = (int16_t)x;
  r[3] = (uint16_t)x;
  r[4] = (int32_t)x;
  r[5] = (uint32_t)x;
  asm("{.reg .s32 t; cvt.sat.s32.s64 t, %1; cvt.s64.s32 %0, t;}" : "=l"(r[6]) : "l"(x));
  asm("{.reg .u16 t; cvt.sat.u8.s64 t, %1; cvt.u64.u16 %0, t;}" : "=l"(r[7]) : "l"(x));
}

extern "C" __global__ void to_float(const int64_t* a, float* f, double* d, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  f[i * 4] = (float)a[i];
  f[i * 4 + 1] = (float)(uint64_t)a[i];
  f[i * 4 + 2] = __ll2float_rz(a[i]);
  f[i * 4 + 3] = __double2float_ru((double)a[i]);
  d[i * 2] = (double)a[i];
  d[i * 2 + 1] = (double)(uint64_t)a[i];
}

// Every bit pattern of a half.
extern "C" __global__ void half_to_float(float* f16, float* bf16) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  f16[i] = __half2float(__ushort_as_half((unsigned short)i));
  bf16[i] = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
}

extern "C" __global__ void float_to_half(const float* a, unsigned short* f16, unsigned short* bf16,
                                         int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  f16[i * 4] = __half_as_ushort(__float2half_rn(a[i]));
  f16[i * 4 + 1] = __half_as_ushort(__float2half_rz(a[i]));
  f16[i * 4 + 2] = __half_as_ushort(__float2half_ru(a[i]));
  f16[i * 4 + 3] = __half_as_ushort(__float2half_rd(a[i]));
  bf16[i] = __bfloat16_as_ushort(__float2bfloat16_rn(a[i]));
}

extern "C" __global__ void half_arithmetic(const __half* a, const __half* b, const __half* c,
                                           __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half* const r = out + i * 8;
  r[0] = __hadd(a[i], b[i]);
  r[1] = __hsub(a[i], b[i]);
  r[2] = __hmul(a[i], b[i]);
  r[3] = __hfma(a[i], b[i], c[i]);
  r[4] = __hneg(a[i]);
  r[5] = __habs(a[i]);
  r[6] = __hadd_sat(a[i], b[i]);
  r[7] = __float2half((float)(__hlt(a[i], b[i]) + 2 * __heq(a[i], b[i]) + 4 * __hgeu(a[i], b[i])));
}

extern "C" __global__ void half2_arithmetic(const __half2* a, const __half2* b, __half2* out,
                                            int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i * 2] = __hfma2(a[i], b[i], a[i]);
  out[i * 2 + 1] = __hadd2(a[i], b[i]);
}

extern "C" __global__ void bf16_arithmetic(const __nv_bfloat16* a, const __nv_bfloat16* b,
                                           __nv_bfloat16* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i * 3] = a[i] + b[i];
  out[i * 3 + 1] = a[i] * b[i];
#if __CUDA_ARCH__ >= 800
  out[i * 3 + 2] = __hfma(a[i], b[i], a[i]);
#else
  out[i * 3 + 2] = __float2bfloat16(
      fmaf(__bfloat162float(a[i]), __bfloat162float(b[i]), __bfloat162float(a[i])));
#endif
}
