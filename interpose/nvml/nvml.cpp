// libolnvml.so, whose SONAME is libnvidia-ml.so.1: NVML of gpunodes' devices for programs that are
// forwarded to them (nvidia-smi, pynvml, PyTorch, NCCL). Facts that do not change are asked for
// once; memory, utilisation, processes anew, at most five times a second.
//
// Errors: the gpunode can't be reached by nvmlInit: NVML_ERROR_UNKNOWN; it is gone later:
// NVML_ERROR_GPU_IS_LOST; one line on standard error says why. A question that a gpunode can't
// answer is NVML_ERROR_NOT_SUPPORTED, as on a device that lacks it; so is any change of a device,
// which belongs to others as well. Thread-safety: as NVML's, any thread.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/log.h"
#include "base/settings.h"
#include "interpose/api/nvml_abi.h"
#include "interpose/nvml/unsupported.h"
#include "interpose/nvml/view.h"

namespace olpager::nvml {
namespace {

using status::Device;
using Snapshot = std::shared_ptr<const Seen>;

std::atomic<int> g_users{0};  // nvmlInit without nvmlShutdown

// A handle is the address of one of these; what it names is looked up anew each time.
char g_handles[size_t{base::kMostGpunodes} * status::kMaxDevices];

DeviceHandle handleOf(size_t index) { return reinterpret_cast<DeviceHandle>(&g_handles[index]); }
bool indexOf(DeviceHandle handle, size_t& index) {
  const auto at = reinterpret_cast<uintptr_t>(handle),
             first = reinterpret_cast<uintptr_t>(&g_handles[0]);
  if (at < first || at - first >= sizeof g_handles) return false;
  index = at - first;
  return true;
}

template <typename Call>
Return guarded(Call call) noexcept {
  if (g_users.load(std::memory_order_relaxed) <= 0) return kUninitialized;
  try {
    return call();
  } catch (...) {
    return kUnknown;
  }
}

/// Calls call(device, snapshot, index) for what the handle names.
template <typename Call>
Return with(DeviceHandle handle, const void* out, Freshness freshness, Call call) noexcept {
  return guarded([&]() -> Return {
    size_t index = 0;
    if (!indexOf(handle, index) || out == nullptr) return kInvalidArgument;
    const Snapshot now = look(freshness);
    if (!now || index >= now->status.devices.size() ||
        (freshness == Freshness::kNow && now->lost[index]))
      return kGpuIsLost;
    return call(now->status.devices[index], now->status, index);
  });
}

Return text(const std::string& from, char* into, unsigned length) {
  if (into == nullptr) return kInvalidArgument;
  if (length <= from.size()) return kInsufficientSize;
  std::memcpy(into, from.c_str(), from.size() + 1);
  return kSuccess;
}

Return figure(uint32_t value, unsigned* into) {
  if (value == status::kUnknown) return kNotSupported;
  *into = value;
  return kSuccess;
}

std::string driverVersion(const status::Status& now) {
  return now.driver.empty() ? "0.0" : now.driver;
}

void busId(const Device& device, char* into, size_t bytes, const char* form) {
  std::snprintf(into, bytes, form, device.pci_domain, device.pci_bus, device.pci_device);
}

template <typename Info>
Return pciInfo(DeviceHandle handle, Info* out) {
  return with(handle, out, Freshness::kAny,
              [&](const Device& device, const status::Status&, size_t) {
                busId(device, out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0");
                out->domain = device.pci_domain;
                out->bus = device.pci_bus;
                out->device = device.pci_device;
                out->pci_device_id = device.pci_id;
                out->pci_subsystem_id = device.pci_subsystem;
                return kSuccess;
              });
}

// Sessions that have memory on the device: those of the asker's key, which are all that it is told
// of.
template <typename Info, typename Fill>
Return processes(DeviceHandle handle, unsigned* count, Info* into, Fill fill) {
  return with(
      handle, count, Freshness::kNow,
      [&](const Device&, const status::Status& now, size_t index) -> Return {
        unsigned found = 0;
        const unsigned room = into != nullptr ? *count : 0;
        for (const auto& session : now.sessions) {
          const uint64_t budget = index < session.budgets.size() ? session.budgets[index] : 0;
          if (session.connected == 0 || budget == 0 || session.process == 0) continue;
          if (found < room)
            fill(into[found], session.process,
                 index < session.bytes.size() ? session.bytes[index] : 0);
          ++found;
        }
        *count = found;
        return found <= room || (found == 0 && into == nullptr) ? kSuccess : kInsufficientSize;
      });
}

Return none(DeviceHandle handle, unsigned* count) {
  return with(handle, count, Freshness::kAny, [&](const Device&, const status::Status&, size_t) {
    *count = 0;
    return kSuccess;
  });
}

Return find(DeviceHandle* out, const char* wanted, bool (*is)(const Device&, const char*)) {
  return guarded([&]() -> Return {
    if (out == nullptr || wanted == nullptr) return kInvalidArgument;
    const Snapshot now = look(Freshness::kAny);
    if (!now) return kGpuIsLost;
    for (size_t i = 0; i < now->status.devices.size(); ++i) {
      if (!is(now->status.devices[i], wanted)) continue;
      *out = handleOf(i);
      return kSuccess;
    }
    return kNotFound;
  });
}

unsigned architectureOf(const Device& device) {
  constexpr unsigned kUnknownArchitecture = 0xffffffff;
  switch (device.compute_major) {
    case 3:
      return 2;  // Kepler, and on in NVML's numbers
    case 5:
      return 3;
    case 6:
      return 4;
    case 7:
      return device.compute_minor >= 5 ? 6 : 5;
    case 8:
      return device.compute_minor == 9 ? 8 : 7;
    case 9:
      return 9;
    case 10:
    case 11:
    case 12:
      return 10;
    default:
      return kUnknownArchitecture;
  }
}

Return start() {
  lookAgain();
  if (!look(Freshness::kNow)) return kUnknown;
  g_users.fetch_add(1);
  return kSuccess;
}

}  // namespace

int unsupported(const char* name) {
  if (g_users.load(std::memory_order_relaxed) <= 0) return kUninitialized;
  if (base::logs(base::LogLevel::kDebug) && base::firstTime(name))
    base::logDebug("NVML: %s is not supported", name);
  return kNotSupported;
}

}  // namespace olpager::nvml

using namespace olpager::nvml;  // NOLINT(google-build-using-namespace): the functions below are C
                                // functions
namespace status = olpager::status;

#define OL_NVML extern "C" __attribute__((visibility("default"))) Return

OL_NVML nvmlInit() { return start(); }
OL_NVML nvmlInit_v2() { return start(); }
OL_NVML nvmlInitWithFlags(unsigned /*flags*/) { return start(); }
OL_NVML nvmlShutdown() {
  int users = g_users.load();
  while (users > 0 && !g_users.compare_exchange_weak(users, users - 1)) {
  }
  return users > 0 ? kSuccess : kUninitialized;
}

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(Return result) {
  switch (static_cast<int>(result)) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNoPermission:
      return "Insufficient Permissions";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kFunctionNotFound:
      return "Function Not Found";
    case kGpuIsLost:
      return "GPU is lost";
    case kArgumentVersionMismatch:
      return "Argument version mismatch";
    default:
      return "Unknown Error";
  }
}

// --- the system ----------------------------------------------------------------------------------

OL_NVML nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return guarded([&]() -> Return {
    const auto now = look(Freshness::kAny);
    return now ? text(driverVersion(now->status), version, length) : kUnknown;
  });
}
OL_NVML nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return guarded([&]() -> Return {
    const auto now = look(Freshness::kAny);
    return now ? text(std::to_string(now->status.cuda_version / 1000) + "." +
                          driverVersion(now->status),
                      version, length)
               : kUnknown;
  });
}
OL_NVML nvmlSystemGetCudaDriverVersion(int* version) {
  return guarded([&]() -> Return {
    const auto now = look(Freshness::kAny);
    if (version == nullptr) return kInvalidArgument;
    if (!now) return kUnknown;
    *version = static_cast<int>(now->status.cuda_version);
    return kSuccess;
  });
}
OL_NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}
OL_NVML nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  return guarded([&]() -> Return {
    if (name == nullptr || length == 0) return kInvalidArgument;
    const auto now = look(Freshness::kNow);
    if (!now) return kUnknown;
    for (const auto& session : now->status.sessions) {
      if (session.process != pid || session.connected == 0) continue;
      std::snprintf(name, length, "%s", session.program.c_str());
      return kSuccess;
    }
    return kNotFound;
  });
}
// A gpunode offers no confidential computing, whatever its devices could do.
OL_NVML nvmlSystemGetConfComputeState(ConfComputeState* state) {
  return guarded([&]() -> Return {
    if (state == nullptr) return kInvalidArgument;
    *state = {};
    return kSuccess;
  });
}
OL_NVML nvmlSystemGetConfComputeSettings(ConfComputeSettings* settings) {
  return guarded([&]() -> Return {
    if (settings == nullptr) return kInvalidArgument;
    if (settings->version != structVersion(sizeof *settings, 1)) return kArgumentVersionMismatch;
    settings->environment = settings->feature = settings->dev_tools = settings->multi_gpu = 0;
    return kSuccess;
  });
}
OL_NVML nvmlUnitGetCount(unsigned* count) {
  return guarded([&]() -> Return {
    if (count == nullptr) return kInvalidArgument;
    *count = 0;
    return kSuccess;
  });
}
OL_NVML nvmlGetExcludedDeviceCount(unsigned* count) { return nvmlUnitGetCount(count); }
OL_NVML nvmlGetBlacklistDeviceCount(unsigned* count) { return nvmlUnitGetCount(count); }

// --- which devices -------------------------------------------------------------------------------

OL_NVML nvmlDeviceGetCount_v2(unsigned* count) {
  return guarded([&]() -> Return {
    if (count == nullptr) return kInvalidArgument;
    const auto now = look(Freshness::kAny);
    if (!now) return kUnknown;
    *count = static_cast<unsigned>(now->status.devices.size());
    return kSuccess;
  });
}
OL_NVML nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
OL_NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, DeviceHandle* device) {
  return guarded([&]() -> Return {
    const auto now = look(Freshness::kAny);
    if (!now) return kGpuIsLost;
    if (device == nullptr || index >= now->status.devices.size()) return kInvalidArgument;
    *device = handleOf(index);
    return kSuccess;
  });
}
OL_NVML nvmlDeviceGetHandleByIndex(unsigned index, DeviceHandle* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
OL_NVML nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* device) {
  return find(device, uuid,
              [](const status::Device& one, const char* wanted) { return one.uuid == wanted; });
}
// "0000:3b:00.0", "00000000:3B:00.0" or "3b:00.0": the domain may be left out.
OL_NVML nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, DeviceHandle* device) {
  return find(device, bus_id, [](const status::Device& one, const char* wanted) {
    unsigned domain = 0, bus = 0, number = 0;
    if (std::sscanf(wanted, "%x:%x:%x", &domain, &bus, &number) != 3) {
      domain = 0;
      if (std::sscanf(wanted, "%x:%x", &bus, &number) != 2) return false;
    }
    return one.pci_domain == domain && one.pci_bus == bus && one.pci_device == number;
  });
}
OL_NVML nvmlDeviceGetHandleByPciBusId(const char* bus_id, DeviceHandle* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

// --- what a device is ----------------------------------------------------------------------------

OL_NVML nvmlDeviceGetIndex(DeviceHandle handle, unsigned* index) {
  return with(handle, index, Freshness::kAny,
              [&](const status::Device&, const status::Status&, size_t number) {
                *index = static_cast<unsigned>(number);
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetName(DeviceHandle handle, char* name, unsigned length) {
  return with(handle, name, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                return text(device.name, name, length);
              });
}
OL_NVML nvmlDeviceGetUUID(DeviceHandle handle, char* uuid, unsigned length) {
  return with(handle, uuid, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                return text(device.uuid, uuid, length);
              });
}
OL_NVML nvmlDeviceGetMinorNumber(DeviceHandle handle, unsigned* number) {
  return with(handle, number, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                return figure(device.minor, number);
              });
}
OL_NVML nvmlDeviceGetCudaComputeCapability(DeviceHandle handle, int* major, int* minor) {
  return with(handle, major, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                if (minor == nullptr) return kInvalidArgument;
                *major = static_cast<int>(device.compute_major);
                *minor = static_cast<int>(device.compute_minor);
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetArchitecture(DeviceHandle handle, unsigned* architecture) {
  return with(handle, architecture, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                *architecture = architectureOf(device);
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetBrand(DeviceHandle handle, unsigned* brand) {
  return with(handle, brand, Freshness::kAny,
              [&](const status::Device&, const status::Status&, size_t) {
                *brand = 0;  // unknown
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetPciInfo_v3(DeviceHandle handle, PciInfo* pci) {
  const Return result = pciInfo(handle, pci);
  if (result != kSuccess) return result;
  return with(handle, pci, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                busId(device, pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0");
                return kSuccess;
              });
}
// The older structs end before the long bus id.
OL_NVML nvmlDeviceGetPciInfo_v2(DeviceHandle handle, PciInfo* pci) { return pciInfo(handle, pci); }
OL_NVML nvmlDeviceGetPciInfo(DeviceHandle handle, PciInfo* pci) { return pciInfo(handle, pci); }
OL_NVML nvmlDeviceGetPciInfoExt(DeviceHandle handle, PciInfoExt* pci) {
  return with(handle, pci, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) -> Return {
                if (pci->version != structVersion(sizeof *pci, 1)) return kArgumentVersionMismatch;
                *pci = {pci->version,
                        device.pci_domain,
                        device.pci_bus,
                        device.pci_device,
                        device.pci_id,
                        device.pci_subsystem,
                        3 /* display controller */,
                        2 /* 3D */,
                        {}};
                busId(device, pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0");
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetMultiGpuBoard(DeviceHandle handle, unsigned* several) {
  return none(handle, several);
}
OL_NVML nvmlDeviceGetMaxMigDeviceCount(DeviceHandle handle, unsigned* count) {
  return none(handle, count);
}
OL_NVML nvmlDeviceIsMigDeviceHandle(DeviceHandle handle, unsigned* is) { return none(handle, is); }
OL_NVML nvmlDeviceGetComputeMode(DeviceHandle handle, unsigned* mode) {
  return none(handle, mode);
}  // the default one
OL_NVML nvmlDeviceGetVirtualizationMode(DeviceHandle handle, unsigned* mode) {
  return none(handle, mode);
}
OL_NVML nvmlDeviceGetDisplayMode(DeviceHandle handle, unsigned* on) { return none(handle, on); }
OL_NVML nvmlDeviceGetDisplayActive(DeviceHandle handle, unsigned* on) { return none(handle, on); }

// --- how it does ---------------------------------------------------------------------------------

OL_NVML nvmlDeviceGetMemoryInfo(DeviceHandle handle, Memory* memory) {
  return with(handle, memory, Freshness::kNow,
              [&](const status::Device& device, const status::Status&, size_t) {
                *memory = {device.total, device.free, device.used};
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetMemoryInfo_v2(DeviceHandle handle, MemoryV2* memory) {
  return with(
      handle, memory, Freshness::kNow,
      [&](const status::Device& device, const status::Status&, size_t) -> Return {
        if (memory->version != structVersion(sizeof *memory, 2)) return kArgumentVersionMismatch;
        const uint64_t known = std::min(device.total, device.used + device.free);
        *memory = {memory->version, device.total, device.total - known, device.free, device.used};
        return kSuccess;
      });
}
OL_NVML nvmlDeviceGetUtilizationRates(DeviceHandle handle, Utilization* use) {
  return with(handle, use, Freshness::kNow,
              [&](const status::Device& device, const status::Status&, size_t) {
                if (device.gpu_percent == status::kUnknown) return kNotSupported;
                *use = {device.gpu_percent, device.memory_percent};
                return kSuccess;
              });
}
OL_NVML nvmlDeviceGetTemperature(DeviceHandle handle, unsigned sensor, unsigned* degrees) {
  return with(handle, degrees, Freshness::kNow,
              [&](const status::Device& device, const status::Status&, size_t) {
                return sensor == kTemperatureGpu ? figure(device.temperature, degrees)
                                                 : kInvalidArgument;
              });
}
OL_NVML nvmlDeviceGetTemperatureV(DeviceHandle handle, Temperature* temperature) {
  if (temperature != nullptr && temperature->version != structVersion(sizeof *temperature, 1))
    return kArgumentVersionMismatch;
  unsigned degrees = 0;
  const Return result = nvmlDeviceGetTemperature(
      handle, temperature != nullptr ? static_cast<unsigned>(temperature->sensor) : 0,
      temperature != nullptr ? &degrees : nullptr);
  if (result == kSuccess) temperature->degrees = static_cast<int>(degrees);
  return result;
}
OL_NVML nvmlDeviceGetPowerUsage(DeviceHandle handle, unsigned* milliwatts) {
  return with(handle, milliwatts, Freshness::kNow,
              [&](const status::Device& device, const status::Status&, size_t) {
                return figure(device.power_mw, milliwatts);
              });
}
OL_NVML nvmlDeviceGetEnforcedPowerLimit(DeviceHandle handle, unsigned* milliwatts) {
  return with(handle, milliwatts, Freshness::kAny,
              [&](const status::Device& device, const status::Status&, size_t) {
                return figure(device.power_limit_mw, milliwatts);
              });
}
OL_NVML nvmlDeviceGetPowerManagementLimit(DeviceHandle handle, unsigned* milliwatts) {
  return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}
OL_NVML nvmlDeviceGetClockInfo(DeviceHandle handle, unsigned clock, unsigned* mhz) {
  return with(handle, mhz, Freshness::kNow,
              [&](const status::Device& device, const status::Status&, size_t) {
                if (clock == kClockGraphics || clock == kClockSm) return figure(device.sm_mhz, mhz);
                return clock == kClockMemory ? figure(device.memory_mhz, mhz) : kNotSupported;
              });
}

namespace {
void fillV1(ProcessInfoV1& info, unsigned pid, uint64_t used) { info = {pid, used}; }
void fill(ProcessInfo& info, unsigned pid, uint64_t used) {
  info = {pid, used, kNoInstance, kNoInstance};
}
}  // namespace

OL_NVML nvmlDeviceGetComputeRunningProcesses(DeviceHandle handle, unsigned* count,
                                             ProcessInfoV1* infos) {
  return processes(handle, count, infos, fillV1);
}
OL_NVML nvmlDeviceGetComputeRunningProcesses_v2(DeviceHandle handle, unsigned* count,
                                                ProcessInfo* infos) {
  return processes(handle, count, infos, fill);
}
OL_NVML nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle handle, unsigned* count,
                                                ProcessInfo* infos) {
  return processes(handle, count, infos, fill);
}
OL_NVML nvmlDeviceGetGraphicsRunningProcesses(DeviceHandle handle, unsigned* count,
                                              void* /*infos*/) {
  return none(handle, count);
}
OL_NVML nvmlDeviceGetGraphicsRunningProcesses_v2(DeviceHandle handle, unsigned* count,
                                                 void* /*infos*/) {
  return none(handle, count);
}
OL_NVML nvmlDeviceGetGraphicsRunningProcesses_v3(DeviceHandle handle, unsigned* count,
                                                 void* /*infos*/) {
  return none(handle, count);
}
OL_NVML nvmlDeviceGetMPSComputeRunningProcesses(DeviceHandle handle, unsigned* count,
                                                void* /*infos*/) {
  return none(handle, count);
}
OL_NVML nvmlDeviceGetMPSComputeRunningProcesses_v2(DeviceHandle handle, unsigned* count,
                                                   void* /*infos*/) {
  return none(handle, count);
}
OL_NVML nvmlDeviceGetMPSComputeRunningProcesses_v3(DeviceHandle handle, unsigned* count,
                                                   void* /*infos*/) {
  return none(handle, count);
}

// --- events --------------------------------------------------------------------------------------

// A set of them can be made (nvidia-smi makes one and waits for nothing); no device offers any.
OL_NVML nvmlEventSetCreate(void** set) {
  return guarded([&]() -> Return {
    static char none_of_them;
    if (set == nullptr) return kInvalidArgument;
    *set = &none_of_them;
    return kSuccess;
  });
}
OL_NVML nvmlEventSetFree(void* set) {
  return guarded([&] { return set != nullptr ? kSuccess : kInvalidArgument; });
}

// --- between devices -----------------------------------------------------------------------------

// For reads and writes it is known whether CUDA would allow them; for links between devices
// nothing.
OL_NVML nvmlDeviceGetP2PStatus(DeviceHandle one, DeviceHandle other, unsigned capability,
                               unsigned* state) {
  return with(one, state, Freshness::kAny,
              [&](const status::Device& device, const status::Status& now, size_t index) -> Return {
                size_t second = 0;
                if (!indexOf(other, second) || second >= now.devices.size())
                  return kInvalidArgument;
                const bool reaches = index == second || (device.peers >> second & 1) != 0;
                *state = reaches && (capability == kP2pRead || capability == kP2pWrite)
                             ? kP2pOk
                             : kP2pNotSupported;
                return kSuccess;
              });
}

// Each field says for itself that it is not known.
OL_NVML nvmlDeviceGetFieldValues(DeviceHandle handle, int count, FieldValue* values) {
  return with(handle, values, Freshness::kAny,
              [&](const status::Device&, const status::Status&, size_t) {
                for (int i = 0; i < count; ++i) values[i].result = kNotSupported;
                return kSuccess;
              });
}
