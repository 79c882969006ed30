// Integer and bit operations.
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

// Wrapping arithmetic is done unsigned, and in at least 32 bits: 16-bit operands would be promoted to a signed int.
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
  static T apply(T a, T b) { return static_cast<T>(static_cast<Work<T>>(a) + static_cast<Work<T>>(b)); }
};
template <typename T>
struct Sub {
  static T apply(T a, T b) { return static_cast<T>(static_cast<Work<T>>(a) - static_cast<Work<T>>(b)); }
};
template <typename T>
struct MulLo {
  static T apply(T a, T b) { return static_cast<T>(static_cast<Work<T>>(a) * static_cast<Work<T>>(b)); }
};
template <typename T>
struct MulHi {
  using W = typename Wider<T>::type;
  static T apply(T a, T b) { return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T))); }
};
template <typename T>
struct MulWide {
  using W = typename Wider<T>::type;
  static W apply(T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); }
};
template <typename T>
struct MadLo {
  static T apply(T a, T b, T c) {
    return static_cast<T>(static_cast<Work<T>>(a) * static_cast<Work<T>>(b) + static_cast<Work<T>>(c));
  }
};
template <typename T>
struct MadHi {
  static T apply(T a, T b, T c) { return Add<T>::apply(MulHi<T>::apply(a, b), c); }
};
template <typename T>
struct MadWide {
  using W = typename Wider<T>::type;
  static W apply(T a, T b, W c) { return Add<W>::apply(static_cast<W>(static_cast<W>(a) * static_cast<W>(b)), c); }
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
  static T apply(T a, T b) { return static_cast<T>(static_cast<S64>(low24(a)) * static_cast<S64>(low24(b)) >> 16); }
};
template <typename T>
struct Mad24Lo {
  static T apply(T a, T b, T c) { return Add<T>::apply(Mul24Lo<T>::apply(a, b), c); }
};
template <typename T>
struct Mad24Hi {
  static T apply(T a, T b, T c) { return Add<T>::apply(Mul24Hi<T>::apply(a, b), c); }
};

// PTX leaves division by zero unspecified; the hardware gives all ones, and the dividend as remainder.
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
struct MinRelu {
  static S32 apply(S32 a, S32 b) { return Max<S32>::apply(Min<S32>::apply(a, b), 0); }
};
struct MaxRelu {
  static S32 apply(S32 a, S32 b) { return Max<S32>::apply(Max<S32>::apply(a, b), 0); }
};

/// Applies F to both 16-bit halves.
template <typename T, template <typename> class F>
struct Pair16 {
  static U32 apply(U32 a, U32 b) {
    const U32 low = static_cast<U16>(F<T>::apply(static_cast<T>(a), static_cast<T>(b)));
    const U32 high = static_cast<U16>(F<T>::apply(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
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
  static T apply(T a, U32 b) { return b < kBits ? static_cast<T>(static_cast<Work<T>>(a) << (b & (kBits - 1))) : T{0}; }
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

// As the PTX manual defines bfe: position and length are bytes, the field is cut at the register's end and
// sign-extended from its last bit that exists.
template <typename T>
struct Bfe {
  static constexpr U32 kMsb = 8 * sizeof(T) - 1;
  static T apply(T a, U32 b, U32 c) {
    using U = Unsigned<T>;
    const U32 pos = b & 0xFF;
    const U32 len = c & 0xFF;
    const U bits = static_cast<U>(a);
    U sign = 0;
    if (std::is_signed_v<T> && len != 0) sign = bits >> (pos + len - 1 < kMsb ? pos + len - 1 : kMsb) & 1;
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
    if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<U32>(a) << (32 - width)) >> (32 - width);
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
    d[i] = (term[0] & ~x & ~y & ~z) | (term[1] & ~x & ~y & z) | (term[2] & ~x & y & ~z) | (term[3] & ~x & y & z) |
           (term[4] & x & ~y & ~z) | (term[5] & x & ~y & z) | (term[6] & x & y & ~z) | (term[7] & x & y & z);
  });
  return Step::kNext;
}

template <typename T>
struct Sad {
  static T apply(T a, T b, T c) {
    const auto difference =
        a < b ? static_cast<Work<T>>(b) - static_cast<Work<T>>(a) : static_cast<Work<T>>(a) - static_cast<Work<T>>(b);
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
    for (U32 i = 0; i < 32; i += 8) c += static_cast<U32>(static_cast<A>(a >> i) * static_cast<B>(b >> i));
    return c;
  }
};
template <typename A, typename B, bool kHigh>
struct Dp2a {
  static U32 apply(U32 a, U32 b, U32 c) {
    for (U32 i = 0; i < 2; ++i) {
      c += static_cast<U32>(static_cast<A>(a >> (16 * i)) * static_cast<B>(b >> ((kHigh ? 16 : 0) + 8 * i)));
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

// The carry flag is a predicate register that the decoder reserves: r[4] is it.
template <typename T, Alu kKind>
Step carryOp(Warp& w, const Op& op) {
  using U = Unsigned<T>;
  using W = typename Wider<U>::type;
  constexpr bool kMad = kKind == Alu::kMadLoCc || kKind == Alu::kMadHiCc;
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = w.reg<T>(op.r[2]);
  const T* const c = kMad ? w.reg<T>(op.r[3]) : nullptr;
  U32& carry = w.predicate(op.r[4]);
  const U32 in = (op.flags & kFlagCarryIn) != 0 ? carry : 0;
  U32 out = 0;
  for (U32 left = w.mask; left != 0; left &= left - 1) {
    const auto i = static_cast<U32>(std::countr_zero(left));
    const U one = in >> i & 1;
    W sum = 0;
    if constexpr (kKind == Alu::kSubCc) {
      sum = static_cast<W>(static_cast<W>(static_cast<U>(a[i])) - static_cast<U>(b[i]) - one);
    } else if constexpr (kMad) {
      const T product = kKind == Alu::kMadLoCc ? MulLo<T>::apply(a[i], b[i]) : MulHi<T>::apply(a[i], b[i]);
      sum = static_cast<W>(static_cast<W>(static_cast<U>(product)) + static_cast<U>(c[i]) + one);
    } else {
      sum = static_cast<W>(static_cast<W>(static_cast<U>(a[i])) + static_cast<U>(b[i]) + one);
    }
    d[i] = static_cast<T>(sum);
    out |= static_cast<U32>((sum >> (8 * sizeof(T))) & 1) << i;
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

template <typename T>
OpFn arithmetic(Alu kind, std::uint32_t flags) {
  const bool carry = (flags & (kFlagCarryIn | kFlagCarryOut)) != 0;
  if constexpr (sizeof(T) >= 4) {
    if (carry) {
      switch (kind) {
        case Alu::kAdd:
          return carryOp<T, Alu::kAddCc>;
        case Alu::kSub:
          return carryOp<T, Alu::kSubCc>;
        case Alu::kMadLo:
          return carryOp<T, Alu::kMadLoCc>;
        case Alu::kMadHi:
          return carryOp<T, Alu::kMadHiCc>;
        default:
          return nullptr;
      }
    }
  }
  if (carry) return nullptr;
  if ((flags & (kFlagSat | kFlagRelu)) != 0) {
    if constexpr (std::is_same_v<T, S32>) {
      if (kind == Alu::kMin) return binary<MinRelu, S32, S32>;
      if (kind == Alu::kMax) return binary<MaxRelu, S32, S32>;
      if ((flags & kFlagRelu) != 0) return nullptr;
      if (kind == Alu::kAdd) return binary<AddSat, S32, S32>;
      if (kind == Alu::kSub) return binary<SubSat, S32, S32>;
      if (kind == Alu::kMadHi) return ternary<MadHiSat, S32, S32>;
    }
    return nullptr;
  }
  switch (kind) {
    case Alu::kAdd:
      return binary<Add<T>, T, T>;
    case Alu::kSub:
      return binary<Sub<T>, T, T>;
    case Alu::kMulLo:
      return binary<MulLo<T>, T, T>;
    case Alu::kMulHi:
      return binary<MulHi<T>, T, T>;
    case Alu::kMadLo:
      return ternary<MadLo<T>, T, T>;
    case Alu::kMadHi:
      return ternary<MadHi<T>, T, T>;
    case Alu::kDiv:
      return binary<Div<T>, T, T>;
    case Alu::kRem:
      return binary<Rem<T>, T, T>;
    case Alu::kMin:
      return binary<Min<T>, T, T>;
    case Alu::kMax:
      return binary<Max<T>, T, T>;
    case Alu::kShr:
      return binary<Shr<T>, T, T, U32>;
    case Alu::kSad:
      return ternary<Sad<T>, T, T>;
    case Alu::kSlct:
      return ternary<Slct<T>, T, T, T, S32>;
    case Alu::kSlctF32:
      return ternary<SlctF<T>, T, T, T, float>;
    default:
      break;
  }
  if constexpr (std::is_signed_v<T>) {
    if (kind == Alu::kAbs) return unary<Abs<T>, T, T>;
    if (kind == Alu::kNeg) return unary<Neg<T>, T, T>;
  }
  if constexpr (sizeof(T) < 8) {
    using W = typename Wider<T>::type;
    if (kind == Alu::kMulWide) return binary<MulWide<T>, W, T>;
    if (kind == Alu::kMadWide) return ternary<MadWide<T>, W, T>;
  } else {
    using W = typename Wider<T>::type;
    if (kind == Alu::kMulWide) return binary<MulWide<T>, W, T>;
  }
  if constexpr (sizeof(T) >= 4) {
    if (kind == Alu::kBfind) return unary<Bfind<T, false>, U32, T>;
    if (kind == Alu::kBfindShift) return unary<Bfind<T, true>, U32, T>;
    if (kind == Alu::kBfe) return ternary<Bfe<T>, T, T, U32, U32>;
  }
  if constexpr (sizeof(T) == 4) {
    switch (kind) {
      case Alu::kMul24Lo:
        return binary<Mul24Lo<T>, T, T>;
      case Alu::kMul24Hi:
        return binary<Mul24Hi<T>, T, T>;
      case Alu::kMad24Lo:
        return ternary<Mad24Lo<T>, T, T>;
      case Alu::kMad24Hi:
        return ternary<Mad24Hi<T>, T, T>;
      case Alu::kSzextClamp:
        return binary<Szext<T, false>, T, T, U32>;
      case Alu::kSzextWrap:
        return binary<Szext<T, true>, T, T, U32>;
      case Alu::kMin3:
        return ternary<Twice<T, Min>, T, T>;
      case Alu::kMax3:
        return ternary<Twice<T, Max>, T, T>;
      default:
        break;
    }
  }
  return nullptr;
}

template <typename T>
OpFn bits(Alu kind) {
  switch (kind) {
    case Alu::kMov:
      return unary<Mov<T>, T, T>;
    case Alu::kAnd:
      return binary<And<T>, T, T>;
    case Alu::kOr:
      return binary<Or<T>, T, T>;
    case Alu::kXor:
      return binary<Xor<T>, T, T>;
    case Alu::kNot:
      return unary<Not<T>, T, T>;
    case Alu::kCnot:
      return unary<Cnot<T>, T, T>;
    case Alu::kShl:
      return binary<Shl<T>, T, T, U32>;
    case Alu::kSelp:
      return selp<T>;
    default:
      break;
  }
  if constexpr (sizeof(T) >= 4) {
    if (kind == Alu::kPopc) return unary<Popc<T>, U32, T>;
    if (kind == Alu::kClz) return unary<Clz<T>, U32, T>;
    if (kind == Alu::kBfi) return bfi<T>;
    if (kind == Alu::kBrev) {
      if constexpr (sizeof(T) == 4)
        return unary<Brev32, U32, U32>;
      else
        return unary<Brev64, U64, U64>;
    }
  }
  return nullptr;
}

OpFn bits32(Alu kind) {
  switch (kind) {
    case Alu::kBmskClamp:
      return binary<Bmsk<false>, U32, U32>;
    case Alu::kBmskWrap:
      return binary<Bmsk<true>, U32, U32>;
    case Alu::kPrmt:
      return ternary<Prmt, U32, U32>;
    case Alu::kPrmtF4e:
      return ternary<PrmtMode<Alu::kPrmtF4e>, U32, U32>;
    case Alu::kPrmtB4e:
      return ternary<PrmtMode<Alu::kPrmtB4e>, U32, U32>;
    case Alu::kPrmtRc8:
      return ternary<PrmtMode<Alu::kPrmtRc8>, U32, U32>;
    case Alu::kPrmtEcl:
      return ternary<PrmtMode<Alu::kPrmtEcl>, U32, U32>;
    case Alu::kPrmtEcr:
      return ternary<PrmtMode<Alu::kPrmtEcr>, U32, U32>;
    case Alu::kPrmtRc16:
      return ternary<PrmtMode<Alu::kPrmtRc16>, U32, U32>;
    case Alu::kLop3:
      return lop3;
    case Alu::kShfLClamp:
      return ternary<Shf<true, false>, U32, U32>;
    case Alu::kShfLWrap:
      return ternary<Shf<true, true>, U32, U32>;
    case Alu::kShfRClamp:
      return ternary<Shf<false, false>, U32, U32>;
    case Alu::kShfRWrap:
      return ternary<Shf<false, true>, U32, U32>;
    case Alu::kDp4aUU:
      return ternary<Dp4a<U8, U8>, U32, U32>;
    case Alu::kDp4aUS:
      return ternary<Dp4a<U8, S8>, U32, U32>;
    case Alu::kDp4aSU:
      return ternary<Dp4a<S8, U8>, U32, U32>;
    case Alu::kDp4aSS:
      return ternary<Dp4a<S8, S8>, U32, U32>;
    case Alu::kDp2aLoUU:
      return ternary<Dp2a<U16, U8, false>, U32, U32>;
    case Alu::kDp2aLoUS:
      return ternary<Dp2a<U16, S8, false>, U32, U32>;
    case Alu::kDp2aLoSU:
      return ternary<Dp2a<S16, U8, false>, U32, U32>;
    case Alu::kDp2aLoSS:
      return ternary<Dp2a<S16, S8, false>, U32, U32>;
    case Alu::kDp2aHiUU:
      return ternary<Dp2a<U16, U8, true>, U32, U32>;
    case Alu::kDp2aHiUS:
      return ternary<Dp2a<U16, S8, true>, U32, U32>;
    case Alu::kDp2aHiSU:
      return ternary<Dp2a<S16, U8, true>, U32, U32>;
    case Alu::kDp2aHiSS:
      return ternary<Dp2a<S16, S8, true>, U32, U32>;
    case Alu::kFns:
      return ternary<Fns, U32, U32, U32, S32>;
    default:
      return nullptr;
  }
}

template <typename T>
OpFn pair(Alu kind) {
  switch (kind) {
    case Alu::kAdd:
      return binary<Pair16<T, Add>, U32, U32>;
    case Alu::kSub:
      return binary<Pair16<T, Sub>, U32, U32>;
    case Alu::kMin:
      return binary<Pair16<T, Min>, U32, U32>;
    case Alu::kMax:
      return binary<Pair16<T, Max>, U32, U32>;
    default:
      return nullptr;
  }
}

}  // namespace

OpFn integerOp(Alu kind, Type type, std::uint32_t flags) {
  OpFn fn = nullptr;
  switch (type) {
    case Type::kU16:
      fn = arithmetic<U16>(kind, flags);
      break;
    case Type::kS16:
      fn = arithmetic<S16>(kind, flags);
      break;
    case Type::kU32:
      fn = arithmetic<U32>(kind, flags);
      break;
    case Type::kS32:
      fn = arithmetic<S32>(kind, flags);
      break;
    case Type::kU64:
      fn = arithmetic<U64>(kind, flags);
      break;
    case Type::kS64:
      fn = arithmetic<S64>(kind, flags);
      break;
    case Type::kB16:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U16>(kind, flags) : nullptr;
      break;
    case Type::kB32:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U32>(kind, flags) : nullptr;
      break;
    case Type::kB64:
      fn = kind == Alu::kShr || kind == Alu::kSlct ? arithmetic<U64>(kind, flags) : nullptr;
      break;
    case Type::kU16x2:
      return pair<U16>(kind);
    case Type::kS16x2:
      return pair<S16>(kind);
    default:
      break;
  }
  if (fn != nullptr || flags != 0) return fn;
  switch (typeSize(type)) {
    case 2:
      return bits<U16>(kind);
    case 4:
      fn = bits<U32>(kind);
      return fn != nullptr ? fn : bits32(kind);
    case 8:
      return bits<U64>(kind);
    case 16:
      return kind == Alu::kMov ? unary<Mov<U128>, U128, U128> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
