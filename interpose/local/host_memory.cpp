// Pinned and managed host memory stays the driver's. Such memory is counted, and where a kernel can
// read it and find addresses of the range there, the pager is told.
#include <map>
#include <mutex>
#include <vector>

#include "interpose/api/managed_advice.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/hook.h"
#include "interpose/local/host_memory.h"
#include "interpose/local/locks.h"
#include "interpose/local/modules.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"
#include "pager/counters/counters.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::Pool;
using olpager::pager::RootKind;

namespace {

struct HostRange {
  uint64_t bytes = 0;
  bool managed = false;
  CUcontext context = nullptr;  // with which the driver frees it
};

struct HostRanges {
  olpager::base::RankedMutex mutex{kHostRangesMutex};
  std::map<uint64_t, HostRange> ranges;  // by first address
};

HostRanges& hostRanges() {
  static auto* instance = new HostRanges;
  return *instance;
}

// Kernels can read any of it, whatever the program has asked for: there is one address space.
// `registered`: the memory is the program's, which may unmap it without a word to the driver.
void noteHost(const void* address, uint64_t bytes, bool registered) {
  Pool* running = pool();
  if (running == nullptr || address == nullptr) return;
  const auto at = reinterpret_cast<uint64_t>(address);
  {
    std::lock_guard lock(hostRanges().mutex);
    hostRanges().ranges[at] = {bytes, false, memoryContext()};
  }
  olpager::pager::add(olpager::pager::counters().pinned_host_allocations);
  olpager::pager::add(olpager::pager::counters().pinned_host_bytes, bytes);
  running->addRoot(memoryContext(), at, bytes, RootKind::kHost, registered);
}

void noteManaged(CUdeviceptr address, uint64_t bytes) {
  Pool* running = pool();
  if (running == nullptr) return;
  {
    std::lock_guard lock(hostRanges().mutex);
    hostRanges().ranges[address] = {bytes, true, memoryContext()};
  }
  olpager::pager::add(olpager::pager::counters().managed_allocations);
  olpager::pager::add(olpager::pager::counters().managed_bytes, bytes);
  running->addRoot(memoryContext(), address, bytes, RootKind::kManaged);
}

// Before the memory goes: nobody may look at it any more.
void forgetHost(uint64_t address) {
  Pool* running = pool();
  HostRange gone;
  {
    std::lock_guard lock(hostRanges().mutex);
    const auto found = hostRanges().ranges.find(address);
    if (found == hostRanges().ranges.end()) return;
    gone = found->second;
    hostRanges().ranges.erase(found);
  }
  if (running != nullptr) running->removeRoot(address);
  auto& counters = olpager::pager::counters();
  olpager::pager::subtract(
      gone.managed ? counters.managed_allocations : counters.pinned_host_allocations, 1);
  olpager::pager::subtract(gone.managed ? counters.managed_bytes : counters.pinned_host_bytes,
                           gone.bytes);
}

// Host memory can't lie in the range: native refuses device addresses here in the same way.
bool inRange(const void* address) {
  const Pool* running = pool();
  const auto at = reinterpret_cast<uint64_t>(address);
  return running != nullptr && running->contains(at) && !foreignMapped(at);
}

// For memory that the program mapped itself, and may use, native CUDA says that it is its own
// device pointer.
bool isVmm(const void* address) {
  const Pool* running = pool();
  const auto at = reinterpret_cast<uint64_t>(address);
  olpager::pager::AllocationInfo info;
  unsigned long long flags = 0;
  return running != nullptr && running->describe(at, &info) &&
         info.kind == olpager::pager::AllocationKind::kVmm &&
         running->getAccess(at, memoryOf(info.device), &flags) == CUDA_SUCCESS && flags != 0;
}

// CUDA_ERROR_NOT_SUPPORTED: the system does not let us see page faults.
CUresult allocateManaged(Pool& running, const Place& place, uint64_t bytes, CUdeviceptr* out) {
  if (const CUresult refused = refusedByCapture(); refused != CUDA_SUCCESS) return refused;
  RelaxedCapture relaxed;
  return running.allocate(place.context, place.device, bytes,
                          olpager::pager::AllocationKind::kManaged, out);
}

}  // namespace

namespace olpager::local {

void forgetManaged(CUdeviceptr address) { forgetHost(address); }

void hostMemoryOfContextGone(CUcontext context) {
  std::vector<uint64_t> gone;
  {
    std::lock_guard lock(hostRanges().mutex);
    for (const auto& [address, range] : hostRanges().ranges)
      if (range.context == context) gone.push_back(address);
  }
  for (const uint64_t address : gone) forgetHost(address);
}

}  // namespace olpager::local

OLPAGER_HOOK(cuMemAllocHost_v2)(void** out, size_t bytes) {
  const CUresult result = driver().cuMemAllocHost_v2(out, bytes);
  if (result == CUDA_SUCCESS) noteHost(*out, bytes, false);
  return result;
}

OLPAGER_HOOK(cuMemAllocHost)(void** out, unsigned int bytes) {
  const CUresult result = driver().cuMemAllocHost(out, bytes);
  if (result == CUDA_SUCCESS) noteHost(*out, bytes, false);
  return result;
}

OLPAGER_HOOK(cuMemHostAlloc)(void** out, size_t bytes, unsigned int flags) {
  const CUresult result = driver().cuMemHostAlloc(out, bytes, flags);
  if (result == CUDA_SUCCESS) noteHost(*out, bytes, false);
  return result;
}

namespace {

// The driver waits for all that runs before it ends pinned memory, and answers no other call
// meanwhile: host functions first, which may touch managed memory.
class EndsPinned {
 public:
  EndsPinned() : waits_for_all_(awaitFunctions()) {}

 private:
  static CUcontext awaitFunctions() {
    const CUcontext context = currentContext();
    if (pool() != nullptr && context != nullptr) pool()->awaitHostFunctionsIn(context, true);
    return context;
  }
  const LoadsCode waits_for_all_;
};

}  // namespace

OLPAGER_HOOK(cuMemFreeHost)(void* address) {
  if (inRange(address)) return CUDA_ERROR_INVALID_VALUE;
  forgetHost(reinterpret_cast<uint64_t>(address));
  const EndsPinned ends;
  return driver().cuMemFreeHost(address);
}

OLPAGER_HOOK(cuMemHostRegister_v2)(void* address, size_t bytes, unsigned int flags) {
  if (inRange(address)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver().cuMemHostRegister_v2(address, bytes, flags);
  if (result == CUDA_SUCCESS && (flags & CU_MEMHOSTREGISTER_IOMEMORY) == 0)
    noteHost(address, bytes, true);
  return result;
}

OLPAGER_HOOK(cuMemHostRegister)(void* address, size_t bytes, unsigned int flags) {
  if (inRange(address)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver().cuMemHostRegister(address, bytes, flags);
  if (result == CUDA_SUCCESS && (flags & CU_MEMHOSTREGISTER_IOMEMORY) == 0)
    noteHost(address, bytes, true);
  return result;
}

OLPAGER_HOOK(cuMemHostUnregister)(void* address) {
  if (inRange(address)) return CUDA_ERROR_INVALID_VALUE;
  forgetHost(reinterpret_cast<uint64_t>(address));
  const EndsPinned ends;
  return driver().cuMemHostUnregister(address);
}

OLPAGER_HOOK(cuMemHostGetDevicePointer_v2)(CUdeviceptr* out, void* address, unsigned int flags) {
  if (inRange(address)) {
    if (out == nullptr || flags != 0 || !isVmm(address)) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUdeviceptr>(address);
    return CUDA_SUCCESS;
  }
  return driver().cuMemHostGetDevicePointer_v2(out, address, flags);
}

OLPAGER_HOOK(cuMemHostGetFlags)(unsigned int* flags, void* address) {
  if (inRange(address)) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    olpager::pager::AllocationInfo info;
    if (pool()->describe(reinterpret_cast<uint64_t>(address), &info) &&
        info.kind == olpager::pager::AllocationKind::kManaged) {
      *flags = CU_MEMHOSTALLOC_DEVICEMAP;
      return CUDA_SUCCESS;
    }
    if (!isVmm(address)) return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  }
  return driver().cuMemHostGetFlags(flags, address);
}

OLPAGER_HOOK(cuMemAllocManaged)(CUdeviceptr* out, size_t bytes, unsigned int flags) {
  Pool* const running = pool();
  Place place;
  if (running != nullptr && managedIsPagers() && out != nullptr &&
      bytes > olpager::api::kMostUnpaged &&
      (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST) &&
      currentPlace(&place) == CUDA_SUCCESS) {
    CUdeviceptr made = 0;  // into a local: what is pointed to may be managed itself
    const CUresult result = allocateManaged(*running, place, bytes, &made);
    if (result == CUDA_SUCCESS) *out = made;
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  if (out == nullptr) return driver().cuMemAllocManaged(out, bytes, flags);
  const CUresult result = withRelief(
      {bytes + kReliefSlack}, [&] { return driver().cuMemAllocManaged(out, bytes, flags); },
      [&] { return *out; });
  if (result == CUDA_SUCCESS) noteManaged(*out, bytes);
  return result;
}
