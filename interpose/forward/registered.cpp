#include "interpose/forward/registered.h"

#include <sys/mman.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/block_calls.h"
#include "interpose/forward/block_table.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/copy_steps.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/shared_mappings.h"
#include "interpose/forward/window.h"

namespace olpager::forward {
namespace {

// A program may free what it has registered, as long as no kernel uses it.
bool isMapped(uint64_t address, uint64_t bytes) {
  const uint64_t first = address / kHostPage * kHostPage;
  const uint64_t length = wholePages(address + bytes - first);
  std::vector<unsigned char> pages(length / kHostPage);
  return mincore(reinterpret_cast<void*>(first), length, pages.data()) == 0;
}

CUresult registerMemory(void* pointer, uint64_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || bytes > kWindowBytes) return CUDA_ERROR_INVALID_VALUE;
  if (!isMapped(reinterpret_cast<uint64_t>(pointer), bytes)) return CUDA_ERROR_INVALID_VALUE;
  // Managed memory of the unified view's: as with the driver's.
  if (isAtWorker(pointer) || isAtWorker(static_cast<std::byte*>(pointer) + bytes - 1))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  const auto after = all.blocks.lower_bound(address + bytes);
  if (after != all.blocks.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes > address)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Block block{bytes, flags, true};
  makeRegions(block, pointer, bytes, -1);
  all.blocks.insert_or_assign(address, std::move(block));
  return CUDA_SUCCESS;
}

// The workers' memory for what the program registered goes, after all that uses it.
CUresult dropMirror(uint64_t address) {
  BlockTable& all = blocks();
  std::lock_guard one(all.mirroring);
  uint64_t there = 0;
  std::vector<Session*> with;
  {
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end() || found->second.there == 0) return CUDA_SUCCESS;
    there = found->second.there;
    for (Session* const session : existingSessions()) {
      if (found->second.sides[session->side()].kind != BlockSide::Kind::kNone)
        with.push_back(session);
    }
  }
  InSessions calls;
  all.leaves(address);
  for (Session* const session : with) calls.add(freeCall(session, there));
  // One that was answered is done there, whatever else the call tells: what failed before it.
  size_t answered = 0;
  const CUresult result = calls.finish([&](const Call& call) {
    ++answered;
    std::lock_guard lock(all.mutex);
    for (const unsigned side : call.session()->sides())
      all.setKind(all.blocks.at(address), side, BlockSide::Kind::kNone);
  });
  all.stays(address);
  if (result != CUDA_SUCCESS && answered < with.size()) return result;
  {
    std::lock_guard lock(all.mutex);
    Block& block = all.blocks.at(address);
    for (const Session* const session : existingSessions()) {
      for (const unsigned side : session->sides()) all.setKind(block, side, BlockSide::Kind::kNone);
    }
    block.there = 0;
    all.mirrors.erase(there);
  }
  window().give(there);
  return result;
}

uint64_t blockBytes(uint64_t address) {
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(address);
  return found != all.blocks.end() ? found->second.bytes : 0;
}

}  // namespace

namespace {
CUresult mirror(uint64_t address, CUdeviceptr* out) {
  BlockTable& all = blocks();
  std::lock_guard one(all.mirroring);
  uint64_t base = 0, there = 0, bytes = 0;
  {
    std::lock_guard lock(all.mutex);
    const Block* const block = all.find(address, &base);
    if (block == nullptr || !block->registered) return CUDA_ERROR_INVALID_VALUE;
    *out = block->there + (address - base);
    if (block->there != 0) return CUDA_SUCCESS;
    bytes = block->bytes;
  }
  there = window().take(bytes);
  if (there == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  InSessions calls;
  for (Session* const session : sessions()) {
    if (severalSessions() && contextIn(session) == 0) continue;  // mapPinned() when there is one
    calls.add(allocCall(session, there, wholePages(bytes), nullptr, false, true));
  }
  std::vector<SideMade> made;
  if (const CUresult result = calls.finish([&](Call& call) { addSides(call, made); });
      result != CUDA_SUCCESS) {
    takeBack(made, there);
    window().give(there);
    return result;
  }
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(base);
  // A program that unregisters what it asks about in another thread has a block at the workers left
  // over.
  if (found == all.blocks.end() || !found->second.registered) return CUDA_ERROR_INVALID_VALUE;
  found->second.there = there;
  all.mirrors[there] = base;
  for (const SideMade& side : made) {
    all.setKind(found->second, side.side, side.kind);
    all.nameBesideShared(side.side);
  }
  *out = there + (address - base);
  return CUDA_SUCCESS;
}
}  // namespace

// `out` may lie in managed memory: it is written without a lock.
CUresult mirrored(uint64_t address, CUdeviceptr* out) {
  CUdeviceptr there = 0;
  const CUresult result = mirror(address, &there);
  if (result == CUDA_SUCCESS) *out = there;
  return result;
}

CUresult pinnedThere(uint64_t address, uint64_t bytes, uint64_t* there) {
  *there = 0;
  address = hereOf(address);
  BlockInfo block;
  if (!blockAt(address, &block) || bytes > block.bytes - (address - block.base))
    return CUDA_SUCCESS;
  if (block.registered) {
    CUdeviceptr mirror = 0;
    const CUresult result = mirrored(address, &mirror);
    *there = mirror;
    return result;
  }
  *there = address;
  return CUDA_SUCCESS;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return registerMemory(pointer, bytes, flags);
}
CUresult ol_forward_cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return registerMemory(pointer, bytes, flags);
}
CUresult ol_forward_cuMemHostUnregister(void* pointer) {
  BlockTable& all = blocks();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const auto find = [&] {
    const auto found = all.blocks.find(address);
    return found != all.blocks.end() && found->second.registered ? found : all.blocks.end();
  };
  {
    std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (find() == all.blocks.end())
      return all.find(address, &base) != nullptr ? CUDA_ERROR_INVALID_VALUE
                                                 : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  // Asynchronous copies may still move it: those that bring bytes, and those that the worker has
  // not come to.
  for (Session* const session : existingSessions()) {
    (void)awaitMemory(address, blockBytes(address), *session);
    session->arrivals().awaitBytes(address, blockBytes(address));  // also behind a fault
  }
  const CUresult told = dropMirror(address);
  InSessions calls;
  for (Session* const session : existingSessions()) {
    auto call = std::make_unique<Call>(Operation::kHostBytes, session);
    call->ofOurOwn();
    calls.add(std::move(call));
  }
  (void)calls.finish([](const Call&) {});
  std::unique_lock lock(all.mutex);
  const auto found = find();
  if (found == all.blocks.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (found->second.there != 0) return told;  // it is still at a worker
  const auto block = all.blocks.extract(found);
  lock.unlock();  // its regions end without the lock
  return told;
}

CUresult ol_forward_cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer,
                                                 unsigned flags) {
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  BlockInfo block;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  if (!blockAt(address, &block) || block.managed) return CUDA_ERROR_INVALID_VALUE;
  if (block.registered && isMappedShared(block.base, block.bytes)) {
    // Writes of another process for which a kernel waits would never come: the kernel would wait
    // for ever.
    olpager::base::warnOnce("shared memory of processes",
                            "cuMemHostGetDevicePointer: forwarded, kernels can't use registered "
                            "memory that other processes "
                            "share: CUDA_ERROR_NOT_SUPPORTED; copies can (NCCL: NCCL_P2P_LEVEL=SYS "
                            "lets GPUs of one gpunode reach "
                            "each other, NCCL_SHM_DISABLE=1 does without such memory)");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (block.registered) return mirrored(address, device);
  *device = address;
  return CUDA_SUCCESS;
}

}  // extern "C"
