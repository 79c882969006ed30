#include <algorithm>
#include <chrono>

#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

nlohmann::json measureLaunch(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const Driver driver(options.driver);
  CUstream streams[2] = {};
  for (CUstream& stream : streams)
    driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto synchronize = [&] {
    for (const CUstream stream : streams)
      driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
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
  if (options.paging) {  // what the launches use comes back with the first of them
    for (uint64_t bytes = 0; bytes < 2 * options.vram; bytes += options.allocation) {
      CUdeviceptr other = 0;
      driver.check(driver.cuMemAlloc(&other, options.allocation), "cuMemAlloc");
      driver.check(driver.cuMemsetD8(other, 1, options.allocation), "cuMemsetD8");
    }
  }
  std::vector<void*> parameters(most);
  for (unsigned i = 0; i < most; ++i) parameters[i] = &buffers[i];
  // Launches take the first `used` streams in turns.
  const auto measure = [&](unsigned pointers, unsigned used) -> nlohmann::json {
    const CUfunction function = driver.function(emptyKernelPtx("empty", pointers), "empty");
    unsigned turn = 0;
    const auto launch = [&] {
      const CUstream stream = streams[turn++ % used];
      return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(),
                                   nullptr);
    };
    // A launch that finds the driver's queue full waits for the GPU: the queue is emptied before
    // that.
    constexpr unsigned kBatch = 128;
    for (unsigned i = 0; i < 4 * kBatch; ++i) driver.check(launch(), "cuLaunchKernel");
    synchronize();
    std::vector<double> times;
    times.reserve(options.launches);
    while (times.size() < options.launches) {
      for (unsigned i = 0; i < kBatch; ++i) {
        const auto begin = Clock::now();
        const CUresult rc = launch();
        times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
        driver.check(rc, "cuLaunchKernel");
      }
      synchronize();
    }
    std::sort(times.begin(), times.end());
    return {{"median", times[times.size() / 2]}, {"p99", times[times.size() * 99 / 100]}};
  };
  nlohmann::json result = nlohmann::json::object();
  for (const LaunchRow& row : launchRows(options))
    result[row.key()] = measure(row.pointers, row.streams);
  return {{"device", driver.deviceName()}, {"nanoseconds", result}};
}

std::vector<LaunchRow> launchRows(const Options& options) {
  std::vector<LaunchRow> rows;
  for (const unsigned pointers : options.pointers) rows.push_back({pointers, 1});
  if (!options.pointers.empty()) rows.push_back({options.pointers[options.pointers.size() / 2], 2});
  return rows;
}

}  // namespace olpager::tools::bench
