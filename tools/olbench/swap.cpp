#include <chrono>
#include <stdexcept>

#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"
#include "tools/olbench/paging.h"

namespace olpager::tools::bench {

nlohmann::json measureSwap(const Options& options) {
  const Driver driver(options.driver);
  const CUfunction touch = driver.function(kTouchPtx, "touch");
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const uint64_t count = options.bytes / options.allocation;
  if (count < 2) throw std::runtime_error("--bytes has to hold two allocations at least");
  std::vector<CUdeviceptr> buffers(count);
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count; ++i) {
    driver.check(driver.cuMemAlloc(&buffers[i], options.allocation), "cuMemAlloc");
    driver.check(driver.cuMemsetD32(buffers[i], static_cast<unsigned>(i * 2654435761u),
                                    options.allocation / 4),
                 "cuMemsetD32");
  }
  driver.check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  const double fill_seconds = secondsSince(begin);
  uint32_t stride = 4096;
  uint32_t write = options.write ? 1 : 0;
  const auto walk = [&] {
    for (CUdeviceptr& buffer : buffers) {
      uint64_t bytes = options.allocation;
      void* parameters[] = {&buffer, &bytes, &stride, &write};
      const auto blocks = static_cast<unsigned>((options.allocation / stride + 255) / 256);
      driver.check(
          driver.cuLaunchKernel(touch, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
          "cuLaunchKernel");
    }
  };
  // Two walks teach the order; then it is timed.
  walk();
  walk();
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  const Counted counted;
  for (unsigned pass = 0; pass < options.passes; ++pass) walk();
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  nlohmann::json result = counted.sinceThen();
  uint32_t word = 0;
  const uint32_t walks = options.write ? options.passes + 2 : 0;
  for (uint64_t i = 0; i < count; ++i) {
    driver.check(driver.cuMemcpyDtoH(&word, buffers[i] + (i * 4096) % options.allocation, 4),
                 "cuMemcpyDtoH");
    if (word != static_cast<uint32_t>(i * 2654435761u) + walks)
      throw std::runtime_error("the data is wrong after the walks");
  }
  result["fill_seconds"] = fill_seconds;
  result["walked_bytes"] = count * options.allocation * options.passes;
  return result;
}

nlohmann::json measureCopy(const Options& options) {
  const Driver driver(options.driver);
  const uint64_t bytes = std::max<uint64_t>(options.allocation, 1u << 20);
  constexpr int kCopies = 32;
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  void* host = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  driver.check(driver.cuMemAlloc(&device, bytes), "cuMemAlloc");
  driver.check(driver.cuMemHostAlloc(&host, bytes, 0), "cuMemHostAlloc");
  double best = 0;
  for (unsigned round = 0; round < 4; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i)
      driver.check(driver.cuMemcpyHtoDAsync(device, host, bytes, stream), "cuMemcpyHtoDAsync");
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    best = std::max(best, static_cast<double>(bytes) * kCopies / secondsSince(begin) / 1e9);
  }
  return {{"device", driver.deviceName()}, {"gigabytes_per_second", best}};
}

}  // namespace olpager::tools::bench
