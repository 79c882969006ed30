// y = a * x + y over many vectors, several times round: a working set that is walked cyclically, as
// the layers of a model are. Run it with a VRAM budget of a quarter of --bytes.
#include "common.h"

__global__ void saxpy(float a, const float4* x, float4* y, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 u = x[i];
  float4 v = y[i];
  v.x = a * u.x + v.x, v.y = a * u.y + v.y, v.z = a * u.z + v.z, v.w = a * u.w + v.w;
  y[i] = v;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr unsigned kPasses = 3;
  constexpr size_t kVectorBytes = size_t{4} << 20;
  const size_t n = kVectorBytes / 4;
  const size_t pairs =
      options.bytes / (2 * kVectorBytes) > 0 ? options.bytes / (2 * kVectorBytes) : 1;
  const auto element = [&](size_t vector, size_t i) {
    return float(apps::word(uint32_t(i), uint32_t(options.seed + vector)) & 0xff);
  };
  std::vector<float*> x(pairs), y(pairs);
  std::vector<float> host(n);
  for (size_t p = 0; p < pairs; ++p) {
    RUNTIME_OK(cudaMalloc(&x[p], kVectorBytes));
    RUNTIME_OK(cudaMalloc(&y[p], kVectorBytes));
    for (size_t i = 0; i < n; ++i) host[i] = element(p, i);
    RUNTIME_OK(cudaMemcpy(x[p], host.data(), kVectorBytes, cudaMemcpyHostToDevice));
    RUNTIME_OK(cudaMemset(y[p], 0, kVectorBytes));
  }
  for (unsigned pass = 1; pass <= kPasses; ++pass) {
    for (size_t p = 0; p < pairs; ++p) {
      saxpy<<<apps::blocks(n / 4), 256>>>(float(pass), reinterpret_cast<float4*>(x[p]),
                                          reinterpret_cast<float4*>(y[p]), uint32_t(n / 4));
    }
  }
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaDeviceSynchronize());
  const float factor = kPasses * (kPasses + 1) / 2;  // whole numbers below 2^24: exact
  for (size_t p = 0; p < pairs; ++p) {
    RUNTIME_OK(cudaMemcpy(host.data(), y[p], kVectorBytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; ++i) {
      const float expected = factor * element(p, i);
      CHECK(host[i] == expected, "vector %zu element %zu is %g, expected %g", p, i, double(host[i]),
            double(expected));
    }
  }
  return apps::ok("saxpy_oversubscribed: %zu vectors of %zu MiB, %u passes", 2 * pairs,
                  kVectorBytes >> 20, kPasses);
}
