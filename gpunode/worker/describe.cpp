#include "gpunode/worker/describe.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace olpager::gpunode {
namespace {

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

using Failure = NodeDescription::Failure;

NodeDescription failed(Failure failure, const char* what, int error = 0) {
  NodeDescription node;
  node.failed = failure;
  if (error != 0)
    std::snprintf(node.text, sizeof node.text, "%s (CUDA error %d)", what, error);
  else
    std::snprintf(node.text, sizeof node.text, "%s", what);
  return node;
}

}  // namespace

NodeDescription describeNode(const char* driver) {
  void* const library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return failed(Failure::kNoDriver, why != nullptr ? why : "the driver can't be loaded");
  }
  auto* const init = symbol<CUresult(unsigned)>(library, "cuInit");
  auto* const version = symbol<CUresult(int*)>(library, "cuDriverGetVersion");
  auto* const count = symbol<CUresult(int*)>(library, "cuDeviceGetCount");
  auto* const attribute =
      symbol<CUresult(int*, CUdevice_attribute, CUdevice)>(library, "cuDeviceGetAttribute");
  auto* const name = symbol<CUresult(char*, int, CUdevice)>(library, "cuDeviceGetName");
  auto* uuid = symbol<CUresult(CUuuid*, CUdevice)>(library, "cuDeviceGetUuid_v2");
  if (uuid == nullptr) uuid = symbol<CUresult(CUuuid*, CUdevice)>(library, "cuDeviceGetUuid");
  auto* const total = symbol<CUresult(size_t*, CUdevice)>(library, "cuDeviceTotalMem_v2");
  auto* const access = symbol<CUresult(int*, CUdevice, CUdevice)>(library, "cuDeviceCanAccessPeer");
  if (init == nullptr || count == nullptr || attribute == nullptr || name == nullptr ||
      uuid == nullptr || total == nullptr)
    return failed(Failure::kNoDriver, "what was loaded is no CUDA driver");
  if (const CUresult result = init(0); result != CUDA_SUCCESS)
    return failed(Failure::kNow, "the driver can't start", static_cast<int>(result));
  int devices = 0;
  if (const CUresult result = count(&devices); result != CUDA_SUCCESS || devices <= 0)
    return failed(Failure::kNow, "the driver has no device", static_cast<int>(result));
  NodeDescription node;
  if (version != nullptr) (void)version(&node.cuda_version);
  node.device_count = std::min<uint32_t>(static_cast<uint32_t>(devices), kMostDevices);
  for (uint32_t i = 0; i < node.device_count; ++i) {
    DeviceDescription& one = node.devices[i];
    const auto device = static_cast<CUdevice>(i);
    (void)name(one.name, sizeof one.name, device);
    one.name[sizeof one.name - 1] = '\0';
    CUuuid id{};
    (void)uuid(&id, device);
    std::memcpy(one.uuid, id.bytes, sizeof one.uuid);
    const auto ask = [&](CUdevice_attribute what) {
      int value = 0;
      return attribute(&value, what, device) == CUDA_SUCCESS ? value : 0;
    };
    one.pci_domain = ask(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    one.pci_bus = ask(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    one.pci_device = ask(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    one.compute_major = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    one.compute_minor = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    one.multiprocessors = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    size_t bytes = 0;
    if (total(&bytes, device) == CUDA_SUCCESS) one.total = bytes;
    for (uint32_t other = 0; access != nullptr && other < node.device_count; ++other) {
      int can = 0;
      if (other != i && access(&can, device, static_cast<CUdevice>(other)) == CUDA_SUCCESS &&
          can != 0)
        one.peers |= 1ull << other;
    }
  }
  return node;
}

}  // namespace olpager::gpunode
