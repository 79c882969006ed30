// Advice, prefetch and range attributes of managed memory. Managed memory is one piece of RAM for
// all, so that they change nothing but what the program is told.
#include "gpunode/simgpu/api.h"

#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

using namespace olpager::simgpu;  // NOLINT(google-build-using-namespace): the file is this
                                  // namespace's face

namespace {

/// The managed allocation that holds the whole range; null when it is something else.
std::shared_ptr<Allocation> managed(CUdeviceptr address, size_t bytes) {
  auto allocation = Driver::get().memory.find(address);
  if (allocation == nullptr || allocation->kind != AllocationKind::kManaged || bytes == 0 ||
      address + bytes > allocation->base + allocation->bytes)
    return nullptr;
  return allocation;
}

CUresult checkLocation(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return Driver::get().device(location.id) != nullptr ? CUDA_SUCCESS
                                                          : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUmemLocation ofDevice(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  const auto allocation = managed(address, bytes);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool places = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                      advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (places)
    if (const CUresult result = checkLocation(location)) return result;
  std::scoped_lock lock(allocation->advice_mutex);
  Advice& known = allocation->advice;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      known.read_mostly = true;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      known.read_mostly = false;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      known.preferred = location;
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      known.preferred = {};
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return CUDA_SUCCESS;  // everything is mapped for every device anyway
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult prefetch(CUdeviceptr address, size_t bytes, const CUmemLocation& location, unsigned flags,
                  CUstream handle, bool per_thread) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  const auto allocation = managed(address, bytes);
  if (allocation == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = checkLocation(location)) return result;
  if (const CUresult result = notInCapture(*stream)) return result;
  std::scoped_lock lock(allocation->advice_mutex);
  allocation->advice.prefetched = location;
  return CUDA_SUCCESS;
}

int legacyId(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_NONE ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

CUresult rangeAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                        const Allocation& allocation) {
  std::scoped_lock lock(allocation.advice_mutex);
  const Advice& known = allocation.advice;
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = known.read_mostly ? 1 : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      value = legacyId(known.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      value = legacyId(known.prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      value = static_cast<int>(known.preferred.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      value = known.preferred.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      value = static_cast<int>(known.prefetched.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      value = known.prefetched.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
      if (size == 0 || size % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      for (size_t i = 0; i < size / sizeof(int); ++i)
        static_cast<int*>(data)[i] = CU_DEVICE_INVALID;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (size != sizeof value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

/// Checks shared by batches: nothing is done where one of the ranges is none of managed memory.
CUresult checkBatch(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                    unsigned long long flags, CUstream handle, bool per_thread) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult result = requireStream(handle, per_thread, &context, &stream)) return result;
  if (addresses == nullptr || sizes == nullptr || count == 0 || flags != 0 ||
      isLegacy(handle, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    if (managed(addresses[i], sizes[i]) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return notInCapture(*stream);
}

CUresult checkLocations(const CUmemLocation* locations, const size_t* indices,
                        size_t location_count, size_t count) {
  if (locations == nullptr || indices == nullptr || location_count == 0 || location_count > count ||
      indices[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; at < location_count; ++at) {
    if (indices[at] >= count || (at > 0 && indices[at] <= indices[at - 1]))
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = checkLocation(locations[at])) return result;
  }
  return CUDA_SUCCESS;
}

CUresult prefetchBatch(CUdeviceptr* addresses, size_t* sizes, size_t count,
                       CUmemLocation* locations, size_t* indices, size_t location_count,
                       unsigned long long flags, CUstream stream, bool per_thread) {
  if (const CUresult result = checkBatch(addresses, sizes, count, flags, stream, per_thread))
    return result;
  if (const CUresult result = checkLocations(locations, indices, location_count, count))
    return result;
  size_t which = 0;
  for (size_t i = 0; i < count; ++i) {
    while (which + 1 < location_count && indices[which + 1] <= i) ++which;
    if (const CUresult result =
            prefetch(addresses[i], sizes[i], locations[which], 0, stream, per_thread))
      return result;
  }
  return CUDA_SUCCESS;
}

/// Discarded memory holds anything until it is written again: here other bytes than before.
CUresult discardBatch(CUdeviceptr* addresses, size_t* sizes, size_t count, unsigned long long flags,
                      CUstream stream, bool per_thread) {
  if (const CUresult result = checkBatch(addresses, sizes, count, flags, stream, per_thread))
    return result;
  constexpr unsigned char kAnything = 0xdb;
  const auto set = per_thread ? cuMemsetD8Async_ptsz : cuMemsetD8Async;
  for (size_t i = 0; i < count; ++i)
    if (const CUresult result = set(addresses[i], kAnything, sizes[i], stream)) return result;
  return CUDA_SUCCESS;
}

CUresult discardAndPrefetch(CUdeviceptr* addresses, size_t* sizes, size_t count,
                            CUmemLocation* locations, size_t* indices, size_t location_count,
                            unsigned long long flags, CUstream stream, bool per_thread) {
  if (const CUresult result = checkLocations(locations, indices, location_count, count))
    return result;
  if (const CUresult result = discardBatch(addresses, sizes, count, flags, stream, per_thread))
    return result;
  return prefetchBatch(addresses, sizes, count, locations, indices, location_count, flags, stream,
                       per_thread);
}

}  // namespace

CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                             CUdevice device) {
  return advise(address, bytes, advice, ofDevice(device));
}
CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

OLSIM_STREAM_FUNCTION(cuMemPrefetchAsync, _ptsz,
                      (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
                      return prefetch(address, bytes, ofDevice(device), 0, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemPrefetchAsync_v2, _ptsz,
                      (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                       CUstream stream),
                      return prefetch(address, bytes, location, flags, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemPrefetchBatchAsync, _ptsz,
                      (CUdeviceptr * addresses, size_t* sizes, size_t count,
                       CUmemLocation* locations, size_t* indices, size_t location_count,
                       unsigned long long flags, CUstream stream),
                      return prefetchBatch(addresses, sizes, count, locations, indices,
                                           location_count, flags, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemDiscardBatchAsync, _ptsz,
                      (CUdeviceptr * addresses, size_t* sizes, size_t count,
                       unsigned long long flags, CUstream stream),
                      return discardBatch(addresses, sizes, count, flags, stream, kPerThread);)
OLSIM_STREAM_FUNCTION(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
                      (CUdeviceptr * addresses, size_t* sizes, size_t count,
                       CUmemLocation* locations, size_t* indices, size_t location_count,
                       unsigned long long flags, CUstream stream),
                      return discardAndPrefetch(addresses, sizes, count, locations, indices,
                                                location_count, flags, stream, kPerThread);)

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                        CUdeviceptr address, size_t bytes) {
  std::shared_ptr<Context> context;
  if (const CUresult result = requireContext(&context)) return result;
  const auto allocation = managed(address, bytes);
  if (data == nullptr || allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return rangeAttribute(data, size, attribute, *allocation);
}

CUresult CUDAAPI cuMemRangeGetAttributes(void** data, size_t* sizes,
                                         CUmem_range_attribute* attributes, size_t count,
                                         CUdeviceptr address, size_t bytes) {
  if (data == nullptr || sizes == nullptr || attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    if (const CUresult result =
            cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, bytes))
      return result;
  return CUDA_SUCCESS;
}
