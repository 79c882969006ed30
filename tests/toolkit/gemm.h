// Matrix products as the CPU computes them, column-major as cuBLAS's.
#pragma once

#include <cuda_bf16.h>

#include "toolkit.h"

namespace toolkit {

struct Shape {
  int m, n, k;
  bool transpose_a, transpose_b;
};
inline constexpr Shape kShapes[] = {
    {16, 16, 16, false, false}, {64, 48, 80, false, false},  {128, 128, 128, true, false},
    {33, 17, 65, false, true},  {256, 192, 320, true, true}, {1, 257, 129, false, false},
};

/// c = a b; inputs are read through `as`, so that what they lost in a shorter format is lost here
/// too.
template <typename T, typename As>
std::vector<double> product(const Shape& s, const std::vector<T>& a, const std::vector<T>& b,
                            As as) {
  std::vector<double> c(static_cast<size_t>(s.m) * s.n);
  for (int j = 0; j < s.n; ++j) {
    for (int i = 0; i < s.m; ++i) {
      double sum = 0;
      for (int l = 0; l < s.k; ++l)
        sum +=
            static_cast<double>(as(a[s.transpose_a ? l + size_t(i) * s.k : i + size_t(l) * s.m])) *
            static_cast<double>(as(b[s.transpose_b ? j + size_t(l) * s.n : l + size_t(j) * s.k]));
      c[i + size_t(j) * s.m] = sum;
    }
  }
  return c;
}

/// Ends the program where an element is off by more than `tolerance` times the square root of the
/// sum's length.
inline void compare(const Shape& s, const std::vector<float>& got,
                    const std::vector<double>& expected, double tolerance, const char* what) {
  const double bound = tolerance * std::sqrt(static_cast<double>(s.k));
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= bound))
      wrong("%s of %d x %d x %d: element %zu is %g, expected %g", what, s.m, s.n, s.k, i, got[i],
            expected[i]);
  }
}

inline std::vector<__nv_bfloat16> toBf16(const std::vector<float>& from) {
  std::vector<__nv_bfloat16> made;
  for (const float value : from) made.push_back(__float2bfloat16(value));
  return made;
}

}  // namespace toolkit
