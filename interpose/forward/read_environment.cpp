#include "interpose/forward/read_environment.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/text.h"

namespace olpager::forward {
namespace {

std::atomic<bool> g_blocks{false};

// Empty: it is not set, or to nothing.
std::string_view valueOf(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : std::string_view();
}

void leaveOut(const char* name, std::string_view text, const char* takes) {
  constexpr size_t kShown = 64;
  base::warnOnce(name, "%s=%s has no effect: it takes %s", name,
                 base::printable(text.substr(0, kShown)).c_str(), takes);
}

// A plain number within these bounds.
bool readNumber(std::string_view text, uint32_t least, uint32_t most, uint32_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= least &&
         *number <= most;
}

}  // namespace

DriverEnvironment driverEnvironment(bool own_gpunode) {
  DriverEnvironment told;
  if (const auto text = valueOf("CUDA_MODULE_LOADING"); !text.empty()) {
    const auto* const found = std::find(kModuleLoadings.begin(), kModuleLoadings.end(), text);
    if (found != kModuleLoadings.end()) {
      told.module_loading = static_cast<uint32_t>(found - kModuleLoadings.begin()) + 1;
    } else {
      leaveOut("CUDA_MODULE_LOADING", text, "DEFAULT, EAGER or LAZY");
    }
  }
  if (const auto text = valueOf("CUDA_DEVICE_MAX_CONNECTIONS"); !text.empty()) {
    if (uint32_t number = 0; readNumber(text, 1, kMostConnections, &number)) {
      told.max_connections = number;
    } else {
      leaveOut("CUDA_DEVICE_MAX_CONNECTIONS", text, "a number from 1 to 32");
    }
  }
  if (const auto text = valueOf("CUDA_DEVICE_ORDER");
      !own_gpunode && !text.empty() && text != "PCI_BUS_ID")
    leaveOut("CUDA_DEVICE_ORDER", text,
             "PCI_BUS_ID with a gpunode, which says the order of its devices (--device)");
  return told;
}

void readLaunchBlocking() {
  const auto text = valueOf("CUDA_LAUNCH_BLOCKING");
  uint32_t number = 0;
  const bool said = readNumber(text, 0, 1, &number);
  if (!text.empty() && !said) leaveOut("CUDA_LAUNCH_BLOCKING", text, "0 or 1");
  g_blocks.store(said && number == 1, std::memory_order_relaxed);
}

bool launchesBlock() { return g_blocks.load(std::memory_order_relaxed); }

}  // namespace olpager::forward
