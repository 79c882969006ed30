// setp and set.
#include <cmath>

#include "gpunode/simgpu/ptx/half.h"

namespace olpager::simgpu::ptx::PTX_ISA {
namespace {

template <typename T>
struct Numeric {
  using Register = T;
  static T read(T x, bool) { return x; }
};
template <>
struct Numeric<float> {
  using Register = float;
  static float read(float x, bool ftz) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    return ftz && (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : x;
  }
};
template <typename Format>
struct HalfNumeric {
  using Register = std::uint16_t;
  static float read(std::uint16_t x, bool ftz) {
    constexpr std::uint16_t kExponent = ((1 << Format::kExponentBits) - 1) << Format::kFractionBits;
    return halfToFloat<Format>(ftz && (x & kExponent) == 0 ? x & 0x8000 : x);
  }
};

template <Compare kCompare, typename T>
[[gnu::always_inline]] inline bool holds(T a, T b) {
  // An ordered comparison with a NaN is false, an unordered one true.
  if constexpr (kCompare == Compare::kEq) return a == b;
  if constexpr (kCompare == Compare::kNe)
    return std::is_floating_point_v<T> ? a < b || a > b : a != b;
  if constexpr (kCompare == Compare::kLt) return a < b;
  if constexpr (kCompare == Compare::kLe) return a <= b;
  if constexpr (kCompare == Compare::kGt) return a > b;
  if constexpr (kCompare == Compare::kGe) return a >= b;
  if constexpr (kCompare == Compare::kEqu) return !(a < b || a > b);
  if constexpr (kCompare == Compare::kNeu) return a != b;
  if constexpr (kCompare == Compare::kLtu) return !(a >= b);
  if constexpr (kCompare == Compare::kLeu) return !(a > b);
  if constexpr (kCompare == Compare::kGtu) return !(a <= b);
  if constexpr (kCompare == Compare::kGeu) return !(a < b);
  if constexpr (kCompare == Compare::kNum) return a == a && b == b;
  if constexpr (kCompare == Compare::kNan) return a != a || b != b;
}

// All lanes are compared, active or not: comparing what an inactive lane left behind does no harm.
template <Compare kCompare, typename N>
[[gnu::always_inline]] inline std::uint32_t compareLanes(Warp& w, std::uint32_t ra,
                                                         std::uint32_t rb, bool ftz) {
  const auto* const a = w.reg<typename N::Register>(ra);
  const auto* const b = w.reg<typename N::Register>(rb);
  std::uint32_t lanes = 0;
  for (std::uint32_t i = 0; i < kWarpSize; ++i) {
    lanes |= static_cast<std::uint32_t>(holds<kCompare>(N::read(a[i], ftz), N::read(b[i], ftz)))
             << i;
  }
  return lanes;
}

std::uint32_t combined(const Op& op, std::uint32_t lanes, std::uint32_t c) {
  switch (static_cast<Combine>(op.flags & 3)) {
    case Combine::kAnd:
      return lanes & c;
    case Combine::kOr:
      return lanes | c;
    case Combine::kXor:
      return lanes ^ c;
    default:
      return lanes;
  }
}

/// r: p, a, b, c (to combine with), q.
template <Compare kCompare, typename N>
Step setp(Warp& w, const Op& op) {
  const std::uint32_t lanes =
      compareLanes<kCompare, N>(w, op.r[1], op.r[2], (op.flags & kSetpFtz) != 0);
  std::uint32_t c = 0;
  if ((op.flags & 3) != 0) {
    c = w.predicate(op.r[3]);
    if ((op.flags & kSetpNegate) != 0) c = ~c;
  }
  w.setPredicate(op.r[0], combined(op, lanes, c));
  if (op.r[4] != kNoTarget) w.setPredicate(op.r[4], combined(op, ~lanes, c));
  return Step::kNext;
}

template <Compare kCompare, typename N>
Step set(Warp& w, const Op& op) {
  std::uint32_t lanes = compareLanes<kCompare, N>(w, op.r[1], op.r[2], (op.flags & kSetpFtz) != 0);
  if ((op.flags & 3) != 0) {
    const std::uint32_t c = w.predicate(op.r[3]);
    lanes = combined(op, lanes, (op.flags & kSetpNegate) != 0 ? ~c : c);
  }
  if ((op.flags & (kSetF16 | kSetBF16)) != 0 || op.imm == 2) {
    const std::uint16_t one = (op.flags & kSetF16) != 0    ? 0x3C00
                              : (op.flags & kSetBF16) != 0 ? 0x3F80
                                                           : 0xFFFF;
    std::uint16_t* const d = w.reg<std::uint16_t>(op.r[0]);
    forLanes(w, [&](std::uint32_t i) { d[i] = (lanes >> i & 1) != 0 ? one : std::uint16_t{0}; });
  } else {
    const std::uint32_t one = (op.flags & kSetF32) != 0 ? 0x3F800000U : 0xFFFFFFFFU;
    std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
    forLanes(w, [&](std::uint32_t i) { d[i] = (lanes >> i & 1) != 0 ? one : 0U; });
  }
  return Step::kNext;
}

/// Both halves of pairs: setp.f16x2 gives p for the low half and q for the high one, set.f16x2 a
/// pair of results.
template <Compare kCompare, typename Format, bool kSet>
Step pair(Warp& w, const Op& op) {
  const std::uint16_t* const a = w.reg<std::uint16_t>(op.r[1]);
  const std::uint16_t* const b = w.reg<std::uint16_t>(op.r[2]);
  const bool ftz = (op.flags & kSetpFtz) != 0;
  using N = HalfNumeric<Format>;
  std::uint32_t lanes[2] = {0, 0};
  for (std::uint32_t i = 0; i < 2 * kWarpSize; ++i) {
    lanes[i & 1] |=
        static_cast<std::uint32_t>(holds<kCompare>(N::read(a[i], ftz), N::read(b[i], ftz)))
        << (i >> 1);
  }
  if ((op.flags & 3) != 0) {
    std::uint32_t c = w.predicate(op.r[3]);
    if ((op.flags & kSetpNegate) != 0) c = ~c;
    lanes[0] = combined(op, lanes[0], c);
    lanes[1] = combined(op, lanes[1], c);
  }
  if constexpr (kSet) {
    const std::uint32_t one = (op.flags & kSetF16) != 0    ? 0x3C00U
                              : (op.flags & kSetBF16) != 0 ? 0x3F80U
                                                           : 0xFFFFU;
    std::uint32_t* const d = w.reg<std::uint32_t>(op.r[0]);
    forLanes(w, [&](std::uint32_t i) {
      d[i] = ((lanes[0] >> i & 1) != 0 ? one : 0U) | ((lanes[1] >> i & 1) != 0 ? one << 16 : 0U);
    });
  } else {
    w.setPredicate(op.r[0], lanes[0]);
    if (op.r[4] != kNoTarget) w.setPredicate(op.r[4], lanes[1]);
  }
  return Step::kNext;
}

enum class Form { kSetp, kSet };

template <Compare kCompare, typename N>
OpFn pick(Form form) {
  return form == Form::kSetp ? setp<kCompare, N> : set<kCompare, N>;
}

template <typename N>
OpFn ordered(Compare compare, Form form) {
  switch (compare) {
    case Compare::kEq:
      return pick<Compare::kEq, N>(form);
    case Compare::kNe:
      return pick<Compare::kNe, N>(form);
    case Compare::kLt:
      return pick<Compare::kLt, N>(form);
    case Compare::kLe:
      return pick<Compare::kLe, N>(form);
    case Compare::kGt:
      return pick<Compare::kGt, N>(form);
    case Compare::kGe:
      return pick<Compare::kGe, N>(form);
    default:
      return nullptr;
  }
}
template <typename N>
OpFn all(Compare compare, Form form) {
  switch (compare) {
    case Compare::kEqu:
      return pick<Compare::kEqu, N>(form);
    case Compare::kNeu:
      return pick<Compare::kNeu, N>(form);
    case Compare::kLtu:
      return pick<Compare::kLtu, N>(form);
    case Compare::kLeu:
      return pick<Compare::kLeu, N>(form);
    case Compare::kGtu:
      return pick<Compare::kGtu, N>(form);
    case Compare::kGeu:
      return pick<Compare::kGeu, N>(form);
    case Compare::kNum:
      return pick<Compare::kNum, N>(form);
    case Compare::kNan:
      return pick<Compare::kNan, N>(form);
    default:
      return ordered<N>(compare, form);
  }
}
template <typename Format, bool kSet>
OpFn pairs(Compare compare) {
  switch (compare) {
    case Compare::kEq:
      return pair<Compare::kEq, Format, kSet>;
    case Compare::kNe:
      return pair<Compare::kNe, Format, kSet>;
    case Compare::kLt:
      return pair<Compare::kLt, Format, kSet>;
    case Compare::kLe:
      return pair<Compare::kLe, Format, kSet>;
    case Compare::kGt:
      return pair<Compare::kGt, Format, kSet>;
    case Compare::kGe:
      return pair<Compare::kGe, Format, kSet>;
    case Compare::kEqu:
      return pair<Compare::kEqu, Format, kSet>;
    case Compare::kNeu:
      return pair<Compare::kNeu, Format, kSet>;
    case Compare::kLtu:
      return pair<Compare::kLtu, Format, kSet>;
    case Compare::kLeu:
      return pair<Compare::kLeu, Format, kSet>;
    case Compare::kGtu:
      return pair<Compare::kGtu, Format, kSet>;
    case Compare::kGeu:
      return pair<Compare::kGeu, Format, kSet>;
    case Compare::kNum:
      return pair<Compare::kNum, Format, kSet>;
    case Compare::kNan:
      return pair<Compare::kNan, Format, kSet>;
  }
  return nullptr;
}

OpFn select(Compare compare, Type type, Form form) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return ordered<Numeric<std::uint16_t>>(compare, form);
    case Type::kS16:
      return ordered<Numeric<std::int16_t>>(compare, form);
    case Type::kB32:
    case Type::kU32:
      return ordered<Numeric<std::uint32_t>>(compare, form);
    case Type::kS32:
      return ordered<Numeric<std::int32_t>>(compare, form);
    case Type::kB64:
    case Type::kU64:
      return ordered<Numeric<std::uint64_t>>(compare, form);
    case Type::kS64:
      return ordered<Numeric<std::int64_t>>(compare, form);
    case Type::kF16:
      return all<HalfNumeric<F16Format>>(compare, form);
    case Type::kBF16:
      return all<HalfNumeric<BF16Format>>(compare, form);
    case Type::kF32:
      return all<Numeric<float>>(compare, form);
    case Type::kF64:
      return all<Numeric<double>>(compare, form);
    case Type::kF16x2:
      return form == Form::kSet ? pairs<F16Format, true>(compare)
                                : pairs<F16Format, false>(compare);
    case Type::kBF16x2:
      return form == Form::kSet ? pairs<BF16Format, true>(compare)
                                : pairs<BF16Format, false>(compare);
    default:
      return nullptr;
  }
}

}  // namespace

OpFn compareOp(Compare compare, Type type) { return select(compare, type, Form::kSetp); }
OpFn setOp(Compare compare, Type type, std::uint32_t) { return select(compare, type, Form::kSet); }

}  // namespace olpager::simgpu::ptx::PTX_ISA
