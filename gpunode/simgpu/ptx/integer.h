// The integer and bit operations themselves; ops_integer.cpp chooses among them.
#pragma once

#include <limits>
#include <type_traits>

#include "gpunode/simgpu/ptx/lanes.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

using U8 = std::uint8_t;
using S8 = std::int8_t;
using U16 = std::uint16_t;
using S16 = std::int16_t;
using U32 = std::uint32_t;
using S32 = std::int32_t;
using U64 = std::uint64_t;
using S64 = std::int64_t;
__extension__ typedef unsigned __int128 U128;
__extension__ typedef __int128 S128;

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

// Wrapping arithmetic is done unsigned, and in at least 32 bits: 16-bit operands would be promoted
// to a signed int.
template <typename T>
using Work = std::conditional_t<sizeof(T) == 8, U64, U32>;

template <typename T>
struct Wider;
template <>
struct Wider<U16> {
  using type = U32;
};
template <>
struct Wider<S16> {
  using type = S32;
};
template <>
struct Wider<U32> {
  using type = U64;
};
template <>
struct Wider<S32> {
  using type = S64;
};
template <>
struct Wider<U64> {
  using type = U128;
};
template <>
struct Wider<S64> {
  using type = S128;
};

template <typename T>
struct Mov {
  static T apply(T a) { return a; }
};
template <typename T>
struct Add {
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Work<T>>(a) + static_cast<Work<T>>(b));
  }
};
template <typename T>
struct Sub {
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Work<T>>(a) - static_cast<Work<T>>(b));
  }
};
template <typename T>
struct MulLo {
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Work<T>>(a) * static_cast<Work<T>>(b));
  }
};
template <typename T>
struct MulHi {
  using W = typename Wider<T>::type;
  static T apply(T a, T b) {
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
  }
};
template <typename T>
struct MulWide {
  using W = typename Wider<T>::type;
  static W apply(T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); }
};
template <typename T>
struct MadLo {
  static T apply(T a, T b, T c) {
    return static_cast<T>(static_cast<Work<T>>(a) * static_cast<Work<T>>(b) +
                          static_cast<Work<T>>(c));
  }
};
template <typename T>
struct MadHi {
  static T apply(T a, T b, T c) { return Add<T>::apply(MulHi<T>::apply(a, b), c); }
};
template <typename T>
struct MadWide {
  using W = typename Wider<T>::type;
  static W apply(T a, T b, W c) {
    return Add<W>::apply(static_cast<W>(static_cast<W>(a) * static_cast<W>(b)), c);
  }
};
struct AddSat {
  static S32 apply(S32 a, S32 b) {
    const S64 sum = S64{a} + b;
    return static_cast<S32>(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
  }
};
struct SubSat {
  static S32 apply(S32 a, S32 b) {
    const S64 sum = S64{a} - b;
    return static_cast<S32>(sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum);
  }
};
struct MadHiSat {
  static S32 apply(S32 a, S32 b, S32 c) { return AddSat::apply(MulHi<S32>::apply(a, b), c); }
};

// 24-bit multiplication: the low 24 bits of each operand, sign-extended for s32.
template <typename T>
T low24(T a) {
  if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<U32>(a) << 8) >> 8;
  return static_cast<T>(a & 0xFFFFFF);
}
template <typename T>
struct Mul24Lo {
  static T apply(T a, T b) { return MulLo<T>::apply(low24(a), low24(b)); }
};
template <typename T>
struct Mul24Hi {
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<S64>(low24(a)) * static_cast<S64>(low24(b)) >> 16);
  }
};
template <typename T>
struct Mad24Lo {
  static T apply(T a, T b, T c) { return Add<T>::apply(Mul24Lo<T>::apply(a, b), c); }
};
template <typename T>
struct Mad24Hi {
  static T apply(T a, T b, T c) { return Add<T>::apply(Mul24Hi<T>::apply(a, b), c); }
};

// PTX leaves division by zero unspecified; the hardware gives all ones, and the dividend as
// remainder.
template <typename T>
struct Div {
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(Work<T>{0} - static_cast<Work<T>>(a));
    }
    return static_cast<T>(a / b);
  }
};
template <typename T>
struct Rem {
  static T apply(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
  }
};

template <typename T>
struct Min {
  static T apply(T a, T b) { return a < b ? a : b; }
};
template <typename T>
struct Max {
  static T apply(T a, T b) { return a > b ? a : b; }
};
template <typename T>
struct MinRelu {
  static T apply(T a, T b) { return Max<T>::apply(Min<T>::apply(a, b), 0); }
};
template <typename T>
struct MaxRelu {
  static T apply(T a, T b) { return Max<T>::apply(Max<T>::apply(a, b), 0); }
};

/// Applies F to both 16-bit halves.
template <typename T, template <typename> class F>
struct Pair16 {
  static U32 apply(U32 a, U32 b) {
    const U32 low = static_cast<U16>(F<T>::apply(static_cast<T>(a), static_cast<T>(b)));
    const U32 high =
        static_cast<U16>(F<T>::apply(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return low | high << 16;
  }
};

template <typename T>
struct Abs {
  static T apply(T a) { return a < 0 ? static_cast<T>(Work<T>{0} - static_cast<Work<T>>(a)) : a; }
};
template <typename T>
struct Neg {
  static T apply(T a) { return static_cast<T>(Work<T>{0} - static_cast<Work<T>>(a)); }
};
template <typename T>
struct And {
  static T apply(T a, T b) { return static_cast<T>(a & b); }
};
template <typename T>
struct Or {
  static T apply(T a, T b) { return static_cast<T>(a | b); }
};
template <typename T>
struct Xor {
  static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};
template <typename T>
struct Not {
  static T apply(T a) { return static_cast<T>(~a); }
};
template <typename T>
struct Cnot {
  static T apply(T a) { return a == 0 ? T{1} : T{0}; }
};

template <typename T>
struct Shl {
  static constexpr U32 kBits = 8 * sizeof(T);
  static T apply(T a, U32 b) {
    return b < kBits ? static_cast<T>(static_cast<Work<T>>(a) << (b & (kBits - 1))) : T{0};
  }
};
template <typename T>
struct Shr {
  static constexpr U32 kBits = 8 * sizeof(T);
  static T apply(T a, U32 b) {
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (b < kBits ? b : kBits - 1));
    return b < kBits ? static_cast<T>(a >> (b & (kBits - 1))) : T{0};
  }
};

template <typename T>
struct Popc {
  static U32 apply(T a) { return static_cast<U32>(std::popcount(a)); }
};
template <typename T>
struct Clz {
  static U32 apply(T a) { return static_cast<U32>(std::countl_zero(a)); }
};
template <typename T, bool kShiftAmount>
struct Bfind {
  static constexpr U32 kBits = 8 * sizeof(T);
  static U32 apply(T a) {
    const auto bits = static_cast<Unsigned<T>>(std::is_signed_v<T> && a < 0 ? ~a : a);
    const auto zeros = static_cast<U32>(std::countl_zero(bits));
    if (zeros == kBits) return 0xFFFFFFFF;
    return kShiftAmount ? zeros : kBits - 1 - zeros;
  }
};
struct Brev32 {
  static U32 apply(U32 a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(a);
  }
};
struct Brev64 {
  static U64 apply(U64 a) {
    return U64{Brev32::apply(static_cast<U32>(a))} << 32 | Brev32::apply(static_cast<U32>(a >> 32));
  }
};

// As the PTX manual defines bfe: position and length are bytes, the field is cut at the register's
// end and sign-extended from its last bit that exists.
template <typename T>
struct Bfe {
  static constexpr U32 kMsb = 8 * sizeof(T) - 1;
  static T apply(T a, U32 b, U32 c) {
    using U = Unsigned<T>;
    const U32 pos = b & 0xFF;
    const U32 len = c & 0xFF;
    const U bits = static_cast<U>(a);
    U sign = 0;
    if (std::is_signed_v<T> && len != 0)
      sign = bits >> (pos + len - 1 < kMsb ? pos + len - 1 : kMsb) & 1;
    U result = pos <= kMsb ? bits >> pos : U{0};
    if (len <= kMsb) {
      const U field = (U{1} << len) - 1;
      // Bits of the field beyond the register's end are the sign, too.
      if (pos + len > kMsb + 1 && sign != 0)
        result |= pos <= kMsb ? static_cast<U>(~U{0} << (kMsb + 1 - pos) % (kMsb + 1)) : ~U{0};
      result &= field;
      if (sign != 0) result |= static_cast<U>(~field);
    } else if (sign != 0 && pos != 0) {
      result |= pos <= kMsb ? static_cast<U>(~U{0} << (kMsb + 1 - pos)) : ~U{0};
    }
    return static_cast<T>(result);
  }
};
/// r: d, a (inserted), b (into), c (position), e (length).
template <typename T>
Step bfi(Warp& w, const Op& op) {
  constexpr U32 kBits = 8 * sizeof(T);
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = w.reg<T>(op.r[2]);
  const U32* const c = w.reg<U32>(op.r[3]);
  const U32* const e = w.reg<U32>(op.r[4]);
  forLanes(w, [&](U32 i) {
    const U32 pos = c[i] & 0xFF;
    const U32 len = e[i] & 0xFF;
    const T field = len >= kBits ? ~T{0} : (T{1} << (len & (kBits - 1))) - 1;
    const T mask = pos >= kBits ? T{0} : field << (pos & (kBits - 1));
    const T value = pos >= kBits ? T{0} : a[i] << (pos & (kBits - 1));
    d[i] = (b[i] & ~mask) | (value & mask);
  });
  return Step::kNext;
}
template <bool kWrap>
struct Bmsk {
  static U32 apply(U32 a, U32 b) {
    const U32 pos = kWrap ? a & 31 : a;
    const U32 len = kWrap ? b & 31 : b;
    if (pos > 31 || len == 0) return 0;
    const U32 field = len > 31 ? 0xFFFFFFFF : (1U << len) - 1;
    return field << pos;
  }
};
template <typename T, bool kWrap>
struct Szext {
  static T apply(T a, U32 b) {
    const U32 width = kWrap ? b & 31 : b;
    if (width == 0) return 0;
    if (width > 31) return a;
    if constexpr (std::is_signed_v<T>)
      return static_cast<T>(static_cast<U32>(a) << (32 - width)) >> (32 - width);
    return static_cast<T>(static_cast<U32>(a) & ((1U << width) - 1));
  }
};

struct Prmt {
  static U32 apply(U32 a, U32 b, U32 c) {
    const U64 bytes = U64{b} << 32 | a;
    U32 result = 0;
    for (U32 i = 0; i < 4; ++i) {
      const U32 selector = c >> (4 * i) & 0xF;
      U32 byte = static_cast<U32>(bytes >> (8 * (selector & 7))) & 0xFF;
      if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
/// The special modes: the selector for the low two bits of c.
template <Alu kMode>
struct PrmtMode {
  static U32 apply(U32 a, U32 b, U32 c) {
    constexpr U32 kF4e[] = {0x3210, 0x4321, 0x5432, 0x6543};
    constexpr U32 kB4e[] = {0x5670, 0x6701, 0x7012, 0x0123};
    constexpr U32 kRc8[] = {0x0000, 0x1111, 0x2222, 0x3333};
    constexpr U32 kEcl[] = {0x3210, 0x3211, 0x3222, 0x3333};
    constexpr U32 kEcr[] = {0x0000, 0x1110, 0x2210, 0x3210};
    constexpr U32 kRc16[] = {0x1010, 0x3232, 0x1010, 0x3232};
    const U32 i = c & 3;
    const U32 selector = kMode == Alu::kPrmtF4e   ? kF4e[i]
                         : kMode == Alu::kPrmtB4e ? kB4e[i]
                         : kMode == Alu::kPrmtRc8 ? kRc8[i]
                         : kMode == Alu::kPrmtEcl ? kEcl[i]
                         : kMode == Alu::kPrmtEcr ? kEcr[i]
                                                  : kRc16[i];
    return Prmt::apply(a, b, selector);
  }
};

Step lop3(Warp& w, const Op& op) {
  U32* const d = w.reg<U32>(op.r[0]);
  const U32* const a = w.reg<U32>(op.r[1]);
  const U32* const b = w.reg<U32>(op.r[2]);
  const U32* const c = w.reg<U32>(op.r[3]);
  U32 term[8];
  for (U32 i = 0; i < 8; ++i) term[i] = (op.imm >> i & 1) != 0 ? 0xFFFFFFFF : 0;
  forLanes(w, [&](U32 i) {
    const U32 x = a[i];
    const U32 y = b[i];
    const U32 z = c[i];
    d[i] = (term[0] & ~x & ~y & ~z) | (term[1] & ~x & ~y & z) | (term[2] & ~x & y & ~z) |
           (term[3] & ~x & y & z) | (term[4] & x & ~y & ~z) | (term[5] & x & ~y & z) |
           (term[6] & x & y & ~z) | (term[7] & x & y & z);
  });
  return Step::kNext;
}

template <typename T>
struct Sad {
  static T apply(T a, T b, T c) {
    const auto difference = a < b ? static_cast<Work<T>>(b) - static_cast<Work<T>>(a)
                                  : static_cast<Work<T>>(a) - static_cast<Work<T>>(b);
    return static_cast<T>(static_cast<Work<T>>(c) + difference);
  }
};
template <bool kLeft, bool kWrap>
struct Shf {
  static U32 apply(U32 a, U32 b, U32 c) {
    const U32 n = kWrap ? c & 31 : (c > 32 ? 32 : c);
    const U64 both = U64{b} << 32 | a;
    return static_cast<U32>(kLeft ? (both << n) >> 32 : both >> n);
  }
};
template <typename A, typename B>
struct Dp4a {
  static U32 apply(U32 a, U32 b, U32 c) {
    for (U32 i = 0; i < 32; i += 8)
      c += static_cast<U32>(static_cast<A>(a >> i) * static_cast<B>(b >> i));
    return c;
  }
};
template <typename A, typename B, bool kHigh>
struct Dp2a {
  static U32 apply(U32 a, U32 b, U32 c) {
    for (U32 i = 0; i < 2; ++i) {
      c += static_cast<U32>(static_cast<A>(a >> (16 * i)) *
                            static_cast<B>(b >> ((kHigh ? 16 : 0) + 8 * i)));
    }
    return c;
  }
};
struct Fns {
  static U32 apply(U32 mask, U32 base, S32 offset) {
    if (offset == 0) return base < 32 && (mask >> base & 1) != 0 ? base : 0xFFFFFFFF;
    const int step = offset > 0 ? 1 : -1;
    int left = offset > 0 ? offset : -offset;
    for (int pos = static_cast<int>(base); pos >= 0 && pos < 32; pos += step) {
      if ((mask >> pos & 1) != 0 && --left == 0) return static_cast<U32>(pos);
    }
    return 0xFFFFFFFF;
  }
};

// The carry flag is a predicate register that the decoder reserves: r[4] is it. After a subtraction
// it is the carry of a + ~b + 1, so set where nothing was borrowed, as on hardware: nvcc's division
// of 128 bits reads it with addc.
template <typename T, Alu kKind>
Step carryOp(Warp& w, const Op& op) {
  using U = Unsigned<T>;
  constexpr bool kMad = kKind == Alu::kMadLoCc || kKind == Alu::kMadHiCc;
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = w.reg<T>(op.r[2]);
  const T* const c = kMad ? w.reg<T>(op.r[3]) : nullptr;
  U32& carry = w.predicate(op.r[4]);
  const U32 in = (op.flags & kFlagCarryIn) != 0 ? carry : kKind == Alu::kSubCc ? kFullMask : 0;
  U32 out = 0;
  // Scalar: no vector unit has a carry, or multiplies 64 bits by 64.
  const auto lane = [&](U32 i) {
    U x = static_cast<U>(a[i]);
    U y = static_cast<U>(b[i]);
    if constexpr (kMad) {
      x = static_cast<U>(kKind == Alu::kMadLoCc ? MulLo<T>::apply(a[i], b[i])
                                                : MulHi<T>::apply(a[i], b[i]));
      y = static_cast<U>(c[i]);
    }
    const U one = in >> i & 1;
    if constexpr (kKind == Alu::kSubCc) y = static_cast<U>(~y);
    U partly = 0;
    U whole = 0;
    bool over = __builtin_add_overflow(x, y, &partly);
    over |= __builtin_add_overflow(partly, one, &whole);
    d[i] = static_cast<T>(whole);
    out |= U32{over} << i;
  };
  if (w.full()) [[likely]] {
    for (U32 i = 0; i < kWarpSize; ++i) lane(i);
  } else {
    for (U32 left = w.mask; left != 0; left &= left - 1)
      lane(static_cast<U32>(std::countr_zero(left)));
  }
  if ((op.flags & kFlagCarryOut) != 0) carry = (carry & ~w.mask) | out;
  return Step::kNext;
}

template <typename T>
Step selp(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = w.reg<T>(op.r[2]);
  const U32 p = w.predicate(op.r[3]);
  forLanes(w, [&](U32 i) { d[i] = (p & (1U << i)) != 0 ? a[i] : b[i]; });
  return Step::kNext;
}
template <typename T>
struct Slct {
  static T apply(T a, T b, S32 c) { return c >= 0 ? a : b; }
};
template <typename T>
struct SlctF {
  static T apply(T a, T b, float c) { return c >= 0.0F ? a : b; }
};
template <typename T, template <typename> class F>
struct Twice {
  static T apply(T a, T b, T c) { return F<T>::apply(F<T>::apply(a, b), c); }
};

}  // namespace
}  // namespace olpager::simgpu::ptx::PTX_ISA
