#include <chrono>
#include <stdexcept>

#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

nlohmann::json measureResident(const Options& options) {
  const Driver driver(options.driver);
  const CUfunction stream_kernel = driver.function(kTouchPtx, "stream");
  const CUfunction small_kernel = driver.function(emptyKernelPtx("empty", 8), "empty");
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const uint64_t count = options.bytes / options.allocation;
  if (count < 2) throw std::runtime_error("--bytes has to hold two allocations at least");
  std::vector<CUdeviceptr> buffers(count);
  for (CUdeviceptr& buffer : buffers) {
    driver.check(driver.cuMemAlloc(&buffer, options.allocation), "cuMemAlloc");
    driver.check(driver.cuMemsetD8(buffer, 1, options.allocation), "cuMemsetD8");
  }
  const auto timed = [&](auto&& work) {
    work();
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned pass = 0; pass < options.passes; ++pass) work();
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double bandwidth = timed([&] {
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t bytes = options.allocation;
      void* parameters[] = {&buffers[(i + 1) % count], &buffers[i], &bytes};
      const auto blocks = static_cast<unsigned>((options.allocation / 16 + 255) / 256);
      driver.check(driver.cuLaunchKernel(stream_kernel, blocks, 1, 1, 256, 1, 1, 0, stream,
                                         parameters, nullptr),
                   "cuLaunchKernel");
    }
  });
  const double launches = timed([&] {
    for (unsigned i = 0; i < options.launches; ++i) {
      void* parameters[8];
      for (unsigned k = 0; k < 8; ++k) parameters[k] = &buffers[(i + k) % count];
      driver.check(
          driver.cuLaunchKernel(small_kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
          "cuLaunchKernel");
    }
  });
  return {{"device", driver.deviceName()},
          {"bandwidth_seconds", bandwidth},
          {"launch_seconds", launches}};
}

}  // namespace olpager::tools::bench
