// Attributes of the one device where the answer is not the gpunode's driver's.
#include <algorithm>

#include "interpose/api/forward_functions.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sessions.h"
#include "interpose/unified/executors.h"

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

// True for an attribute of which the one device has as much as the executor with the least.
bool isLeast(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
      return true;
    default:
      return false;
  }
}

// Takes the least of the executors; `value` is the active one's.
void takeLeast(CUdevice_attribute attribute, CUdevice device, int* value) {
  forward::Session* const session = forward::sessionOfGroup();
  if (session == nullptr) return;
  for (unsigned i = 0; i < session->executors().size(); ++i)
    *value = std::min(*value, attributeAt(*session, i, attribute, device).value_or(*value));
}

}  // namespace
}  // namespace olpager::unified

extern "C" {

CUresult ol_unified_cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                         CUdevice device) {
  const CUresult result = ol_forward_cuDeviceGetAttribute(value, attribute, device);
  if (result != CUDA_SUCCESS) return result;
  if (olpager::unified::isMissing(attribute)) *value = 0;
  if (olpager::unified::isLeast(attribute)) olpager::unified::takeLeast(attribute, device, value);
  return result;
}

}  // extern "C"
