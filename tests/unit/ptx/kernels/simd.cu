// The intrinsics for parts of a word, of which some are instructions, and the video instructions
// that programs write themselves.
#include <cstdint>

#define ONE(name) *r++ = __##name(x);
#define TWO(name) *r++ = __##name(x, y);
#define BOTH(kind, name) kind(name##2) kind(name##4)
#define COMPARISONS(name) \
  BOTH(TWO, name##eq)     \
  BOTH(TWO, name##ne)     \
  BOTH(TWO, name##ges)    \
  BOTH(TWO, name##geu)    \
  BOTH(TWO, name##gts)    \
  BOTH(TWO, name##gtu)    \
  BOTH(TWO, name##les)    \
  BOTH(TWO, name##leu)    \
  BOTH(TWO, name##lts)    \
  BOTH(TWO, name##ltu)

extern "C" __global__ void simd(const uint32_t* a, const uint32_t* b, uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t x = a[i];
  const uint32_t y = b[i];
  uint32_t* r = out + i * 82;
  BOTH(ONE, vabs)
  BOTH(ONE, vabsss)
  BOTH(ONE, vneg)
  BOTH(ONE, vnegss)
  BOTH(TWO, vadd)
  BOTH(TWO, vaddss)
  BOTH(TWO, vaddus)
  BOTH(TWO, vsub)
  BOTH(TWO, vsubss)
  BOTH(TWO, vsubus)
  BOTH(TWO, vavgs)
  BOTH(TWO, vavgu)
  BOTH(TWO, vhaddu)
  BOTH(TWO, vabsdiffs)
  BOTH(TWO, vabsdiffu)
  BOTH(TWO, vmaxs)
  BOTH(TWO, vmaxu)
  BOTH(TWO, vmins)
  BOTH(TWO, vminu)
  BOTH(TWO, vsads)
  BOTH(TWO, vsadu)
  COMPARISONS(vcmp)
  COMPARISONS(vset)
}

// Sums and the like that are compared, three operands, of a word or of halves.
extern "C" __global__ void three(const uint32_t* a, const uint32_t* b, const uint32_t* c,
                                 uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t x = a[i], y = b[i], z = c[i];
  uint32_t* const r = out + i * 12;
  bool high = false, low = false;
  r[0] = __viaddmax_s32(x, y, z);
  r[1] = __viaddmin_u32(x, y, z);
  r[2] = __viaddmax_s32_relu(x, y, z);
  r[3] = __viaddmax_s16x2(x, y, z);
  r[4] = __viaddmin_u16x2(x, y, z);
  r[5] = __viaddmin_s16x2_relu(x, y, z);
  r[6] = __vimax3_s32(x, y, z);
  r[7] = __vimin3_u16x2(x, y, z);
  r[8] = __vimax3_s16x2_relu(x, y, z);
  r[9] = __vimin_s16x2_relu(x, y);
  r[10] = __vibmax_s16x2(x, y, &high, &low);
  r[11] = high * 2 + low;
}

#define VIDEO(name) asm(name " %0, %1, %2, %3;" : "=r"(*r++) : "r"(x), "r"(y), "r"(7u));
#define VIDEOS(name)              \
  VIDEO(name "2.u32.u32.u32")     \
  VIDEO(name "2.s32.s32.s32.sat") \
  VIDEO(name "2.s32.s32.u32.add") \
  VIDEO(name "4.u32.u32.u32")     \
  VIDEO(name "4.s32.s32.s32")     \
  VIDEO(name "4.u32.s32.s32.sat") VIDEO(name "4.s32.u32.s32.sat") VIDEO(name "4.u32.u32.u32.add")
extern "C" __global__ void videos(const uint32_t* a, const uint32_t* b, uint32_t* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const uint32_t x = a[i];
  const uint32_t y = b[i];
  uint32_t* r = out + i * 51;
  VIDEOS("vadd")
  VIDEOS("vsub")
  VIDEOS("vavrg")
  VIDEOS("vabsdiff")
  VIDEOS("vmin")
  VIDEOS("vmax")
  VIDEO("vset2.s32.u32.lt")
  VIDEO("vset4.u32.u32.ge")
  VIDEO("vset4.s32.s32.ne.add")
}
