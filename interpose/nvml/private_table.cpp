// The private table of NVML that nvidia-smi asks for by nvmlInternalGetExportTable, without which
// it says that NVML is of another version. The functions that nvidia-smi calls, and their
// arguments, were traced on a machine with driver 580.159; each is answered by NVML's public
// functions. Any other is NVML_ERROR_NOT_SUPPORTED, named once. Thread-safety: any thread.
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "interpose/api/nvml_abi.h"

#define OL_NVML_PUBLIC extern "C" __attribute__((visibility("default"))) olpager::nvml::Return

OL_NVML_PUBLIC nvmlDeviceGetHandleByIndex_v2(unsigned index, olpager::nvml::DeviceHandle* device);
OL_NVML_PUBLIC nvmlDeviceGetPciInfo_v3(olpager::nvml::DeviceHandle device,
                                       olpager::nvml::PciInfo* pci);
OL_NVML_PUBLIC nvmlDeviceGetComputeRunningProcesses_v3(olpager::nvml::DeviceHandle device,
                                                       unsigned* count,
                                                       olpager::nvml::ProcessInfo* infos);
OL_NVML_PUBLIC nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length);

namespace olpager::nvml {
namespace {

constexpr unsigned char kId[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                   0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
// Words of the table; the first is its size in bytes.
constexpr size_t kWords = 270;
constexpr size_t kLog = 26, kBusId = 81, kComputeProcesses = 213, kGraphicsProcesses = 214,
                 kMpsProcesses = 215;

// Text that nvidia-smi prints is given to a log of the driver's as well.
Return log(const char* /*format*/, ...) { return kSuccess; }

Return busIdOf(unsigned index, char* into, unsigned length) {
  DeviceHandle device = nullptr;
  if (const Return result = nvmlDeviceGetHandleByIndex_v2(index, &device); result != kSuccess)
    return result;
  PciInfo pci{};
  if (const Return result = nvmlDeviceGetPciInfo_v3(device, &pci); result != kSuccess)
    return result;
  if (into == nullptr) return kInvalidArgument;
  if (length < sizeof pci.bus_id_legacy) return kInsufficientSize;
  std::memcpy(into, pci.bus_id_legacy, sizeof pci.bus_id_legacy);
  return kSuccess;
}

struct Process {
  unsigned pid;
  unsigned unknown0;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
  unsigned unknown1[2];
  char command[4096];  // its arguments, each with a NUL behind it
};
static_assert(sizeof(Process) == 4128);

Return computeProcesses(DeviceHandle device, unsigned* count, Process* into) {
  if (count == nullptr) return kInvalidArgument;
  std::vector<ProcessInfo> found(into != nullptr ? *count : 0);
  const Return result = nvmlDeviceGetComputeRunningProcesses_v3(device, count, found.data());
  if (result != kSuccess) return result;
  for (size_t i = 0; into != nullptr && i < found.size() && i < *count; ++i) {
    into[i] = {};
    into[i].pid = found[i].pid;
    into[i].used = found[i].used;
    into[i].gpu_instance = found[i].gpu_instance;
    into[i].compute_instance = found[i].compute_instance;
    (void)nvmlSystemGetProcessName(found[i].pid, into[i].command, sizeof into[i].command);
  }
  return kSuccess;
}

Return noProcesses(DeviceHandle, unsigned* count, Process*) {
  if (count == nullptr) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}

template <size_t kSlot>
Return other() {
  static const std::string key = "private " + std::to_string(kSlot);
  base::warnOnce(key.c_str(),
                 "NVML: function %zu of a private table is not there: NVML_ERROR_NOT_SUPPORTED",
                 kSlot);
  return kNotSupported;
}

using Table = std::array<const void*, kWords>;

template <size_t... kSlots>
Table makeTable(std::index_sequence<kSlots...>) {
  Table table{reinterpret_cast<const void*>(&other<kSlots>)...};
  table[0] = reinterpret_cast<const void*>(sizeof table);
  table[1] = table[2] = nullptr;
  table[kLog] = reinterpret_cast<const void*>(&log);
  table[kBusId] = reinterpret_cast<const void*>(&busIdOf);
  table[kComputeProcesses] = reinterpret_cast<const void*>(&computeProcesses);
  table[kGraphicsProcesses] = table[kMpsProcesses] = reinterpret_cast<const void*>(&noProcesses);
  return table;
}

}  // namespace
}  // namespace olpager::nvml

using namespace olpager::nvml;  // NOLINT(google-build-using-namespace): the function below is a C
                                // function

OL_NVML_PUBLIC nvmlInternalGetExportTable(const void** table, const void* id) {
  static const Table all = makeTable(std::make_index_sequence<kWords>());
  if (table == nullptr || id == nullptr) return kInvalidArgument;
  if (std::memcmp(id, kId, sizeof kId) != 0) return kNotFound;
  *table = all.data();
  return kSuccess;
}
