#include "tools/olbench/managed.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <vector>

#include "base/format.h"
#include "tools/olbench/child.h"
#include "tools/olbench/driver.h"

namespace olpager::tools::bench {

namespace {

using nlohmann::json;

constexpr uint64_t kPage = uint64_t{2} << 20;
constexpr unsigned kMostFaults = 64;

double secondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Managed memory, and kernels that touch it.
class Managed {
 public:
  Managed(const Driver& driver, uint64_t bytes)
      : driver_(driver),
        touch_(driver.function(kTouchPtx, "touch")),
        bytes_(bytes / kPage * kPage) {
    if (bytes_ == 0) throw std::runtime_error("--bytes has to be 2 MiB at least");
    driver_.check(driver_.cuMemAllocManaged(&address_, bytes_, CU_MEM_ATTACH_GLOBAL),
                  "cuMemAllocManaged");
  }
  ~Managed() { driver_.cuMemFree(address_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;

  uint64_t bytes() const { return bytes_; }
  uint64_t words() const { return bytes_ / sizeof(uint32_t); }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CPU and GPU use the same address
  uint32_t* data() const { return reinterpret_cast<uint32_t*>(address_); }

  /// A kernel that adds one to each word of [offset, + bytes), or only reads it; waits for it.
  void touch(uint64_t offset, uint64_t bytes, bool write) const {
    CUdeviceptr at = address_ + offset;
    unsigned stride = sizeof(uint32_t), writes = write ? 1 : 0;
    void* parameters[] = {&at, &bytes, &stride, &writes};
    const auto blocks = static_cast<unsigned>((bytes / stride + 255) / 256);
    driver_.check(
        driver_.cuLaunchKernel(touch_, blocks, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr),
        "cuLaunchKernel");
    driver_.check(driver_.cuCtxSynchronize(), "cuCtxSynchronize");
  }

  /// Every word is its number plus `added`, as the CPU sees it.
  void expect(uint32_t added) const {
    for (uint64_t i = 0; i < words(); ++i)
      if (data()[i] != static_cast<uint32_t>(i) + added)
        throw std::runtime_error(base::format("managed memory: word {} is wrong", i));
  }

 private:
  const Driver& driver_;
  CUfunction touch_;
  uint64_t bytes_;
  CUdeviceptr address_ = 0;
};

}  // namespace

json measureManaged(const Options& options) {
  const Driver driver(options.driver);
  const Managed memory(driver, options.bytes);
  const auto rate = [&](double seconds) {
    return static_cast<double>(memory.bytes()) / seconds / 1e9;
  };
  json result{{"device", driver.deviceName()}};
  const auto fill = [&] {
    for (uint64_t i = 0; i < memory.words(); ++i) memory.data()[i] = static_cast<uint32_t>(i);
  };
  fill();
  result["gpu_touch"] = rate(secondsOf([&] { memory.touch(0, memory.bytes(), true); }));
  result["cpu_read"] = rate(secondsOf([&] { memory.expect(1); }));
  result["gpu_again"] = rate(secondsOf([&] { memory.touch(0, memory.bytes(), true); }));
  fill();
  memory.touch(0, memory.bytes(), true);
  // A page that the GPU wrote last, and has alone.
  const auto faults =
      static_cast<unsigned>(std::min<uint64_t>(kMostFaults, memory.bytes() / kPage));
  std::vector<double> each;
  for (unsigned fault = 0; fault < faults; ++fault) {
    memory.touch(fault * kPage, sizeof(uint32_t), true);
    const volatile uint32_t* const word = memory.data() + fault * (kPage / sizeof(uint32_t));
    uint32_t got = 0;
    each.push_back(secondsOf([&] { got = *word; }) * 1e6);
    if (got != static_cast<uint32_t>(fault * (kPage / sizeof(uint32_t))) + 2)
      throw std::runtime_error(base::format("managed memory: page {} is wrong", fault));
  }
  result["fault_us"] = medianOf(each);
  // The limits: copies from and to pinned memory.
  void* pinned = nullptr;
  CUdeviceptr device = 0;
  const uint64_t copied = std::min<uint64_t>(memory.bytes(), uint64_t{256} << 20);
  driver.check(driver.cuMemHostAlloc(&pinned, copied, 0), "cuMemHostAlloc");
  driver.check(driver.cuMemAlloc(&device, copied), "cuMemAlloc");
  const auto copy = [&] {
    driver.check(driver.cuMemcpyHtoD(device, pinned, copied), "cuMemcpyHtoD");
  };
  copy();
  result["pinned_copy"] = static_cast<double>(copied) / secondsOf(copy) / 1e9;
  std::vector<double> pages(16);
  for (double& page : pages)
    page = secondsOf(
               [&] { driver.check(driver.cuMemcpyDtoH(pinned, device, kPage), "cuMemcpyDtoH"); }) *
           1e6;
  result["page_copy_us"] = medianOf(pages);
  driver.cuMemFree(device);
  driver.cuMemFreeHost(pinned);
  return result;
}

json measureManagedWalk(const Options& options) {
  const Driver driver(options.driver);
  const Managed memory(driver, options.bytes);
  const auto walk = [&] {
    for (uint64_t at = 0; at < memory.bytes(); at += options.allocation)
      memory.touch(at, std::min(options.allocation, memory.bytes() - at), true);
  };
  walk();
  const double seconds = secondsOf([&] {
    for (unsigned pass = 0; pass < options.passes; ++pass) walk();
  });
  return {{"walked", static_cast<double>(memory.bytes()) * options.passes / seconds / 1e9}};
}

json managed(const Options& options) {
  constexpr const char* kFigures[] = {"gpu_touch", "cpu_read",    "gpu_again",
                                      "fault_us",  "pinned_copy", "page_copy_us"};
  std::vector<json> native, paged;
  for (unsigned round = 0; round < options.rounds; ++round) {
    native.push_back(runChild(With::kNative, "managed", options));
    paged.push_back(runChild(With::kPager, "managed", options));
  }
  json result{
      {"measurement", "managed"}, {"device", native[0]["device"]}, {"bytes", options.bytes}};
  for (const char* figure : kFigures) {
    const auto of = [&](const std::vector<json>& runs) {
      std::vector<double> values;
      values.reserve(runs.size());
      for (const json& run : runs) values.push_back(run[figure].get<double>());
      return medianOf(values);
    };
    result["native"][figure] = of(native);
    result["pager"][figure] = of(paged);
  }
  // More than VRAM, by the pager alone: the driver is not asked to.
  Options larger = options;
  larger.vram = std::max(options.bytes / 4, 4 * kPage);
  larger.allocation = larger.vram / 4;
  result["walk"] = runChild(With::kPager, "managed walk", larger);
  result["walk"]["vram"] = larger.vram;
  return result;
}

void printManaged(const json& result) {
  const json &native = result["native"], &paged = result["pager"];
  base::print("managed memory on {}, {} MiB\n", result["device"].get<std::string>(),
              result["bytes"].get<uint64_t>() >> 20);
  base::print("{:<44} {:>10} {:>10} {:>10}\n", "", "driver", "pager", "limit");
  const auto row = [&](const char* what, const char* figure, const char* limit) {
    base::print(
        "{:<44} {:>10.2f} {:>10.2f} {:>10}\n", what, native[figure].get<double>(),
        paged[figure].get<double>(),
        limit == nullptr ? std::string() : base::format("{:.2f}", paged[limit].get<double>()));
  };
  row("GPU touches what the CPU wrote, GB/s", "gpu_touch", "pinned_copy");
  row("CPU reads in order what the GPU wrote, GB/s", "cpu_read", nullptr);
  row("GPU touches what the CPU has only read, GB/s", "gpu_again", nullptr);
  row("CPU fault on a page of 2 MiB in VRAM, us", "fault_us", "page_copy_us");
  base::print("kernels walk it with {} MiB of VRAM: {:.2f} GB/s\n",
              result["walk"]["vram"].get<uint64_t>() >> 20, result["walk"]["walked"].get<double>());
}

}  // namespace olpager::tools::bench
