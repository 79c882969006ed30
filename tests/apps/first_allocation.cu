// The first memory of a program, allocated while a kernel watches pinned memory: nobody waits for
// the kernel, which ends only when the program says so.
#include <chrono>

#include "common.h"

__global__ void watch(volatile uint32_t* box, uint32_t limit) {
  uint32_t tries = 0;
  box[1] = 3;
  __threadfence_system();
  while (box[0] == 0 && ++tries < limit) {
  }
  box[1] = box[0] != 0 ? 1 : 2;  // 2: nobody spoke, so the kernel gave up and the test ends
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  uint32_t* box;
  RUNTIME_OK(cudaHostAlloc(&box, 8, cudaHostAllocMapped));
  box[0] = box[1] = 0;
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  watch<<<1, 1, 0, stream>>>(box, 100'000'000);
  RUNTIME_OK(cudaGetLastError());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (__atomic_load_n(&box[1], __ATOMIC_SEQ_CST) != 3) {
    (void)cudaStreamQuery(stream);
    CHECK(std::chrono::steady_clock::now() < deadline, "the kernel does not start");
  }
  void* pieces[3];
  const size_t sizes[3] = {4096, size_t{1} << 20, size_t{3} << 20};
  for (int i = 0; i < 3; ++i) RUNTIME_OK(cudaMalloc(&pieces[i], sizes[i]));
  const cudaError_t state = cudaStreamQuery(stream);
  __atomic_store_n(&box[0], 1, __ATOMIC_SEQ_CST);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(state == cudaErrorNotReady,
        "after the allocations the kernel's stream says %d, expected not ready", int(state));
  CHECK(box[1] == 1, "the kernel gave up before it was told to end");

  for (int i = 0; i < 3; ++i) apps::fill(pieces[i], sizes[i], uint32_t(options.seed + i));
  apps::Pressure pressure(options.bytes);
  pressure.apply();
  pressure.check();
  for (int i = 0; i < 3; ++i)
    apps::verify(pieces[i], sizes[i], uint32_t(options.seed + i), 0, "a first piece");
  return apps::ok("three allocations beside a running kernel");
}
