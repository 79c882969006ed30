// cuFFT: 1D C2C and 2D R2C, forward compared with sums of the CPU, and back again.
#include <cufft.h>

#include <complex>

#include "toolkit.h"

using toolkit::Device;

namespace {

constexpr double kPi = 3.14159265358979323846;

void close(double got, double expected, double bound, const char* what, size_t at) {
  if (!(std::abs(got - expected) <= bound))
    toolkit::wrong("%s: element %zu is %g, expected %g", what, at, got, expected);
}

void oneDimension(int n, int batch, toolkit::Hash& hash) {
  cufftHandle plan = 0;
  MUST(cufftPlan1d(&plan, n, CUFFT_C2C, batch));
  const auto parts = toolkit::numbers(size_t(n) * batch * 2, static_cast<uint32_t>(n));
  std::vector<cufftComplex> in(size_t(n) * batch);
  for (size_t i = 0; i < in.size(); ++i) in[i] = {parts[2 * i], parts[2 * i + 1]};
  Device<cufftComplex> there(in), transformed(in.size());
  MUST(cufftExecC2C(plan, there.get(), transformed.get(), CUFFT_FORWARD));
  MUST(cudaDeviceSynchronize());
  const auto got = transformed.read();
  for (int b = 0; b < batch; ++b) {
    for (int k = 0; k < n; k += 1 + n / 16) {  // some of them: a sum over all for each
      std::complex<double> sum = 0;
      for (int i = 0; i < n; ++i) {
        const auto& value = in[size_t(b) * n + i];
        sum += std::complex<double>(value.x, value.y) *
               std::polar(1.0, -2 * kPi * ((int64_t(i) * k) % n) / n);
      }
      const size_t at = size_t(b) * n + k;
      close(got[at].x, sum.real(), 1e-4 * std::sqrt(n), "C2C", at);
      close(got[at].y, sum.imag(), 1e-4 * std::sqrt(n), "C2C", at);
    }
  }
  MUST(cufftExecC2C(plan, transformed.get(), there.get(), CUFFT_INVERSE));
  MUST(cudaDeviceSynchronize());
  const auto back = there.read();
  for (size_t i = 0; i < in.size(); ++i) {
    close(back[i].x / n, in[i].x, 1e-5, "C2C and back", i);
    close(back[i].y / n, in[i].y, 1e-5, "C2C and back", i);
  }
  hash.add(got);
  hash.add(back);
  MUST(cufftDestroy(plan));
}

void twoDimensions(int rows, int columns, toolkit::Hash& hash) {
  cufftHandle forward = 0, inverse = 0;
  MUST(cufftPlan2d(&forward, rows, columns, CUFFT_R2C));
  MUST(cufftPlan2d(&inverse, rows, columns, CUFFT_C2R));
  const auto in = toolkit::numbers(size_t(rows) * columns, 77);
  const int half = columns / 2 + 1;
  Device<float> there(in);
  Device<cufftComplex> transformed(size_t(rows) * half);
  MUST(cufftExecR2C(forward, there.get(), transformed.get()));
  MUST(cudaDeviceSynchronize());
  const auto got = transformed.read();
  for (int r = 0; r < rows; r += 1 + rows / 6) {
    for (int c = 0; c < half; c += 1 + half / 6) {
      std::complex<double> sum = 0;
      for (int y = 0; y < rows; ++y) {
        for (int x = 0; x < columns; ++x)
          sum += double(in[size_t(y) * columns + x]) *
                 std::polar(1.0, -2 * kPi *
                                     (double((int64_t(y) * r) % rows) / rows +
                                      double((int64_t(x) * c) % columns) / columns));
      }
      const size_t at = size_t(r) * half + c;
      close(got[at].x, sum.real(), 1e-4 * std::sqrt(double(rows) * columns), "R2C", at);
      close(got[at].y, sum.imag(), 1e-4 * std::sqrt(double(rows) * columns), "R2C", at);
    }
  }
  MUST(cufftExecC2R(inverse, transformed.get(), there.get()));
  MUST(cudaDeviceSynchronize());
  const auto back = there.read();
  for (size_t i = 0; i < in.size(); ++i)
    close(back[i] / (double(rows) * columns), in[i], 1e-5, "R2C and back", i);
  hash.add(got);
  hash.add(back);
  MUST(cufftDestroy(forward));
  MUST(cufftDestroy(inverse));
}

}  // namespace

int main() {
  toolkit::g_name = "cufft";
  int version = 0;
  MUST(cufftGetVersion(&version));
  MUST(cudaFree(nullptr));
  cufftHandle handle = 0;
  MUST(cufftCreate(&handle));
  MUST(cufftDestroy(handle));
  toolkit::started();
  toolkit::Hash hash;
  oneDimension(1024, 4, hash);
  oneDimension(1000, 3, hash);
  oneDimension(127, 2, hash);
  oneDimension(1 << 16, 1, hash);
  twoDimensions(96, 128, hash);
  twoDimensions(45, 64, hash);
  toolkit::ok("1D and 2D, forward and inverse, %016llx", hash.value());
}
