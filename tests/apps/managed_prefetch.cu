// Threads launch kernels that reach more managed memory than VRAM holds, while others prefetch some
// of it: what one brings the other needs elsewhere, and both get on.
#include <atomic>
#include <thread>

#include "common.h"

constexpr int kBuffers = 4, kLaunching = 8, kPrefetching = 2;
constexpr uint32_t kLaunches = 48, kUsed = 64;
constexpr size_t kPageWords = (2u << 20) / 4, kPages = 3, kBytes = kPages * kPageWords * 4;

struct Buffers {
  uint32_t* of[kBuffers];
};

__global__ void add(Buffers buffers, int which, int thread, uint32_t value) {
  buffers.of[which][blockIdx.x * kPageWords + thread * kUsed + threadIdx.x] += value;
}

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("managed memory is not prefetched");
  Buffers buffers;
  for (auto& buffer : buffers.of) {
    RUNTIME_OK(cudaMallocManaged(&buffer, kBytes));
    std::memset(buffer, 0, kBytes);
  }
  std::atomic<int> launching{kLaunching};
  std::vector<std::thread> threads;
  for (int t = 0; t < kLaunching; ++t)
    threads.emplace_back([&, t] {
      cudaStream_t stream;
      RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (uint32_t n = 0; n < kLaunches; ++n) {
        add<<<kPages, kUsed, 0, stream>>>(buffers, int(n % kBuffers), t, n + 1);
        RUNTIME_OK(cudaGetLastError());
        if (n % 3 == 0) RUNTIME_OK(cudaStreamSynchronize(stream));
      }
      RUNTIME_OK(cudaStreamSynchronize(stream));
      --launching;
    });
  for (int t = 0; t < kPrefetching; ++t)
    threads.emplace_back([&] {
      cudaStream_t stream;
      RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (uint32_t n = 0; launching > 0; ++n) {
        RUNTIME_OK(cudaMemPrefetchAsync(buffers.of[n % kBuffers], kBytes,
                                        cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, stream));
        if (n % 4 == 3) RUNTIME_OK(cudaStreamSynchronize(stream));
      }
      RUNTIME_OK(cudaStreamSynchronize(stream));
    });
  for (std::thread& thread : threads) thread.join();
  for (int k = 0; k < kBuffers; ++k) {
    uint32_t expected = 0;
    for (uint32_t n = uint32_t(k); n < kLaunches; n += kBuffers) expected += n + 1;
    for (size_t page = 0; page < kPages; ++page)
      for (uint32_t i = 0; i < kLaunching * kUsed; ++i)
        CHECK(buffers.of[k][page * kPageWords + i] == expected, "buffer %d, word %u is %u, not %u",
              k, i, buffers.of[k][page * kPageWords + i], expected);
  }
  return apps::ok("prefetches beside launches");
}
