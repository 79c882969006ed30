// cuBLAS as its programs here begin: a handle with a stream and a workspace of their own; and the
// shapes.
#pragma once

#include <cublas_v2.h>

#include "gemm.h"

namespace toolkit {

struct Blas {
  Blas() {
    MUST(cublasCreate(&handle));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cublasSetStream(handle, stream));
    MUST(cublasSetWorkspace(handle, workspace.get(), size_t{8} << 20));
    started();
  }
  void end() {
    MUST(cublasDestroy(handle));
    MUST(cudaStreamDestroy(stream));
  }
  cublasHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  Device<char> workspace{size_t{8} << 20};
};

struct Layout {
  explicit Layout(const Shape& s)
      : lda(s.transpose_a ? s.k : s.m),
        ldb(s.transpose_b ? s.n : s.k),
        op_a(s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N),
        op_b(s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N) {}
  int lda, ldb;
  cublasOperation_t op_a, op_b;
};

}  // namespace toolkit
