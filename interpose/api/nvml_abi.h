// The part of NVML's binary interface that is used here, by its public documentation: the toolkit
// brings nvml.h only with packages that a machine without a GPU lacks. Both its provider
// (libolnvml.so) and the user of a real one (olgpunode) use these.
#pragma once

#include <cstdint>

namespace olpager::nvml {

enum Return : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kFunctionNotFound = 13,
  kGpuIsLost = 15,
  kArgumentVersionMismatch = 25,
  kUnknown = 999,
};

using DeviceHandle = struct DeviceOpaque*;

struct PciInfo {  // of the functions that end with _v3
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);
struct PciInfoExt {  // version 1
  unsigned version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
  char bus_id[32];
};
static_assert(sizeof(PciInfoExt) == 64);
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(MemoryV2) == 40);
struct Temperature {  // version 1
  unsigned version;
  int sensor, degrees;
};
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessInfoV1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessInfo {  // of the functions that end with _v2 and _v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfoV1) == 16 && sizeof(ProcessInfo) == 24);
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int value_type;
  int result;
  unsigned long long value;
};
static_assert(sizeof(FieldValue) == 40);
struct ConfComputeState {
  unsigned environment, feature, dev_tools;
};
struct ConfComputeSettings {  // version 1
  unsigned version, environment, feature, dev_tools, multi_gpu;
};

constexpr unsigned structVersion(unsigned long size, unsigned version) {
  return static_cast<unsigned>(size) | version << 24;
}

inline constexpr unsigned kTemperatureGpu = 0;                                 // sensors
inline constexpr unsigned kClockGraphics = 0, kClockSm = 1, kClockMemory = 2;  // clocks
inline constexpr unsigned kP2pRead = 0, kP2pWrite = 1;                         // capabilities
inline constexpr unsigned kP2pOk = 0, kP2pNotSupported = 5;                    // and how they are
inline constexpr unsigned kNoInstance = 0xffffffffu;  // of a process: the whole device
inline constexpr unsigned kShortUuid = 80, kShortName = 64,
                          kVersionText = 80;  // what callers have room for

}  // namespace olpager::nvml
