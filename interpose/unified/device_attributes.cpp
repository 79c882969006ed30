// What the program is told of the one device where that is not what a gpunode's driver says of its.
#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"

namespace olpager::unified {
namespace {

// Ways to give memory or events to other programs, which are ways of one GPU's driver.
bool isMissing(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace olpager::unified

extern "C" {

CUresult ol_unified_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                         CUdevice device) {
  const CUresult result = ol_forward_cuDeviceGetAttribute(value, attribute, device);
  if (result == CUDA_SUCCESS && olpager::unified::isMissing(attribute)) *value = 0;
  return result;
}

}  // extern "C"
