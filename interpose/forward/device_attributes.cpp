// What a program is told of how devices and the CPU share memory: as it is for this program, which is not how it is at the gpunode.
#include "interpose/api/forward_functions.h"

namespace olpager::forward {
namespace {

// Whether the device says no here, whatever the driver says there.
bool isMissing(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    // What the program registered lies elsewhere at the gpunode, if at all.
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace olpager::forward

extern "C" {

CUresult ol_forward_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const CUresult result = ol_forward_generated_cuDeviceGetAttribute(value, attribute, device);
  if (result == CUDA_SUCCESS && olpager::forward::isMissing(attribute)) *value = 0;
  return result;
}

}  // extern "C"
