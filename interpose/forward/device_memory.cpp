#include "interpose/forward/device_memory.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/space/address_allocator.h"
#include "base/space/slab_allocator.h"
#include "interpose/api/forward_functions.h"
#include "interpose/api/function_facts.h"
#include "interpose/forward/allocation_book.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/managed.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

using space::kPageBytes;

using Held = AllocationBook::Held;

// The book of the session that an address belongs to.
AllocationBook* bookOf(CUdeviceptr address) {
  const Session* const session = Route().address(address).session();
  return session != nullptr ? session->parts().book.get() : nullptr;
}

// --- allocations ---------------------------------------------------------------------------------

// The memory ends with its context.
void know(CUdeviceptr address, const Held& memory) {
  const Session* const session = Route().address(address).session();
  if (session == nullptr) return;
  session->parts().contexts->know(memory.context);
  session->parts().book->know(address, memory);
}

// Forgets it; false: no allocation that is known begins there.
bool takeKnown(CUdeviceptr address) {
  AllocationBook* const all = bookOf(address);
  return all != nullptr && all->forget(address);
}

CUresult allocateAnywhere(CUdeviceptr* out, uint64_t bytes) {
  const auto all = existingSessions();
  if (std::none_of(all.begin(), all.end(), [](const Session* one) { return one->initialized(); }) &&
      !all.empty())
    return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult result = ol_forward_generated_cuMemAlloc_v2(out, bytes);
  if (result == CUDA_SUCCESS && out != nullptr) know(*out, {memoryOwner(currentContext()), bytes});
  return result;
}

CUresult allocate(CUdeviceptr* out, uint64_t bytes) {
  Session* const session = existingSession();
  const uint64_t context = memoryOwner(currentContext());
  CUdevice device = 0;
  // Beyond any range, while something captures, or without a context: the driver has the answer.
  if (out == nullptr || bytes == 0 || bytes >= 1ull << 47 || session == nullptr ||
      !session->initialized() || !deviceOf(context, &device) || capturing())
    return allocateAnywhere(out, bytes);
  session->parts().contexts->know(context);  // with which the memory ends
  AllocationBook& all = *session->parts().book;
  std::unique_lock lock(all.mutex);
  if (!all.ready(*session)) {
    lock.unlock();
    return allocateAnywhere(out, bytes);
  }
  if (const uint64_t spent = all.spent.load();
      spent != all.spent_seen || all.credit.device != device) {
    all.credit = {};
    all.spent_seen = spent;
  }
  const uint64_t before = all.usedPages();
  const uint64_t address = all.take(context, bytes);
  if (address == 0) {  // the part is full
    lock.unlock();
    return allocateAnywhere(out, bytes);
  }
  const uint64_t cost = (all.usedPages() - before) * kPageBytes;
  Call call(Operation::kAllocateAt, session);
  call.value(address);
  call.value(bytes);
  CUresult result = CUDA_SUCCESS;
  if (all.credit.device == device && cost <= all.credit.bytes && cost <= all.credit.largest) {
    all.credit.bytes -= cost;
    result = call.oneWay();
  } else {
    result = call.sync();
    if (call.answered()) {
      const auto room = call.reply().value<Room>();
      all.credit = {device, room.bytes / 2, room.largest / 2};
    }
    // An error of an earlier call comes with a success of this one: the memory is there, and nobody
    // will free it.
    if (result != CUDA_SUCCESS && call.answered()) {
      Call back(api::Symbol::kCuMemFree_v2, session);
      back.value(address);
      (void)back.oneWay();
    }
  }
  if (result != CUDA_SUCCESS) {
    all.give(context, address, bytes);
    return result;
  }
  all.held[address] = {context, bytes};
  lock.unlock();
  all.know(address, {context, bytes});
  *out = address;
  return result;
}

// A free waits for the GPU as the driver's does, at the worker. The caller need not where no other
// call of the program could end what it waits for, and nothing that the GPU writes is still to come
// here.
CUresult release(CUdeviceptr address) {
  Session* const session =
      existingSessions().empty() ? nullptr : Route().address(address).session();
  if (session == nullptr)
    return ol_forward_generated_cuMemFree_v2(address);  // in a forked child locks are anybody's
  AllocationBook& all = *session->parts().book;
  (void)all.forget(address);
  std::unique_lock lock(all.mutex);
  const auto found = all.held.find(address);
  if (found == all.held.end()) {
    lock.unlock();
    return ol_forward_generated_cuMemFree_v2(address);
  }
  const Held held = found->second;
  const auto gone = [&] {
    all.give(held.context, address, held.bytes);
    all.held.erase(address);
  };
  if (!session->othersCall() && !session->arrivals().any() &&
      held.context == memoryOwner(contextIn(session)) && all.slabs.size() <= 1 && !capturing()) {
    Call call(api::Symbol::kCuMemFree_v2, session);
    call.value(address);
    const CUresult result = call.oneWay();
    if (result == CUDA_SUCCESS) gone();
    return result;
  }
  lock.unlock();
  const CUresult result = ol_forward_generated_cuMemFree_v2(address);
  lock.lock();
  if (result == CUDA_SUCCESS && all.held.contains(address)) gone();
  return result;
}

// In stream order the address would be free at a time that nobody here knows: the stream is waited
// for.
CUresult releaseInOrder(CUdeviceptr address, CUstream stream, bool per_thread) {
  bool held = false;
  if (!existingSessions().empty()) {
    AllocationBook& all = *bookOf(address);
    std::lock_guard lock(all.mutex);
    held = all.held.contains(address);
  }
  if (!held || (capturing() && captures(stream, per_thread))) {
    Call call(per_thread ? api::Symbol::kCuMemFreeAsync_ptsz : api::Symbol::kCuMemFreeAsync,
              Route().address(address).handle(stream));
    call.value(address);
    call.handle(stream);
    // One that did not come from cuMemAllocAsync, or went back before, the driver refuses.
    return takeKnown(address) ? call.oneWay() : call.sync();
  }
  const CUresult result = finishStream(stream, per_thread);
  return result == CUDA_SUCCESS ? release(address) : result;
}

// Memory allocated outside of the pager's range is known as device memory from now on.
CUresult noted(const CUdeviceptr* out, uint64_t bytes, CUstream stream, bool per_thread,
               const Session* session, CUresult result) {
  if (result != CUDA_SUCCESS || session == nullptr || *out == 0) return result;
  if (const CUgraph graph = capturing() ? capturedGraph(stream, per_thread) : nullptr;
      graph != nullptr)
    noteAllocates(*session, graph);
  const Description& description = session->executor().description();
  if (*out - description.va_base >= description.va_size) {
    session->parts().driver_memory->note(*out, bytes);
  } else if (!capturing()) {  // what a graph allocates comes and goes with it
    know(*out, {memoryOwner(stream), bytes});
  }
  return result;
}

// Bytes from the address to the end of the plain allocation that it is in.
std::optional<uint64_t> leftInKnown(CUdeviceptr address) {
  const AllocationBook* const all = bookOf(address);
  return all != nullptr ? all->leftInKnown(address) : std::nullopt;
}

bool isOfHost(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

}  // namespace

void noteCall(const Session& session, uint16_t function) {
  const bool uses = api::holds(api::Fact::kUsesMemory, function) ||
                    function == static_cast<uint16_t>(Operation::kLoadModule) ||
                    function == static_cast<uint16_t>(Operation::kLoadLibrary) ||
                    function == static_cast<uint16_t>(Operation::kLinkComplete) ||
                    function == static_cast<uint16_t>(Operation::kContextCreate) ||
                    function == static_cast<uint16_t>(Operation::kPrimaryRetain);
  if (uses) session.parts().book->spent.fetch_add(1);
}

bool hasDeviceMemory(uint64_t context) {
  const Session* const session = sessionOfHandle(context);
  return session != nullptr && session->parts().book->knowsAny(context);
}

bool isKnownMemory(CUdeviceptr address, uint64_t bytes) {
  const auto left = leftInKnown(address);
  return left && bytes <= *left;
}

bool leavesKnownMemory(CUdeviceptr address, uint64_t bytes) {
  const auto left = leftInKnown(address);
  return left && bytes > *left;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return allocate(address, bytes);
}
CUresult ol_forward_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                       size_t height, unsigned element) {
  const CUresult result =
      ol_forward_generated_cuMemAllocPitch_v2(address, pitch, width, height, element);
  if (result == CUDA_SUCCESS) know(*address, {memoryOwner(currentContext()), *pitch * height});
  return result;
}
// While a stream captures, and from some pools, it is the driver's own memory, outside of the
// pager's range.
#define OL_IN_ORDER(suffix, per_thread)                                                           \
  CUresult ol_forward_cuMemAllocAsync##suffix(CUdeviceptr* out, size_t bytes, CUstream stream) {  \
    return noted(out, bytes, stream, per_thread, Route().handle(stream).session(),                \
                 ol_forward_generated_cuMemAllocAsync##suffix(out, bytes, stream));               \
  }                                                                                               \
  CUresult ol_forward_cuMemAllocFromPoolAsync##suffix(CUdeviceptr* out, size_t bytes,             \
                                                      CUmemoryPool pool, CUstream stream) {       \
    return noted(out, bytes, stream, per_thread, Route().handle(pool).handle(stream).session(),   \
                 ol_forward_generated_cuMemAllocFromPoolAsync##suffix(out, bytes, pool, stream)); \
  }
OL_IN_ORDER(, false)
OL_IN_ORDER(_ptsz, true)
#undef OL_IN_ORDER

CUresult ol_forward_cuMemFree_v2(CUdeviceptr address) {
  return isManaged(address) ? freeManaged(address) : release(address);
}
CUresult ol_forward_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return releaseInOrder(address, stream, false);
}
CUresult ol_forward_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return releaseInOrder(address, stream, true);
}

// The memory is the gpunode's: the program's CPU can't have it. A program that creates host memory
// to share it with other processes (NCCL) means their CPUs, and has another way if told at once.
CUresult ol_forward_cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                                const CUmemAllocationProp* properties, unsigned long long flags) {
  if (properties != nullptr && isOfHost(properties->location) &&
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return refused("cuMemCreate of exportable host memory", false);
  return ol_forward_generated_cuMemCreate(out, bytes, properties, flags);
}
CUresult ol_forward_cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  if (properties != nullptr && isOfHost(properties->location))
    return refused("cuMemPoolCreate of host memory", false);
  return ol_forward_generated_cuMemPoolCreate(out, properties);
}
CUresult ol_forward_cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                   const CUmemAccessDesc* descriptions, size_t count) {
  for (size_t i = 0; descriptions != nullptr && i < count; ++i) {
    const bool reaches = descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (reaches && descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return refused("memory of cuMemCreate that the CPU reaches", false);
  }
  return ol_forward_generated_cuMemSetAccess(address, bytes, descriptions, count);
}

}  // extern "C"
