#include "tools/olbench/filling.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "base/size.h"
#include "tools/olbench/driver.h"

namespace olpager::tools::bench {
namespace {

using nlohmann::json;
constexpr uint64_t kChunk = uint64_t{32} << 20;  // bytes
constexpr std::array<unsigned, 4> kThreads = {1, 2, 4, 8};

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// As the pager makes host chunks. The memory stays until the process ends.
void makeChunk(const Driver& driver) {
  constexpr uint64_t bytes = kChunk;
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
  const uint64_t chunks = options.bytes / kChunk;
  if (chunks == 0) throw std::runtime_error("--bytes has to hold a chunk of 32 MiB at least");
  makeChunk(driver);  // what the driver does once
  json rows = json::array();
  for (const unsigned threads : kThreads) {
    std::atomic<uint64_t> next{0};
    std::vector<std::future<void>> makers;
    const auto begin = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < threads; ++i)
      makers.push_back(std::async(std::launch::async, [&] {
        while (next.fetch_add(1) < chunks) makeChunk(driver);
      }));
    for (std::future<void>& maker : makers) maker.get();
    const double seconds = secondsSince(begin);
    rows.push_back(
        {{"threads", threads},
         {"gigabytes_per_second", static_cast<double>(chunks * kChunk) / seconds / 1e9}});
  }
  return {{"measurement", "filling"},
          {"device", driver.deviceName()},
          {"bytes", chunks * kChunk},
          {"rows", rows}};
}

void printFilling(const json& result) {
  base::print("first filling of host memory on {}, {} for each row\n",
              result["device"].get<std::string>(),
              base::formatSize(result["bytes"].get<uint64_t>()));
  base::print("{:>18} {:>8}\n", "threads that make", "GB/s");
  for (const json& row : result["rows"])
    base::print("{:>18} {:>8.2f}\n", row["threads"].get<unsigned>(),
                row["gigabytes_per_second"].get<double>());
}

}  // namespace olpager::tools::bench
