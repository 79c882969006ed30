// Managed memory as programs see it: blocks of the window (host_blocks.h), and what they were
// advised about ranges of it. Advice does not change here where memory is; it is told back.
//
// Thread-safety: any thread.
#include "interpose/forward/managed.h"

#include <optional>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/api/managed_advice.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/group.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/program.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

using api::ManagedAdvice;
using Part = api::ManagedPart;

ManagedAdvice& given() { return *program().parts().advice; }

// A block, or of the unified view's.
std::optional<ManagedRange> managedAt(CUdeviceptr address) {
  BlockInfo block;
  if (blockAt(address, &block))
    return block.managed ? std::optional(ManagedRange{block.base, block.bytes}) : std::nullopt;
  const Session* const session = sessionOfGroup();
  return session != nullptr ? session->group()->managedAt(address) : std::nullopt;
}

bool partOf(CUdeviceptr address, uint64_t bytes, Part* part) {
  const auto range = managedAt(address);
  if (bytes == 0 || !range || bytes > range->bytes - (address - range->base)) return false;
  *part = {range->base, address, address + bytes};
  return true;
}

CUresult advise(CUdeviceptr address, uint64_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (!partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  return given().advise(part, advice, location, deviceCount());
}

CUresult prefetch(CUdeviceptr address, uint64_t bytes, const CUmemLocation& location,
                  unsigned long long flags, CUstream stream, bool per_thread) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (flags != 0 || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = ManagedAdvice::checkLocation(location, deviceCount());
      result != CUDA_SUCCESS)
    return result;
  if (capturing() && captures(stream, per_thread)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  given().prefetched(part, location);
  return CUDA_SUCCESS;
}

// The ranges of a batch: nothing is done where one of them is none of managed memory.
CUresult partsOf(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                 unsigned long long flags, CUstream stream, bool per_thread,
                 std::vector<Part>* parts) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (addresses == nullptr || sizes == nullptr || count == 0 || flags != 0 ||
      isLegacy(stream, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    if (!partOf(addresses[i], sizes[i], &parts->emplace_back())) return CUDA_ERROR_INVALID_VALUE;
  return capturing() && captures(stream, per_thread) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                     : CUDA_SUCCESS;
}

CUresult prefetchAll(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                     const CUmemLocation* locations, const size_t* indices, size_t location_count,
                     unsigned long long flags, CUstream stream, bool per_thread) {
  std::vector<Part> parts;
  const CUresult result = partsOf(addresses, sizes, count, flags, stream, per_thread, &parts);
  if (result != CUDA_SUCCESS) return result;
  if (const CUresult told =
          ManagedAdvice::checkLocations(locations, indices, location_count, count, deviceCount());
      told != CUDA_SUCCESS)
    return told;
  return ManagedAdvice::forEachLocation(locations, indices, location_count, count,
                                        [&](size_t i, const CUmemLocation& location) {
                                          given().prefetched(parts[i], location);
                                          return CUDA_SUCCESS;
                                        });
}

// Discarded memory holds anything until it is written again: so also what it holds now.
CUresult discardAll(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                    unsigned long long flags, CUstream stream, bool per_thread) {
  std::vector<Part> parts;
  return partsOf(addresses, sizes, count, flags, stream, per_thread, &parts);
}

CUresult rangeAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                        CUdeviceptr address, uint64_t bytes) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (data == nullptr || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  return given().attribute(data, size, attribute, part);
}

// The block stays where it is, whoever may use it.
CUresult attach(CUdeviceptr address, uint64_t bytes, unsigned flags, CUstream stream,
                bool per_thread) {
  const auto range = managedAt(address);
  if (!range || range->base != address || (bytes != 0 && bytes != range->bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  // To one stream: the legacy one is none of its own.
  if (flags == CU_MEM_ATTACH_SINGLE && isLegacy(stream, per_thread))
    return CUDA_ERROR_INVALID_VALUE;
  if (Session* const session = sessionOfGroup(); session != nullptr)
    session->group()->attachManaged(address, flags,
                                    stream != nullptr ? stream : CU_STREAM_PER_THREAD);
  return CUDA_SUCCESS;
}

}  // namespace

bool isManaged(CUdeviceptr address) {
  BlockInfo block;
  return mayBeBlock(address) && blockAt(address, &block) && block.managed;
}

void forgetAdvice(CUdeviceptr address) { given().forget(address); }

CUresult freeManaged(CUdeviceptr address) {
  const CUresult result = releaseBlock(address, true);
  if (result != CUDA_SUCCESS) return result;
  forgetAdvice(address);
  return result;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  if (address == nullptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  return allocateBlock(bytes, 0, true, address);
}

CUresult ol_forward_cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                CUdevice device) {
  return advise(address, bytes, advice, ManagedAdvice::locationOf(device));
}
CUresult ol_forward_cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                   CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

#define OL_MANAGED(suffix, per_thread)                                                             \
  CUresult ol_forward_cuMemPrefetchAsync##suffix(CUdeviceptr address, size_t bytes,                \
                                                 CUdevice device, CUstream stream) {               \
    return prefetch(address, bytes, ManagedAdvice::locationOf(device), 0, stream, per_thread);     \
  }                                                                                                \
  CUresult ol_forward_cuMemPrefetchAsync_v2##suffix(CUdeviceptr address, size_t bytes,             \
                                                    CUmemLocation location, unsigned flags,        \
                                                    CUstream stream) {                             \
    return prefetch(address, bytes, location, flags, stream, per_thread);                          \
  }                                                                                                \
  CUresult ol_forward_cuMemPrefetchBatchAsync##suffix(                                             \
      CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* locations,               \
      size_t* indices, size_t location_count, unsigned long long flags, CUstream stream) {         \
    return prefetchAll(addresses, sizes, count, locations, indices, location_count, flags, stream, \
                       per_thread);                                                                \
  }                                                                                                \
  CUresult ol_forward_cuMemDiscardBatchAsync##suffix(CUdeviceptr* addresses, size_t* sizes,        \
                                                     size_t count, unsigned long long flags,       \
                                                     CUstream stream) {                            \
    return discardAll(addresses, sizes, count, flags, stream, per_thread);                         \
  }                                                                                                \
  CUresult ol_forward_cuMemDiscardAndPrefetchBatchAsync##suffix(                                   \
      CUdeviceptr* addresses, size_t* sizes, size_t count, CUmemLocation* locations,               \
      size_t* indices, size_t location_count, unsigned long long flags, CUstream stream) {         \
    return prefetchAll(addresses, sizes, count, locations, indices, location_count, flags, stream, \
                       per_thread);                                                                \
  }                                                                                                \
  CUresult ol_forward_cuStreamAttachMemAsync##suffix(CUstream stream, CUdeviceptr address,         \
                                                     size_t bytes, unsigned flags) {               \
    return attach(address, bytes, flags, stream, per_thread);                                      \
  }
OL_MANAGED(, false)
OL_MANAGED(_ptsz, true)
#undef OL_MANAGED

CUresult ol_forward_cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                                           CUdeviceptr address, size_t bytes) {
  return rangeAttribute(data, size, attribute, address, bytes);
}
CUresult ol_forward_cuMemRangeGetAttributes(void** data, size_t* sizes,
                                            CUmem_range_attribute* attributes, size_t count,
                                            CUdeviceptr address, size_t bytes) {
  if (data == nullptr || sizes == nullptr || attributes == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = rangeAttribute(data[i], sizes[i], attributes[i], address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
