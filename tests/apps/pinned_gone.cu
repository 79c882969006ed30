// Memory that kernels and the CPU both use goes (pinned, managed, registered) while another thread
// launches on, also memory that a copy in another context's stream is still to write: what the
// program has freed or unregistered nobody writes any more, and nobody is told of it.
#include <cuda.h>

#include <atomic>
#include <thread>

#include "common.h"

namespace {

constexpr uint32_t kWords = 16384;

__global__ void bump(uint32_t* words) { words[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
__global__ void turn(uint32_t* word, uint32_t turns) {
  uint32_t x = *word;
  for (uint32_t i = 0; i < turns; ++i) x = x * 1664525u + 1013904223u;
  *word = x;
}

// Launches on memory of its own until it is told to stop.
class Beside {
 public:
  Beside() : thread_([this] { run(); }) {}
  void end() {
    stop_ = true;
    thread_.join();
  }

 private:
  void run() {
    RUNTIME_OK(cudaSetDevice(0));
    uint32_t* words = nullptr;
    cudaStream_t stream;
    RUNTIME_OK(cudaMallocHost(&words, 4096));
    std::memset(words, 0, 4096);
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t launches = 0;
    while (!stop_) {
      bump<<<1, 32, 0, stream>>>(words);
      RUNTIME_OK(cudaGetLastError());
      if (++launches % 16 != 0) continue;
      RUNTIME_OK(cudaStreamSynchronize(stream));
      CHECK(words[31] == launches, "beside: %u launches, and the word is %u", launches, words[31]);
    }
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(words[0] == launches, "beside: %u launches, and the word is %u in the end", launches,
          words[0]);
    RUNTIME_OK(cudaStreamDestroy(stream));
    RUNTIME_OK(cudaFreeHost(words));
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// `far`: the device's address of it. The CPU changes it, a kernel does, and the CPU again, for
// nobody.
void use(uint32_t* near, uint32_t* far, uint32_t round, const char* what) {
  for (uint32_t i = 0; i < kWords; ++i) near[i] = i * 3 + round;
  bump<<<kWords / 256, 256>>>(far);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(near[i] == i * 3 + round + 1, "%s, round %u: word %u is %u", what, round, i, near[i]);
  for (uint32_t i = 0; i < kWords; ++i) near[i] = i + round;
}

// A copy in a stream of one context is still to write what is unregistered in another.
void unregisteredElsewhere() {
  CUcontext first = nullptr, second = nullptr;
  CUdevice device = 0;
  DRIVER_OK(cuCtxGetCurrent(&first));
  DRIVER_OK(cuCtxGetDevice(&device));
  const size_t bytes = kWords * 4;
  auto* const near = static_cast<uint32_t*>(std::aligned_alloc(4096, bytes));
  std::memset(near, 1, bytes);
  RUNTIME_OK(cudaHostRegister(near, bytes, cudaHostRegisterPortable));
  uint32_t* far = nullptr;
  cudaStream_t stream;
  RUNTIME_OK(cudaMalloc(&far, bytes));
  RUNTIME_OK(cudaMemset(far, 3, bytes));
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaDeviceSynchronize());
#if CUDA_VERSION >= 13000
  DRIVER_OK(cuCtxCreate(&second, nullptr, 0, device));
#else
  DRIVER_OK(cuCtxCreate(&second, 0, device));
#endif
  DRIVER_OK(cuCtxSetCurrent(first));
  turn<<<1, 1, 0, stream>>>(far, 20'000'000);
  RUNTIME_OK(cudaMemcpyAsync(near, far + 1, bytes - 4, cudaMemcpyDeviceToHost, stream));
  DRIVER_OK(cuCtxSetCurrent(second));
  DRIVER_OK(cuMemHostUnregister(near));
  std::memset(near, 7, bytes);
  DRIVER_OK(cuCtxSetCurrent(first));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(near[i] == 0x07070707, "word %u of memory that was unregistered was overwritten with %#x",
          i, near[i]);
  DRIVER_OK(cuCtxDestroy(second));
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaFree(far));
  std::free(near);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr uint32_t kRounds = 60;
  apps::Pressure pressure(options.bytes);
  Beside beside;
  for (uint32_t r = 0; r < kRounds; ++r) {
    const uint32_t round = r + uint32_t(options.seed);
    if (r % 16 == 0) pressure.apply();
    uint32_t *pinned = nullptr, *managed = nullptr, *mapped = nullptr;
    RUNTIME_OK(cudaMallocHost(&pinned, kWords * 4));
    use(pinned, pinned, round, "pinned");
    RUNTIME_OK(cudaFreeHost(pinned));
    auto* const own = static_cast<uint32_t*>(std::aligned_alloc(4096, kWords * 4));
    RUNTIME_OK(cudaHostRegister(own, kWords * 4, cudaHostRegisterMapped));
    RUNTIME_OK(cudaHostGetDevicePointer(&mapped, own, 0));
    use(own, mapped, round, "registered");
    RUNTIME_OK(cudaHostUnregister(own));
    std::free(own);
    // Devices may forbid the CPU managed memory while a kernel runs, whoever launched it.
    int concurrent = 0;
    RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    RUNTIME_OK(cudaMallocManaged(&managed, kWords * 4, cudaMemAttachGlobal));
    if (concurrent != 0) {
      use(managed, managed, round, "managed");
    } else {
      bump<<<kWords / 256, 256>>>(managed);
      RUNTIME_OK(cudaDeviceSynchronize());
    }
    RUNTIME_OK(cudaFree(managed));
  }
  beside.end();
  pressure.check();
  unregisteredElsewhere();
  return apps::ok("pinned_gone: %u rounds", kRounds);
}
