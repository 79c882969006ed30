// C = A * B with shared-memory tiles, over a batch of matrices whose rows lie far apart (a leading
// dimension larger than the matrix), so that a small product touches a whole allocation.
#include "common.h"

constexpr int kTile = 16;
constexpr int kN = 96;

__global__ void multiply(const float* a, const float* b, float* c, int ld) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < kN; k += kTile) {
    tile_a[threadIdx.y][threadIdx.x] = a[size_t(row) * ld + k + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[size_t(k + threadIdx.y) * ld + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  c[size_t(row) * ld + column] = sum;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kMatrixBytes = size_t{2} << 20;
  const int ld = int(kMatrixBytes / 4 / kN);
  const size_t pitch = size_t(ld) * 4;
  const size_t batch =
      options.bytes / (3 * kMatrixBytes) > 0 ? options.bytes / (3 * kMatrixBytes) : 1;
  std::vector<std::vector<float>> ha(batch), hb(batch);
  std::vector<float*> a(batch), b(batch), c(batch);
  for (size_t m = 0; m < batch; ++m) {
    ha[m].resize(kN * kN);
    hb[m].resize(kN * kN);
    for (int i = 0; i < kN * kN; ++i) {
      ha[m][i] = float(int(apps::word(i, uint32_t(options.seed + 2 * m)) & 15) - 8);
      hb[m][i] = float(int(apps::word(i, uint32_t(options.seed + 2 * m + 1)) & 15) - 8);
    }
    RUNTIME_OK(cudaMalloc(&a[m], kMatrixBytes));
    RUNTIME_OK(cudaMalloc(&b[m], kMatrixBytes));
    RUNTIME_OK(cudaMalloc(&c[m], kMatrixBytes));
    RUNTIME_OK(cudaMemcpy2D(a[m], pitch, ha[m].data(), kN * 4, kN * 4, kN, cudaMemcpyHostToDevice));
    RUNTIME_OK(cudaMemcpy2D(b[m], pitch, hb[m].data(), kN * 4, kN * 4, kN, cudaMemcpyHostToDevice));
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t m = 0; m < batch; ++m) {
      multiply<<<dim3(kN / kTile, kN / kTile), dim3(kTile, kTile)>>>(a[m], b[m], c[m], ld);
    }
  }
  RUNTIME_OK(cudaGetLastError());
  std::vector<float> hc(kN * kN);
  for (size_t m = 0; m < batch; ++m) {
    RUNTIME_OK(cudaMemcpy2D(hc.data(), kN * 4, c[m], pitch, kN * 4, kN, cudaMemcpyDeviceToHost));
    for (int i = 0; i < kN; ++i) {
      for (int j = 0; j < kN; ++j) {
        float expected = 0;
        for (int k = 0; k < kN; ++k) expected += ha[m][i * kN + k] * hb[m][k * kN + j];
        CHECK(hc[i * kN + j] == expected, "product %zu at %d,%d is %g, expected %g", m, i, j,
              double(hc[i * kN + j]), double(expected));
      }
    }
  }
  return apps::ok("matmul_tiled: %zu products of %d x %d", batch, kN, kN);
}
