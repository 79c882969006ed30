#include "interpose/forward/driver_tables.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"

namespace olpager::forward {

int DriverTableHost::driverVersion() {
  int version = 0;
  (void)ol_forward_cuDriverGetVersion(&version);
  return version;
}

std::vector<interpose::DeviceIdentity> DriverTableHost::devices() {
  std::vector<interpose::DeviceIdentity> all;
  for (int i = 0; !sessions().empty() && i < deviceCount(); ++i) {
    interpose::DeviceIdentity identity{};
    CUuuid uuid{};
    (void)ol_forward_generated_cuDeviceGetUuid(&uuid, i);
    std::copy(std::begin(uuid.bytes), std::end(uuid.bytes),
              reinterpret_cast<char*>(identity.uuid.data()));
    (void)ol_forward_cuDeviceGetAttribute(&identity.pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
                                          i);
    (void)ol_forward_generated_cuDeviceGetAttribute(&identity.pci_bus,
                                                    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, i);
    (void)ol_forward_generated_cuDeviceGetAttribute(&identity.pci_device,
                                                    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, i);
    all.push_back(identity);
  }
  return all;
}

CUcontext DriverTableHost::currentContext() {
  return reinterpret_cast<CUcontext>(forward::currentContext());
}

CUresult DriverTableHost::primaryContextHandle(CUdevice device, CUcontext* context) {
  if (sessions().empty()) return CUDA_ERROR_NOT_INITIALIZED;
  Session* session = nullptr;
  CUdevice at_worker = 0;
  if (!placeOf(device, &session, &at_worker)) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(primaryHandle(session->handleSlot(), at_worker));
  return CUDA_SUCCESS;
}

CUresult DriverTableHost::contextId(CUcontext context, uint64_t* id) {
  unsigned long long found = 0;
  const CUresult result = ol_forward_cuCtxGetId(context, &found);
  *id = found;
  return result;
}

CUresult DriverTableHost::streamId(CUcontext /*context*/, CUstream stream, uint64_t* id) {
  unsigned long long found = 0;
  const CUresult result = ol_forward_cuStreamGetId(stream, &found);
  *id = found;
  return result;
}

CUresult DriverTableHost::moduleFunctions(CUmodule module, std::vector<CUfunction>* functions) {
  unsigned count = 0;
  CUresult result = ol_forward_generated_cuModuleGetFunctionCount(&count, module);
  if (result != CUDA_SUCCESS) return result;
  if (count > kMostBytes / sizeof(CUfunction)) return CUDA_ERROR_UNKNOWN;  // no answer holds them
  functions->resize(count);
  result = ol_forward_generated_cuModuleEnumerateFunctions(functions->data(), count, module);
  return result;
}

void DriverTableHost::unsupportedCalled(const char* table, int slot) {
  base::logWarn("private driver table %s: function %d is not there in forwarded mode", table, slot);
}

}  // namespace olpager::forward
