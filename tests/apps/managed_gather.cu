// Eight CPU threads gather words of managed memory while launches use it without a pause. Each
// thread adds to words of its own, kernels to words beside them.
#include <atomic>
#include <thread>

#include "common.h"

constexpr size_t kOwn = 512;  // of so many words the first is a thread's, the second the kernels'

__global__ void addOthers(uint32_t* words, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i * kOwn + 1] += value;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  const size_t bytes = (options.bytes / 2) & ~size_t{4095}, words = bytes / 4;
  uint32_t* data;
  RUNTIME_OK(cudaMallocManaged(&data, bytes));
  apps::fill(data, bytes, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  constexpr unsigned kThreads = 8, kGathers = 5;
  std::atomic<bool> over{false};
  std::atomic<uint32_t> launches{0};
  std::thread storm([&] {
    while (!over) {
      addOthers<<<apps::blocks(words / kOwn), 256>>>(data, uint32_t(words / kOwn), 1);
      RUNTIME_OK(cudaGetLastError());
      if (++launches % 4 == 0) RUNTIME_OK(cudaDeviceSynchronize());
    }
    RUNTIME_OK(cudaDeviceSynchronize());
  });
  std::vector<std::vector<uint32_t>> added(kThreads, std::vector<uint32_t>(words / kOwn, 0));
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      apps::Random random(options.seed * 100 + t);
      for (unsigned g = 0; g < kGathers; ++g) {
        // A word in each of eight places, all over the memory; those of thread t are t modulo 8.
        for (unsigned i = 0; i < 8; ++i) {
          const size_t slot = random.below(words / kOwn) / kThreads * kThreads + t;
          if (slot >= words / kOwn) continue;
          const uint32_t value = uint32_t(random.below(100));
          __atomic_fetch_add(&data[slot * kOwn], value, __ATOMIC_RELAXED);
          added[t][slot] += value;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  storm.join();
  for (size_t i = 0; i < words; ++i) {
    const uint32_t expected = apps::word(uint32_t(i / 4), seed) + uint32_t(i % 4) +
                              (i % kOwn == 0   ? added[i / kOwn % kThreads][i / kOwn]
                               : i % kOwn == 1 ? launches.load()
                                               : 0);
    CHECK(data[i] == expected, "word %zu is %#x, expected %#x after %u launches", i, data[i],
          expected, launches.load());
  }
  RUNTIME_OK(cudaFree(data));
  return apps::ok("%u threads beside %u launches on %zu KiB", kThreads, launches.load(),
                  bytes >> 10);
}
