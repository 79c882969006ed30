// cuBLAS: SGEMM over several shapes.
#include "cublas.h"

using toolkit::Device;

int main() {
  toolkit::g_name = "cublas_sgemm";
  toolkit::Blas blas;
  toolkit::Hash hash;
  const float one = 1, zero = 0;
  uint32_t seed = 1;
  for (const toolkit::Shape& s : toolkit::kShapes) {
    const auto a = toolkit::numbers(size_t(s.m) * s.k, seed++),
               b = toolkit::numbers(size_t(s.k) * s.n, seed++);
    const toolkit::Layout at(s);
    Device<float> there_a(a), there_b(b), there_c(size_t(s.m) * s.n);
    MUST(cublasSgemm(blas.handle, at.op_a, at.op_b, s.m, s.n, s.k, &one, there_a.get(), at.lda,
                     there_b.get(), at.ldb, &zero, there_c.get(), s.m));
    MUST(cudaStreamSynchronize(blas.stream));
    const auto c = there_c.read();
    toolkit::compare(s, c, toolkit::product(s, a, b, [](float value) { return value; }), 1e-5,
                     "SGEMM");
    hash.add(c);
  }
  blas.end();
  toolkit::ok("%zu shapes, %016llx", std::size(toolkit::kShapes), hash.value());
}
