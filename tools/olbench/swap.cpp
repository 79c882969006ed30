#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "pager/counters/files.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {
namespace {

struct Moved {
  uint64_t in = 0, out = 0, faults = 0, prefetches = 0, in_place = 0;
};

/// What the pager in this process has moved so far, by its counters.
Moved moved() {
  const auto reading = pager::readCounters(pager::countersFolders());
  for (const auto& process : reading.processes) {
    if (process.counters->pid != static_cast<uint32_t>(getpid())) continue;
    const auto& device = process.counters->devices[0];
    return {pager::valueOf(device.bytes_in), pager::valueOf(device.bytes_out), pager::valueOf(device.demand_faults),
            pager::valueOf(device.prefetches_useful), pager::valueOf(device.launches_in_place)};
  }
  throw std::runtime_error("the pager's counters of this process are not there: it does not run under the pager");
}

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

nlohmann::json measureSwap(const Options& options) {
  const Driver driver(options.driver);
  const CUfunction touch = driver.function(kTouchPtx, "touch");
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const uint64_t count = options.bytes / options.allocation;
  if (count < 2) throw std::runtime_error("--bytes has to hold two allocations at least");
  std::vector<CUdeviceptr> buffers(count);
  auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count; ++i) {
    driver.check(driver.cuMemAlloc(&buffers[i], options.allocation), "cuMemAlloc");
    driver.check(driver.cuMemsetD32(buffers[i], static_cast<unsigned>(i * 2654435761u), options.allocation / 4),
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
      driver.check(driver.cuLaunchKernel(touch, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
                   "cuLaunchKernel");
    }
  };
  // Two walks teach the order; then it is timed.
  walk();
  walk();
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  const Moved before = moved();
  begin = std::chrono::steady_clock::now();
  for (unsigned pass = 0; pass < options.passes; ++pass) walk();
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  const double seconds = secondsSince(begin);
  const Moved after = moved();
  uint32_t word = 0;
  const uint32_t walks = options.write ? options.passes + 2 : 0;
  for (uint64_t i = 0; i < count; ++i) {
    driver.check(driver.cuMemcpyDtoH(&word, buffers[i] + (i * 4096) % options.allocation, 4), "cuMemcpyDtoH");
    if (word != static_cast<uint32_t>(i * 2654435761u) + walks)
      throw std::runtime_error("the data is wrong after the walks");
  }
  return {{"seconds", seconds},
          {"fill_seconds", fill_seconds},
          {"walked_bytes", count * options.allocation * options.passes},
          {"bytes_in", after.in - before.in},
          {"bytes_out", after.out - before.out},
          {"demand_faults", after.faults - before.faults},
          {"prefetches_useful", after.prefetches - before.prefetches},
          {"launches_in_place", after.in_place - before.in_place}};
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
