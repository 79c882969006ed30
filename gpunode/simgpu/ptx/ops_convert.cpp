// cvt: every pair of numeric types. Registers have the size of the type, 8-bit types live in 16-bit
// registers; where the text's registers are wider, the decoder adds a copy between sizes.
#include <cmath>
#include <limits>
#include <type_traits>

#include "gpunode/simgpu/ptx/half.h"
#include "gpunode/simgpu/ptx/host_round.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

template <typename T>
struct Plain {
  using Register =
      std::conditional_t<sizeof(T) == 1,
                         std::conditional_t<std::is_signed_v<T>, std::int16_t, std::uint16_t>, T>;
  using Value = T;
  static constexpr bool kFloat = std::is_floating_point_v<T>;
  static Value read(Register r) { return static_cast<T>(r); }
};
template <typename Format>
struct Half {
  using Register = std::uint16_t;
  using Value = float;
  using HalfFormat = Format;
  static constexpr bool kFloat = true;
  static Value read(Register r) { return halfToFloat<Format>(r); }
};
template <typename T>
inline constexpr bool kIsHalf = false;
template <typename Format>
inline constexpr bool kIsHalf<Half<Format>> = true;

inline float flushFloat(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : x;
}

template <typename T>
T roundToInteger(T x, Round mode) {
  switch (mode) {
    case Round::kNearest:
      return std::nearbyint(x);
    case Round::kZero:
      return std::trunc(x);
    case Round::kDown:
      return std::floor(x);
    case Round::kUp:
      return std::ceil(x);
  }
  return x;
}

/// Saturates; NaN becomes 0, as the hardware does for 32-bit and narrower results; 64-bit results
/// give the lowest bit pattern 0x8000... for NaN.
template <typename I, typename F>
I toInteger(F x) {
  if (x != x) return sizeof(I) == 8 ? static_cast<I>(std::uint64_t{1} << 63) : I{0};
  // The limits as floating-point numbers: the lowest is exact, one above the highest is a power of
  // two.
  constexpr F kLow = static_cast<F>(std::numeric_limits<I>::min());
  constexpr I kHalf = std::numeric_limits<I>::max() / 2 + 1;
  constexpr F kHigh = static_cast<F>(kHalf) * F{2};
  if (x < kLow) return std::numeric_limits<I>::min();
  if (x >= kHigh) return std::numeric_limits<I>::max();
  return static_cast<I>(x);
}

/// A 64-bit integer as a double whose later rounding to a short format is the only one.
template <typename I>
double integerRoundOdd(I value) {
  if constexpr (sizeof(I) < 8) {
    return static_cast<double>(value);
  } else {
    const bool negative = value < 0;
    auto magnitude = negative ? std::uint64_t{0} - static_cast<std::uint64_t>(value)
                              : static_cast<std::uint64_t>(value);
    if (magnitude >> 53 != 0) {
      const bool sticky = (magnitude & 0x7FF) != 0;
      magnitude = (magnitude & ~std::uint64_t{0xFFF}) |
                  (static_cast<std::uint64_t>(sticky || (magnitude & 0x800) != 0) << 12);
    }
    const auto result = static_cast<double>(magnitude);
    return negative ? -result : result;
  }
}

template <typename D, typename S>
Step convert(Warp& w, const Op& op) {
  auto* const d = w.reg<typename D::Register>(op.r[0]);
  const auto* const s = w.reg<typename S::Register>(op.r[1]);
  const std::uint32_t flags = op.flags;
  const Round mode = static_cast<Round>(flags & kFlagRoundMask);
  const bool ftz = (flags & kFlagFtz) != 0;
  const bool sat = (flags & kFlagSat) != 0;
  const bool relu = (flags & kFlagRelu) != 0;
  const bool round_int = (flags & kFlagRoundInt) != 0;
  using V = typename S::Value;
  if constexpr (!D::kFloat && !S::kFloat) {
    using I = typename D::Value;
    if (!sat) {
      forLanes(w, [&](std::uint32_t i) { d[i] = static_cast<I>(S::read(s[i])); });
      return Step::kNext;
    }
    forLanes(w, [&](std::uint32_t i) {
      const V x = S::read(s[i]);
      I result = static_cast<I>(x);
      if (std::cmp_less(x, std::numeric_limits<I>::min())) result = std::numeric_limits<I>::min();
      if (std::cmp_greater(x, std::numeric_limits<I>::max()))
        result = std::numeric_limits<I>::max();
      d[i] = result;
    });
  } else if constexpr (!D::kFloat) {
    forLanes(w, [&](std::uint32_t i) {
      V x = S::read(s[i]);
      if constexpr (std::is_same_v<V, float>) {
        if (ftz) x = flushFloat(x);
      }
      d[i] = toInteger<typename D::Value>(roundToInteger(x, mode));
    });
  } else if constexpr (kIsHalf<D>) {
    using Format = typename D::HalfFormat;
    if constexpr (S::kFloat && std::is_same_v<V, float>) {
      if (mode == Round::kNearest && !ftz && !sat && !relu && !round_int) {
        forLanes(w, [&](std::uint32_t i) { d[i] = floatToHalf<Format>(S::read(s[i])); });
        return Step::kNext;
      }
    }
    forLanes(w, [&](std::uint32_t i) {
      double x;
      if constexpr (S::kFloat) {
        x = static_cast<double>(S::read(s[i]));
        if (round_int) x = roundToInteger(x, mode);
        if (ftz && std::is_same_v<V, float>)
          x = static_cast<double>(flushFloat(static_cast<float>(x)));
      } else {
        x = integerRoundOdd(S::read(s[i]));
      }
      if (sat) x = x > 0 ? (x < 1 ? x : 1.0) : 0.0;
      if (relu && x < 0) x = 0;
      d[i] = roundToHalf<Format>(x, mode);
    });
  } else {
    using F = typename D::Value;
    const HostRound rounding(round_int ? Round::kNearest : mode);
    forLanes(w, [&](std::uint32_t i) {
      auto x = S::read(s[i]);
      if constexpr (std::is_same_v<V, float>) {
        if (ftz) x = flushFloat(x);
      }
      F result;
      if constexpr (S::kFloat) {
        if (round_int) x = roundToInteger(x, mode);
        result = static_cast<F>(x);
        if (result != result && sizeof(F) == 4)
          result = static_cast<F>(std::bit_cast<float>(0x7FFFFFFFU));
      } else {
        result = static_cast<F>(x);
      }
      if constexpr (std::is_same_v<F, float>) {
        if (ftz) result = flushFloat(result);
      }
      if (sat) result = result > F{0} ? (result < F{1} ? result : F{1}) : F{0};
      if (relu && result < F{0}) result = F{0};
      d[i] = result;
    });
  }
  return Step::kNext;
}

/// cvt.rn.f16x2.f32 d, a, b: a in the high half.
template <typename Format>
Step convertPair(Warp& w, const Op& op) {
  std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
  const float* const a = w.reg<float>(op.r[1]);
  const float* const b = w.reg<float>(op.r[2]);
  const Round mode = static_cast<Round>(op.flags & kFlagRoundMask);
  const bool relu = (op.flags & kFlagRelu) != 0;
  const bool finite = (op.flags & kFlagSatFinite) != 0;
  const auto one = [&](float x) -> std::uint32_t {
    if (relu && x < 0) x = 0;
    std::uint16_t result = roundToHalf<Format>(static_cast<double>(x), mode);
    constexpr std::uint16_t kInfinity = ((1 << Format::kExponentBits) - 1) << Format::kFractionBits;
    if (finite && (result & 0x7FFF) == kInfinity) --result;
    return result;
  };
  forLanes(w, [&](std::uint32_t i) { d[i] = one(a[i]) << 16 | one(b[i]); });
  return Step::kNext;
}

template <typename D>
OpFn fromSource(Type source) {
  switch (source) {
    case Type::kU8:
      return convert<D, Plain<std::uint8_t>>;
    case Type::kS8:
      return convert<D, Plain<std::int8_t>>;
    case Type::kU16:
      return convert<D, Plain<std::uint16_t>>;
    case Type::kS16:
      return convert<D, Plain<std::int16_t>>;
    case Type::kU32:
      return convert<D, Plain<std::uint32_t>>;
    case Type::kS32:
      return convert<D, Plain<std::int32_t>>;
    case Type::kU64:
      return convert<D, Plain<std::uint64_t>>;
    case Type::kS64:
      return convert<D, Plain<std::int64_t>>;
    case Type::kF16:
      return convert<D, Half<F16Format>>;
    case Type::kBF16:
      return convert<D, Half<BF16Format>>;
    case Type::kF32:
      return convert<D, Plain<float>>;
    case Type::kF64:
      return convert<D, Plain<double>>;
    default:
      return nullptr;
  }
}

}  // namespace

OpFn convertOp(Type destination, Type source, std::uint32_t) {
  switch (destination) {
    case Type::kU8:
      return fromSource<Plain<std::uint8_t>>(source);
    case Type::kS8:
      return fromSource<Plain<std::int8_t>>(source);
    case Type::kU16:
      return fromSource<Plain<std::uint16_t>>(source);
    case Type::kS16:
      return fromSource<Plain<std::int16_t>>(source);
    case Type::kU32:
      return fromSource<Plain<std::uint32_t>>(source);
    case Type::kS32:
      return fromSource<Plain<std::int32_t>>(source);
    case Type::kU64:
      return fromSource<Plain<std::uint64_t>>(source);
    case Type::kS64:
      return fromSource<Plain<std::int64_t>>(source);
    case Type::kF16:
      return fromSource<Half<F16Format>>(source);
    case Type::kBF16:
      return fromSource<Half<BF16Format>>(source);
    case Type::kF32:
      return fromSource<Plain<float>>(source);
    case Type::kF64:
      return fromSource<Plain<double>>(source);
    case Type::kF16x2:
      return source == Type::kF32 ? convertPair<F16Format> : nullptr;
    case Type::kBF16x2:
      return source == Type::kF32 ? convertPair<BF16Format> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
