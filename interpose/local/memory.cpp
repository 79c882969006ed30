// Device memory of the program: allocated in the pager's range, freed there, and reported as the
// pager says.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <optional>

#include "base/kernel_faults.h"
#include "base/log.h"
#include "forwarding/placing.h"
#include "interpose/api/pitched_rows.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/contexts.h"
#include "interpose/local/foreign_maps.h"
#include "interpose/local/graph_memory.h"
#include "interpose/local/green_contexts.h"
#include "interpose/local/hook.h"
#include "interpose/local/host_memory.h"
#include "interpose/local/ipc_imports.h"
#include "interpose/local/lost_memory.h"
#include "interpose/local/managed_hints.h"
#include "interpose/local/memory_pools.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/relief.h"
#include "interpose/local/root.h"
#include "pager/residency/budgets.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::AllocationInfo;
using olpager::pager::AllocationKind;
using olpager::pager::MemoryInfo;
using olpager::pager::Pool;
using olpager::pager::StreamKey;

namespace {

// The alignment of rows of pitched allocations on every GPU since compute capability 2. Beyond any
// range: sizes above are refused before anything is added to them.
constexpr uint64_t kLargest = uint64_t{1} << 47;

// The error of a kernel's fault in the current context, which every later call reports: asked of
// the driver where ours would need none of its calls. While a stream captures the question itself
// would spoil the capture.
CUresult contextError() {
  if (const CUresult lost = lostIn(currentContext()); lost != CUDA_SUCCESS) return lost;
  if (anyCapture()) return CUDA_SUCCESS;
  const CUresult result = driver().cuStreamQuery(CU_STREAM_LEGACY);
  const bool ended = olpager::base::isKernelFault(result) || result == CUDA_ERROR_DEINITIALIZED;
  return ended ? result : CUDA_SUCCESS;
}

// `at` 0: anywhere.
CUresult allocateDevice(Pool& running, CUdeviceptr* out, uint64_t bytes, CUdeviceptr at = 0) {
  Place place;
  const CUresult found = currentPlace(&place);
  // Without a context the driver has the reason.
  if (found != CUDA_SUCCESS) return at == 0 ? driver().cuMemAlloc_v2(out, bytes) : found;
  if (const CUresult broken = contextError(); broken != CUDA_SUCCESS) return broken;
  if (primaryIsGone(place)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult refused = refusedByCapture(); refused != CUDA_SUCCESS) return refused;
  if (bytes > kLargest) return CUDA_ERROR_OUT_OF_MEMORY;
  RelaxedCapture relaxed;
  const CUresult result =
      at == 0 ? running.allocate(place.context, place.device, bytes, AllocationKind::kDevice, out)
              : running.allocateAt(place.context, place.device, at, bytes);
  if (result != CUDA_SUCCESS) return result;
  if (at != 0) *out = at;
  return CUDA_SUCCESS;
}

// In the stream's context, which need not be the caller's. `place`: whose memory it is. `from`:
// nullptr for the device's default pool.
CUresult allocateAsync(Pool& running, CUdeviceptr* out, uint64_t bytes, const Place& place,
                       CUmemoryPool from, const StreamKey& key) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Within within(key.context);
  if (within.result() != CUDA_SUCCESS) return within.result();
  if (const CUresult broken = contextError(); broken != CUDA_SUCCESS) return broken;
  if (bytes > kLargest) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t capture = captureOf(key);
  if (capture == kInvalidatedCapture) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture == 0) {
    if (const CUresult refused = refusedByCapture(); refused != CUDA_SUCCESS) return refused;
  }
  std::optional<PoolShare> share;
  if (from != nullptr)
    share.emplace(from, capture == 0 ? bytes : 0);  // what a graph allocates is the graph's
  if (share && !share->fits()) return CUDA_ERROR_OUT_OF_MEMORY;
  RelaxedCapture relaxed;
  const CUresult result =
      running.allocate(place.context, place.device, bytes, AllocationKind::kStreamOrdered, out);
  if (result != CUDA_SUCCESS) return result;
  if (share) share->becomes(*out);
  if (capture != 0) captureAllocates(capture, *out);
  return CUDA_SUCCESS;
}

// Memory that comes and goes in stream order, which nobody else may look at.
template <typename Native>
CUresult driverAllocates(Pool& running, CUdeviceptr* out, size_t bytes, CUcontext context,
                         Native native) {
  const CUresult result = native();
  if (result == CUDA_SUCCESS)
    running.addRoot(context, *out, bytes, olpager::pager::RootKind::kUnknown);
  return result;
}

// The place of an allocation on the device in the order of a stream of this context: that context's
// memory where the stream is the device's, else the primary one's. False: there is none.
bool placeOn(CUdevice device, CUcontext of_stream, Place* place) {
  CUdevice own = 0;
  if (deviceOf(of_stream, &own) != CUDA_SUCCESS) return false;
  *place = {own == device ? memoryOwner(of_stream) : retainedPrimary(device), device};
  return place->context != nullptr;
}

template <typename Native>
CUresult allocAsync(CUdeviceptr* out, size_t bytes, CUstream stream, bool per_thread,
                    Native native) {
  Pool* running = pool();
  // No bytes are nothing, which the driver gives without memory.
  if (running == nullptr || bytes == 0) return native();
  const StreamKey key = streamKey(stream, per_thread);
  if (key.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Place place{memoryOwner(key.context)};
  const CUresult found = deviceOf(key.context, &place.device);
  if (found != CUDA_SUCCESS) return found;
  // The device's current pool may be one of the program's, and lie elsewhere.
  const CUmemoryPool from = currentPool(place.device);
  CUdevice on = place.device;
  if (from != nullptr && (!poolDevice(from, &on) || on != place.device))
    return driverAllocates(*running, out, bytes, place.context, native);
  return allocateAsync(*running, out, bytes, place, from, key);
}

template <typename Native>
CUresult allocFromPool(CUdeviceptr* out, size_t bytes, CUmemoryPool memory_pool, CUstream stream,
                       bool per_thread, Native native) {
  Pool* running = pool();
  if (running == nullptr || bytes == 0) return native();
  const StreamKey key = streamKey(stream, per_thread);
  if (key.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUdevice device = 0;
  Place place;
  if (!poolDevice(memory_pool, &device) || !placeOn(device, key.context, &place))
    return driverAllocates(*running, out, bytes, memoryOwner(key.context), native);
  return allocateAsync(*running, out, bytes, place, memory_pool, key);
}

template <typename Native>
CUresult freeAsync(CUdeviceptr address, CUstream stream, bool per_thread, Native native) {
  Pool* running = pool();
  if (running == nullptr) return native();
  if (!running->contains(address)) {
    running->removeRoot(address);
    return native();
  }
  const StreamKey key = streamKey(stream, per_thread);
  if (key.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const uint64_t capture = captureOf(key); capture != 0) {
    if (capture == kInvalidatedCapture) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (isGraphMemory(address)) return captureFrees(capture, address);
    olpager::base::warnOnce("free in capture",
                            "memory that was allocated outside of a capture is freed inside of "
                            "one: it stays allocated");
    return CUDA_SUCCESS;
  }
  if (!running->isAllocated(address)) return CUDA_ERROR_INVALID_VALUE;
  switch (freeGraphMemory(address)) {
    case GraphFree::kIdle:
      return CUDA_ERROR_INVALID_VALUE;
    case GraphFree::kFreed:
      return CUDA_SUCCESS;
    case GraphFree::kLeft:
    case GraphFree::kOther:
      break;
  }
  RelaxedCapture relaxed;
  AllocationInfo info;
  if (running->describe(address, &info) && info.base == address) forgetPointerState(address);
  return running->freeAsync(address, key);
}

// The part of a device's size that is VRAM has to be the same whenever a program asks: before its
// context, when nobody can say what is free on the device, and after, when others have taken some
// of it, or its budget is another. So it is what the device's own budget would be, or the share of
// it that was set before the program asked.
uint64_t toldVram(CUdevice device, const MemoryInfo& info, uint64_t native) {
  static std::array<std::atomic<uint64_t>, 64> told{};
  auto& here = told[static_cast<unsigned>(device) % told.size()];
  const uint64_t whole = olpager::pager::vramBudgetOf(vramSetting(), native, native);
  uint64_t before = 0;
  const uint64_t now = info.vram_set ? std::min(whole, info.vram_bytes) : whole;
  return here.compare_exchange_strong(before, now) ? now : before;
}

MemoryInfo told(Pool& running, CUcontext context, CUdevice device, uint64_t native) {
  RelaxedCapture relaxed;
  MemoryInfo info = running.memoryInfo(context, device);
  const uint64_t vram = toldVram(device, info, native);
  info.total_bytes = info.total_bytes - info.vram_bytes + vram;
  info.free_bytes = std::min(info.free_bytes, info.total_bytes);
  return info;
}

// The program's own mapping that the device may not use yet is not found.
bool mayAccess(const Pool& running, const AllocationInfo& info, CUdeviceptr address) {
  const CUmemLocation location = memoryOf(info.device);
  unsigned long long flags = 0;
  return running.getAccess(address, location, &flags) == CUDA_SUCCESS && flags != 0;
}

CUresult infoHere(Pool& running, const Place& place, MemoryInfo* info) {
  size_t native = 0;
  const CUresult result = driver().cuDeviceTotalMem_v2(&native, place.device);
  if (result == CUDA_SUCCESS) *info = told(running, place.context, place.device, native);
  return result;
}

}  // namespace

OLPAGER_HOOK(cuMemAlloc_v2)(CUdeviceptr* out, size_t bytes) {
  Pool* running = pool();
  if (running == nullptr) return driver().cuMemAlloc_v2(out, bytes);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return allocateDevice(*running, out, bytes);
}

extern "C" CUresult olpager_room(CUdevice device, OlpagerRoom* room) {
  Pool* running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  size_t native = 0;
  const CUresult result = driver().cuDeviceTotalMem_v2(&native, device);
  if (result != CUDA_SUCCESS) return result;
  const MemoryInfo info = told(*running, nullptr, device, native);
  const uint64_t told_lent = info.lent_told ? info.lent_bytes : 0;
  *room = {.vram = toldVram(device, info, native),
           .told = info.total_bytes,
           .all = info.total_bytes - told_lent + info.lent_bytes,
           .lent = info.lent_bytes,
           .told_lent = told_lent,
           .lenders = lenders()};
  return CUDA_SUCCESS;
}

extern "C" CUresult olpager_set_placed(CUdeviceptr* base, size_t* bytes) {
  // The more of the range, the more a pass over pages has to note; beyond it memory is allocated
  // anywhere.
  constexpr uint64_t kMost = 512ull << 30;
  Pool* running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const uint64_t part = std::min(kMost, (running->end() - running->base()) / 4) /
                        olpager::pager::kPageBytes * olpager::pager::kPageBytes;
  const CUresult result = running->setPlaced(part);
  if (result != CUDA_SUCCESS) return result;
  *base = running->base();
  *bytes = part;
  return CUDA_SUCCESS;
}

extern "C" CUresult olpager_allocate_at(CUdeviceptr address, size_t bytes, size_t* room_bytes,
                                        size_t* room_largest) {
  Pool* running = pool();
  if (running == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (address == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr made = 0;
  const CUresult result = allocateDevice(*running, &made, bytes, address);
  if (result != CUDA_SUCCESS) return result;
  Place place;
  if (currentPlace(&place) != CUDA_SUCCESS) return result;
  const Pool::Room room = running->room(place.device);
  if (room_bytes != nullptr) *room_bytes = room.bytes;
  if (room_largest != nullptr) *room_largest = room.largest;
  return result;
}

OLPAGER_HOOK(cuMemAllocPitch_v2)
(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned int element) {
  Pool* running = pool();
  if (running == nullptr) return driver().cuMemAllocPitch_v2(out, pitch, width, height, element);
  if (out == nullptr || pitch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t row = 0, bytes = 0;
  if (const CUresult wrong = olpager::api::pitchedRows(width, height, element, &row, &bytes);
      wrong != CUDA_SUCCESS)
    return wrong;
  const CUresult result = allocateDevice(*running, out, bytes);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

OLPAGER_HOOK(cuMemFree_v2)(CUdeviceptr address) {
  Pool* running = pool();
  if (running == nullptr) return driver().cuMemFree_v2(address);
  if (!running->contains(address)) {
    forgetManaged(address);
    const CUresult result = driver().cuMemFree_v2(address);
    if (result == CUDA_SUCCESS) loanGone(address);
    return result;
  }
  AllocationInfo info;
  if (!running->describe(address, &info) || info.base != address ||
      info.kind == AllocationKind::kVmm) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult refused = refusedByCapture(); refused != CUDA_SUCCESS) return refused;
  if (currentContext() != nullptr) {
    if (const CUresult broken = contextError(); broken != CUDA_SUCCESS) return broken;
  }
  if (!running->isAllocated(address)) return CUDA_ERROR_INVALID_VALUE;
  switch (freeGraphMemory(address)) {
    case GraphFree::kIdle:
      return CUDA_ERROR_INVALID_VALUE;
    case GraphFree::kFreed:  // as ever what uses it is over by then; beside a capture nothing is
                             // waited for
      return anyCapture() || currentContext() == nullptr ? CUDA_SUCCESS
                                                         : driver().cuCtxSynchronize();
    case GraphFree::kLeft:
    case GraphFree::kOther:
      break;
  }
  forgetPointerState(address);
  if (info.kind == AllocationKind::kManaged) forgetAdvice(address);
  return freeMemory(address);
}

OLPAGER_HOOK(cuMemAllocAsync)(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocAsync(out, bytes, stream, false,
                    [&] { return driver().cuMemAllocAsync(out, bytes, stream); });
}
OLPAGER_HOOK(cuMemAllocAsync_ptsz)(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return allocAsync(out, bytes, stream, true,
                    [&] { return driver().cuMemAllocAsync_ptsz(out, bytes, stream); });
}

OLPAGER_HOOK(cuMemAllocFromPoolAsync)
(CUdeviceptr* out, size_t bytes, CUmemoryPool from, CUstream stream) {
  return allocFromPool(out, bytes, from, stream, false,
                       [&] { return driver().cuMemAllocFromPoolAsync(out, bytes, from, stream); });
}
OLPAGER_HOOK(cuMemAllocFromPoolAsync_ptsz)
(CUdeviceptr* out, size_t bytes, CUmemoryPool from, CUstream stream) {
  return allocFromPool(out, bytes, from, stream, true, [&] {
    return driver().cuMemAllocFromPoolAsync_ptsz(out, bytes, from, stream);
  });
}

OLPAGER_HOOK(cuMemFreeAsync)(CUdeviceptr address, CUstream stream) {
  return freeAsync(address, stream, false,
                   [&] { return driver().cuMemFreeAsync(address, stream); });
}
OLPAGER_HOOK(cuMemFreeAsync_ptsz)(CUdeviceptr address, CUstream stream) {
  return freeAsync(address, stream, true,
                   [&] { return driver().cuMemFreeAsync_ptsz(address, stream); });
}

OLPAGER_HOOK(cuMemGetInfo_v2)(size_t* free_bytes, size_t* total_bytes) {
  Pool* running = pool();
  if (running == nullptr) return driver().cuMemGetInfo_v2(free_bytes, total_bytes);
  Place place;
  const CUresult found = currentPlace(&place);
  if (found != CUDA_SUCCESS) return driver().cuMemGetInfo_v2(free_bytes, total_bytes);
  if (const CUresult broken = contextError(); broken != CUDA_SUCCESS) return broken;
  // Into locals first: the caller's memory may be managed, and touching it may wait for the GPU.
  MemoryInfo info;
  if (const CUresult result = infoHere(*running, place, &info); result != CUDA_SUCCESS)
    return result;
  if (free_bytes != nullptr) *free_bytes = info.free_bytes;
  if (total_bytes != nullptr) *total_bytes = info.total_bytes;
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuMemGetInfo)(unsigned int* free_bytes, unsigned int* total_bytes) {
  size_t free_now = 0;
  size_t total = 0;
  if (pool() == nullptr) return driver().cuMemGetInfo(free_bytes, total_bytes);
  if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = ol_local_cuMemGetInfo_v2(&free_now, &total);
  if (result != CUDA_SUCCESS) return result;
  constexpr size_t kMost = std::numeric_limits<unsigned int>::max();
  *free_bytes = static_cast<unsigned int>(std::min(free_now, kMost));
  *total_bytes = static_cast<unsigned int>(std::min(total, kMost));
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuDeviceTotalMem_v2)(size_t* bytes, CUdevice device) {
  Pool* running = pool();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t native = 0;
  // Also checks the device.
  const CUresult result = driver().cuDeviceTotalMem_v2(&native, device);
  if (result != CUDA_SUCCESS) return result;
  *bytes = native;
  if (running == nullptr) return CUDA_SUCCESS;
  Place place;
  const bool here = currentPlace(&place) == CUDA_SUCCESS && place.device == device;
  *bytes = told(*running, here ? place.context : nullptr, device, native).total_bytes;
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuDeviceTotalMem)(unsigned int* bytes, CUdevice device) {
  if (pool() == nullptr) return driver().cuDeviceTotalMem(bytes, device);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t total = 0;
  const CUresult result = ol_local_cuDeviceTotalMem_v2(&total, device);
  if (result != CUDA_SUCCESS) return result;
  *bytes =
      static_cast<unsigned int>(std::min<size_t>(total, std::numeric_limits<unsigned int>::max()));
  return CUDA_SUCCESS;
}

OLPAGER_HOOK(cuMemGetAddressRange_v2)(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Pool* running = pool();
  if (running == nullptr || !running->contains(address) || foreignMapped(address)) {
    CUdeviceptr first = 0;
    size_t size = 0;
    if (running == nullptr || !ipcRange(address, &first, &size))
      return driver().cuMemGetAddressRange_v2(base, bytes, address);
    if (base != nullptr) *base = first;
    if (bytes != nullptr) *bytes = size;
    return CUDA_SUCCESS;
  }
  AllocationInfo info;
  if (currentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!running->describe(address, &info)) return CUDA_ERROR_NOT_FOUND;
  if (info.kind == AllocationKind::kVmm && !mayAccess(*running, info, address))
    return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = info.base;
  if (bytes != nullptr) *bytes = info.bytes;
  return CUDA_SUCCESS;
}
