// Operations on f32 and f64. Must be compiled without contraction of a*b+c, which would change
// results.
#include <cmath>
#include <limits>
#include <type_traits>

#include "gpunode/simgpu/ptx/host_round.h"
#include "gpunode/simgpu/ptx/lanes.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

// f32 results that are NaN are the canonical NaN; f64 keeps payloads.
inline float canonical(float x) { return x != x ? std::bit_cast<float>(0x7FFFFFFFU) : x; }
inline double canonical(double x) { return x; }
inline float flush(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : x;
}
inline double flush(double x) { return x; }
template <typename T>
inline T saturate(T x) {
  // NaN fails the first comparison and becomes +0.
  return x > T{0} ? (x < T{1} ? x : T{1}) : T{0};
}

struct Add {
  template <typename T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <typename T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <typename T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <typename T>
  static T apply(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <typename T>
  static T apply(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
// A NaN operand loses against a number; -0 is less than +0. Equal operands differ at most in the
// sign of a zero, which the bits decide. No branches, so that the loops are vectorised.
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    const T less = a < b || b != b ? a : b;
    const T either = std::bit_cast<T>(std::bit_cast<BitsOf<T>>(a) | std::bit_cast<BitsOf<T>>(b));
    return a == b ? either : less;
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    const T greater = a > b || b != b ? a : b;
    const T both = std::bit_cast<T>(std::bit_cast<BitsOf<T>>(a) & std::bit_cast<BitsOf<T>>(b));
    return a == b ? both : greater;
  }
};
struct Sqrt {
  template <typename T>
  static T apply(T a) {
    return std::sqrt(a);
  }
};
struct Rcp {
  template <typename T>
  static T apply(T a) {
    return T{1} / a;
  }
};
struct Rsqrt {
  static float apply(float a) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a)));
  }
  static double apply(double a) { return 1.0 / std::sqrt(a); }
};
struct Sin {
  template <typename T>
  static T apply(T a) {
    return std::sin(a);
  }
};
struct Cos {
  template <typename T>
  static T apply(T a) {
    return std::cos(a);
  }
};
struct Ex2 {
  template <typename T>
  static T apply(T a) {
    return std::exp2(a);
  }
};
struct Lg2 {
  template <typename T>
  static T apply(T a) {
    return std::log2(a);
  }
};
struct Tanh {
  template <typename T>
  static T apply(T a) {
    return std::tanh(a);
  }
};

/// F of the first kArity of three sources, each taken through `in`.
template <typename F, std::uint32_t kArity, typename T, typename In>
[[gnu::always_inline]] inline T applied(const T* a, const T* b, const T* c, std::uint32_t i,
                                        In in) {
  if constexpr (kArity == 1) {
    return F::apply(in(a[i]));
  } else if constexpr (kArity == 2) {
    return F::apply(in(a[i]), in(b[i]));
  } else {
    return F::apply(in(a[i]), in(b[i]), in(c[i]));
  }
}

/// Without modifiers.
template <typename T, typename F, std::uint32_t kArity>
Step plain(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = kArity >= 2 ? w.reg<T>(op.r[2]) : nullptr;
  const T* const c = kArity >= 3 ? w.reg<T>(op.r[3]) : nullptr;
  forLanes(w, [&](std::uint32_t i) {
    d[i] = canonical(applied<F, kArity>(a, b, c, i, [](T x) { return x; }));
  });
  return Step::kNext;
}

/// With any of the modifiers.
template <typename T, typename F, std::uint32_t kArity>
Step modified(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = kArity >= 2 ? w.reg<T>(op.r[2]) : nullptr;
  const T* const c = kArity >= 3 ? w.reg<T>(op.r[3]) : nullptr;
  const bool ftz = (op.flags & kFlagFtz) != 0;
  const bool sat = (op.flags & kFlagSat) != 0;
  const bool relu = (op.flags & kFlagRelu) != 0;
  const HostRound rounding(static_cast<Round>(op.flags & kFlagRoundMask));
  forLanes(w, [&](std::uint32_t i) {
    T result = canonical(applied<F, kArity>(a, b, c, i, [&](T x) { return ftz ? flush(x) : x; }));
    if (ftz) result = flush(result);
    if (sat) result = saturate(result);
    if (relu && result < T{0}) result = T{0};
    d[i] = result;
  });
  return Step::kNext;
}

template <typename T, typename F, bool kThree>
Step minMax(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const T* const b = w.reg<T>(op.r[2]);
  const T* const c = kThree ? w.reg<T>(op.r[3]) : nullptr;
  const bool ftz = (op.flags & kFlagFtz) != 0;
  const bool nan_wins = (op.flags & kFlagNaN) != 0;
  const bool xorsign = (op.flags & kFlagXorSign) != 0;
  const bool absolute = xorsign || (op.flags & kFlagAbs) != 0;
  forLanes(w, [&](std::uint32_t i) {
    const auto in = [&](T x) {
      x = ftz ? flush(x) : x;
      return absolute ? std::fabs(x) : x;
    };
    T result = F::apply(in(a[i]), in(b[i]));
    bool nan = a[i] != a[i] || b[i] != b[i];
    if constexpr (kThree) {
      result = F::apply(result, in(c[i]));
      nan = nan || c[i] != c[i];
    }
    if (xorsign && std::signbit(a[i]) != std::signbit(b[i])) result = -result;
    if (nan_wins && nan) result = std::numeric_limits<T>::quiet_NaN();
    d[i] = canonical(result);
  });
  return Step::kNext;
}

template <typename T, bool kNegate>
Step sign(Warp& w, const Op& op) {
  T* const d = w.reg<T>(op.r[0]);
  const T* const a = w.reg<T>(op.r[1]);
  const bool ftz = (op.flags & kFlagFtz) != 0;
  forLanes(w, [&](std::uint32_t i) {
    const T x = ftz ? flush(a[i]) : a[i];
    d[i] = kNegate ? -x : std::fabs(x);
  });
  return Step::kNext;
}

// copysign.f32 d, a, b: the sign of a on the magnitude of b.
template <typename T>
struct Copysign {
  static T apply(T a, T b) { return std::copysign(b, a); }
};

template <typename T>
Step testp(Warp& w, const Op& op) {
  const T* const a = w.reg<T>(op.r[1]);
  std::uint32_t lanes = 0;
  for (std::uint32_t i = 0; i < kWarpSize; ++i) {
    const int kind = std::fpclassify(a[i]);
    bool is = false;
    switch (static_cast<Testp>(op.imm)) {
      case Testp::kFinite:
        is = kind != FP_INFINITE && kind != FP_NAN;
        break;
      case Testp::kInfinite:
        is = kind == FP_INFINITE;
        break;
      case Testp::kNumber:
        is = kind != FP_NAN;
        break;
      case Testp::kNotANumber:
        is = kind == FP_NAN;
        break;
      case Testp::kNormal:
        is = kind == FP_NORMAL;
        break;
      case Testp::kSubnormal:
        is = kind == FP_SUBNORMAL;
        break;
    }
    lanes |= static_cast<std::uint32_t>(is) << i;
  }
  w.setPredicate(op.r[0], lanes);
  return Step::kNext;
}

template <typename T>
OpFn floating(Alu kind, std::uint32_t flags) {
  const bool bare = flags == 0;
  switch (kind) {
    case Alu::kAdd:
      return bare ? plain<T, Add, 2> : modified<T, Add, 2>;
    case Alu::kSub:
      return bare ? plain<T, Sub, 2> : modified<T, Sub, 2>;
    case Alu::kMulLo:
      return bare ? plain<T, Mul, 2> : modified<T, Mul, 2>;
    case Alu::kDiv:
      return bare ? plain<T, Div, 2> : modified<T, Div, 2>;
    case Alu::kFma:
      return bare ? plain<T, Fma, 3> : modified<T, Fma, 3>;
    case Alu::kSqrt:
      return bare ? plain<T, Sqrt, 1> : modified<T, Sqrt, 1>;
    case Alu::kRcp:
      return bare ? plain<T, Rcp, 1> : modified<T, Rcp, 1>;
    case Alu::kRsqrt:
      return modified<T, Rsqrt, 1>;
    case Alu::kMin:
      return bare ? plain<T, Min, 2> : minMax<T, Min, false>;
    case Alu::kMax:
      return bare ? plain<T, Max, 2> : minMax<T, Max, false>;
    case Alu::kMin3:
      return minMax<T, Min, true>;
    case Alu::kMax3:
      return minMax<T, Max, true>;
    case Alu::kAbs:
      return sign<T, false>;
    case Alu::kNeg:
      return sign<T, true>;
    case Alu::kCopysign:
      return binary<Copysign<T>, T, T>;
    case Alu::kTestp:
      return testp<T>;
    default:
      break;
  }
  if constexpr (sizeof(T) == 4) {
    switch (kind) {
      case Alu::kSin:
        return modified<T, Sin, 1>;
      case Alu::kCos:
        return modified<T, Cos, 1>;
      case Alu::kEx2:
        return modified<T, Ex2, 1>;
      case Alu::kLg2:
        return modified<T, Lg2, 1>;
      case Alu::kTanh:
        return modified<T, Tanh, 1>;
      default:
        break;
    }
  }
  return nullptr;
}

template <typename F, std::uint32_t kArity>
Step packed(Warp& w, const Op& op) {
  float* const d = w.reg<float>(op.r[0]);
  const float* const a = w.reg<float>(op.r[1]);
  const float* const b = w.reg<float>(op.r[2]);
  const float* const c = kArity == 3 ? w.reg<float>(op.r[3]) : nullptr;
  const bool ftz = (op.flags & kFlagFtz) != 0;
  const HostRound rounding(static_cast<Round>(op.flags & kFlagRoundMask));
  forLanes(w, [&](std::uint32_t lane) {
    const auto in = [&](float x) { return ftz ? flush(x) : x; };
    for (std::uint32_t i = 2 * lane; i < 2 * lane + 2; ++i)
      d[i] = in(canonical(applied<F, kArity>(a, b, c, i, in)));
  });
  return Step::kNext;
}

}  // namespace

OpFn floatingOp(Alu kind, Type type, std::uint32_t flags) {
  if (type == Type::kF32) return floating<float>(kind, flags);
  if (type == Type::kF64) return floating<double>(kind, flags);
  if (type == Type::kF32x2) {
    switch (kind) {
      case Alu::kAdd:
        return packed<Add, 2>;
      case Alu::kSub:
        return packed<Sub, 2>;
      case Alu::kMulLo:
        return packed<Mul, 2>;
      case Alu::kFma:
        return packed<Fma, 3>;
      default:
        break;
    }
  }
  return nullptr;
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
