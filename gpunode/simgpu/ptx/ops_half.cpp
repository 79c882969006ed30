// Operations on f16, bf16 and pairs of them. Additions, products, quotients and roots of 11-bit
// significands are exact enough in f32 that rounding twice gives the same as rounding once (24 >= 2
// * 11 + 2); fma is not, and is rounded to odd first.
#include <cmath>

#include "gpunode/simgpu/ptx/half.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

using U16 = std::uint16_t;

template <typename Format>
inline U16 flushHalf(U16 x) {
  constexpr U16 kExponent = ((1 << Format::kExponentBits) - 1) << Format::kFractionBits;
  return (x & kExponent) == 0 ? x & 0x8000 : x;
}
template <typename Format>
inline bool isNan(U16 x) {
  constexpr U16 kInfinity = ((1 << Format::kExponentBits) - 1) << Format::kFractionBits;
  return (x & 0x7FFF) > kInfinity;
}

template <typename Format>
struct Arithmetic {
  static U16 narrow(float x) { return floatToHalf<Format>(x); }
  static float wide(U16 x) { return halfToFloat<Format>(x); }

  template <Alu kKind>
  static U16 apply1(U16 a, std::uint32_t flags) {
    if ((flags & kFlagFtz) != 0) a = flushHalf<Format>(a);
    if constexpr (kKind == Alu::kAbs) return a & 0x7FFF;
    if constexpr (kKind == Alu::kNeg) return a ^ 0x8000;
    float x = wide(a);
    if constexpr (kKind == Alu::kEx2) x = std::exp2(x);
    if constexpr (kKind == Alu::kTanh) x = std::tanh(x);
    if constexpr (kKind == Alu::kSqrt) x = std::sqrt(x);
    U16 result = narrow(x);
    if ((flags & kFlagFtz) != 0) result = flushHalf<Format>(result);
    return result;
  }

  template <Alu kKind>
  static U16 apply2(U16 a, U16 b, std::uint32_t flags) {
    const bool ftz = (flags & kFlagFtz) != 0;
    if (ftz) {
      a = flushHalf<Format>(a);
      b = flushHalf<Format>(b);
    }
    U16 result;
    if constexpr (kKind == Alu::kMin || kKind == Alu::kMax) {
      const bool nan_a = isNan<Format>(a);
      const bool nan_b = isNan<Format>(b);
      const bool negate = (flags & kFlagXorSign) != 0 && ((a ^ b) & 0x8000) != 0;
      if ((flags & kFlagXorSign) != 0) {
        a &= 0x7FFF;
        b &= 0x7FFF;
      }
      if ((nan_a && nan_b) || ((flags & kFlagNaN) != 0 && (nan_a || nan_b))) {
        result = 0x7FFF;
      } else if (nan_a) {
        result = b;
      } else if (nan_b) {
        result = a;
      } else {
        // Sign-magnitude order as integers: -0 is less than +0.
        const auto key = [](U16 x) {
          return (x & 0x8000) != 0 ? ~static_cast<int>(x & 0x7FFF) : static_cast<int>(x);
        };
        const bool less = key(a) < key(b);
        result = less == (kKind == Alu::kMin) ? a : b;
        if (negate) result ^= 0x8000;
      }
      return result;
    }
    const float x = wide(a);
    const float y = wide(b);
    if constexpr (kKind == Alu::kAdd) result = narrow(x + y);
    if constexpr (kKind == Alu::kSub) result = narrow(x - y);
    if constexpr (kKind == Alu::kMulLo) result = narrow(x * y);
    return finish(result, flags);
  }

  static U16 fma(U16 a, U16 b, U16 c, std::uint32_t flags) {
    if ((flags & kFlagFtz) != 0) {
      a = flushHalf<Format>(a);
      b = flushHalf<Format>(b);
      c = flushHalf<Format>(c);
    }
    return finish(roundToHalf<Format>(fmaRoundOdd(wide(a), wide(b), wide(c))), flags);
  }

  static U16 finish(U16 result, std::uint32_t flags) {
    if ((flags & kFlagFtz) != 0) result = flushHalf<Format>(result);
    if ((flags & kFlagSat) != 0) {
      const float x = wide(result);
      result = x > 0.0F ? (x < 1.0F ? result : narrow(1.0F)) : U16{0};
    }
    if ((flags & kFlagRelu) != 0) {
      if (isNan<Format>(result))
        result = 0x7FFF;
      else if ((result & 0x8000) != 0)
        result = 0;
    }
    return result;
  }
};

template <typename Format, Alu kKind, std::uint32_t kArity, std::uint32_t kWidth>
Step halfOperation(Warp& w, const Op& op) {
  using A = Arithmetic<Format>;
  U16* const d = w.reg<U16>(op.r[0]);
  const U16* const a = w.reg<U16>(op.r[1]);
  const U16* const b = kArity >= 2 ? w.reg<U16>(op.r[2]) : nullptr;
  const U16* const c = kArity >= 3 ? w.reg<U16>(op.r[3]) : nullptr;
  const std::uint32_t flags = op.flags;
  forLanes(w, [&](std::uint32_t lane) {
    for (std::uint32_t i = kWidth * lane; i < kWidth * lane + kWidth; ++i) {
      if constexpr (kArity == 1) d[i] = A::template apply1<kKind>(a[i], flags);
      if constexpr (kArity == 2) d[i] = A::template apply2<kKind>(a[i], b[i], flags);
      if constexpr (kArity == 3) d[i] = A::fma(a[i], b[i], c[i], flags);
    }
  });
  return Step::kNext;
}

template <typename Format, std::uint32_t kWidth>
OpFn select(Alu kind) {
  switch (kind) {
    case Alu::kAdd:
      return halfOperation<Format, Alu::kAdd, 2, kWidth>;
    case Alu::kSub:
      return halfOperation<Format, Alu::kSub, 2, kWidth>;
    case Alu::kMulLo:
      return halfOperation<Format, Alu::kMulLo, 2, kWidth>;
    case Alu::kMin:
      return halfOperation<Format, Alu::kMin, 2, kWidth>;
    case Alu::kMax:
      return halfOperation<Format, Alu::kMax, 2, kWidth>;
    case Alu::kFma:
      return halfOperation<Format, Alu::kFma, 3, kWidth>;
    case Alu::kAbs:
      return halfOperation<Format, Alu::kAbs, 1, kWidth>;
    case Alu::kNeg:
      return halfOperation<Format, Alu::kNeg, 1, kWidth>;
    case Alu::kEx2:
      return halfOperation<Format, Alu::kEx2, 1, kWidth>;
    case Alu::kTanh:
      return halfOperation<Format, Alu::kTanh, 1, kWidth>;
    default:
      return nullptr;
  }
}

}  // namespace

OpFn halfOp(Alu kind, Type type, std::uint32_t flags) {
  if ((flags & kFlagRoundMask) != 0) return nullptr;  // only nearest exists
  switch (type) {
    case Type::kF16:
      return select<F16Format, 1>(kind);
    case Type::kF16x2:
      return select<F16Format, 2>(kind);
    case Type::kBF16:
      return select<BF16Format, 1>(kind);
    case Type::kBF16x2:
      return select<BF16Format, 2>(kind);
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
