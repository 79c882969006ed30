#include <algorithm>
#include <chrono>

#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

nlohmann::json measureLaunch(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const Driver driver(options.driver);
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const unsigned most = *std::max_element(options.pointers.begin(), options.pointers.end());
  std::vector<CUdeviceptr> buffers(most);
  for (CUdeviceptr& buffer : buffers) {
    driver.check(driver.cuMemAlloc(&buffer, 2u << 20), "cuMemAlloc");
    driver.check(driver.cuMemsetD8(buffer, 0, 2u << 20), "cuMemsetD8");
  }
  for (unsigned i = 0; i < options.allocations; ++i) {
    CUdeviceptr other = 0;
    driver.check(driver.cuMemAlloc(&other, 4096), "cuMemAlloc");
  }
  std::vector<void*> parameters(most);
  for (unsigned i = 0; i < most; ++i) parameters[i] = &buffers[i];
  nlohmann::json result = nlohmann::json::object();
  for (const unsigned count : options.pointers) {
    const CUfunction function = driver.function(emptyKernelPtx("empty", count), "empty");
    const auto launch = [&] {
      return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr);
    };
    // A launch that finds the driver's queue full waits for the GPU: the queue is emptied before that.
    constexpr unsigned kBatch = 128;
    for (unsigned i = 0; i < 4 * kBatch; ++i) driver.check(launch(), "cuLaunchKernel");
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    std::vector<double> times;
    times.reserve(options.launches);
    while (times.size() < options.launches) {
      for (unsigned i = 0; i < kBatch; ++i) {
        const auto begin = Clock::now();
        const CUresult rc = launch();
        times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
        driver.check(rc, "cuLaunchKernel");
      }
      driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    std::sort(times.begin(), times.end());
    result[std::to_string(count)] = {{"median", times[times.size() / 2]}, {"p99", times[times.size() * 99 / 100]}};
  }
  return {{"device", driver.deviceName()}, {"nanoseconds", result}};
}

}  // namespace olpager::tools::bench
