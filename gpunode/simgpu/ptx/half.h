// Conversions of the 16-bit floating-point formats, with one rounding whatever the source.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "gpunode/simgpu/ptx/lanes.h"

namespace olpager::simgpu::ptx::PTX_ISA {

/// f16: 5 exponent bits, 10 of fraction. bf16: 8 and 7.
struct F16Format {
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
};
struct BF16Format {
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
};

inline float f16ToFloat(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000U) << 16;
  const std::uint32_t magnitude = h & 0x7FFFU;
  // Moves exponent and fraction into place and corrects the bias by a multiplication, which also
  // normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t special =
      magnitude >= 0x7C00U ? 0x7F800000U : 0;  // infinity and NaN keep all exponent bits
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}
inline float bf16ToFloat(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

template <typename Format>
inline float halfToFloat(std::uint16_t h) {
  if constexpr (Format::kExponentBits == 5)
    return f16ToFloat(h);
  else
    return bf16ToFloat(h);
}

/// Rounds a double once to the format. NaN becomes the canonical 0x7FFF.
template <typename Format>
inline std::uint16_t roundToHalf(double x, Round mode = Round::kNearest) {
  constexpr int kFraction = Format::kFractionBits;
  constexpr int kBias = (1 << (Format::kExponentBits - 1)) - 1;
  constexpr std::uint16_t kInfinity = ((1 << Format::kExponentBits) - 1) << kFraction;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000);
  const std::uint64_t magnitude = bits & 0x7FFFFFFFFFFFFFFFULL;
  if (magnitude > 0x7FF0000000000000ULL) return 0x7FFF;
  if (magnitude == 0x7FF0000000000000ULL) return sign | kInfinity;
  if (magnitude == 0) return sign;
  const int exponent =
      static_cast<int>(magnitude >> 52) - 1023;  // a subnormal double is far below either format
  std::uint64_t significand = (magnitude & 0xFFFFFFFFFFFFFULL) | 0x10000000000000ULL;
  int drop = 52 - kFraction;
  int biased = exponent + kBias;
  if (biased <= 0) {
    drop += 1 - biased;
    biased = 0;
    if (drop > 54) drop = 54;
  }
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  significand >>= drop;
  bool up = false;
  switch (mode) {
    case Round::kNearest:
      up = rest > half || (rest == half && (significand & 1) != 0);
      break;
    case Round::kZero:
      break;
    case Round::kDown:
      up = rest != 0 && sign != 0;
      break;
    case Round::kUp:
      up = rest != 0 && sign == 0;
      break;
  }
  significand += up;
  // The hidden bit, if there, adds one to the exponent field; so does a carry out of the fraction.
  const std::uint64_t result =
      (biased > 0 ? (static_cast<std::uint64_t>(biased - 1) << kFraction) : 0) + significand;
  if (result >= kInfinity) {
    const bool to_infinity = mode == Round::kNearest || (mode == Round::kUp && sign == 0) ||
                             (mode == Round::kDown && sign != 0);
    return sign | (to_infinity ? kInfinity : static_cast<std::uint16_t>(kInfinity - 1));
  }
  return sign | static_cast<std::uint16_t>(result);
}

/// Nearest-even from float, without branches that stop vectorisation.
template <typename Format>
inline std::uint16_t floatToHalf(float x) {
  if constexpr (Format::kExponentBits == 8) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7FFFU + (bits >> 16 & 1)) >> 16;
    return static_cast<std::uint16_t>(x != x ? 0x7FFFU : rounded);
  } else {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits >> 16 & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    // Normal results: rebias and round in integers. Subnormal ones: let a float addition align and
    // round them.
    const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1)) >> 13;
    const std::uint32_t tiny =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    std::uint32_t result = magnitude < 0x38800000U ? tiny : normal;
    result = magnitude >= 0x47800000U ? 0x7C00U : result;
    result = result > 0x7C00U ? 0x7C00U : result;
    return static_cast<std::uint16_t>(magnitude > 0x7F800000U ? 0x7FFFU : result | sign);
  }
}

/// a * b + c rounded to odd in double, so that a later rounding to 16 bits is the only one that
/// counts.
inline double fmaRoundOdd(double a, double b, double c) {
  const double product = a * b;  // exact: at most 24 significant bits
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double t = sum - product;
  const double error = (product - (sum - t)) + (c - t);
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(sum);
  if (error == 0 || (bits & 1) != 0) return sum;
  const bool away = (error > 0) == (sum > 0);
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}

}  // namespace olpager::simgpu::ptx::PTX_ISA
