// Making and ending blocks: each is made here and at every session's worker where there is a
// context for it, and goes at all of them first.
#include "interpose/forward/host_blocks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/block_calls.h"
#include "interpose/forward/block_table.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/stand_ins.h"
#include "interpose/forward/window.h"

namespace olpager::forward {
namespace {

// Memory at `wanted`; with a descriptor where the worker can map it, so that bulk bytes are copied
// once.
void* mapAt(void* wanted, uint64_t bytes, bool shared, base::UniqueFd* fd) {
  if (shared) {
    *fd = base::UniqueFd(memfd_create("olpager-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*fd &&
        (!base::resizeFile(fd->get(), bytes) || fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0))
      fd->reset();
  }
  const int kind = *fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  return mmap(wanted, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED_NOREPLACE,
              *fd ? fd->get() : -1, 0);
}

// A pinned block.
CUresult allocate(void** out, uint64_t bytes, unsigned flags) {
  constexpr unsigned kFlags =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (out == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0 && currentContext() != 0) {
    *out = nullptr;
    return CUDA_SUCCESS;
  }
  CUdeviceptr address = 0;
  const CUresult result = allocateBlock(bytes, flags, false, &address);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return result;
}

}  // namespace

CUresult allocateBlock(uint64_t bytes, unsigned flags, bool managed, CUdeviceptr* out) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kWindowBytes / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto with = sessions();
  if (with.empty()) return CUDA_ERROR_NOT_INITIALIZED;
  if (with.size() > 1 && currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const uint64_t mapped = wholePages(bytes);
  const uint64_t address = window().take(mapped);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* const wanted = reinterpret_cast<void*>(address);
  const bool shared =
      std::any_of(with.begin(), with.end(), [](const Session* one) { return one->sharesMemory(); });
  base::UniqueFd fd;
  void* const got = mapAt(wanted, mapped, shared, &fd);
  if (got == MAP_FAILED) {
    window().give(address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Block block{bytes, flags, false, managed, false, address};
  makeRegions(block, got, mapped, fd ? fd.get() : -1);
  InSessions calls;
  for (Session* const session : with) {
    // Without a context yet: mapPinned() when there is one.
    if (with.size() > 1 && contextIn(session) == 0) continue;
    calls.add(allocCall(session, address, mapped, block.sides[session->slot()].region,
                        static_cast<bool>(fd), false));
  }
  std::vector<SideMade> made;
  const CUresult result = calls.finish([&](Call& call) { addSides(call, made); });
  if (result != CUDA_SUCCESS) {
    takeBack(made, address);
    block = Block{0, 0, false};  // its regions end before the memory does
    munmap(got, mapped);
    window().give(address);
    return result;
  }
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  Block& placed = all.blocks.insert_or_assign(address, std::move(block)).first->second;
  for (const SideMade& one : made) all.setKind(placed, one.side, one.kind);
  for (const SideMade& one : made) {
    all.nameBesideShared(one.side);
    if (managed) (void)all.name(one.side, address);  // it is there for kernels
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult releaseBlock(uint64_t address, bool managed) {
  uint64_t mapped = 0;
  std::vector<Session*> with;
  {
    BlockTable& all = blocks();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (found == all.blocks.end() || found->second.registered || found->second.variable ||
        found->second.managed != managed)
      return CUDA_ERROR_INVALID_VALUE;
    mapped = wholePages(found->second.bytes);
    for (Session* const session : existingSessions()) {
      if (found->second.sides[session->side()].kind != BlockSide::Kind::kNone)
        with.push_back(session);
    }
  }
  for (Session* const session : existingSessions()) session->arrivals().awaitBytes(address, mapped);
  // Kept calls may use it, and take it along to another executor.
  for (const Session* const session : with)
    if (session->group() != nullptr) session->group()->awaitKept();
  BlockTable& all = blocks();
  InSessions calls;
  all.leaves(address);
  for (Session* const session : with) calls.add(freeCall(session, address));
  const CUresult result = calls.finish([&](const Call& call) {
    std::lock_guard lock(all.mutex);
    if (const auto found = all.blocks.find(address); found != all.blocks.end()) {
      for (const unsigned side : call.session()->sides())
        all.setKind(found->second, side, BlockSide::Kind::kNone);
    }
  });
  if (result != CUDA_SUCCESS) {
    all.stays(address);
    return result;
  }
  {
    std::unique_lock lock(all.mutex);
    auto block = all.blocks.extract(address);
    if (block.empty()) return CUDA_ERROR_INVALID_VALUE;        // another thread was here first
    for (const Session* const session : existingSessions()) {  // those that are lost
      for (const unsigned side : session->sides())
        all.setKind(block.mapped(), side, BlockSide::Kind::kNone);
    }
    lock.unlock();  // its regions end before the memory does, without the lock
  }
  munmap(reinterpret_cast<void*>(address), mapped);
  window().give(address);
  return result;
}

void addVariable(Session* session, uint64_t address, uint64_t bytes) {
  Block block{bytes, 0, false, true, true, address};
  makeRegions(block, reinterpret_cast<void*>(address), bytes, -1);
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  all.variables_from.store(std::min(all.variables_from.load(), address));
  all.variables_to.store(std::max(all.variables_to.load(), address + bytes));
  Block& placed = all.blocks.insert_or_assign(address, std::move(block)).first->second;
  all.setKind(placed, session->side(), BlockSide::Kind::kExchanged);
  (void)all.name(session->side(), address);  // it is there for kernels
}

void putVariable(const Session* session, Reader& runs) {
  for (Run run; runs.left() > 0 && readRun(runs, &run);) takePinned(*session, session->side(), run);
}

void removeVariable(uint64_t address, Call& gone) {
  BlockTable& all = blocks();
  all.leaves(address);
  if (gone.begin(true) == CUDA_SUCCESS) (void)gone.finish();
  std::unique_lock lock(all.mutex);
  const auto found = all.blocks.find(address);
  if (found == all.blocks.end() || !found->second.variable) return;
  for (const Session* const session : existingSessions())
    all.setKind(found->second, session->side(), BlockSide::Kind::kNone);
  const auto block = all.blocks.extract(found);
  lock.unlock();  // its regions end without the lock
}

void mapPinned(Session* session, uint64_t context) {
  if (!severalSessions()) return;
  BlockTable& all = blocks();
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<uint64_t> missing;
  {
    std::lock_guard lock(all.mutex);
    for (auto& [address, block] : all.blocks) {
      const BlockSide& side = block.sides[session->side()];
      if (block.there == 0 || side.kind != BlockSide::Kind::kNone) continue;
      missing.push_back(address);
      calls.push_back(allocCall(session, block.there, wholePages(block.bytes), side.region,
                                !block.registered, block.registered));
    }
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const uint64_t address = missing[i];
    calls[i]->inContext(context);
    calls[i]->ofOurOwn();
    const CUresult result = calls[i]->sync();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(address);
    if (calls[i]->answered() && found != all.blocks.end()) {
      all.setKind(found->second, session->side(), kindIn(*calls[i]));
      all.nameBesideShared(session->side());
      if (found->second.managed) (void)all.name(session->side(), found->second.there);
    }
    if (!calls[i]->answered())
      base::logWarn(
          "gpunode %s can't map pinned memory at %p (CUDA error %d): kernels there can't use it",
          session->executor().name().c_str(), reinterpret_cast<void*>(address),
          static_cast<int>(result));
  }
}

CUresult mapThere(Session* session, uint64_t bytes, uint64_t* there) {
  // The memory exchanged with it is known of one worker alone.
  if (session->group() != nullptr)
    session->group()->bind("a graph that copies memory that is not pinned");
  *there = window().take(bytes);
  if (*there == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto call = allocCall(session, *there, wholePages(bytes), nullptr, false, true);
  const CUresult result = call->sync();
  if (result == CUDA_SUCCESS) return result;
  if (call->answered()) takeBack(session, *there);
  window().give(*there);
  return result;
}

void unmapThere(Session* session, uint64_t there) {
  takeBack(session, there);
  window().give(there);
}

// --- questions -----------------------------------------------------------------------------------

bool mayBeBlock(uint64_t address) {
  if (inWindow(address)) return true;
  const BlockTable& all = blocks();
  return address >= all.variables_from.load(std::memory_order_relaxed) &&
         address < all.variables_to.load(std::memory_order_relaxed);
}

bool isPinned(const void* pointer, uint64_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(address, &base);
  return block != nullptr && bytes <= block->bytes - (address - base);
}

bool isShared(const Session& session, const void* pointer, uint64_t bytes) {
  BlockTable& all = blocks();
  if (all.counts[session.side()].shared.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(address, &base);
  return block != nullptr && block->isShared(session.side()) &&
         bytes <= block->bytes - (address - base);
}

bool isExchanged(const Session& session, uint64_t address) {
  BlockTable& all = blocks();
  if (!mayBeBlock(address) ||
      all.counts[session.side()].exchanged.load(std::memory_order_relaxed) == 0)
    return false;
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.findThere(address, &base);
  return block != nullptr && block->sides[session.side()].kind == BlockSide::Kind::kExchanged;
}

bool isExchanged(uint64_t address) {
  const auto all = existingSessions();
  return std::any_of(all.begin(), all.end(),
                     [&](const Session* one) { return isExchanged(*one, address); });
}

uint64_t hereOf(uint64_t address) {
  if (!inWindow(address)) return address;
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  if (const Block* const block = all.findThere(address, &base); block != nullptr)
    return address - block->there + base;
  return hereOfStandIn(address);
}

bool isNamedThere(uint64_t address, uint64_t bytes, uint64_t* here) {
  BlockTable& all = blocks();
  {
    const std::lock_guard lock(all.mutex);
    uint64_t base = 0;
    if (const Block* const block = all.findThere(address, &base); block != nullptr) {
      *here = address - block->there + base;
      return bytes <= block->bytes - (address - block->there);
    }
  }
  return isOfStandIn(address, bytes, here);
}

bool blockAt(uint64_t address, BlockInfo* found) {
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(address, &base);
  if (block == nullptr) block = all.findThere(address, &base);
  if (block == nullptr) return false;
  *found = {base, block->bytes, block->managed, block->registered, block->there};
  return true;
}

bool pinnedRegion(const Session& session, const void* pointer, uint64_t bytes,
                  transport::RemoteKey* key, uint64_t* offset) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(address, &base);
  if (block == nullptr || bytes > block->bytes - (address - base)) return false;
  const auto& region = block->sides[session.slot()].region;
  if (region == nullptr) return false;
  *key = region->key();
  *offset = address - base;
  return true;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocate(out, bytes, flags);
}
CUresult ol_forward_cuMemAllocHost_v2(void** out, size_t bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemAllocHost(void** out, unsigned bytes) { return allocate(out, bytes, 0); }
CUresult ol_forward_cuMemFreeHost(void* pointer) {
  if (pointer == nullptr && currentContext() != 0) return CUDA_SUCCESS;
  return releaseBlock(reinterpret_cast<uint64_t>(pointer), false);
}

CUresult ol_forward_cuMemHostGetFlags(unsigned* flags, void* pointer) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  BlockTable& all = blocks();
  std::lock_guard lock(all.mutex);
  uint64_t base = 0;
  const Block* block = all.find(reinterpret_cast<uint64_t>(pointer), &base);
  if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = block->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

}  // extern "C"
