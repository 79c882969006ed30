// cuSOLVER: a system of equations by LU with pivots; the residual is small.
#include "cusolver.h"

using toolkit::Device;

namespace {

// a x = b, both of doubles, column-major.
double solve(cusolverDnHandle_t handle, cudaStream_t stream, int n, int right,
             toolkit::Hash& hash) {
  std::vector<double> a(size_t(n) * n), b(size_t(n) * right);
  for (size_t i = 0; i < a.size(); ++i) a[i] = toolkit::number(static_cast<uint32_t>(i), 3);
  for (int i = 0; i < n; ++i) a[size_t(i) * (n + 1)] += n / 8.0;
  for (size_t i = 0; i < b.size(); ++i) b[i] = toolkit::number(static_cast<uint32_t>(i), 4);
  Device<double> there_a(a), there_b(b);
  Device<int> pivots(static_cast<size_t>(n)), info(1);
  int work = 0;
  MUST(cusolverDnDgetrf_bufferSize(handle, n, n, there_a.get(), n, &work));
  Device<double> workspace(static_cast<size_t>(work));
  MUST(cusolverDnDgetrf(handle, n, n, there_a.get(), n, workspace.get(), pivots.get(), info.get()));
  MUST(cudaStreamSynchronize(stream));
  if (const int status = info.read()[0]; status != 0) toolkit::wrong("getrf: info is %d", status);
  MUST(cusolverDnDgetrs(handle, CUBLAS_OP_N, n, right, there_a.get(), n, pivots.get(),
                        there_b.get(), n, info.get()));
  MUST(cudaStreamSynchronize(stream));
  if (const int status = info.read()[0]; status != 0) toolkit::wrong("getrs: info is %d", status);
  const auto x = there_b.read();
  double residual = 0;
  for (int j = 0; j < right; ++j) {
    for (int i = 0; i < n; ++i) {
      double sum = -b[i + size_t(j) * n];
      for (int l = 0; l < n; ++l) sum += a[i + size_t(l) * n] * x[l + size_t(j) * n];
      residual = std::max(residual, std::abs(sum));
    }
  }
  hash.add(x);
  return residual;
}

}  // namespace

int main() {
  toolkit::withSolver("cusolver_lu", "300 equations", 1e-10,
                      [](cusolverDnHandle_t handle, cudaStream_t stream, toolkit::Hash& hash) {
                        return solve(handle, stream, 300, 5, hash);
                      });
}
