// Copies between devices of two gpunodes, as the program that makes them sees it.
#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <vector>

#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {

nlohmann::json measureBetween(const Options& options) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kLarge = 256u << 20, kSmall = 4096;
  const Driver driver(options.driver);
  int devices = 0;
  driver.check(driver.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices != 2) throw std::runtime_error("two gpunodes have to have a device each");
  CUcontext contexts[2] = {};
  CUdeviceptr memory[2] = {};
  for (int i = 0; i < 2; ++i) {
    driver.check(driver.cuDevicePrimaryCtxRetain(&contexts[i], i), "cuDevicePrimaryCtxRetain");
    driver.check(driver.cuCtxSetCurrent(contexts[i]), "cuCtxSetCurrent");
    driver.check(driver.cuMemAlloc(&memory[i], kLarge), "cuMemAlloc");
    driver.check(driver.cuMemsetD8(memory[i], static_cast<unsigned char>(i), kLarge), "cuMemsetD8");
    driver.check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  const auto median = [&](size_t bytes, unsigned turns) {
    std::vector<double> times;
    for (unsigned i = 0; i < turns + 2; ++i) {
      const auto begin = Clock::now();
      driver.check(driver.cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], bytes),
                   "cuMemcpyPeer");
      // The first ones make the link and the pinned memory.
      if (i >= 2)
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  nlohmann::json result;
  result["rate"] = static_cast<double>(kLarge) / median(kLarge, 5) / 1000;
  result["small"] = median(kSmall, std::max(options.launches / 20, 50u));
  return result;
}

}  // namespace olpager::tools::bench
