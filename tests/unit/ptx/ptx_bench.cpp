// Speed of the PTX interpreter: thread instructions per second and core, for a few typical kernels.
#include <chrono>
#include <cstdio>

#include "tests/unit/ptx/harness.h"

int main(int argc, char** argv) {
  using namespace olpager::simgpu::ptx;
  using namespace olpager::simgpu::ptx::test;
  Device device(readFile(argc > 1 ? argv[1] : kernelFile("bench")));
  const auto buffer = device.memory.allocate(256U << 20);
  const auto other = device.memory.allocate(256U << 20);
  std::memset(device.memory.host<std::byte>(buffer), 1, 256U << 20);
  std::memset(device.memory.host<std::byte>(other), 2, 256U << 20);
  const double cores = device.executor->concurrency();
  const auto measure = [&](const char* name, double bytes, auto&&... args) {
    double best = 1e9;
    LaunchResult result;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      result = device.launch(name, args...);
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    if (!result.ok()) {
      std::fprintf(stderr, "%s\n", result.message.c_str());
      std::exit(1);
    }
    std::printf("%-12s %8.1f M instr/s per core   %7.2f GB/s   %8.2f ms\n", name,
                static_cast<double>(result.thread_instructions) / best / 1e6 / cores,
                bytes / best / 1e9, best * 1e3);
  };
  std::printf("%u cores\n", device.executor->concurrency());
  measure("alu_loop", 0, Dim3{64}, Dim3{256}, buffer, std::uint32_t{512});
  measure("float_loop", 0, Dim3{64}, Dim3{256}, buffer, std::uint32_t{512});
  measure("copy", 256.0 * 1048576, Dim3{128}, Dim3{256}, buffer, other, std::uint64_t{8U << 20});
  measure("reduce", 256.0 * 1048576, Dim3{256}, Dim3{256}, buffer, other, std::uint32_t{64U << 20});
  measure("page_hash", 256.0 * 1048576, Dim3{128}, Dim3{256}, buffer, other);
}
