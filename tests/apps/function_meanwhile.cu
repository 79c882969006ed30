// A host function takes its time while other threads load modules and launch: the driver may not
// let them go on before the function is over (it drains a context for a module, has no room for
// more launches, loads a kernel), and the function must end all the same. So it must while yet
// another thread waits for its stream.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace {

const char* const kPtx =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing(.param .u64 at)\n{\n  "
    "ret;\n}\n";

std::atomic<unsigned> called{0};
void CUDART_CB takeTime(void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  ++called;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr unsigned kRounds = 8, kLaunches = 200;
  const size_t bytes = options.bytes / 4 & ~size_t{15};
  cudaStream_t slow, other;
  char *first, *second;
  RUNTIME_OK(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  RUNTIME_OK(cudaMalloc(&first, bytes));
  RUNTIME_OK(cudaMalloc(&second, bytes));
  apps::fill(first, bytes, uint32_t(options.seed), slow);
  apps::fill(second, bytes, uint32_t(options.seed) + 1, other);
  uint32_t added = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    RUNTIME_OK(cudaLaunchHostFunc(slow, takeTime, nullptr));
    apps::add(first, bytes, round, slow);
    std::thread waits([&] {
      if (round % 2 != 0) RUNTIME_OK(cudaStreamSynchronize(slow));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it waits by then
    std::thread loads([] {
      CUmodule module = nullptr;
      RUNTIME_OK(cudaSetDevice(0));
      CHECK(cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS, "%s", "a module was not loaded");
      CHECK(cuModuleUnload(module) == CUDA_SUCCESS, "%s", "nor unloaded");
    });
    for (unsigned i = 0; i < kLaunches; ++i)
      apps::add(second, bytes / kLaunches & ~size_t{15}, 1, other);
    loads.join();
    waits.join();
    added += round;
  }
  RUNTIME_OK(cudaStreamSynchronize(slow));
  RUNTIME_OK(cudaStreamSynchronize(other));
  CHECK(called == kRounds, "%u of %u host functions were called", called.load(), kRounds);
  apps::verify(first, bytes, uint32_t(options.seed), added, "behind the host functions");
  apps::verify(second, bytes / kLaunches & ~size_t{15}, uint32_t(options.seed) + 1,
               kRounds * kLaunches, "beside them");
  RUNTIME_OK(cudaFree(first));
  RUNTIME_OK(cudaFree(second));
  return apps::ok("function_meanwhile: %u functions", called.load());
}
