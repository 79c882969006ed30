// One thread launches kernels that count in pinned memory, each the first of its kind, while the
// work of another one needs more memory than a device may have: what the first has launched is not
// lost when the second's work goes elsewhere.
#include <atomic>
#include <thread>

#include "common.h"

namespace {

constexpr uint32_t kShapes = 192;  // of blocks: one thread, two, ...

__global__ void count(uint32_t* words) {
  if (threadIdx.x == 0) words[0] += 1;
  if (threadIdx.x == blockDim.x - 1) words[1] += blockDim.x;
}

// Checks after each launch of one shape that none before it is missing.
void launchShapes(std::atomic<uint32_t>* done) {
  RUNTIME_OK(cudaSetDevice(0));
  uint32_t* words = nullptr;
  cudaStream_t stream;
  RUNTIME_OK(cudaMallocHost(&words, 4096));
  std::memset(words, 0, 4096);
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t threads = 0;
  for (uint32_t shape = 1; shape <= kShapes; ++shape) {
    count<<<1, shape, 0, stream>>>(words);
    RUNTIME_OK(cudaGetLastError());
    threads += shape;
    if (shape % 4 != 0) continue;
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(words[0] == shape, "after %u launches the count is %u", shape, words[0]);
    CHECK(words[1] == threads, "after %u launches the threads are %u, not %u", shape, words[1],
          threads);
    *done = shape;
  }
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaFreeHost(words));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Pressure pressure(options.bytes);
  std::atomic<uint32_t> done{0};
  std::thread beside(launchShapes, &done);
  uint32_t rounds = 0;
  for (; done < kShapes; ++rounds) {
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  beside.join();
  pressure.check();
  return apps::ok("moves_beside: %u shapes", kShapes);
}
