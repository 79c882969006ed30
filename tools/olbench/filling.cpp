#include "tools/olbench/filling.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/size.h"
#include "pager/residency/first_touch.h"
#include "tools/olbench/driver.h"

namespace olpager::tools::bench {
namespace {

using nlohmann::json;
using pager::FirstTouch;
using pager::TouchedMemory;

constexpr std::array<unsigned, 5> kThreads = {0, 1, 2, 4, 8};

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// So many threads touch so many portions, which go back to the system. Throws where that refuses
/// one.
void touch(unsigned threads, uint64_t portions) {
  std::vector<std::optional<TouchedMemory>> touched(portions);
  std::atomic<uint64_t> next{0};
  {
    std::vector<std::jthread> running;
    for (unsigned i = 0; i < threads; ++i)
      running.emplace_back([&] {
        for (uint64_t portion; (portion = next.fetch_add(1)) < portions;)
          touched[portion] = TouchedMemory::of(FirstTouch::kPortion);
      });
  }
  for (const auto& portion : touched)
    if (!portion) throw std::runtime_error("the system refuses memory to touch");
}

/// As the pager makes host chunks. The memory stays until the process ends.
void makeChunk(const Driver& driver, uint64_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  driver.check(driver.cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate");
  driver.check(driver.cuMemAddressReserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
  driver.check(driver.cuMemMap(at, bytes, 0, handle, 0), "cuMemMap");
  std::array<CUmemAccessDesc, 2> access{};
  access[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access[1].location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  for (CUmemAccessDesc& one : access) one.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  driver.check(driver.cuMemSetAccess(at, bytes, access.data(), access.size()), "cuMemSetAccess");
}

}  // namespace

json measureFilling(const Options& options) {
  const Driver driver(options.driver);
  const uint64_t chunks = options.bytes / FirstTouch::kPortion;
  if (chunks == 0) throw std::runtime_error("--bytes has to hold a chunk of 32 MiB at least");
  makeChunk(driver, FirstTouch::kPortion);  // what the driver does once
  json rows = json::array();
  for (const unsigned threads : kThreads) {
    double in_driver = 0;
    const auto begin = std::chrono::steady_clock::now();
    constexpr uint64_t kWave = FirstTouch::kAhead / FirstTouch::kPortion;
    for (uint64_t i = 0; i < chunks; ++i) {
      if (threads > 0 && i % kWave == 0) touch(threads, std::min(kWave, chunks - i));
      const auto called = std::chrono::steady_clock::now();
      makeChunk(driver, FirstTouch::kPortion);
      in_driver += secondsSince(called);
    }
    const auto bytes = static_cast<double>(chunks * FirstTouch::kPortion);
    rows.push_back({{"threads", threads},
                    {"driver_gigabytes_per_second", bytes / in_driver / 1e9},
                    {"gigabytes_per_second", bytes / secondsSince(begin) / 1e9}});
  }
  return {{"measurement", "filling"},
          {"device", driver.deviceName()},
          {"bytes", chunks * FirstTouch::kPortion},
          {"rows", rows}};
}

void printFilling(const json& result) {
  base::print("first filling of host memory on {}, {} for each row\n",
              result["device"].get<std::string>(),
              base::formatSize(result["bytes"].get<uint64_t>()));
  base::print("{:>18} {:>14} {:>12}\n", "threads that touch", "driver, GB/s", "in all, GB/s");
  for (const json& row : result["rows"])
    base::print("{:>18} {:>14.2f} {:>12.2f}\n", row["threads"].get<unsigned>(),
                row["driver_gigabytes_per_second"].get<double>(),
                row["gigabytes_per_second"].get<double>());
}

}  // namespace olpager::tools::bench
