// cuBLAS: GemmEx with bf16 inputs and sums of 32 bits, over several shapes.
#include "cublas.h"

using toolkit::Device;

int main() {
  toolkit::g_name = "cublas_bf16";
  toolkit::Blas blas;
  toolkit::Hash hash;
  const float one = 1, zero = 0;
  uint32_t seed = 100;
  for (const toolkit::Shape& s : toolkit::kShapes) {
    const auto a = toolkit::toBf16(toolkit::numbers(size_t(s.m) * s.k, seed++));
    const auto b = toolkit::toBf16(toolkit::numbers(size_t(s.k) * s.n, seed++));
    const toolkit::Layout at(s);
    Device<__nv_bfloat16> there_a(a), there_b(b);
    Device<float> there_c(size_t(s.m) * s.n);
    MUST(cublasGemmEx(blas.handle, at.op_a, at.op_b, s.m, s.n, s.k, &one, there_a.get(),
                      CUDA_R_16BF, at.lda, there_b.get(), CUDA_R_16BF, at.ldb, &zero, there_c.get(),
                      CUDA_R_32F, s.m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    MUST(cudaStreamSynchronize(blas.stream));
    const auto c = there_c.read();
    toolkit::compare(
        s, c,
        toolkit::product(s, a, b, [](__nv_bfloat16 value) { return __bfloat162float(value); }),
        1e-4, "GemmEx");
    hash.add(c);
  }
  blas.end();
  toolkit::ok("%zu shapes, %016llx", std::size(toolkit::kShapes), hash.value());
}
