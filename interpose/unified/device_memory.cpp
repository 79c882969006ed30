// Device memory of a view over several executors: the program's side gives out its addresses as in
// forwarded mode (allocation_book.h), but its pages are the home's, and no executor is asked.
// Questions about it are answered here as well: executors know its pages alone. Over one executor
// all of it is forwarded mode's.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/size.h"
#include "base/space/pages.h"
#include "interpose/api/attribute_bytes.h"
#include "interpose/api/forward_functions.h"
#include "interpose/api/managed_advice.h"
#include "interpose/api/pitched_rows.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/allocation_book.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/couriers.h"
#include "interpose/forward/crossings.h"
#include "interpose/forward/group.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/managed.h"
#include "interpose/forward/none_begins.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/threads.h"
#include "interpose/unified/executors.h"

namespace olpager::unified {
namespace {

using forward::AllocationBook;
using forward::Session;
using forward::sessionOfGroup;

constexpr uint64_t kMostBytes = 1ull << 47;  // no address has more behind it
// The wait of an allocation for memory that was freed in the order of streams, while none comes.
// One that is in the order of a stream itself waits as long as some is on its way.
constexpr auto kForFreed = std::chrono::seconds(10);

// A session's group is of no other kind here (view.cpp).
ManagedMemory& managedOf(Session& session) {
  return static_cast<Executors*>(session.group())->managed();
}

// All that the program's streams have to do is done. Forbidden while a stream captures, as the call
// itself is.
CUresult finishAll(Session& session) {
  for (const uint64_t context : forward::contextsOf(session)) {
    if (const CUresult result = forward::finishContext(session, context); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

// The same, but where a stream captures nothing is waited for, and nothing is returned.
std::optional<CUresult> finishUncaptured(Session& session) {
  for (const uint64_t context : forward::contextsOf(session)) {
    forward::Call call(forward::Operation::kFinishWork, &session);
    call.inContext(context);
    call.mayWait();
    call.ofOurOwn();
    call.relaxed();
    CUresult result = CUDA_SUCCESS;
    {
      const forward::NoneBegins none;
      if (forward::capturing()) return std::nullopt;
      result = call.begin(true);
    }
    if (result == CUDA_SUCCESS) result = call.finish();
    // A capture has begun there before that.
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return std::nullopt;
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// Memory freed while a stream captured goes with the next call for memory after that.
CUresult releaseLater(Session& session) {
  AllocationBook& book = *session.parts().book;
  std::unique_lock lock(book.mutex);
  if (book.later.empty() || forward::capturing()) return CUDA_SUCCESS;
  auto freed = std::exchange(book.later, {});
  lock.unlock();
  const std::optional<CUresult> finished = finishUncaptured(session);
  lock.lock();
  if (!finished) {
    book.later.insert(book.later.end(), freed.begin(), freed.end());
    return CUDA_SUCCESS;
  }
  for (const auto& [address, held] : freed) book.give(held.context, address, held.bytes);
  return *finished;
}

// Under the book's mutex, which is released where it has to wait: there may be room when streams
// have come to what was freed in their order. 0: there is none.
uint64_t takeAddress(const Session& session, AllocationBook& book, uint64_t context, uint64_t bytes,
                     bool in_order, std::unique_lock<std::mutex>& lock) {
  for (;;) {
    const uint64_t come = book.in_order.count();
    book.giveFreedInOrder();
    if (const uint64_t address = book.take(context, bytes); address != 0) return address;
    lock.unlock();
    bool more = false;
    do {
      more = book.in_order.awaitMore(come, kForFreed);
    } while (!more && in_order && book.in_order.anyWaits() && !session.ended());
    lock.lock();
    if (!more) return 0;
  }
}

// The order of this stream: a number that means the same stream at any time.
uint64_t orderOf(CUstream stream, bool per_thread) {
  constexpr uint64_t kOfThread = uint64_t{1} << 32;  // no stream's number: these are marked
  if (stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread))
    return kOfThread | forward::thisThread();
  return reinterpret_cast<uint64_t>(stream != nullptr ? stream : CU_STREAM_LEGACY);
}

struct How {
  bool pages = false;                  // it has pages of its own
  std::optional<uint64_t> in_order{};  // of this stream (orderOf)
};
// The memory ends with `context`.
CUresult allocate(Session& session, CUdeviceptr* out, uint64_t bytes, uint64_t context,
                  const How& how = {}) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!session.initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  CUdevice device = 0;
  if (!forward::deviceOf(context, &device)) return CUDA_ERROR_INVALID_CONTEXT;
  if (forward::captureForbids()) {
    if (const CUresult result = finishAll(session); result != CUDA_SUCCESS) return result;
  }
  if (bytes >= kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult result = releaseLater(session); result != CUDA_SUCCESS) return result;
  if (const CUresult broken = session.faultOf(forward::currentContext()); broken != CUDA_SUCCESS)
    return broken;
  session.parts().contexts->know(context);  // with which the memory ends
  AllocationBook& book = *session.parts().book;
  std::unique_lock lock(book.mutex);
  if (!book.ready(session)) return CUDA_ERROR_NOT_INITIALIZED;
  const uint64_t taken = how.pages ? std::max(bytes, space::kPageBytes) : bytes;
  uint64_t address =
      how.in_order ? book.in_order.takeBack(context, *how.in_order, taken) : uint64_t{0};
  if (address == 0)
    address = takeAddress(session, book, context, taken, how.in_order.has_value(), lock);
  if (address == 0) {
    lock.unlock();
    base::warnOnce("unified allocation",
                   "unified view: an allocation of %s is refused (out of memory): %s of the %s of "
                   "all gpunodes are free (olgpunode --vram, --memory)",
                   base::formatSize(bytes).c_str(),
                   base::formatSize(session.group()->freeBytes()).c_str(),
                   base::formatSize(session.group()->totalBytes()).c_str());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  book.held[address] = {context, taken};
  lock.unlock();
  book.know(address, {context, bytes});
  *out = address;
  return CUDA_SUCCESS;
}

CUresult allocate(Session& session, CUdeviceptr* out, uint64_t bytes) {
  return allocate(session, out, bytes, forward::memoryOwner(forward::currentContext()));
}

CUresult release(Session& session, CUdeviceptr address);

CUresult allocateManaged(Session& session, CUdeviceptr* out, uint64_t bytes, unsigned flags) {
  const uint64_t context = forward::memoryOwner(forward::currentContext());
  CUdeviceptr address = 0;
  if (const CUresult result = allocate(session, &address, bytes, context, {.pages = true});
      result != CUDA_SUCCESS)
    return result;
  const Status added = managedOf(session).add(address, bytes, context, flags);
  if (!added.ok()) {
    base::logWarn("unified view: %s", added.error().message.c_str());
    (void)release(session, address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult allocateRows(Session& session, CUdeviceptr* out, size_t* pitch, uint64_t width,
                      uint64_t height, unsigned element) {
  if (out == nullptr || pitch == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t row = 0, bytes = 0;
  if (const CUresult wrong = api::pitchedRows(width, height, element, &row, &bytes);
      wrong != CUDA_SUCCESS)
    return wrong;
  const CUresult result = allocate(session, out, bytes);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

// True for an address of such memory, allocated or not.
bool isOfGroup(const Session& session, CUdeviceptr address) {
  const forward::Description& range = session.executor().description();
  return address - range.placed < range.placed_bytes;
}

// True if plain memory begins there.
bool isHeld(Session& session, CUdeviceptr address) {
  AllocationBook& book = *session.parts().book;
  const std::lock_guard lock(book.mutex);
  return book.held.contains(address);
}

CUresult release(Session& session, CUdeviceptr address) {
  if (forward::captureForbids()) {
    if (const CUresult result = finishAll(session); result != CUDA_SUCCESS) return result;
  }
  const std::optional<CUresult> finished = finishUncaptured(session);
  if (finished && *finished != CUDA_SUCCESS) return *finished;
  AllocationBook& book = *session.parts().book;
  managedOf(session).remove(address);  // while its pages are known
  (void)book.forget(address);
  const std::lock_guard lock(book.mutex);
  const auto found = book.held.find(address);
  if (found == book.held.end()) return CUDA_ERROR_INVALID_VALUE;  // another thread was here first
  if (!finished) {
    book.later.emplace_back(address, found->second);
  } else {
    book.give(found->second.context, address, found->second.bytes);
  }
  book.held.erase(found);
  return CUDA_SUCCESS;
}

// In the stream's order, where nobody waits; it may be known as memory until then.
CUresult releaseInOrder(Session& session, CUdeviceptr address, CUstream stream, bool per_thread) {
  AllocationBook& book = *session.parts().book;
  AllocationBook::Held freed{};
  {
    const std::lock_guard lock(book.mutex);
    const auto found = book.held.find(address);
    if (found == book.held.end()) return CUDA_ERROR_INVALID_VALUE;
    freed = found->second;
    book.held.erase(found);
  }
  const uint64_t number =
      book.in_order.add({address, freed.context, freed.bytes}, orderOf(stream, per_thread));
  const uint32_t notice =
      session.functions().expectNotice([&session, &book, number](CUresult status) {
        book.in_order.comes(number, status == CUDA_SUCCESS);
        if (session.ended()) return;
        forward::runByCourier([&book] {
          const std::lock_guard lock(book.mutex);
          book.giveFreedInOrder();
        });
      });
  CUresult result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (notice != 0) result = forward::putNotice({&session, stream, per_thread}, notice);
  if (result == CUDA_SUCCESS || (notice != 0 && !session.functions().forgetNotice(notice)))
    return result;
  book.in_order.drop(number);
  const std::lock_guard lock(book.mutex);
  book.held[address] = freed;
  return result;
}

// Managed memory is nobody's to free in an order; where a program does, all is waited for.
CUresult freeInOrder(Session& session, CUdeviceptr address, CUstream stream, bool per_thread) {
  if (!isHeld(session, address)) return CUDA_ERROR_INVALID_VALUE;
  if (!session.group()->managedAt(address))
    return releaseInOrder(session, address, stream, per_thread);
  const CUresult result = forward::finishStream(stream, per_thread);
  return result == CUDA_SUCCESS ? release(session, address) : result;
}

// Such a pool's memory is the driver's to count.
bool isLimited(const Session& session, CUmemoryPool pool) {
  AllocationBook& book = *session.parts().book;
  const std::lock_guard lock(book.mutex);
  return book.limited.contains(pool);
}

bool isCaptured(CUstream stream, bool per_thread) {
  return forward::capturing() && forward::captures(stream, per_thread);
}

// --- questions -----------------------------------------------------------------------------------

// Bytes of slabs that are empty and kept for the next small allocation.
uint64_t keptBytes(const Session& session) {
  AllocationBook& book = *session.parts().book;
  const std::lock_guard lock(book.mutex);
  return (book.pages - book.usedPages()) * space::kPageBytes;
}

unsigned inWord(size_t bytes) {
  return static_cast<unsigned>(std::min<size_t>(bytes, std::numeric_limits<unsigned>::max()));
}

template <typename T>
void put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
}

struct Plain {
  CUdeviceptr base;
  uint64_t bytes;
  bool managed;
};
std::optional<Plain> plainAt(const Session* session, CUdeviceptr address) {
  if (session == nullptr) return std::nullopt;
  const auto found = session->parts().book->findKnown(address);
  // Freed, maybe, and the executors, who are asked next, have not heard of that yet: they would
  // answer for what was there.
  if (!found && isOfGroup(*session, address)) session->group()->awaitReleased();
  if (!found) return std::nullopt;
  return Plain{found->first, found->second, session->group()->managedAt(address).has_value()};
}

CUresult answer(const Session& session, const Plain& memory, CUdeviceptr address,
                CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
      AllocationBook& book = *session.parts().book;
      const std::lock_guard lock(book.mutex);
      const auto held = book.held.find(memory.base);
      put(data, held != book.held.end() ? held->second.context : uint64_t{0});
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      put(data, address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      put(data, session.parts().book->numberOf(memory.base));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      put(data, memory.base);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      put(data, memory.bytes);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      put(data, 1u);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      put(data, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      put(data, memory.managed ? 1u : 0u);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      put(data, memory.managed ? address : CUdeviceptr{0});
      return memory.managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      std::memset(data, 0, api::pointerAttributeBytes(attribute));
      return CUDA_ERROR_INVALID_VALUE;
    default:  // of the one device, and nothing of it is a pool's, or for others
      std::memset(data, 0, api::pointerAttributeBytes(attribute));
      return CUDA_SUCCESS;
  }
}

}  // namespace
}  // namespace olpager::unified

using namespace olpager::unified;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions
namespace api = olpager::api;
using olpager::forward::currentContext;
using olpager::forward::memoryOwner;
using olpager::forward::Session;
using olpager::forward::sessionOfGroup;

extern "C" {

CUresult ol_unified_cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  Session* const session = sessionOfGroup();
  return session != nullptr ? allocate(*session, address, bytes)
                            : ol_forward_cuMemAlloc_v2(address, bytes);
}

CUresult ol_unified_cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Session* const session = sessionOfGroup();
  const bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
  if (session == nullptr || address == nullptr || !known || bytes <= api::kMostUnpaged ||
      !session->initialized() || !managedOf(*session).available())
    return ol_forward_cuMemAllocManaged(address, bytes, flags);
  return allocateManaged(*session, address, bytes, flags);
}

CUresult ol_unified_cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                       size_t height, unsigned element) {
  Session* const session = sessionOfGroup();
  return session != nullptr ? allocateRows(*session, address, pitch, width, height, element)
                            : ol_forward_cuMemAllocPitch_v2(address, pitch, width, height, element);
}

// Memory that a graph allocates when it runs is the driver's.
#define OL_IN_ORDER(suffix, per_thread)                                                          \
  CUresult ol_unified_cuMemAllocAsync##suffix(CUdeviceptr* out, size_t bytes, CUstream stream) { \
    Session* const session = sessionOfGroup();                                                   \
    return session != nullptr && !isCaptured(stream, per_thread)                                 \
               ? allocate(*session, out, bytes, memoryOwner(currentContext()),                   \
                          {.in_order = orderOf(stream, per_thread)})                             \
               : ol_forward_cuMemAllocAsync##suffix(out, bytes, stream);                         \
  }                                                                                              \
  CUresult ol_unified_cuMemAllocFromPoolAsync##suffix(CUdeviceptr* out, size_t bytes,            \
                                                      CUmemoryPool pool, CUstream stream) {      \
    Session* const session = sessionOfGroup();                                                   \
    return session != nullptr && !isLimited(*session, pool) && !isCaptured(stream, per_thread)   \
               ? allocate(*session, out, bytes, memoryOwner(stream),                             \
                          {.in_order = orderOf(stream, per_thread)})                             \
               : ol_forward_cuMemAllocFromPoolAsync##suffix(out, bytes, pool, stream);           \
  }                                                                                              \
  CUresult ol_unified_cuMemFreeAsync##suffix(CUdeviceptr address, CUstream stream) {             \
    Session* const session = sessionOfGroup();                                                   \
    return session != nullptr && isOfGroup(*session, address) && !isCaptured(stream, per_thread) \
               ? freeInOrder(*session, address, stream, per_thread)                              \
               : ol_forward_cuMemFreeAsync##suffix(address, stream);                             \
  }
OL_IN_ORDER(, false)
OL_IN_ORDER(_ptsz, true)
#undef OL_IN_ORDER

CUresult ol_unified_cuMemFree_v2(CUdeviceptr address) {
  Session* const session = sessionOfGroup();
  if (session == nullptr || !isOfGroup(*session, address)) return ol_forward_cuMemFree_v2(address);
  return isHeld(*session, address) ? release(*session, address) : CUDA_ERROR_INVALID_VALUE;
}

CUresult ol_unified_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = ol_forward_cuMemPoolCreate(pool, properties);
  const Session* const session = sessionOfGroup();
  if (result == CUDA_SUCCESS && session != nullptr && properties->maxSize != 0) {
    AllocationBook& book = *session->parts().book;
    const std::lock_guard lock(book.mutex);
    book.limited.insert(*pool);
  }
  return result;
}

CUresult ol_unified_cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Session* const session = sessionOfGroup();
  if (session == nullptr) return ol_forward_generated_cuMemGetInfo_v2(free_bytes, total_bytes);
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // Freed memory is free, also where executors are still to hear of it.
  if (const CUresult result = releaseLater(*session); result != CUDA_SUCCESS) return result;
  {
    AllocationBook& book = *session->parts().book;
    const std::lock_guard lock(book.mutex);
    book.giveFreedInOrder();
  }
  session->group()->awaitReleased();
  if (free_bytes != nullptr) *free_bytes = session->group()->freeBytes() + keptBytes(*session);
  if (total_bytes != nullptr) *total_bytes = session->group()->totalBytes();
  return CUDA_SUCCESS;
}

CUresult ol_unified_cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  const Session* const session = sessionOfGroup();
  const CUresult result = ol_forward_generated_cuDeviceTotalMem_v2(bytes, device);
  if (session != nullptr && result == CUDA_SUCCESS) *bytes = session->group()->totalBytes();
  return result;
}

// As CUDA 2 to 3.1 had them: 32 bits for lengths.
CUresult ol_unified_cuMemGetInfo(unsigned* free_bytes, unsigned* total_bytes) {
  if (sessionOfGroup() == nullptr)
    return ol_forward_generated_cuMemGetInfo(free_bytes, total_bytes);
  if (free_bytes == nullptr || total_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t free_now = 0, total = 0;
  const CUresult result = ol_unified_cuMemGetInfo_v2(&free_now, &total);
  if (result != CUDA_SUCCESS) return result;
  *free_bytes = inWord(free_now);
  *total_bytes = inWord(total);
  return result;
}
CUresult ol_unified_cuDeviceTotalMem(unsigned* bytes, CUdevice device) {
  if (sessionOfGroup() == nullptr || bytes == nullptr)
    return ol_forward_generated_cuDeviceTotalMem(bytes, device);
  size_t total = 0;
  const CUresult result = ol_unified_cuDeviceTotalMem_v2(&total, device);
  if (result == CUDA_SUCCESS) *bytes = inWord(total);
  return result;
}

CUresult ol_unified_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const Session* const session = sessionOfGroup();
  const auto memory = plainAt(session, address);
  const auto variable = session != nullptr ? session->group()->code().variableAt(address) : nullptr;
  if (variable != nullptr) {
    if (base != nullptr) *base = variable->address;
    if (bytes != nullptr) *bytes = variable->bytes;
    return CUDA_SUCCESS;
  }
  if (!memory) return ol_forward_cuMemGetAddressRange_v2(base, bytes, address);
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (base != nullptr) *base = memory->base;
  if (bytes != nullptr) *bytes = memory->bytes;
  return CUDA_SUCCESS;
}

CUresult ol_unified_cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                          CUdeviceptr address) {
  const Session* const session = sessionOfGroup();
  const auto memory = plainAt(session, address);
  if (!memory) return ol_forward_cuPointerGetAttribute(data, attribute, address);
  if (data == nullptr || api::pointerAttributeBytes(attribute) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return answer(*session, *memory, address, attribute, data);
}

CUresult ol_unified_cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                           void** data, CUdeviceptr address) {
  const Session* const session = sessionOfGroup();
  const auto memory = plainAt(session, address);
  if (!memory || attributes == nullptr || data == nullptr)
    return ol_forward_cuPointerGetAttributes(count, attributes, data, address);
  for (unsigned i = 0; i < count; ++i) {
    if (api::pointerAttributeBytes(attributes[i]) == 0 || data[i] == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    (void)answer(*session, *memory, address, attributes[i], data[i]);  // zeros where it fails
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
