#include "forwarding/wire/driver_environment.h"

#include <algorithm>

namespace olpager::forward {
namespace {

constexpr std::string_view kLaunchBlocking = "CUDA_LAUNCH_BLOCKING=",
                           kModuleLoading = "CUDA_MODULE_LOADING=",
                           kConnections = "CUDA_DEVICE_MAX_CONNECTIONS=";

}  // namespace

bool isValid(const DriverEnvironment& told) {
  return told.module_loading <= kModuleLoadings.size() && told.max_connections <= kMostConnections;
}

void setDriverEnvironment(std::vector<std::string>& environment, const DriverEnvironment& told) {
  std::erase_if(environment, [](const std::string& entry) {
    return entry.starts_with(kLaunchBlocking) || entry.starts_with(kModuleLoading) ||
           entry.starts_with(kConnections);
  });
  if (told.module_loading != 0)
    environment.push_back(std::string(kModuleLoading) +
                          std::string(kModuleLoadings[told.module_loading - 1]));
  if (told.max_connections != 0)
    environment.push_back(std::string(kConnections) + std::to_string(told.max_connections));
}

}  // namespace olpager::forward
