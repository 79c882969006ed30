// Managed memory as programs see it: blocks of the window (host_blocks.h), and what they were
// advised about ranges of it. Where memory is, advice does not change here; it is told back.
//
// Thread-safety: any thread; one lock, under which nothing is called.
#include "interpose/forward/managed.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/program.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

constexpr CUmemLocation kNowhere = Advice::kNowhere;
using Ranges = ManagedAdvice::Ranges;

bool same(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && a.id == b.id;
}

ManagedAdvice& given() { return *program().parts().advice; }

// Part of one allocation, not empty.
struct Part {
  uint64_t base = 0, begin = 0, end = 0;
};
bool partOf(CUdeviceptr address, uint64_t bytes, Part* part) {
  BlockInfo block;
  if (bytes == 0 || !blockAt(address, &block) || !block.managed ||
      bytes > block.bytes - (address - block.base))
    return false;
  *part = {block.base, address, address + bytes};
  return true;
}

// The range that begins at `address`, which is cut off from the one that it lies in.
Ranges::iterator cut(Ranges& ranges, uint64_t address) {
  const auto within = std::prev(ranges.upper_bound(address));
  return within->first == address ? within
                                  : ranges.emplace_hint(std::next(within), address, within->second);
}

template <typename Change>
void change(const Part& part, Change what) {
  ManagedAdvice& all = given();
  std::lock_guard lock(all.mutex);
  Ranges& ranges = all.allocations[part.base];
  if (ranges.empty()) ranges.emplace(part.base, Advice{});
  const auto end = cut(ranges, part.end);
  for (auto range = cut(ranges, part.begin); range != end; ++range) what(range->second);
}

// Under the mutex.
template <typename Look>
void forEach(const Part& part, Look look) {
  const auto found = given().allocations.find(part.base);
  if (found == given().allocations.end()) return look(Advice{});
  const Ranges& ranges = found->second;
  const auto end = ranges.lower_bound(part.end);
  for (auto range = std::prev(ranges.upper_bound(part.begin)); range != end; ++range)
    look(range->second);
}

CUresult checkLocation(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < deviceCount() ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUmemLocation locationOf(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}
int deviceAt(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

CUresult advise(CUdeviceptr address, uint64_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (!partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  const bool places = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                      advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (places) {
    if (const CUresult result = checkLocation(location); result != CUDA_SUCCESS) return result;
  }
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      change(part, [&](Advice& at) { at.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      change(part, [&](Advice& at) {
        at.preferred = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? location : kNowhere;
      });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      change(part, [&](Advice& at) { at.accessed_by.insert(deviceAt(location)); });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      change(part, [&](Advice& at) { at.accessed_by.erase(deviceAt(location)); });
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult prefetch(CUdeviceptr address, uint64_t bytes, const CUmemLocation& location,
                  unsigned long long flags, CUstream stream, bool per_thread) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (flags != 0 || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = checkLocation(location); result != CUDA_SUCCESS) return result;
  if (capturing() && captures(stream, per_thread)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  change(part, [&](Advice& at) { at.prefetched = location; });
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
  if (locations == nullptr || indices == nullptr || location_count == 0 || location_count > count ||
      indices[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; at < location_count; ++at) {
    if (indices[at] >= count || (at > 0 && indices[at] <= indices[at - 1]))
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult told = checkLocation(locations[at]); told != CUDA_SUCCESS) return told;
  }
  size_t which = 0;
  for (size_t i = 0; i < count; ++i) {
    while (which + 1 < location_count && indices[which + 1] <= i) ++which;
    change(parts[i], [&](Advice& at) { at.prefetched = locations[which]; });
  }
  return CUDA_SUCCESS;
}

// What is discarded holds anything until it is written again: so also what it holds now.
CUresult discardAll(const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                    unsigned long long flags, CUstream stream, bool per_thread) {
  std::vector<Part> parts;
  return partsOf(addresses, sizes, count, flags, stream, per_thread, &parts);
}

// What all of a part has in common.
Advice commonOf(const Part& part) {
  std::lock_guard lock(given().mutex);
  Advice common;
  bool first = true;
  forEach(part, [&](const Advice& at) {
    if (first) common = at;
    first = false;
    common.read_mostly = common.read_mostly && at.read_mostly;
    if (!same(common.preferred, at.preferred)) common.preferred = kNowhere;
    if (!same(common.prefetched, at.prefetched)) common.prefetched = kNowhere;
    std::erase_if(common.accessed_by, [&](int device) { return !at.accessed_by.contains(device); });
  });
  return common;
}

CUresult rangeAttribute(void* data, size_t size, CUmem_range_attribute attribute,
                        CUdeviceptr address, uint64_t bytes) {
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Part part;
  if (data == nullptr || !partOf(address, bytes, &part)) return CUDA_ERROR_INVALID_VALUE;
  const Advice common = commonOf(part);
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = common.read_mostly ? 1 : 0;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      value = deviceAt(common.preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      value = deviceAt(common.prefetched);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      value = static_cast<int>(common.preferred.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      value = common.preferred.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      value = static_cast<int>(common.prefetched.type);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      value = common.prefetched.id;
      break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (size == 0 || size % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
      auto next = common.accessed_by.begin();
      for (size_t i = 0; i < size / sizeof(int); ++i) {
        const int device = next != common.accessed_by.end() ? *next++ : CU_DEVICE_INVALID;
        std::memcpy(static_cast<std::byte*>(data) + i * sizeof device, &device, sizeof device);
      }
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (size != sizeof value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Whoever may use the memory, it stays where it is.
CUresult attach(CUdeviceptr address, uint64_t bytes, unsigned flags, bool legacy) {
  BlockInfo block;
  if (!blockAt(address, &block) || !block.managed || block.base != address ||
      (bytes != 0 && bytes != block.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  // To one stream: the legacy one is none of its own.
  return flags == CU_MEM_ATTACH_SINGLE && legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

bool isManaged(CUdeviceptr address) {
  BlockInfo block;
  return mayBeBlock(address) && blockAt(address, &block) && block.managed;
}

CUresult freeManaged(CUdeviceptr address) {
  const CUresult result = releaseBlock(address, true);
  if (result != CUDA_SUCCESS) return result;
  ManagedAdvice& all = given();
  std::lock_guard lock(all.mutex);
  all.allocations.erase(address);
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
  return advise(address, bytes, advice, locationOf(device));
}
CUresult ol_forward_cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                   CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

#define OL_MANAGED(suffix, per_thread)                                                             \
  CUresult ol_forward_cuMemPrefetchAsync##suffix(CUdeviceptr address, size_t bytes,                \
                                                 CUdevice device, CUstream stream) {               \
    return prefetch(address, bytes, locationOf(device), 0, stream, per_thread);                    \
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
    return attach(address, bytes, flags, isLegacy(stream, per_thread));                            \
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
