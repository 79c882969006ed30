// Each kernel applies many operations to a pair of operands; the test computes the same on the
// host.
#include <cstdint>

template <typename T>
__device__ void integers(const T* a, const T* b, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T x = a[i];
  const T y = b[i];
  T* const r = out + i * 12;
  r[0] = x + y;
  r[1] = x - y;
  r[2] = x * y;
  r[3] = y != 0 ? x / y : 0;
  r[4] = y != 0 ? x % y : 0;
  r[5] = x & y;
  r[6] = x | y;
  r[7] = x ^ y;
  r[8] = ~x;
  r[9] = x < y ? x : y;
  r[10] = x << (y & (sizeof(T) * 8 - 1));
  r[11] = x >> (y & (sizeof(T) * 8 - 1));
}

#define INTEGERS(name, type)                                                        \
  extern "C" __global__ void name(const type* a, const type* b, type* out, int n) { \
    integers(a, b, out, n);                                                         \
  }
INTEGERS(int_s8, int8_t)
INTEGERS(int_u8, uint8_t)
INTEGERS(int_s16, int16_t)
INTEGERS(int_u16, uint16_t)
INTEGERS(int_s32, int32_t)
INTEGERS(int_u32, uint32_t)
INTEGERS(int_s64, int64_t)
INTEGERS(int_u64, uint64_t)

extern "C" __global__ void bits(const uint32_t* a, const uint32_t* b, uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t x = a[i];
  const uint32_t y = b[i];
  const uint64_t wide = (uint64_t)x << 32 | y;
  uint32_t* const r = out + i * 24;
  r[0] = __popc(x);
  r[1] = __clz(x);
  r[2] = __brev(x);
  r[3] = __ffs(x);
  r[4] = __popcll(wide);
  r[5] = __clzll(wide);
  r[6] = (uint32_t)(__brevll(wide) >> 32);
  r[7] = __byte_perm(x, y, 0x5140);
  r[8] = __funnelshift_l(x, y, y & 63);
  r[9] = __funnelshift_rc(x, y, y & 63);
  r[10] = __umulhi(x, y);
  r[11] = __mulhi((int)x, (int)y);
  r[12] = __usad(x, y, 7);
  r[13] = __sad((int)x, (int)y, 7);
  r[14] = __umul24(x, y);
  r[15] = __mul24((int)x, (int)y);
  r[16] = __dp4a((int)x, (int)y, 5);
  r[17] = __dp4a(x, y, 5u);
  r[18] = (uint32_t)__umul64hi(wide, ~wide);
  r[19] = __dp2a_lo((int)x, (int)y, 9);
  asm("bfe.u32 %0, %1, %2, %3;" : "=r"(r[20]) : "r"(x), "r"(y & 31), "r"(y >> 5 & 31));
  asm("bfe.s32 %0, %1, %2, %3;" : "=r"(r[21]) : "r"(x), "r"(y & 31), "r"(y >> 5 & 31));
  asm("bfi.b32 %0, %1, %2, %3, %4;"
      : "=r"(r[22])
      : "r"(x), "r"(0xA5A5A5A5u), "r"(y & 31), "r"(y >> 5 & 31));
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r[23]) : "r"(x), "r"(y), "r"(0x12345678u));
}

// Sums, differences and products of two words with the carry out of them. The last warp is not
// full.
#define CARRIES(name, type, bits, constraint)                                                     \
  extern "C" __global__ void name(const type* a, const type* b, type* out, int n) {               \
    const int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
    if (i >= n) return;                                                                           \
    const type x = a[i], y = a[n - 1 - i], z = b[i], w = b[n - 1 - i];                            \
    type* const r = out + i * 11;                                                                 \
    asm("add.cc." bits " %0, %3, %5;\n\taddc.cc." bits " %1, %4, %6;\n\taddc." bits " %2, 0, 0;"  \
        : "=&" constraint(r[0]), "=&" constraint(r[1]), "=" constraint(r[2])                      \
        : constraint(x), constraint(y), constraint(z), constraint(w));                            \
    asm("sub.cc." bits " %0, %3, %5;\n\tsubc.cc." bits " %1, %4, %6;\n\tsubc." bits " %2, 0, 0;"  \
        : "=&" constraint(r[3]), "=&" constraint(r[4]), "=" constraint(r[5])                      \
        : constraint(x), constraint(y), constraint(z), constraint(w));                            \
    asm("mad.lo.cc." bits " %0, %3, %5, %4;\n\tmadc.hi.cc." bits " %1, %3, %5, %6;\n\taddc." bits \
        " %2, 0, 0;"                                                                              \
        : "=&" constraint(r[6]), "=&" constraint(r[7]), "=" constraint(r[8])                      \
        : constraint(x), constraint(y), constraint(z), constraint(w));                            \
    asm("{.reg ." bits " t; sub.cc." bits " t, %2, %4;\n\tsubc.cc." bits                          \
        " t, %3, %5;\n\taddc." bits                                                               \
        " %0, 0, 0;\n\t"                                                                          \
        "add.cc." bits " t, %2, %4;\n\tsubc." bits " %1, 0, 0;}"                                  \
        : "=&" constraint(r[9]), "=" constraint(r[10])                                            \
        : constraint(x), constraint(y), constraint(z), constraint(w));                            \
  }
CARRIES(carries_u32, uint32_t, "u32", "r")
CARRIES(carries_u64, unsigned long long, "u64", "l")

// Integers of 128 bits: nvcc makes them of smaller ones.
template <typename T>
__device__ void wideIntegers(const T* a, const T* b, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T x = a[i];
  const T y = b[i];
  T* const r = out + i * 10;
  const unsigned count = (unsigned)y & 127;
  r[0] = x + y;
  r[1] = x - y;
  r[2] = x * y;
  r[3] = y != 0 ? x / y : 0;
  r[4] = y != 0 ? x % y : 0;
  r[5] = x << count;
  r[6] = x >> count;
  r[7] = x < y ? 1 : x == y ? 2 : 3;
  r[8] = -x;
  r[9] = (x & y) + (x | ~y) * (x ^ y);
}
extern "C" __global__ void int_s128(const __int128* a, const __int128* b, __int128* out, int n) {
  wideIntegers(a, b, out, n);
}
extern "C" __global__ void int_u128(const unsigned __int128* a, const unsigned __int128* b,
                                    unsigned __int128* out, int n) {
  wideIntegers(a, b, out, n);
}

// Corners where C++ has no defined result but PTX has.
extern "C" __global__ void corners(const int* a, const int* b, int* out, int n) {
  const int i = threadIdx.x;
  if (i >= n) return;
  int* const r = out + i * 12;
  const int x = a[i];
  const int y = b[i];
  asm("div.s32 %0, %1, %2;" : "=r"(r[0]) : "r"(x), "r"(y));
  asm("rem.s32 %0, %1, %2;" : "=r"(r[1]) : "r"(x), "r"(y));
  asm("div.u32 %0, %1, %2;" : "=r"(r[2]) : "r"(x), "r"(y));
  asm("shl.b32 %0, %1, %2;" : "=r"(r[3]) : "r"(x), "r"(y));
  asm("shr.u32 %0, %1, %2;" : "=r"(r[4]) : "r"(x), "r"(y));
  asm("shr.s32 %0, %1, %2;" : "=r"(r[5]) : "r"(x), "r"(y));
  asm("add.sat.s32 %0, %1, %2;" : "=r"(r[6]) : "r"(x), "r"(y));
  asm("sub.sat.s32 %0, %1, %2;" : "=r"(r[7]) : "r"(x), "r"(y));
  asm("abs.s32 %0, %1;" : "=r"(r[8]) : "r"(x));
  asm("neg.s32 %0, %1;" : "=r"(r[9]) : "r"(x));
  asm("{.reg .u32 t; add.cc.u32 t, %1, %2; addc.u32 %0, 0, 0;}" : "=r"(r[10]) : "r"(x), "r"(y));
  asm("bfind.s32 %0, %1;" : "=r"(r[11]) : "r"(x));
}

template <typename T>
__device__ void floats(const T* a, const T* b, const T* c, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T x = a[i];
  const T y = b[i];
  const T z = c[i];
  T* const r = out + i * 10;
  r[0] = x + y;
  r[1] = x - y;
  r[2] = x * y;
  r[3] = x / y;
  r[4] = fma(x, y, z);
  r[5] = sqrt(fabs(x));
  r[6] = fmin(x, y);
  r[7] = fmax(x, z);
  r[8] = -x;
  r[9] = (T)((x < y) + 2 * (x == y) + 4 * (x > y) + 8 * (x != y) + 16 * (x <= y) + 32 * (x >= y));
}
extern "C" __global__ void float_f32(const float* a, const float* b, const float* c, float* out,
                                     int n) {
  floats(a, b, c, out, n);
}
extern "C" __global__ void float_f64(const double* a, const double* b, const double* c, double* out,
                                     int n) {
  floats(a, b, c, out, n);
}

extern "C" __global__ void rounding(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  const float y = b[i];
  float* const r = out + i * 12;
  r[0] = __fadd_rz(x, y);
  r[1] = __fadd_ru(x, y);
  r[2] = __fadd_rd(x, y);
  r[3] = __fmul_rz(x, y);
  r[4] = __fmul_ru(x, y);
  r[5] = __fdiv_rd(x, y);
  r[6] = __fmaf_rz(x, y, 1.5f);
  r[7] = __fsqrt_ru(fabsf(x));
  r[8] = __saturatef(x);
  r[9] = __frcp_rz(x);
  asm("add.ftz.f32 %0, %1, %2;" : "=f"(r[10]) : "f"(x), "f"(y));
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(r[11]) : "f"(x), "f"(y));
}

extern "C" __global__ void math(const float* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  float* const r = out + i * 12;
  r[0] = sinf(x);
  r[1] = cosf(x);
  r[2] = expf(x);
  r[3] = logf(fabsf(x) + 0.5f);
  r[4] = powf(fabsf(x), 1.7f);
  r[5] = tanhf(x);
  r[6] = __sinf(x);
  r[7] = __expf(x);
  r[8] = rsqrtf(fabsf(x) + 0.1f);
  r[9] = cbrtf(x);
  r[10] = erff(x);
  r[11] = atan2f(x, 2.0f);
}

extern "C" __global__ void math64(const double* a, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double x = a[i];
  double* const r = out + i * 6;
  r[0] = sin(x);
  r[1] = exp(x);
  r[2] = log(fabs(x) + 0.5);
  r[3] = pow(fabs(x), 1.7);
  r[4] = tgamma(fabs(x) + 1);
  r[5] = rint(x * 10);
}
