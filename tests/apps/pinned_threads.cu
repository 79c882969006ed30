// Threads with pinned memory of their own, which a kernel changes and a copy behind it in the same
// stream reads. No copy fails for what another thread is about to launch: others do nothing else.
#include <atomic>
#include <thread>

#include "common.h"

namespace {

constexpr uint32_t kThreads = 4, kLaunching = 4, kRounds = 500, kWords = 64;

__global__ void change(uint32_t* words, uint32_t value) {
  words[threadIdx.x] = value + threadIdx.x;
}

struct Mine {
  cudaStream_t stream;
  uint32_t *pinned, *there;  // for the CPU and for kernels
  Mine() {
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RUNTIME_OK(cudaHostAlloc(&pinned, 1 << 16, cudaHostAllocMapped));
    RUNTIME_OK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&there), pinned, 0));
  }
  Mine(const Mine&) = delete;
  Mine& operator=(const Mine&) = delete;
  ~Mine() {
    RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaFreeHost(pinned));
    RUNTIME_OK(cudaStreamDestroy(stream));
  }
};

void launch(const std::atomic<uint32_t>* working) {
  const Mine mine;
  for (uint32_t round = 0; *working != 0; ++round) {
    change<<<1, kWords, 0, mine.stream>>>(mine.there, round);
    RUNTIME_OK(cudaGetLastError());
    if (round % 16 == 15) RUNTIME_OK(cudaStreamSynchronize(mine.stream));
  }
}

void work(uint32_t number, uint32_t seed, std::atomic<uint32_t>* working) {
  const Mine mine;
  const cudaStream_t stream = mine.stream;
  uint32_t* device;
  RUNTIME_OK(cudaMalloc(&device, 1 << 16));
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t value = seed + number * 1000003 + round;
    uint32_t got[kWords];
    change<<<1, kWords, 0, stream>>>(mine.there, value);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaMemcpyAsync(device, mine.pinned, sizeof got, cudaMemcpyHostToDevice, stream));
    RUNTIME_OK(cudaMemcpyAsync(got, device, sizeof got, cudaMemcpyDeviceToHost, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (uint32_t i = 0; i < kWords; ++i)
      CHECK(got[i] == value + i, "thread %u, round %u: word %u is %u, not %u", number, round, i,
            got[i], value + i);
  }
  RUNTIME_OK(cudaFree(device));
  --*working;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  RUNTIME_OK(cudaFree(nullptr));
  std::atomic<uint32_t> working{kThreads};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i)
    threads.emplace_back(work, i, uint32_t(options.seed), &working);
  for (uint32_t i = 0; i < kLaunching; ++i) threads.emplace_back(launch, &working);
  for (std::thread& thread : threads) thread.join();
  return apps::ok("pinned_threads: %u threads, %u rounds", kThreads, kRounds);
}
