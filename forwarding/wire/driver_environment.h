// The settings for the driver in a program's environment; the driver runs elsewhere. Settings
// travel as numbers, never as the client's text: a worker's environment gets one of the words below
// or a small number. CUDA_LAUNCH_BLOCKING does not travel: the client obeys it, since a worker
// whose driver blocked in a launch would take in nothing of what the kernel may be waiting for.
// CUDA_DEVICE_ORDER is the gpunode's: its list of devices is one for all. CUDA_VISIBLE_DEVICES:
// forwarding/visible_devices.h. Thread-safety: functions of their arguments alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace olpager::forward {

inline constexpr std::array<std::string_view, 3> kModuleLoadings = {"DEFAULT", "EAGER", "LAZY"};
inline constexpr uint32_t kMostConnections = 32;

/// As a request for a session has it. 0: the program says nothing.
struct DriverEnvironment {
  uint32_t module_loading = 0;   // CUDA_MODULE_LOADING: one more than the word's index
  uint32_t max_connections = 0;  // CUDA_DEVICE_MAX_CONNECTIONS
};

/// True if a client may send these numbers.
bool isValid(const DriverEnvironment& told);
/// A worker's environment for a program that says this (valid): none of what the daemon's own
/// says about a program.
void setDriverEnvironment(std::vector<std::string>& environment, const DriverEnvironment& told);

}  // namespace olpager::forward
