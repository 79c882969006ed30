#include "gpunode/simgpu/api.h"

#include <fcntl.h>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

Memory& memory() { return Driver::get().memory; }

/// These need no context; where there is one they wait for its lock as every call does.
CUresult ready() {
  if (const CUresult result = requireInit()) return result;
  if (const auto context = currentContext(); context != nullptr) context->waitForCallLock();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment,
                                     CUdeviceptr address, unsigned long long flags) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().reserve(bytes, alignment, address, out);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = requireInit()) return result;
  return memory().unreserve(address, bytes);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                             const CUmemAllocationProp* properties, unsigned long long flags) {
  if (const CUresult result = ready()) return result;
  if (out == nullptr || properties == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().create(bytes, *properties, out);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const CUresult result = ready()) return result;
  return memory().release(handle);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (const CUresult result = ready()) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().map(address, bytes, offset, handle);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (const CUresult result = ready()) return result;
  return memory().unmap(address, bytes);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                const CUmemAccessDesc* descriptors, size_t count) {
  if (const CUresult result = ready()) return result;
  return memory().setAccess(address, bytes, descriptors, count);
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr address) {
  if (const CUresult result = requireInit()) return result;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().getAccess(address, *location, flags);
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const auto physical = memory().physical(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (physical->sharedFd() < 0) return CUDA_ERROR_INVALID_VALUE;  // not created for export
  const int fd = fcntl(physical->sharedFd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* os_handle,
                                                CUmemAllocationHandleType type) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult error = CUDA_SUCCESS;
  auto physical = Physical::import(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), &error);
  return physical != nullptr ? memory().adopt(std::move(physical), out) : error;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      Driver::get().device(properties->location.id) == nullptr)
    return CUDA_ERROR_INVALID_DEVICE;
  *out = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out,
                                                        CUmemGenericAllocationHandle handle) {
  if (const CUresult result = requireInit()) return result;
  const auto physical = memory().physical(handle);
  if (out == nullptr || physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = physical->properties;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  if (const CUresult result = requireInit()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().retain(reinterpret_cast<uint64_t>(address), out);
}

CUresult CUDAAPI cuMemGetHandleForAddressRange(void* out, CUdeviceptr address, size_t bytes,
                                               CUmemRangeHandleType type, unsigned long long) {
  if (const CUresult result = requireInit()) return result;
  if (Driver::get().settings.dma_buf && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return memory().dmaBuf(address, bytes, static_cast<int*>(out));
  }
  return notSupported("cuMemGetHandleForAddressRange");
}
