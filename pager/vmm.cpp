// The program's own virtual memory management: not served by the pool yet, so such handles stay the driver's.
#include "pager/pool_state.h"

namespace olpager::pager {

CUresult Pool::reserveAddress(uint64_t, uint64_t, uint64_t, CUdeviceptr*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::releaseAddress(CUdeviceptr, uint64_t) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::createHandle(CUcontext, CUdevice, uint64_t, const CUmemAllocationProp&, CUmemGenericAllocationHandle*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult Pool::releaseHandle(CUmemGenericAllocationHandle) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::handleProperties(CUmemGenericAllocationHandle, CUmemAllocationProp*) const { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::retainHandle(CUdeviceptr, CUmemGenericAllocationHandle*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::map(CUdeviceptr, uint64_t, uint64_t, CUmemGenericAllocationHandle) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::unmap(CUdeviceptr, uint64_t) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::setAccess(CUdeviceptr, uint64_t, const CUmemAccessDesc*, size_t) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult Pool::getAccess(CUdeviceptr, const CUmemLocation&, unsigned long long*) const { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace olpager::pager
