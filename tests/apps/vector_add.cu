// c = a + b, the first program of every CUDA course.
#include "common.h"

__global__ void addVectors(const float4* a, const float4* b, float4* c, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 x = a[i];
  const float4 y = b[i];
  c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t n = options.bytes / 3 / 16 * 4;
  std::vector<float> a(n), b(n), c(n);
  for (size_t i = 0; i < n; ++i) {
    a[i] = float(apps::word(uint32_t(i), uint32_t(options.seed)) & 0xffff);
    b[i] = float(i % 1000) * 0.5f;
  }
  float *da, *db, *dc;
  RUNTIME_OK(cudaMalloc(&da, n * 4));
  RUNTIME_OK(cudaMalloc(&db, n * 4));
  RUNTIME_OK(cudaMalloc(&dc, n * 4));
  RUNTIME_OK(cudaMemcpy(da, a.data(), n * 4, cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaMemcpy(db, b.data(), n * 4, cudaMemcpyHostToDevice));
  addVectors<<<apps::blocks(n / 4), 256>>>(reinterpret_cast<float4*>(da),
                                           reinterpret_cast<float4*>(db),
                                           reinterpret_cast<float4*>(dc), uint32_t(n / 4));
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaMemcpy(c.data(), dc, n * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < n; ++i) {
    CHECK(c[i] == a[i] + b[i], "element %zu is %g, expected %g", i, double(c[i]),
          double(a[i] + b[i]));
  }
  RUNTIME_OK(cudaFree(da));
  RUNTIME_OK(cudaFree(db));
  RUNTIME_OK(cudaFree(dc));
  return apps::ok("vector_add of %zu elements", n);
}
