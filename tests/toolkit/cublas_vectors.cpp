// cuBLAS: sums, products and norms of vectors, and a product of vectors that is added to a matrix.
#include "cublas.h"

using toolkit::Device;

namespace {

void close(double got, double expected, double bound, const char* what) {
  if (!(std::abs(got - expected) <= bound))
    toolkit::wrong("%s is %g, expected %g", what, got, expected);
}

}  // namespace

int main() {
  toolkit::g_name = "cublas_vectors";
  toolkit::Blas blas;
  toolkit::Hash hash;
  constexpr int kRows = 130, kColumns = 77, kCount = 10000;
  const auto x = toolkit::numbers(kCount, 1), y = toolkit::numbers(kCount, 2),
             a = toolkit::numbers(kRows * kColumns, 3);
  Device<float> there_x(x), there_y(y), there_a(a);
  const float factor = 0.5f;

  MUST(cublasSaxpy(blas.handle, kCount, &factor, there_x.get(), 1, there_y.get(), 1));
  MUST(cudaStreamSynchronize(blas.stream));
  const auto sums = there_y.read();
  for (int i = 0; i < kCount; ++i)
    close(sums[i], y[i] + factor * x[i], 1e-6, "an element of SAXPY");
  hash.add(sums);

  float dot = 0, norm = 0;
  double expected_dot = 0, expected_norm = 0;
  for (int i = 0; i < kCount; ++i) {
    expected_dot += double(x[i]) * sums[i];
    expected_norm += double(x[i]) * x[i];
  }
  MUST(cublasSdot(blas.handle, kCount, there_x.get(), 1, there_y.get(), 1, &dot));
  MUST(cublasSnrm2(blas.handle, kCount, there_x.get(), 1, &norm));
  close(dot, expected_dot, 1e-2, "SDOT");
  close(norm, std::sqrt(expected_norm), 1e-2, "SNRM2");
  hash.add(std::vector<float>{dot, norm});
  int largest = 0, expected_largest = 0;
  MUST(cublasIsamax(blas.handle, kCount, there_x.get(), 1, &largest));
  for (int i = 0; i < kCount; ++i) {
    if (std::abs(x[i]) > std::abs(x[expected_largest])) expected_largest = i;
  }
  close(largest, expected_largest + 1, 0, "ISAMAX");

  MUST(cublasSger(blas.handle, kRows, kColumns, &factor, there_x.get(), 1, there_y.get(), 1,
                  there_a.get(), kRows));
  MUST(cudaStreamSynchronize(blas.stream));
  const auto updated = there_a.read();
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      const size_t at = i + size_t(j) * kRows;
      close(updated[at], a[at] + double(factor) * x[i] * sums[j], 1e-5, "an element of SGER");
    }
  }
  hash.add(updated);
  blas.end();
  toolkit::ok("%d elements, a matrix of %d x %d, %016llx", kCount, kRows, kColumns, hash.value());
}
