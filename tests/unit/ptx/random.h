// Random operands with the awkward values among them. The seed is printed by a failing test (INFO).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace olpager::simgpu::ptx::test {

inline std::uint64_t freshSeed() { return std::random_device{}(); }

template <typename T>
std::vector<T> randomIntegers(std::mt19937_64& random, std::size_t count) {
  static const T kSpecial[] = {T{0}, T{1}, static_cast<T>(-1), std::numeric_limits<T>::min(),
                               std::numeric_limits<T>::max()};
  std::vector<T> values(count);
  for (T& value : values) {
    switch (random() % 4) {
      case 0:
        value = kSpecial[random() % 5];
        break;
      case 1:
        value = static_cast<T>(random() % 100);
        break;
      default:
        value = static_cast<T>(random());
        break;
    }
  }
  return values;
}

template <typename F>
std::vector<F> randomFloats(std::mt19937_64& random, std::size_t count, bool special = true) {
  using L = std::numeric_limits<F>;
  static const F kSpecial[] = {F{0},          -F{0},          F{1},           -F{1},
                               L::infinity(), -L::infinity(), L::quiet_NaN(), L::denorm_min(),
                               L::min() / 2,  L::max(),       L::lowest(),    L::epsilon(),
                               F{0.5},        F{2.5},         F{-2.5}};
  std::vector<F> values(count);
  std::uniform_real_distribution<double> small(-10, 10);
  for (F& value : values) {
    switch (random() % 4) {
      case 0:
        value = special ? kSpecial[random() % 15] : static_cast<F>(small(random));
        break;
      case 1:
        if (special) {
          if constexpr (sizeof(F) == 4)
            value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
          else
            value = std::bit_cast<double>(random());
          break;
        }
        [[fallthrough]];
      default:
        value = static_cast<F>(small(random));
        break;
    }
  }
  return values;
}

/// Equal bits, or both NaN.
template <typename F>
bool same(F a, F b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace olpager::simgpu::ptx::test
