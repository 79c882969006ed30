// cuSOLVER: a singular value decomposition; its product is the matrix again.
#include "cusolver.h"

using toolkit::Device;

namespace {

double decompose(cusolverDnHandle_t handle, cudaStream_t stream, int m, int n,
                 toolkit::Hash& hash) {
  const auto a = toolkit::numbers(size_t(m) * n, 5);
  Device<float> there_a(a), s(static_cast<size_t>(n)), u(size_t(m) * m), vt(size_t(n) * n);
  Device<int> info(1);
  int work = 0;
  MUST(cusolverDnSgesvd_bufferSize(handle, m, n, &work));
  Device<float> workspace(static_cast<size_t>(work));
  MUST(cusolverDnSgesvd(handle, 'A', 'A', m, n, there_a.get(), m, s.get(), u.get(), m, vt.get(), n,
                        workspace.get(), work, nullptr, info.get()));
  MUST(cudaStreamSynchronize(stream));
  if (const int status = info.read()[0]; status != 0) toolkit::wrong("gesvd: info is %d", status);
  const auto values = s.read(), left = u.read(), right = vt.read();
  double worst = 0;
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      double sum = -a[i + size_t(j) * m];
      for (int l = 0; l < n; ++l)
        sum += double(left[i + size_t(l) * m]) * values[l] * right[l + size_t(j) * n];
      worst = std::max(worst, std::abs(sum));
    }
  }
  for (int l = 1; l < n; ++l) {
    if (values[l] > values[l - 1] || values[l] < 0)
      toolkit::wrong("gesvd: value %d is %g, behind %g", l, values[l], values[l - 1]);
  }
  hash.add(values);
  return worst;
}

}  // namespace

int main() {
  toolkit::withSolver("cusolver_svd", "96 x 64", 1e-4,
                      [](cusolverDnHandle_t handle, cudaStream_t stream, toolkit::Hash& hash) {
                        return decompose(handle, stream, 96, 64, hash);
                      });
}
