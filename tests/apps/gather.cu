// A table of which each launch reads a few rows of 16 KiB, chosen by indices in memory, while other
// buffers take turns in VRAM: fetching the whole table each time would be the wrong choice, reading
// it in place the right one.
#include "common.h"

constexpr uint32_t kRowBytes = 16384;

__global__ void gatherRows(const uint4* table, const uint32_t* indices, uint4* out) {
  const uint4* row = table + size_t(indices[blockIdx.x]) * (kRowBytes / 16);
  for (uint32_t i = threadIdx.x; i < kRowBytes / 16; i += blockDim.x)
    out[size_t(blockIdx.x) * (kRowBytes / 16) + i] = row[i];
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t table_bytes = options.bytes / 2 & ~size_t{kRowBytes - 1};
  const uint32_t rows = uint32_t(table_bytes / kRowBytes);
  constexpr uint32_t kPicked = 8, kRounds = 12;
  char *table, *out;
  uint32_t* indices;
  RUNTIME_OK(cudaMalloc(&table, table_bytes));
  RUNTIME_OK(cudaMalloc(&out, kPicked * kRowBytes));
  RUNTIME_OK(cudaMalloc(&indices, kPicked * 4));
  apps::fill(table, table_bytes, seed);
  apps::Pressure pressure(options.bytes / 2);
  apps::Random random(options.seed);
  std::vector<uint32_t> got(kPicked * kRowBytes / 4);
  for (uint32_t round = 0; round < kRounds; ++round) {
    uint32_t picked[kPicked];
    for (uint32_t& p : picked) p = uint32_t(random.below(rows));
    RUNTIME_OK(cudaMemcpy(indices, picked, sizeof picked, cudaMemcpyHostToDevice));
    gatherRows<<<kPicked, 256>>>(reinterpret_cast<uint4*>(table), indices,
                                 reinterpret_cast<uint4*>(out));
    pressure.apply();
    RUNTIME_OK(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
    for (uint32_t k = 0; k < kPicked; ++k) {
      for (uint32_t i = 0; i < kRowBytes / 4; ++i) {
        const uint32_t expected = apps::word(picked[k] * (kRowBytes / 16) + i / 4, seed) + i % 4;
        const uint32_t value = got[k * (kRowBytes / 4) + i];
        CHECK(value == expected, "round %u row %u word %u is %#x, expected %#x", round, picked[k],
              i, value, expected);
      }
    }
  }
  pressure.check();
  return apps::ok("gather of %u rows out of %u, %u times", kPicked, rows, kRounds);
}
