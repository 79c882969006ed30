// A table of pointers in device memory that nobody writes again, while its targets are freed and
// allocated anew: in another order, and with the table looked through while nothing is there. The
// same addresses lead to the new memory.
#include <algorithm>
#include <chrono>
#include <thread>

#include "common.h"

constexpr int kTargets = 12;

__global__ void setEntry(uint32_t** table, int at, uint32_t* target) { table[at] = target; }

__global__ void useTable(uint32_t* const* table, uint32_t count, uint32_t value) {
  uint32_t* target = table[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
    target[i] = target[i] * 3 + value + blockIdx.x;
}

// Memory at the same addresses. A driver may give them again only some time after they were freed.
bool allocateThere(std::vector<uint32_t*>& targets, std::vector<uint32_t*> wanted, size_t piece) {
  std::sort(wanted.begin(), wanted.end());
  for (int attempt = 0; attempt < 200; ++attempt) {
    for (uint32_t*& target : targets) RUNTIME_OK(cudaMalloc(&target, piece));
    std::vector<uint32_t*> now = targets;
    std::sort(now.begin(), now.end());
    if (now == wanted) return true;
    for (uint32_t* target : targets) RUNTIME_OK(cudaFree(target));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t piece = std::max<size_t>(options.bytes / 2 / kTargets, 2 << 20) & ~size_t{255};
  const uint32_t count = uint32_t(piece / 4);
  uint32_t** table;
  RUNTIME_OK(cudaMalloc(&table, 2 << 20));
  std::vector<uint32_t*> targets(kTargets),
      walls(kTargets);  // a wall keeps the holes of two neighbours apart
  for (int k = 0; k < kTargets; ++k) {
    RUNTIME_OK(cudaMalloc(&targets[k], piece));
    RUNTIME_OK(cudaMalloc(&walls[k], 2 << 20));
    setEntry<<<1, 1>>>(table, k, targets[k]);
  }
  apps::Pressure pressure(options.bytes / 2);
  pressure.apply();
  pressure.apply();  // the table has left VRAM, and what it names is known

  apps::Random random(options.seed);
  const std::vector<uint32_t*> named = targets;
  std::vector<uint32_t> got(count);
  for (int round = 0; round < 4; ++round) {
    for (int k = kTargets - 1; k > 0; --k) std::swap(targets[k], targets[random.below(k + 1)]);
    for (uint32_t* target : targets) RUNTIME_OK(cudaFree(target));
    if (round % 2 == 1) {
      // The table is written, and looked through with nothing behind its pointers.
      setEntry<<<1, 1>>>(table, kTargets, nullptr);
      pressure.apply();
      pressure.apply();
    }
    if (!allocateThere(targets, named, piece))
      apps::skip("this driver does not give the same addresses again");
    for (int k = 0; k < kTargets; ++k)
      apps::fill(named[k], piece, uint32_t(options.seed + round * kTargets + k));
    pressure.apply();
    pressure.apply();
    useTable<<<kTargets, 128>>>(table, count, 7);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaDeviceSynchronize());
    for (int k = 0; k < kTargets; ++k) {
      RUNTIME_OK(cudaMemcpy(got.data(), named[k], piece, cudaMemcpyDeviceToHost));
      const uint32_t seed = uint32_t(options.seed + round * kTargets + k);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t expected = (apps::word(i / 4, seed) + i % 4) * 3 + 7 + k;
        CHECK(got[i] == expected, "round %d target %d word %u is %#x, not %#x", round, k, i, got[i],
              expected);
      }
    }
  }
  pressure.check();
  return apps::ok("table_reused with %d targets of %zu KiB", kTargets, piece >> 10);
}
