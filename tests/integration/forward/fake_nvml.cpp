// A libnvidia-ml.so.1 of the gpunode's own machine, for tests: knows the simulated GPUs by their
// UUIDs, and figures that a test can recognize. Device N: temperature 40 + N, utilisation 10 + N,
// memory as FAKE_NVML_USED (MiB of FAKE_NVML_TOTAL) says.
#include <cstdlib>
#include <cstring>

#include "interpose/api/nvml_abi.h"

using namespace olpager::nvml;

#define FAKE extern "C" __attribute__((visibility("default"))) int

namespace {
// "GPU-6f6c7369-6d...": "olsim"; the number is the last byte.
size_t numberOf(DeviceHandle handle) { return reinterpret_cast<size_t>(handle) - 1; }
unsigned long long mib(const char* name, unsigned long long otherwise) {
  const char* const text = std::getenv(name);
  return (text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise) << 20;
}
}  // namespace

FAKE nvmlInit_v2() { return kSuccess; }
FAKE nvmlShutdown() { return kSuccess; }
FAKE nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "580.65.06", length);
  return kSuccess;
}
FAKE nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* handle) {
  if (std::strncmp(uuid, "GPU-6f6c7369-6d", 15) != 0) return kNotFound;
  *handle =
      reinterpret_cast<DeviceHandle>(1 + std::strtoul(uuid + std::strlen(uuid) - 2, nullptr, 16));
  return kSuccess;
}
FAKE nvmlDeviceGetMemoryInfo(DeviceHandle, Memory* memory) {
  const unsigned long long total = mib("FAKE_NVML_TOTAL", 256), used = mib("FAKE_NVML_USED", 100);
  *memory = {total, total - used, used};
  return kSuccess;
}
FAKE nvmlDeviceGetUtilizationRates(DeviceHandle handle, Utilization* use) {
  *use = {static_cast<unsigned>(10 + numberOf(handle)), 5};
  return kSuccess;
}
FAKE nvmlDeviceGetTemperature(DeviceHandle handle, unsigned, unsigned* degrees) {
  *degrees = static_cast<unsigned>(40 + numberOf(handle));
  return kSuccess;
}
FAKE nvmlDeviceGetPowerUsage(DeviceHandle, unsigned* milliwatts) {
  *milliwatts = 123456;
  return kSuccess;
}
FAKE nvmlDeviceGetEnforcedPowerLimit(DeviceHandle, unsigned*) { return kNotSupported; }
FAKE nvmlDeviceGetClockInfo(DeviceHandle, unsigned clock, unsigned* mhz) {
  *mhz = clock == kClockSm ? 1980 : 3201;
  return kSuccess;
}
// As many cards as FAKE_NVML_CARDS says, none by itself. The last one does not tell of processes.
FAKE nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(mib("FAKE_NVML_CARDS", 0) >> 20);
  return kSuccess;
}
FAKE nvmlDeviceGetHandleByIndex_v2(unsigned index, DeviceHandle* handle) {
  *handle = reinterpret_cast<DeviceHandle>(static_cast<size_t>(index) + 1);
  return kSuccess;
}
FAKE nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle handle, unsigned* count,
                                             ProcessInfo* into) {
  if (numberOf(handle) + 1 == mib("FAKE_NVML_CARDS", 0) >> 20) return kNotSupported;
  if (*count < 2) return kInsufficientSize;
  *count = 2;
  into[0] = {1, 3ull << 20, kNoInstance, kNoInstance};
  into[1] = {2, 4ull << 20, kNoInstance, kNoInstance};
  return kSuccess;
}
