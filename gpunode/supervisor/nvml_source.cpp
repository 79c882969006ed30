#include "gpunode/supervisor/nvml_source.h"

#include <dlfcn.h>

#include "base/log.h"
#include "interpose/api/nvml_abi.h"

namespace olpager::gpunode {
namespace {

using namespace nvml;

}  // namespace

template <typename Function>
Function* NvmlSource::symbol(const char* name) const {
  return reinterpret_cast<Function*>(dlsym(library_, name));
}

NvmlSource::NvmlSource() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  auto* const init = symbol<int()>("nvmlInit_v2");
  const int result = init != nullptr ? init() : kFunctionNotFound;
  if (result == kSuccess) return;
  base::logWarn(
      "NVML at the gpunode can't start (%d): utilisation, temperature and power are not known",
      result);
  dlclose(library_);
  library_ = nullptr;
}

NvmlSource::~NvmlSource() {
  if (library_ == nullptr) return;
  if (auto* const shutdown = symbol<int()>("nvmlShutdown"); shutdown != nullptr) (void)shutdown();
  dlclose(library_);
}

std::string NvmlSource::driverVersion() const {
  auto* const ask = there() ? symbol<int(char*, unsigned)>("nvmlSystemGetDriverVersion") : nullptr;
  char text[kVersionText] = {};
  return ask != nullptr && ask(text, sizeof text) == kSuccess ? text : "";
}

bool NvmlSource::measure(status::Device& device) const {
  auto* const find =
      there() ? symbol<int(const char*, DeviceHandle*)>("nvmlDeviceGetHandleByUUID") : nullptr;
  DeviceHandle handle = nullptr;
  if (find == nullptr || find(device.uuid.c_str(), &handle) != kSuccess) return false;
  Memory memory{};
  auto* const ask_memory = symbol<int(DeviceHandle, Memory*)>("nvmlDeviceGetMemoryInfo");
  if (ask_memory == nullptr || ask_memory(handle, &memory) != kSuccess) return false;
  device.total = memory.total;
  device.used = memory.used;
  device.free = memory.free;
  const auto number = [&](const char* name, uint32_t& into) {
    unsigned value = 0;
    auto* const ask = symbol<int(DeviceHandle, unsigned*)>(name);
    into = ask != nullptr && ask(handle, &value) == kSuccess ? value : status::kUnknown;
  };
  const auto numberOf = [&](const char* name, unsigned which, uint32_t& into) {
    unsigned value = 0;
    auto* const ask = symbol<int(DeviceHandle, unsigned, unsigned*)>(name);
    into = ask != nullptr && ask(handle, which, &value) == kSuccess ? value : status::kUnknown;
  };
  number("nvmlDeviceGetMinorNumber", device.minor);
  number("nvmlDeviceGetPowerUsage", device.power_mw);
  number("nvmlDeviceGetEnforcedPowerLimit", device.power_limit_mw);
  numberOf("nvmlDeviceGetTemperature", kTemperatureGpu, device.temperature);
  numberOf("nvmlDeviceGetClockInfo", kClockSm, device.sm_mhz);
  numberOf("nvmlDeviceGetClockInfo", kClockMemory, device.memory_mhz);
  Utilization use{};
  auto* const ask_use = symbol<int(DeviceHandle, Utilization*)>("nvmlDeviceGetUtilizationRates");
  const bool used = ask_use != nullptr && ask_use(handle, &use) == kSuccess;
  device.gpu_percent = used ? use.gpu : status::kUnknown;
  device.memory_percent = used ? use.memory : status::kUnknown;
  PciInfo pci{};
  auto* const ask_pci = symbol<int(DeviceHandle, PciInfo*)>("nvmlDeviceGetPciInfo_v3");
  if (ask_pci != nullptr && ask_pci(handle, &pci) == kSuccess) {
    device.pci_id = pci.pci_device_id;
    device.pci_subsystem = pci.pci_subsystem_id;
  }
  return true;
}

}  // namespace olpager::gpunode
