// Prefetch, advice and range attributes of managed memory that the pager moves. For other memory of
// the range the answer is what native CUDA gives for memory that is not managed.
//
// Advice is told back, and changes nothing. A prefetch to a device brings the memory there before
// the call returns; one to the CPU asks for it, and waits for nothing. Discarded memory stays as it
// is.
#include <vector>

#include "interpose/api/managed_advice.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/managed_hints.h"
#include "interpose/local/root.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::api::ManagedAdvice;
using olpager::api::ManagedPart;
using olpager::pager::Access;
using olpager::pager::AllocationInfo;
using olpager::pager::AllocationKind;
using olpager::pager::Pool;
using olpager::pager::StreamKey;

namespace {

ManagedAdvice& given() {
  static auto* const instance = new ManagedAdvice;
  return *instance;
}

bool isPaged(CUdeviceptr address) {
  const Pool* running = pool();
  return running != nullptr && running->contains(address);
}

bool anyPaged(const CUdeviceptr* addresses, size_t count) {
  for (size_t i = 0; addresses != nullptr && i < count; ++i) {
    if (isPaged(addresses[i])) return true;
  }
  return false;
}

bool partOf(CUdeviceptr address, uint64_t bytes, ManagedPart* part) {
  AllocationInfo info;
  if (bytes == 0 || !isPaged(address) || !pool()->describe(address, &info) ||
      info.kind != AllocationKind::kManaged || bytes > info.bytes - (address - info.base))
    return false;
  *part = {info.base, address, address + bytes};
  return true;
}

int deviceCount() {
  int count = 0;
  return driver().cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

CUresult advise(CUdeviceptr address, uint64_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ManagedPart part;
  if (!partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  return given().advise(part, advice, location, deviceCount());
}

bool isLegacy(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

// Checks that work may be put into a stream now, and is no part of a graph.
CUresult streamOf(CUstream stream, bool per_thread, StreamKey* key) {
  *key = streamKey(stream, per_thread);
  if (key->context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return captureOf(*key) != 0 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult bring(const ManagedPart& part, const CUmemLocation& location, const StreamKey& key) {
  given().prefetched(part, location);
  Pool& running = *pool();
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    running.wantOnCpu(part.begin, part.end - part.begin);
    return CUDA_SUCCESS;
  }
  Access access(running, key);
  access.onlyShow();
  access.addRange(part.begin, part.end - part.begin, olpager::pager::Mode::kRead);
  const CUresult result = access.acquire();
  if (result == CUDA_SUCCESS) access.submitted(CUDA_SUCCESS);
  // The prefetch is a hint: memory that does not fit stays where it is.
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

CUresult prefetch(CUdeviceptr address, uint64_t bytes, const CUmemLocation& location,
                  unsigned flags, CUstream stream, bool per_thread) {
  StreamKey key;
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ManagedPart part;
  if (flags != 0 || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = ManagedAdvice::checkLocation(location, deviceCount());
      result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = streamOf(stream, per_thread, &key); result != CUDA_SUCCESS)
    return result;
  return bring(part, location, key);
}

// The ranges of a batch: nothing is done where one of them is none of ours.
CUresult partsOf(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                 unsigned long long flags, CUstream stream, bool per_thread,
                 std::vector<ManagedPart>* parts, StreamKey* key) {
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (sizes == nullptr || flags != 0 || isLegacy(stream, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    if (!partOf(addresses[i], sizes[i], &parts->emplace_back())) return CUDA_ERROR_INVALID_VALUE;
  return streamOf(stream, per_thread, key);
}

CUresult prefetchAll(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                     const CUmemLocation* locations, const size_t* indices, size_t location_count,
                     unsigned long long flags, CUstream stream, bool per_thread) {
  std::vector<ManagedPart> parts;
  StreamKey key;
  if (const CUresult result =
          partsOf(addresses, sizes, count, flags, stream, per_thread, &parts, &key);
      result != CUDA_SUCCESS)
    return result;
  if (const CUresult told =
          ManagedAdvice::checkLocations(locations, indices, location_count, count, deviceCount());
      told != CUDA_SUCCESS)
    return told;
  return ManagedAdvice::forEachLocation(
      locations, indices, location_count, count,
      [&](size_t i, const CUmemLocation& location) { return bring(parts[i], location, key); });
}

CUresult discardAll(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                    unsigned long long flags, CUstream stream, bool per_thread) {
  std::vector<ManagedPart> parts;
  StreamKey key;
  return partsOf(addresses, sizes, count, flags, stream, per_thread, &parts, &key);
}

CUresult rangeAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                        CUdeviceptr address, uint64_t bytes) {
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ManagedPart part;
  if (data == nullptr || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  return given().attribute(data, size, attribute, part);
}

// Memory goes to where it is used, whoever may use it.
CUresult attach(CUdeviceptr address, uint64_t bytes, unsigned flags, bool legacy) {
  AllocationInfo info;
  if (!pool()->describe(address, &info) || info.kind != AllocationKind::kManaged ||
      info.base != address || (bytes != 0 && bytes != info.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  // To one stream: the legacy one is none of its own.
  return flags == CU_MEM_ATTACH_SINGLE && legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

namespace olpager::local {

void forgetAdvice(CUdeviceptr address) { given().forget(address); }

}  // namespace olpager::local

OLPAGER_HOOK(cuMemAdvise)
(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  if (!isPaged(address)) return driver().cuMemAdvise(address, bytes, advice, device);
  return advise(address, bytes, advice, ManagedAdvice::locationOf(device));
}
OLPAGER_HOOK(cuMemAdvise_v2)
(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  if (!isPaged(address)) return driver().cuMemAdvise_v2(address, bytes, advice, location);
  return advise(address, bytes, advice, location);
}

OLPAGER_HOOK(cuMemRangeGetAttribute)
(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
 size_t bytes) {
  if (!isPaged(address))
    return driver().cuMemRangeGetAttribute(data, data_bytes, attribute, address, bytes);
  return rangeAttribute(data, data_bytes, attribute, address, bytes);
}
OLPAGER_HOOK(cuMemRangeGetAttributes)
(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
 CUdeviceptr address, size_t bytes) {
  if (!isPaged(address))
    return driver().cuMemRangeGetAttributes(data, data_bytes, attributes, count, address, bytes);
  if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = rangeAttribute(data[i], data_bytes[i], attributes[i], address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

#define OLPAGER_MANAGED(suffix, per_thread)                                                        \
  OLPAGER_HOOK(cuMemPrefetchAsync##suffix)                                                         \
  (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {                          \
    if (!isPaged(address))                                                                         \
      return driver().cuMemPrefetchAsync##suffix(address, bytes, device, stream);                  \
    return prefetch(address, bytes, ManagedAdvice::locationOf(device), 0, stream, per_thread);     \
  }                                                                                                \
  OLPAGER_HOOK(cuMemPrefetchAsync_v2##suffix)                                                      \
  (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,                  \
   CUstream stream) {                                                                              \
    if (!isPaged(address))                                                                         \
      return driver().cuMemPrefetchAsync_v2##suffix(address, bytes, location, flags, stream);      \
    return prefetch(address, bytes, location, flags, stream, per_thread);                          \
  }                                                                                                \
  OLPAGER_HOOK(cuMemPrefetchBatchAsync##suffix)                                                    \
  (CUdeviceptr * addresses, size_t * sizes, size_t count, CUmemLocation * locations,               \
   size_t * indices, size_t location_count, unsigned long long flags, CUstream stream) {           \
    if (!anyPaged(addresses, count))                                                               \
      return driver().cuMemPrefetchBatchAsync##suffix(addresses, sizes, count, locations, indices, \
                                                      location_count, flags, stream);              \
    return prefetchAll(addresses, sizes, count, locations, indices, location_count, flags, stream, \
                       per_thread);                                                                \
  }                                                                                                \
  OLPAGER_HOOK(cuMemDiscardBatchAsync##suffix)                                                     \
  (CUdeviceptr * addresses, size_t * sizes, size_t count, unsigned long long flags,                \
   CUstream stream) {                                                                              \
    if (!anyPaged(addresses, count))                                                               \
      return driver().cuMemDiscardBatchAsync##suffix(addresses, sizes, count, flags, stream);      \
    return discardAll(addresses, sizes, count, flags, stream, per_thread);                         \
  }                                                                                                \
  OLPAGER_HOOK(cuMemDiscardAndPrefetchBatchAsync##suffix)                                          \
  (CUdeviceptr * addresses, size_t * sizes, size_t count, CUmemLocation * locations,               \
   size_t * indices, size_t location_count, unsigned long long flags, CUstream stream) {           \
    if (!anyPaged(addresses, count))                                                               \
      return driver().cuMemDiscardAndPrefetchBatchAsync##suffix(                                   \
          addresses, sizes, count, locations, indices, location_count, flags, stream);             \
    return prefetchAll(addresses, sizes, count, locations, indices, location_count, flags, stream, \
                       per_thread);                                                                \
  }                                                                                                \
  OLPAGER_HOOK(cuStreamAttachMemAsync##suffix)                                                     \
  (CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {                       \
    if (!isPaged(address))                                                                         \
      return driver().cuStreamAttachMemAsync##suffix(stream, address, bytes, flags);               \
    return attach(address, bytes, flags, isLegacy(stream, per_thread));                            \
  }
OLPAGER_MANAGED(, false)
OLPAGER_MANAGED(_ptsz, true)
#undef OLPAGER_MANAGED
