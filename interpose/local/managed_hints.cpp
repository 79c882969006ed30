// Prefetch, advice and range attributes are for managed memory: for an address of the range the
// answer is what native CUDA gives for memory that is not managed.
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

bool ours(CUdeviceptr address) {
  const olpager::pager::Pool* running = pool();
  return running != nullptr && running->contains(address);
}

bool anyOurs(const CUdeviceptr* addresses, size_t count) {
  for (size_t i = 0; addresses != nullptr && i < count; ++i) {
    if (ours(addresses[i])) return true;
  }
  return false;
}

}  // namespace

#define OLPAGER_NOT_MANAGED(symbol, parameters, arguments) \
  OLPAGER_HOOK(symbol) parameters {                        \
    if (ours(address)) return CUDA_ERROR_INVALID_VALUE;    \
    return driver().symbol arguments;                      \
  }

#define OLPAGER_NONE_MANAGED(symbol, parameters, arguments)         \
  OLPAGER_HOOK(symbol) parameters {                                 \
    if (anyOurs(addresses, count)) return CUDA_ERROR_INVALID_VALUE; \
    return driver().symbol arguments;                               \
  }

OLPAGER_NOT_MANAGED(cuMemAdvise,
                    (CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device),
                    (address, bytes, advice, device))
OLPAGER_NOT_MANAGED(cuMemAdvise_v2,
                    (CUdeviceptr address, size_t bytes, CUmem_advise advice,
                     CUmemLocation location),
                    (address, bytes, advice, location))
OLPAGER_NOT_MANAGED(cuMemPrefetchAsync,
                    (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
                    (address, bytes, device, stream))
OLPAGER_NOT_MANAGED(cuMemPrefetchAsync_ptsz,
                    (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
                    (address, bytes, device, stream))
OLPAGER_NOT_MANAGED(cuMemPrefetchAsync_v2,
                    (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                     CUstream stream),
                    (address, bytes, location, flags, stream))
OLPAGER_NOT_MANAGED(cuMemPrefetchAsync_v2_ptsz,
                    (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                     CUstream stream),
                    (address, bytes, location, flags, stream))
OLPAGER_NOT_MANAGED(cuMemRangeGetAttribute,
                    (void* data, size_t data_bytes, CUmem_range_attribute attribute,
                     CUdeviceptr address, size_t bytes),
                    (data, data_bytes, attribute, address, bytes))
OLPAGER_NOT_MANAGED(cuMemRangeGetAttributes,
                    (void** data, size_t* data_bytes, CUmem_range_attribute* attributes,
                     size_t count, CUdeviceptr address, size_t bytes),
                    (data, data_bytes, attributes, count, address, bytes))
OLPAGER_NOT_MANAGED(cuStreamAttachMemAsync,
                    (CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags),
                    (stream, address, bytes, flags))
OLPAGER_NOT_MANAGED(cuStreamAttachMemAsync_ptsz,
                    (CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags),
                    (stream, address, bytes, flags))

OLPAGER_NONE_MANAGED(cuMemPrefetchBatchAsync,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      CUmemLocation* locations, size_t* indices, size_t location_count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, locations, indices, location_count, flags, stream))
OLPAGER_NONE_MANAGED(cuMemPrefetchBatchAsync_ptsz,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      CUmemLocation* locations, size_t* indices, size_t location_count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, locations, indices, location_count, flags, stream))
OLPAGER_NONE_MANAGED(cuMemDiscardBatchAsync,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, flags, stream))
OLPAGER_NONE_MANAGED(cuMemDiscardBatchAsync_ptsz,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, flags, stream))
OLPAGER_NONE_MANAGED(cuMemDiscardAndPrefetchBatchAsync,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      CUmemLocation* locations, size_t* indices, size_t location_count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, locations, indices, location_count, flags, stream))
OLPAGER_NONE_MANAGED(cuMemDiscardAndPrefetchBatchAsync_ptsz,
                     (CUdeviceptr * addresses, size_t* sizes, size_t count,
                      CUmemLocation* locations, size_t* indices, size_t location_count,
                      unsigned long long flags, CUstream stream),
                     (addresses, sizes, count, locations, indices, location_count, flags, stream))
