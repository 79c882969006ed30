// cuBLAS: products of a matrix and a vector.
#include "cublas.h"

using toolkit::Device;

int main() {
  toolkit::g_name = "cublas_gemv";
  toolkit::Blas blas;
  toolkit::Hash hash;
  constexpr int kRows = 130, kColumns = 77;
  const auto x = toolkit::numbers(kRows, 1), a = toolkit::numbers(kRows * kColumns, 3);
  Device<float> there_x(x), there_a(a);
  const float factor = 0.5f, one = 1;
  for (const bool transposed : {false, true}) {
    const int in = transposed ? kRows : kColumns, out = transposed ? kColumns : kRows;
    const auto before = toolkit::numbers(static_cast<size_t>(out), 4);
    Device<float> there(before);
    MUST(cublasSgemv(blas.handle, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, kRows, kColumns, &one,
                     there_a.get(), kRows, there_x.get(), 1, &factor, there.get(), 1));
    MUST(cudaStreamSynchronize(blas.stream));
    const auto after = there.read();
    for (int i = 0; i < out; ++i) {
      double sum = factor * before[i];
      for (int k = 0; k < in; ++k)
        sum += double(transposed ? a[k + size_t(i) * kRows] : a[i + size_t(k) * kRows]) * x[k];
      if (!(std::abs(after[i] - sum) <= 1e-4))
        toolkit::wrong("element %d is %g, expected %g", i, after[i], sum);
    }
    hash.add(after);
  }

  blas.end();
  toolkit::ok("a matrix of %d x %d, %016llx", kRows, kColumns, hash.value());
}
