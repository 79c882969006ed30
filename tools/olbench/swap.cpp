#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "pager/counters/files.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {
namespace {

using pager::valueOf;

/// What the pager in this process has counted so far.
pager::DeviceCounters const& counted(pager::CountersReading& reading) {
  reading = pager::readCounters(pager::countersFolders());
  for (const auto& process : reading.processes)
    if (process.counters->pid == static_cast<uint32_t>(getpid()))
      return process.counters->devices[0];
  throw std::runtime_error(
      "the pager's counters of this process are not there: it does not run under the pager");
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
  pager::CountersReading first, last;
  const pager::DeviceCounters& before = counted(first);
  begin = std::chrono::steady_clock::now();
  for (unsigned pass = 0; pass < options.passes; ++pass) walk();
  driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  const double seconds = secondsSince(begin);
  const pager::DeviceCounters& after = counted(last);
  pager::WaitHistogram waits{};
  for (unsigned i = 0; i < pager::kWaitBuckets; ++i)
    waits.buckets[i] = valueOf(after.fault_wait.buckets[i]) - valueOf(before.fault_wait.buckets[i]);
  uint32_t word = 0;
  const uint32_t walks = options.write ? options.passes + 2 : 0;
  for (uint64_t i = 0; i < count; ++i) {
    driver.check(driver.cuMemcpyDtoH(&word, buffers[i] + (i * 4096) % options.allocation, 4),
                 "cuMemcpyDtoH");
    if (word != static_cast<uint32_t>(i * 2654435761u) + walks)
      throw std::runtime_error("the data is wrong after the walks");
  }
  return {
      {"seconds", seconds},
      {"fill_seconds", fill_seconds},
      {"walked_bytes", count * options.allocation * options.passes},
      {"bytes_in", valueOf(after.bytes_in) - valueOf(before.bytes_in)},
      {"fetched_bytes", valueOf(after.fetched_bytes) - valueOf(before.fetched_bytes)},
      {"bytes_out", valueOf(after.bytes_out) - valueOf(before.bytes_out)},
      {"remote_in", valueOf(after.remote_in) - valueOf(before.remote_in)},
      {"remote_out", valueOf(after.remote_out) - valueOf(before.remote_out)},
      {"demand_faults", valueOf(after.demand_faults) - valueOf(before.demand_faults)},
      {"prefetches_useful", valueOf(after.prefetches_useful) - valueOf(before.prefetches_useful)},
      {"launches", valueOf(after.launches) - valueOf(before.launches)},
      {"launches_resident", valueOf(after.launches_resident) - valueOf(before.launches_resident)},
      {"launches_in_place", valueOf(after.launches_in_place) - valueOf(before.launches_in_place)},
      {"wait_p50_ns", pager::waitPercentile(waits, 0.50)},
      {"wait_p99_ns", pager::waitPercentile(waits, 0.99)}};
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
