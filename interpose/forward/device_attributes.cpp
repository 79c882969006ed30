// Device attributes where the answer is not the gpunode's driver's: how devices and the CPU share
// memory, who else can get at it, and, of several gpunodes' devices, where each is.
#include "forwarding/wire/session_protocol.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/devices.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"

namespace olpager::forward {
namespace {

// True if the device says no here, whatever the driver says there.
bool isMissing(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    // Registered memory lies elsewhere at the gpunode, if at all.
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    // Attributes for other drivers and processes of the program's machine that would use the GPU's
    // memory.
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return true;
    default:
      return false;
  }
}

uint32_t domainOf(CUdevice device, uint32_t domain) {
  Session* session = nullptr;
  CUdevice at_worker = 0;
  return severalSessions() && placeOf(device, &session, &at_worker)
             ? pciDomainOf(session->slot(), domain)
             : domain;
}

}  // namespace
}  // namespace olpager::forward

extern "C" {

CUresult ol_forward_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                         CUdevice device) {
  const CUresult result = ol_forward_generated_cuDeviceGetAttribute(value, attribute, device);
  if (result != CUDA_SUCCESS) return result;
  if (olpager::forward::isMissing(attribute)) *value = 0;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
    *value = static_cast<int>(olpager::forward::domainOf(device, static_cast<uint32_t>(*value)));
  return result;
}

}  // extern "C"
